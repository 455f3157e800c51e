"""System calls that the machine performs for a kernel, as instruction forms with named operands."""

from __future__ import annotations

from functools import cache

from warpwright import isa
from warpwright.isa.notation import forms

__all__ = ["SERVICES", "match"]

_FORMS = forms(
    "each active lane",
    "return",
    """
call.vprintf  CUDA  Print text; arguments are consecutive, each aligned to its size. [service blocks]
    call.vprintf        d, format, arguments
call.__assertfail  CUDA  Report an assertion that does not hold, and stop. [service blocks]
    call.__assertfail   message, file, line, function, size
call.malloc  CUDA  Allocate memory in the heap. [service blocks]
    call.malloc         d, size
call.free  CUDA  Free memory of the heap. [service blocks]
    call.free           address
""",
)
SERVICES = {form.name: form for form in _FORMS}


@cache
def match(opcode: str, arity: int) -> isa.Match | None:
    """The form that fits an opcode with ``arity`` operands, else a form that fits it with another number."""
    if opcode in SERVICES:
        return SERVICES[opcode].match(())
    return isa.match(opcode, arity) or isa.match(opcode)
