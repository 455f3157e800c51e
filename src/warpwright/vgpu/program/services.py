"""System calls that the machine performs for a kernel, as forms: what they take, by name."""

from __future__ import annotations

from functools import cache

from warpwright import isa
from warpwright.isa.notation import forms

__all__ = ["SERVICES", "match"]

_FORMS = forms(
    "each active lane",
    "return",
    """
call.vprintf  CUDA  Print text; the arguments lie behind one another, each at a multiple of its size. [service blocks]
    call.vprintf        d, format, arguments
call.__assertfail  CUDA  Report an assertion that does not hold, and stop. [service blocks]
    call.__assertfail   message, file, line, function, size
""",
)
SERVICES = {form.name: form for form in _FORMS}


@cache
def match(opcode: str, arity: int) -> isa.Match | None:
    """The form that an opcode with so many operands fits, else one that it fits with another number of them."""
    if opcode in SERVICES:
        return SERVICES[opcode].match(())
    return isa.match(opcode, arity) or isa.match(opcode)
