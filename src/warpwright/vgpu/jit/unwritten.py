"""Registers that some path reads before anything was written to them, from the text alone.

Their lanes are then watched while the kernel runs. What only computes a value hands on that an operand was not
written: a value that nobody uses, or that a `selp` leaves out, is no mistake.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpwright.vgpu.program.program import Inst, Program, results, sources, successors

__all__ = ["Flow", "flow_of", "maybe_unwritten"]

_CHOOSES = ("selp", "slct", "and", "or", "mov", "prmt", "bfi", "lop3")  # one written operand may be all that counts


@dataclass(frozen=True, slots=True)
class Flow:
    """What an instruction does with registers, by name: ``reads`` and ``writes``; ``effect`` where what it reads must
    have been written, ``chooses`` where one of its operands may stand for all; ``guard`` decides whether it is done."""

    reads: frozenset[str]
    writes: frozenset[str]
    effect: bool
    chooses: bool
    guard: str

    def within(self, doubtful: frozenset[str]) -> Flow:
        """Of these registers only: where another operand may be all that counts, none of them does."""
        sure = self.chooses and self.reads - doubtful
        guard = {self.guard} & doubtful
        return replace(
            self, reads=frozenset() if sure else self.reads & doubtful | guard, writes=self.writes & doubtful
        )


def flow_of(inst: Inst) -> Flow:
    """The flow of one instruction. Special registers count as written, and so does all that an opcode names that no
    form describes: nobody knows which operands are its results."""
    guard = inst.guard.name if inst.guard else ""
    made, used = (frozenset(r.name for r in registers if not r.special) for registers in (results(inst), sources(inst)))
    makes = inst.match is not None and bool(inst.match.spelling.writes)
    effect = not makes or bool(inst.traits.queue or inst.traits.access)
    return Flow(used, made, effect, inst.name in _CHOOSES, guard)


def maybe_unwritten(program: Program) -> frozenset[str]:
    """Registers that are not written on every path to one of their uses, and what is computed from them."""
    flows = [[flow_of(inst) for inst in block.insts] for block in program.blocks]
    everything = frozenset(name for block in flows for flow in block for name in flow.writes | flow.reads)
    entry = dict.fromkeys(range(len(flows)), everything)
    entry[0] = frozenset()
    todo, found = [0], set[str]()
    seen = set[int]()
    while todo:
        number = todo.pop()
        known = set(entry[number])
        for flow in flows[number]:
            _through(flow, known, found)
        for after in successors(program.blocks[number], len(flows)):
            left = entry[after] & known
            if after not in seen or left != entry[after]:
                seen.add(after)
                entry[after] = left
                todo.append(after)
    return frozenset(found)


def _through(flow: Flow, known: set[str], found: set[str]) -> None:
    """One instruction: what it reads that may not be written is found; then what is written behind it."""
    late = flow.reads - known
    if late or (flow.guard and flow.guard not in known):
        found.update(late, {flow.guard} - known - {""})
        if not flow.effect and not (flow.chooses and flow.reads & known):
            found.update(flow.writes)
            known.difference_update(flow.writes if not flow.guard else ())
            return
    if not flow.guard:
        known.update(flow.writes)
