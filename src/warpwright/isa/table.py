"""All forms by name."""

from __future__ import annotations

from warpwright.isa import arith, async_, control, convert, memory, mma, sync, tensor
from warpwright.isa.notation import Form

__all__ = ["FAMILIES", "FORMS"]

FAMILIES = (arith, convert, memory, control, sync, async_, tensor, mma)

FORMS: dict[str, Form] = {form.name: form for family in FAMILIES for form in family.FORMS}
