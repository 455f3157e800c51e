"""The coverage of a launch, from the marks that its lane code has set."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.coverage import Coverage, OneWay
from warpwright.vgpu.checks.decisions import EMPTY, Decisions
from warpwright.vgpu.checks.knowledge import MEANINGS
from warpwright.vgpu.jit.control import ENDINGS
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.program.names import Names
from warpwright.vgpu.program.program import Block, Inst, targets

__all__ = ["Reach"]

_FAILS = frozenset({"call.__assertfail", "trap"})  # end the launch with an error


class _Direction(NamedTuple):
    """A direction of a branch or a guard: its condition, and the block that it leads to; None for a guard."""

    condition: bool
    block: int | None


class Reach:
    """What a launch reached. ``marks`` (`Lanes`): a word for each block that was entered, and two for each instruction:
    its guard was true, was false, in some lane.
    """

    def __init__(self, launch: Launch, names: Names) -> None:
        self.launch, self.names, self.program = launch, names, launch.kernel.program
        nbytes = max((param.offset + param.nbytes for param in self.program.params), default=0)
        self.params = bytes(launch.memory.view(launch.params[0][0])[:nbytes])
        self.marks = launch.marks
        self.failing = self._failing_blocks()

    def _failing_blocks(self) -> set[int]:
        """Returns the numbers of the blocks that report a failed assertion or trap, and of those that lead only
        there."""
        failing: set[int] = set()
        for block in reversed(self.program.blocks):
            last = [inst.name for inst in block.insts[-1:]]  # none between two labels
            leads_on = block.index + 1 in failing and not ENDINGS.keys() & last
            if leads_on or any(inst.name in _FAILS and inst.guard is None for inst in block.insts):
                failing.add(block.index)
        return failing

    @property
    def _ways(self) -> NDArray[np.int64]:
        return self.marks[len(self.program.blocks) : -1].reshape(-1, 2)

    def coverage(self) -> Coverage:
        """Returns the coverage. An instruction without a line is not the kernel's own: every kernel gets such an
        end. Nor are the reports of failed assertions, and traps: no correct launch reaches them."""
        blocks = [block for block in self.program.blocks if block.index not in self.failing]
        own = [(block, inst) for block in blocks for inst in block.insts if inst.line]
        guarded = [inst.index for _, inst in own if inst.guard is not None and inst.name not in ENDINGS]
        skipped = {index for index in guarded if not self._ways[index, 0]}
        lost = [inst for block, inst in own if not self.marks[block.index] or inst.index in skipped]
        missed = dict.fromkeys(self.names.places[inst.index] for inst in lost if inst.name in MEANINGS)
        gone, one_way = self._directions(own)
        return Coverage(len(own) - len(lost), len(own), tuple(missed), gone, tuple(one_way), tuple(self._idle()))

    def _directions(self, own: list[tuple[Block, Inst]]) -> tuple[tuple[int, int], list[OneWay]]:
        """Returns the directions taken, how many there are, and the branches and guards with one direction taken:
        first those in front of unreached code, last those that skip a loop for a size of 0."""
        decisions = Decisions(self.launch, self.params)
        gone, ways, found = 0, 0, list[tuple[tuple[bool, bool], OneWay]]()
        for copies in self._copies(own):
            taken = np.any([self._ways[inst.index] for _, inst in copies], axis=0)
            block, inst = copies[0]
            directions = self._after(block, inst)
            one = taken.any() and not taken.all()
            if one and not self._is_open(block, inst, directions[int(taken[0])], decisions):
                continue
            missing = [way for way in directions if not taken[int(not way.condition)]]
            ways, gone = ways + len(directions), gone + len(directions) - len(missing)
            for way in missing if len(missing) == 1 else ():
                one_way = self._one_way(inst, way, decisions)
                found.append(((not self._is_new(way), one_way.other.endswith(EMPTY)), one_way))
        return (gone, ways), [one_way for _, one_way in sorted(found, key=itemgetter(0))]

    def _copies(self, own: list[tuple[Block, Inst]]) -> Iterable[list[tuple[Block, Inst]]]:
        """Returns the branches, and the guards of accesses and synchronisation; those of an unrolled line together."""
        found: dict[Hashable, list[tuple[Block, Inst]]] = {}
        for block, inst in own:
            if inst.guard is not None and (inst.name in ENDINGS or inst.name in MEANINGS):
                names, at = self.names, inst.index
                key = names.places[at], names.calls[at], names.roles[at], inst.opcode, inst.guard.negated
                found.setdefault(key, []).append((block, inst))
        return found.values()

    def _is_open(self, block: Block, inst: Inst, missing: _Direction, decisions: Decisions) -> bool:
        """Whether arguments, data or the grid can choose the direction that was not taken: not one that reports a
        failed assertion or traps, nor the repetition of a poll, which depends on the schedule."""
        assert inst.guard is not None
        if missing.condition and inst.name in _FAILS:
            return False
        decision = decisions.of(inst.guard)
        if missing.block is not None:
            repeats = decision.polls and self._leads_to(missing.block) <= block.index
            return decisions.is_open(decision) and not repeats and missing.block not in self.failing
        return decisions.is_open(decision)

    def _after(self, block: Block, inst: Inst) -> list[_Direction]:
        """Returns the directions of a branch or a guard: with the guard true, and with the guard false."""
        if inst.name not in ENDINGS:
            return [_Direction(True, None), _Direction(False, None)]
        blocks = targets(inst) or [len(self.program.blocks)]
        return [_Direction(True, blocks[0]), _Direction(False, block.index + 1)]

    def _leads_to(self, number: int) -> int:
        """Returns the block after a block without accesses and synchronisation that ends in a jump, else its own
        number."""
        insts = self.program.blocks[number].insts if number < len(self.program.blocks) else []
        jumps = insts and insts[-1].guard is None and targets(insts[-1])
        return jumps[0] if jumps and not any(inst.name in MEANINGS for inst in insts) else number

    def _is_new(self, way: _Direction) -> bool:
        """Whether a direction leads to code that was not reached."""
        return way.condition if way.block is None else not self.marks[way.block]

    def _one_way(self, inst: Inst, way: _Direction, decisions: Decisions) -> OneWay:
        assert inst.guard is not None
        decision = decisions.of(inst.guard)
        other = decisions.other(decision, way.condition)
        where, calls = self.names.places[inst.index], self.names.calls[inst.index]
        return OneWay(where, inst.opcode, self._never(inst, way), decisions.depends(decision), other, calls, inst.line)

    def _never(self, inst: Inst, way: _Direction) -> str:
        """Returns what a branch or a guard would do in a direction, in words."""
        if way.block is None:
            return f"{'executes' if way.condition else 'skips'} {inst.opcode}"
        after = next((each for block in self.program.blocks[way.block :] for each in block.insts), None)
        goes_on = after is not None and after.line and (after.name not in ENDINGS or after.guard or targets(after))
        place = self.names.places[after.index] if after is not None and goes_on else ""
        if place == self.names.places[inst.index]:
            return "branches" if way.condition else "falls through"
        return f"goes to {place or 'the end of the kernel'}"

    def _idle(self) -> Iterator[str]:
        """Yields that no cluster took over the work of another, since all clusters of the grid ran at once."""
        pending, launch = self.launch.pending, self.launch
        cancels = [inst for inst in launch.insts if inst.traits.effect == "cancels-clusters"]
        if pending is None or pending.total > pending.places or not cancels:
            return
        size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        count, where = pending.total * size, self.names.places[cancels[0].index]
        yield (
            f"{where} never cancels a cluster: all {count:,} CTAs of the grid run at once; a grid of "
            f"{(pending.places + 1) * size:,} CTAs would"
        )
