"""Instructions whose results decide nothing in a launch whose engines move and multiply nothing.

Such a launch is timed, and its data mean nothing. What counts is which instructions a warp executes, with which
addresses and barriers. So an instruction is needed if it does more than to compute its results, or if a needed one
reads them. What a needed instruction stores, multiplies or exchanges is needed only if a needed one may read it again.
Matrices that stmatrix stores are operands or results of MMAs: no load but ldmatrix returns what decides. Atomic
operations on integers return no float.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from warpwright.vgpu.jit.warpgroup import accumulator, left_registers
from warpwright.vgpu.program.program import Inst, Program, Register, mentions, registers_of, results

__all__ = ["unneeded"]


def unneeded(program: Program) -> frozenset[int]:
    """Returns the numbers of the instructions that need not be executed."""
    left = {inst.index: inst for inst in program.insts if _computes(inst)}
    others = [inst for inst in program.insts if inst.index not in left]
    needed = {name for inst in others for name in _decisive(inst)}
    stores = [inst for inst in others if _data(inst)]
    before = -1
    while len(needed) > before:
        before = len(needed)
        for inst in [inst for inst in left.values() if _writes(inst, needed)]:
            needed.update(mentions(left.pop(inst.index))[0])
        sources = [inst for inst in others if _writes(inst, needed)]
        own, kinds = {inst.index for inst in sources}, {_kind(inst) for inst in sources}
        found = {inst.index for inst in stores if inst.index in own or any(_may_return(kind, inst) for kind in kinds)}
        needed.update(name for inst in stores if inst.index in found for name in _names(_data(inst)))
        stores = [inst for inst in stores if inst.index not in found]
    return frozenset(left)


def _computes(inst: Inst) -> bool:
    """Whether an instruction does no more than to compute its results. Lanes also wait for one another where they
    exchange values."""
    traits = inst.traits
    other = traits.queue or traits.jumps or traits.effect or (traits.access and inst["space"] != "param")
    return inst.match is not None and not other and bool(results(inst))


def _writes(inst: Inst, names: set[str]) -> bool:
    return any(register.name in names for register in results(inst))


def _decisive(inst: Inst) -> Iterable[str]:
    """The registers that an instruction reads otherwise than as data."""
    return Counter(mentions(inst)[0]) - Counter(_names(_data(inst)))


def _data(inst: Inst) -> list[Register]:
    """The registers whose values an instruction stores, multiplies, adds to or exchanges."""
    if inst.match is None:
        return []
    if inst.traits.queue == "wgmma" and results(inst):
        return accumulator(inst) + left_registers(inst)
    exchanges, stores = inst.traits.queue == "warp", inst.traits.access == "write" or inst.traits.queue == "tmem"
    operand = inst.find("a" if exchanges else "b") if exchanges or stores else None
    return registers_of(operand) if operand is not None else []


def _names(registers: Iterable[Register]) -> list[str]:
    return [register.name for register in registers]


class _Kind(NamedTuple):
    """What decides which data an instruction returns or stores; the last three are empty without an own access."""

    name: str
    queue: str
    access: str = ""
    space: str = ""
    type: str = ""


def _kind(inst: Inst) -> _Kind:
    queue, access = inst.traits.queue, inst.traits.access
    if not access:
        return _Kind(inst.name, queue)
    return _Kind(inst.name, queue, access, inst["space"].partition("::")[0], inst["type"])


def _may_return(source: _Kind, inst: Inst) -> bool:
    """Whether an instruction of the kind ``source`` may return the data that another one stores."""
    own = _kind(inst)
    if own.queue == "tmem" or own.name == "stmatrix":
        return source.queue == "tmem" if own.queue else source.name == "ldmatrix"
    if not source.access or not own.access:
        return False
    counts = source.access == "update" and source.type.startswith(("u", "s", "b"))
    return len({source.space, own.space} - {""}) < 2 and not (counts and own.type.startswith("f"))
