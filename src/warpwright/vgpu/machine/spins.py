"""Whether a loop runs forever: whether anything that decides how threads branch has changed.

Branches depend on the registers that branches, addresses and synchronisation read, and on the memory that loops write.
A register that only counts iterations, for a store after the loop, decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.program.program import Inst, Program, Register, mentions, registers_of, results, successors

__all__ = ["Loops", "columns", "deciding", "reached"]

Node = TypeVar("Node", int, str)
_WRITES = ("write", "update")


@lru_cache(maxsize=8)
def deciding(program: Program) -> frozenset[str]:
    """Returns the names of the registers, special ones too, that decide how some thread branches."""
    definitions: dict[str, list[Inst]] = {}
    for inst in program.insts:
        for name in mentions(inst)[1]:
            definitions.setdefault(name, []).append(inst)
    todo = [name for inst in program.insts for name in _used(inst)]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [used for inst in definitions.get(name, ()) for used in mentions(inst)[0]]
    return frozenset(found)


class Loops:
    """The loops of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        count = len(program.blocks)
        self.after = {block.index: set(successors(block, count)) for block in program.blocks}
        self.before: dict[int, set[int]] = {}
        for block, targets in self.after.items():
            for target in targets:
                self.before.setdefault(target, set()).add(block)
        self.known: dict[int, bool] = {}

    def writes(self, block: int) -> bool:
        """Whether the loop around a block writes memory."""
        if block not in self.known:
            loop = reached(self.after, block) & reached(self.before, block)
            insts = (inst for each in loop for inst in self.program.blocks[each].insts)
            self.known[block] = any(inst.form.queued or inst.traits.access in _WRITES for inst in insts)
        return self.known[block]


def reached(ways: Mapping[Node, set[Node]], start: Node) -> set[Node]:
    """Returns the nodes of a graph that paths lead to from a node, which is one of them."""
    found, todo = {start}, [start]
    while todo:
        fresh = ways.get(todo.pop(), set[Node]()) - found
        found |= fresh
        todo += fresh
    return found


def _used(inst: Inst) -> Iterable[str]:
    """Returns the registers that decide what an instruction does to other threads: guard and address of a store, all
    operands of others. The value of a store decides nothing."""
    traits = inst.traits
    if traits.access in _WRITES:
        guard = [] if inst.guard is None else [inst.guard]
        return [register.name for register in guard + registers_of(inst.operand("a"))]
    exchanges = traits.queue == "warp" and results(inst)  # their effect is their result
    acts = traits.jumps or (traits.queue and not exchanges and not inst.form.hint)
    return mentions(inst)[0] if acts else []


def columns(slots: dict[str, int], registers: dict[str, Register], names: Set[str]) -> NDArray[np.intp]:
    """Returns the bytes of a warp's state that contain some registers: four a bit, a word for a predicate."""
    slices = sorted((slots[name], 4 * registers[name].bits) for name in names & slots.keys() & registers.keys())
    return np.array([byte for start, nbytes in slices for byte in range(start, start + nbytes)], np.intp)
