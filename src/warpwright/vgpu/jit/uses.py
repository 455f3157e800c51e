"""Registers that checks watch: those of wgmma, and those that may be read before they are written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpwright.vgpu.jit.early_uses import early_uses
from warpwright.vgpu.jit.unwritten import Flow, derived_from, flow_of, maybe_unwritten
from warpwright.vgpu.jit.warpgroup import accumulator, left_registers
from warpwright.vgpu.program.program import Program, mentions, results

__all__ = ["Use", "uses_of"]


@dataclass(frozen=True, slots=True)
class Use:
    """The watched registers, by name, that an instruction reads and writes; ``d`` and ``a`` of a wgmma; ``flow`` if
    some of them may be unwritten; ``loads``: each tcgen05.ld that need not be over when the instruction uses a register
    of it."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    d: frozenset[str] = frozenset()
    a: frozenset[str] = frozenset()
    flow: Flow | None = None
    loads: tuple[int, ...] = ()


def uses_of(program: Program, doubted: frozenset[int] = frozenset()) -> dict[int, Use]:
    """The uses of all instructions with watched registers. ``doubted``: loads whose results may be unwritten memory."""
    found: dict[int, Use] = {}
    insts, derived = program.insts, derived_from(program, doubted)
    doubtful = maybe_unwritten(program) | derived
    for inst in insts:
        if inst.traits.queue == "wgmma" and results(inst):
            names = frozenset(r.name for r in accumulator(inst)), frozenset(r.name for r in left_registers(inst))
            found[inst.index] = Use(d=names[0], a=names[1])
    tracked = doubtful.union(*(use.d | use.a for use in found.values()))
    for inst in insts:
        read, written = (tracked.intersection(part) for part in mentions(inst))
        if inst.index not in found and (read or written):
            flow = flow_of(inst, derived).restrict(doubtful) if doubtful & (read | written) else None
            found[inst.index] = Use(read, written, flow=flow)
    for load, use in early_uses(program):
        known = found.get(use, Use())
        found[use] = replace(known, loads=(*known.loads, load))
    return found
