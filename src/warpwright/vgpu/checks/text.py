"""Mistakes that the text of a kernel shows without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from warpwright.vgpu.checks.rules import EVIDENCE
from warpwright.vgpu.jit.early_uses import early_uses
from warpwright.vgpu.program.program import Program

__all__ = ["MISTAKES", "mistakes"]

Steps = tuple[tuple[str, int], ...]  # what an instruction does, in words, and its number
Mistake = tuple[Steps, str, str]  # with the message, and evidence that makes it a note


def _early_uses_of_loads(program: Program) -> Iterator[Mistake]:
    """Registers that a tcgen05.ld fills and that are used before a wait (9.7.16.8.3)."""
    for load, use in early_uses(program):
        yield (("loads", load), ("uses", use)), "no tcgen05.wait::ld is between them", EVIDENCE["load"]


def _groups(program: Program) -> Iterator[Mistake]:
    """Instructions of tcgen05 that name another .cta_group than the first (9.7.16.7.1)."""
    grouped = [
        inst for inst in program.insts if inst.traits.queue in ("tensor", "service") and "group" in inst.form.slots
    ]
    for inst in grouped:
        if inst["group"] != grouped[0]["group"]:
            text = f".{inst['group']} in a kernel of .{grouped[0]['group']}"
            yield (("names a group", grouped[0].index), ("names another", inst.index)), text, ""


def _registers(program: Program) -> Iterator[Mistake]:
    """setmaxnreg where nothing fixes the registers that threads start with (9.7.19.5)."""
    first = next((inst for inst in program.insts if inst.name == "setmaxnreg"), None)
    if first and not program.thread_registers:
        text = "without .maxnreg, or .maxntid (or .reqntid) with .minnctapersm, the assembler leaves it out"
        yield (("changes registers", first.index),), text, EVIDENCE["left out"]


MISTAKES: dict[str, Callable[[Program], Iterator[Mistake]]] = {
    "tmem-registers": _early_uses_of_loads,
    "cta-group": _groups,
    "setmaxnreg": _registers,
}


@lru_cache(maxsize=16)
def mistakes(rule: str, program: Program) -> tuple[Mistake, ...]:
    """Returns the mistakes in a program that break a rule."""
    return tuple(MISTAKES[rule](program))
