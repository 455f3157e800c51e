"""The PTX instructions that this package supports: one form each, written once (see ``notation``).

``match`` reads an opcode, ``lookup`` finds a form by name, ``supports`` checks a target, ``describe`` prints issuer,
completion, targets and section.
"""

from __future__ import annotations

from functools import cache

from warpwright.errors import UsageError
from warpwright.isa.notation import UNKNOWN, Form, Match, Modifier, Operand, Places, Spelling
from warpwright.isa.notation import supports as _supports
from warpwright.isa.table import FORMS
from warpwright.isa.traits import QUEUES, Traits

__all__ = [
    "FORMS", "QUEUES", "UNKNOWN", "Form", "Match", "Modifier", "Operand", "Places", "Spelling", "Traits", "absence",
    "describe", "lookup", "match", "supports",
]  # fmt: skip

# Instructions of PTX that the table lacks on purpose, by their first word, with the reason and what to write.
_ABSENT = {
    "multimem": "multimem uses multicast memory of NVSwitch, which kernels for any NVLink node cannot have; use the "
    "memory of each rank: ld, st, red or TMA with Peers and tma.PeerMaps",
}


def absence(opcode: str) -> str:
    """Returns why the table lacks an instruction on purpose; "" for any other opcode."""
    return _ABSENT.get(opcode.partition(".")[0], "")


@cache
def match(opcode: str, arity: int | None = None) -> Match | None:
    """Read an opcode with all its modifiers (``"ld.global.v4.f32"``); None when no spelling fits.

    ``arity``, the number of operands, tells spellings apart that share an opcode (``max.f32`` with 2 or 3 inputs).
    """
    words = tuple(opcode.split("."))
    for length in range(len(words), 0, -1):
        form = FORMS.get(".".join(words[:length]))
        found = form.match(words[length:], arity) if form else None
        if found:
            return found
    return None


def lookup(name: str) -> Form:
    """The form called ``name``, the leading words of its opcode. Raises UsageError for an unknown name."""
    form = FORMS.get(name)
    if form is None:
        raise UsageError(f"given instruction {name!r}; expected the name of a form in warpwright.isa")
    return form


def supports(what: Form | Match, arch: str) -> bool:
    """Whether target ``arch`` (``"sm_100a"``) has a matched spelling, or any spelling of a form."""
    return _supports(what.spelling.targets if isinstance(what, Match) else what.targets, arch)


def describe(name: str) -> str:
    """The meaning, issuer, completion, targets and section of a form, one line each."""
    form = lookup(name)
    lines = (
        form.doc,
        f"Issued by {form.issued_by}.",
        f"Completes by {form.completes_by}.",
        f"Targets: {', '.join(form.targets)}.",
        f"PTX ISA 9.1 section {form.section}.",
    )
    return "\n".join(lines)
