"""Static analysis: registers that some path reads before it writes them.

Checks then watch their lanes at run time. An instruction that only computes a value passes the "unwritten" state of an
operand on to its result: an unused result, or one that a `selp` does not select, is no error. Of values from unwritten
memory, `selp` passes on the state of the operand that each lane selects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpwright.vgpu.program.program import Inst, Program, results, sources, successors

__all__ = ["Flow", "derived_from", "flow_of", "maybe_unwritten"]

_CHOOSES = ("selp", "slct", "and", "or", "mov", "prmt", "bfi", "lop3")  # one written operand may determine the result
_MASKS = ("and", "or")  # the same for values from unwritten memory
_MIXES = ("shfl", "redux", "vote", "match", "mma", "wmma", "movmatrix")  # results from operands of other lanes


@dataclass(frozen=True, slots=True)
class Flow:
    """Register data flow of an instruction, by name: ``reads`` and ``writes``; ``effect``: its reads must have been
    written; ``chooses``: one operand may determine the result; ``guard``: the predicate of its execution; ``mixes``:
    the result is written only if the operands of all lanes are; ``selects``: of a selp, its operands: the value for
    true, the value for false, the predicate; a constant is an empty name; ``offered``: the operand of a shuffle that
    only lanes whose value is taken must have written."""

    reads: frozenset[str]
    writes: frozenset[str]
    effect: bool
    chooses: bool
    guard: str
    mixes: bool = False
    selects: tuple[str, ...] = ()
    offered: str = ""

    def restrict(self, doubtful: frozenset[str]) -> Flow:
        """The flow restricted to ``doubtful`` registers; no reads if a written operand may determine the result."""
        determined = self.chooses and self.reads - doubtful
        guard = {self.guard} & doubtful
        return replace(
            self, reads=frozenset() if determined else self.reads & doubtful | guard, writes=self.writes & doubtful
        )


def flow_of(inst: Inst, derived: frozenset[str] = frozenset()) -> Flow:
    """The flow of one instruction. Special registers count as written; so do all operands of an opcode without a form,
    whose results are unknown. ``derived``: registers computed from unwritten memory, which lanes may exchange."""
    guard = inst.guard.name if inst.guard else ""
    defs, uses = (frozenset(r.name for r in registers if not r.special) for registers in (results(inst), sources(inst)))
    has_results = inst.match is not None and bool(inst.match.spelling.writes)
    mixes = bool(uses & derived) and inst.name.startswith(_MIXES)
    effect = not has_results or bool(inst.traits.queue or inst.traits.access)
    doubted = bool(uses & derived)
    choice = inst.named("a", "b", "c") if doubted and inst.name == "selp" else ()
    selects = tuple(getattr(each, "name", "") for each in choice)
    determines = inst.name in (_MASKS if doubted else _CHOOSES)
    return Flow(uses, defs, effect and not mixes, determines, guard, mixes, selects, _offered(inst))


def _offered(inst: Inst) -> str:
    """Returns the register whose values a shuffle exchanges, if it is no other operand too."""
    if not inst.name.startswith("shfl") or not inst.match:
        return ""
    value, *others = (getattr(each, "name", "") for each in inst.named("a", "b", "c", "mask"))
    return "" if value in others else value


def derived_from(program: Program, loads: frozenset[int]) -> frozenset[str]:
    """Returns the destination registers of the instructions ``loads``, and every register computed from them."""
    found, before = {register.name for load in loads for register in results(program.insts[load])}, -1
    while len(found) > before:
        before = len(found)
        for inst in program.insts if loads else ():
            flow = flow_of(inst, frozenset(found))
            found |= flow.writes if flow.reads & found and not flow.effect else set()
    return frozenset(found)


def maybe_unwritten(program: Program) -> frozenset[str]:
    """Registers without a write on every path to one of their uses, and registers computed from them."""
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
            _apply(flow, known, found)
        for after in successors(program.blocks[number], len(flows)):
            left = entry[after] & known
            if after not in seen or left != entry[after]:
                seen.add(after)
                entry[after] = left
                todo.append(after)
    return frozenset(found)


def _apply(flow: Flow, known: set[str], found: set[str]) -> None:
    """Apply one instruction: add reads that may be unwritten to ``found``, then its writes to ``known``."""
    unwritten = flow.reads - known
    if unwritten or (flow.guard and flow.guard not in known):
        found.update(unwritten, {flow.guard} - known - {""})
        if not flow.effect and not (flow.chooses and flow.reads & known):
            found.update(flow.writes)
            known.difference_update(flow.writes if not flow.guard else ())
            return
    if not flow.guard:
        known.update(flow.writes)
