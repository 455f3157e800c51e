"""Which registers an instruction reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.ptx import nodes
from warpwright.vgpu.jit.warpgroup import accumulator, left_registers
from warpwright.vgpu.program import Inst, Operand, Register

__all__ = ["Use", "mentions", "registers_of", "uses_of"]


def registers_of(operand: Operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, nodes.Vector):
        return [r for item in operand.items for r in registers_of(item)]
    if isinstance(operand, nodes.Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    if isinstance(operand, nodes.Address):
        return registers_of(operand.base) + [r for item in operand.extra for r in registers_of(item)]
    return []


def _writes(inst: Inst) -> bool:
    """Whether the first operand is a result."""
    return inst.match is not None and inst.match.spelling.operands[:1] in ("d", "p")


def mentions(inst: Inst) -> tuple[list[str], list[str]]:
    """Names of the registers that an instruction reads, and of those that it writes."""
    first = 1 if _writes(inst) else 0
    used = [r.name for operand in inst.operands[first:] for r in registers_of(operand)]
    made = [r.name for r in registers_of(inst.operands[0])] if first else []
    return used + ([inst.guard.name] if inst.guard else []), made


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
