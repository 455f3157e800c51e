"""Registers that belong to some wgmma, and which instructions use them."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.vgpu.jit.warpgroup import accumulator, left_registers
from warpwright.vgpu.program import Inst, mentions

__all__ = ["Use", "uses_of"]


@dataclass(frozen=True, slots=True)
class Use:
    """Registers, by name, that an instruction reads and writes, of those that belong to some wgmma; of a wgmma ``d``
    and ``a``."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    d: frozenset[str] = frozenset()
    a: frozenset[str] = frozenset()


def uses_of(insts: list[Inst]) -> dict[int, Use]:
    """The uses of all instructions that have any."""
    found: dict[int, Use] = {}
    for inst in insts:
        if inst.name == "wgmma.mma_async":
            names = frozenset(r.name for r in accumulator(inst)), frozenset(r.name for r in left_registers(inst))
            found[inst.index] = Use(d=names[0], a=names[1])
    tracked = frozenset[str]().union(*(use.d | use.a for use in found.values()))
    for inst in insts:
        read, written = (tracked.intersection(part) for part in mentions(inst))
        if inst.index not in found and (read or written):
            found[inst.index] = Use(read, written)
    return found
