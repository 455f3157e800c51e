"""The correct source lines of a finding that an edit of a kernel causes.

What is right is said of the kernel as it is (`execution`), and of the edited instruction. Of two accesses that nothing
orders: both touch the same cells, the second comes behind the first as the kernel is, and does not when the edited
instruction tells nothing (`behind`); or they do not, come there by the address that the edit moves, and nothing orders
them. Of who waits, arrives or stops: it does so at a barrier that the instruction acts on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tests.races.edits import Edit
from tests.races.execution import NUMBERS, Access, Event, Execution
from tests.races.happens_before import Cut, Pair, Source, followed
from warpwright.ptx import nodes
from warpwright.vgpu.checks.findings import Finding, Step
from warpwright.vgpu.program.program import Inst, mentions, registers_of

__all__ = ["right"]

Ints = NDArray[np.int64]
SAMPLED = 200  # pairs of two instructions that are followed: the first ones, and as many of the others
NEXT = 8  # bytes from an mbarrier to the next
_ENGINES = (
    *("tcgen05.mma", "tcgen05.cp", "tcgen05.shift", "wgmma.mma_async", "cp.async.bulk", "cp.reduce.async.bulk"),
    "clusterlaunchcontrol.try_cancel",
)
_EARLY = "bytes too few, one arrival less, twice the bytes, one arrival more, two arrivals"


class Edited:
    """The edited instruction in an execution: ``insts`` (of an address, those that use it), the ``offsets`` of its
    mbarriers in a CTA and those it acts on by the edit (``moved``), the ``numbers`` of its named barriers."""

    def __init__(self, execution: Execution, edit: Edit) -> None:
        self.execution, self.edit = execution, edit
        self.insts = {inst.index for inst in execution.insts if inst.line == edit.line + 1}
        if self.leads_home:
            self.insts = _users(execution, self.insts)
        self.offsets = set().union(*(self.at(inst) for inst in self.insts))
        self.moved = {offset + NEXT for offset in self.offsets} if "next barrier" in edit.what else set()
        self.numbers = {number for inst in self.insts for number in named(execution, inst)}

    def at(self, inst: int) -> set[int]:
        """Offsets of the mbarriers that an instruction acts on, as the kernel is."""
        return {
            place % self.execution.stride
            for event in self.execution.of(inst)
            for place in self.execution.barriers(event)
        }

    def acts(self, inst: int) -> set[int]:
        """The same, with what the edit moves."""
        return self.at(inst) | (self.moved if inst in self.insts else set())

    def memory(self, execution: Execution, event: Event) -> Iterator[Access]:
        """Cells of memory where the edit's address leads: without a peer's, to the CTA's own."""
        moved = self.leads_home and event.inst.index in self.insts
        yield from map(execution.at_home, execution.accesses(event)) if moved else execution.accesses(event)

    @property
    def leads_home(self) -> bool:
        """Whether it is an address, of a peer's memory, that becomes the CTA's own."""
        return self.edit.what == "no peer"

    @property
    def cut(self) -> Cut:
        """What it tells no more. An mbarrier that gets too much, or expects too little, may end a phase early."""
        early: set[int] = set()
        if self.edit.what in _EARLY or self.leads_home:
            early = self.offsets
        elif self.moved and "wait" not in self.edit.opcode:
            early = self.moved
        stride, ranks = self.execution.stride, range(self.execution.ranks)
        places = frozenset(rank * stride + offset for rank in ranks for offset in early)
        return Cut(frozenset(self.insts), places, self.edit.what == "arrives at once")


def named(execution: Execution, inst: int) -> set[int]:
    """Numbers of the named barriers that an instruction comes to."""
    if not execution.insts[inst].name.startswith(("bar.sync", "bar.arrive", "bar.red", "barrier.sync", "barrier.cta")):
        return set()
    return {event.row.a for event in execution.of(inst)}


def _users(execution: Execution, insts: set[int]) -> set[int]:
    """The instructions that go to an address that some have made, or to one that is computed from it."""
    made: set[str] = set()
    more = {name for inst in insts for name in mentions(execution.insts[inst])[1]}
    while more > made:
        made = more
        some = [inst for inst in execution.insts if made & set(mentions(inst)[0]) and not _bases(inst)]
        more = made | {name for inst in some for name in mentions(inst)[1]}
    return {inst.index for inst in execution.insts if made & _bases(inst)}


def _bases(inst: Inst) -> set[str]:
    """Registers that hold the addresses that an instruction goes to."""
    operands = (inst.find(operand.names[0]) for operand in inst.match.spelling.named) if inst.match else ()
    bases = (operand.base for operand in operands if isinstance(operand, nodes.Address))
    return {register.name for base in bases for register in registers_of(base)}


def of_step(execution: Execution, step: Step) -> set[int]:
    """The instructions that a step may be: its line, its opcode, its role."""
    names, said = execution.names, (step.opcode, step.where, step.role)
    return {i.index for i in execution.insts if (i.opcode, names.places[i.index], names.roles[i.index]) == said}


Touched = Callable[[Execution, Event], Iterator[Access]]


def memory(execution: Execution, event: Event) -> Iterator[Access]:
    """Cells of shared and tensor memory."""
    yield from execution.accesses(event)


def barriers(execution: Execution, event: Event) -> Iterator[Access]:
    """mbarriers and named barriers, as if all who come there wrote."""
    lanes = {int(event.row.lanes[0]), int(event.row.lanes[-1])}  # one may know by itself what a warp's others are told
    if event.ops:
        lanes = {(op.rank * execution.per_cta + op.warp) * 32 + op.lane for op in event.ops}
    cells = [(place // NEXT, place // execution.stride) for place in execution.barriers(event)]
    rank = event.row.warp // execution.per_cta
    first = execution.stride * execution.ranks // NEXT + NUMBERS * rank
    cells += [(first + number, rank) for number in named(execution, event.inst.index)]
    for (cell, owner), lane in product(cells, sorted(lanes)):
        yield Access(np.array([cell]), lane, True, owner)


def beginnings(execution: Execution, event: Event) -> Iterator[Access]:
    """mbarriers, whose initialisation engines have to see."""
    yield from barriers(execution, event)


def registers(execution: Execution, event: Event) -> Iterator[Access]:
    """Registers of a warp."""
    numbers, lane = execution.registers(event.inst.index), int(event.row.lanes[0])
    cells = np.array(numbers, np.int64) * (execution.lanes // 32) + event.row.warp
    yield Access(cells, lane, True, execution.rank_of(lane))


def columns(execution: Execution, event: Event) -> Iterator[Access]:
    """Tensor memory as a whole, which is allocated, used and freed."""
    lane = int(event.row.lanes[0])
    if event.inst.name.startswith("tcgen05."):
        yield Access(np.zeros(1, np.int64), lane, True, execution.rank_of(lane))


def lanes_of(execution: Execution, event: Event) -> Iterator[Access]:
    """All that a warp's lanes do, as if they wrote one and the same cell."""
    lanes = event.row.lanes.astype(np.int64)
    yield Access(np.zeros(len(lanes), np.int64), lanes, True, execution.rank_of(lanes))


def pairs(execution: Execution, first: set[int], second: set[int], touched: Touched) -> list[Pair]:
    """An access by one of ``first`` and the next one by one of ``second`` to the same cells, one of them a write."""
    found: dict[Pair, None] = {}
    sources: list[Source] = []
    last = {write: np.full(execution.cells, -1, np.int64) for write in (True, False)}
    rows = execution.uses if touched is registers else execution.rows
    for number in sorted({number for inst in first | second for number in rows.get(inst, ())}):
        event = execution.event(number)
        accesses = [access for access in touched(execution, event) if len(access.cells)]
        if event.inst.index in second:
            for access in accesses:
                for held in (last[True], last[False])[: 2 if access.write else 1]:
                    for source, lane in _distinct(held[access.cells], _each(access.lanes, access)):
                        if source >= 0 and sources[source].event != number:
                            found[_pair(execution, sources[source], number, lane, touched)] = None
        if event.inst.index in first:
            for access in accesses:
                last[access.write][access.cells] = _remember(number, access, sources)
    return list(found)


def _each(given: Ints | int, access: Access) -> Ints:
    """One for each cell."""
    return np.broadcast_to(np.asarray(given, np.int64), access.cells.shape)


def _distinct(left: Ints, right: Ints) -> list[tuple[int, int]]:
    packed = np.unique(left << 20 | right)
    return list(zip((packed >> 20).tolist(), (packed & 0xFFFFF).tolist(), strict=True))


def _remember(number: int, access: Access, sources: list[Source]) -> Ints:
    """New sources, one a lane and CTA; gives that of each cell."""
    lanes, ranks = _each(access.lanes, access), _each(access.ranks, access)
    packed, which = np.unique(lanes << 4 | ranks, return_inverse=True)
    first = len(sources)
    sources += [Source(number, key >> 4, key & 15, access.tensor, access.write) for key in packed.tolist()]
    numbers: Ints = first + which
    return numbers


def _pair(execution: Execution, source: Source, number: int, lane: int, touched: Touched) -> Pair:
    made, name = execution.event(source.event).inst.name, execution.event(number).inst.name
    crosses = not source.tensor and name.startswith(_ENGINES) and not made.startswith(_ENGINES)
    fenced = source.tensor and source.lane // 32 != lane // 32 and name != "tcgen05.dealloc"
    return Pair(source, number, lane, crosses and touched in (memory, beginnings), fenced and touched is memory)


def orders(edited: Edited, first: set[int], second: set[int], touched: Touched) -> bool:
    """Returns whether an access by ``second`` is ordered after one by ``first`` in the unedited kernel, but not
    without the edited instruction."""
    found = _some(pairs(edited.execution, first, second, touched))
    return any(as_is and not cut for _, as_is, cut in followed(edited.execution, found, edited.cut))


def unknown_arrival(edited: Edited, first: set[int], second: set[int]) -> bool:
    """Returns whether an access by ``second`` reaches cells of one by ``first`` only because of the edit, and
    nothing orders it after that access."""
    before = {_who(pair) for pair in pairs(edited.execution, first, second, memory)}
    found = _some([pair for pair in pairs(edited.execution, first, second, edited.memory) if _who(pair) not in before])
    return not all(cut for _, _, cut in followed(edited.execution, found, edited.cut))


def _who(pair: Pair) -> tuple[int, int, int, int]:
    """The two events and their lanes."""
    return pair.source.event, pair.source.lane, pair.event, pair.lane


def _some(found: list[Pair]) -> list[Pair]:
    """Returns the first `SAMPLED` pairs and a sample of about as many of the others."""
    return found[:SAMPLED] + found[SAMPLED :: max(1, len(found) // SAMPLED)]


def _either(touched: Touched) -> Callable[[Edited, Finding], bool]:
    """Two accesses, in whichever order they came."""

    def judge(edited: Edited, finding: Finding) -> bool:
        one, two = (of_step(edited.execution, step) for step in finding.steps)
        return orders(edited, one, two, touched) or orders(edited, two, one, touched)

    return judge


def _race(edited: Edited, finding: Finding) -> bool:
    """Two accesses, in whichever order they came; by an address that is moved also those that it leads there."""
    one, two = (of_step(edited.execution, step) for step in finding.steps)
    if _either(memory)(edited, finding):
        return True
    return edited.leads_home and (unknown_arrival(edited, one, two) or unknown_arrival(edited, two, one))


def _deadlock(edited: Edited, finding: Finding) -> bool:
    """One waits at a barrier of the edited instruction; or at one where who arrives comes behind those who wait by it,
    and has come too early."""
    execution = edited.execution
    waits = {inst for step in finding.steps for inst in of_step(execution, step) if _waiting(execution, inst)}
    return any(_waits(edited, inst) for inst in waits) or orders(edited, waits, set(execution.rows), barriers)


def _waits(edited: Edited, inst: int) -> bool:
    """Whether an instruction meets others where the edited one does."""
    execution = edited.execution
    if any(_are(execution, edited.insts, kind) and _are(execution, {inst}, kind) for kind in _WITHOUT_PLACE):
        return True
    return bool(edited.acts(inst) & (edited.offsets | edited.moved) or named(execution, inst) & edited.numbers)


def _fault(edited: Edited, finding: Finding) -> bool:
    """The edited instruction itself stops, or one at its barrier or of its tensor memory; or an arrival is too early,
    or a use of tensor memory, that comes behind others by it."""
    execution, stops = edited.execution, of_step(edited.execution, finding.steps[0])
    names = {execution.insts[inst].name for inst in edited.insts}
    met = re.search(r"mbarrier at offset (0x\w+)", finding.message)
    if edited.insts & stops:
        return True
    if met and int(met[1], 16) in edited.offsets | edited.moved:
        if "more arrivals" in finding.message:
            return any(int(met[1], 16) in edited.acts(inst) and not _waiting(execution, inst) for inst in stops)
        return bool(stops & (_first(execution, int(met[1], 16)) | edited.insts))
    if met:
        return orders(edited, set(execution.rows), stops, barriers)
    if any(_waits(edited, inst) for inst in stops) or (names & _LIVES and _are(execution, stops, "tcgen05.")):
        return True
    ends = orders(edited, stops, execution.named("tcgen05.dealloc"), columns)
    return ends or orders(edited, execution.named("tcgen05.alloc"), stops, columns)


_WAITS = re.compile(
    r"mbarrier\.(try|test)_wait|bar(rier)?\.(cta\.)?(sync|red)|barrier\.cluster\.wait|setmaxnreg|wgmma\.wait"
)
_WITHOUT_PLACE = ("barrier.cluster", "setmaxnreg")
_LIVES = {"tcgen05.alloc", "tcgen05.dealloc"}


def _first(execution: Execution, offset: int) -> set[int]:
    """What each warp does first at an mbarrier of that offset; an engine may come there later than what follows it."""
    found: set[int] = set()
    came: set[int] = set()
    for event in execution.at(offset):
        if event.inst.name != "mbarrier.init" and event.row.warp not in came:
            found.add(event.inst.index)
            came |= set() if event.ops else {event.row.warp}
    return found


def _are(execution: Execution, insts: set[int], kind: str) -> bool:
    return any(execution.insts[inst].name.startswith(kind) for inst in insts)


def _waiting(execution: Execution, inst: int) -> bool:
    return _WAITS.match(execution.insts[inst].name) is not None


def _same_barrier(edited: Edited, finding: Finding) -> bool:
    """Both act on a barrier of the edited instruction."""
    acts = [set().union(*(edited.acts(i) for i in of_step(edited.execution, step))) for step in finding.steps]
    return bool(set.intersection(*acts) & (edited.offsets | edited.moved))


def _lapped(edited: Edited, finding: Finding) -> bool:
    """Who ends the next phase comes behind who waits for the last one, by the edited instruction; or that is one of the
    two."""
    if not any(_waiting(edited.execution, inst) for inst in of_step(edited.execution, finding.steps[0])):
        return False
    if any(edited.insts & of_step(edited.execution, step) for step in finding.steps):
        return _same_barrier(edited, finding)
    return _either(barriers)(edited, finding)


def _unwritten(edited: Edited, finding: Finding) -> bool:
    """Who reads comes behind who writes by the edited instruction; or that is who writes."""
    execution, reads = edited.execution, of_step(edited.execution, finding.steps[0])
    if edited.insts & execution.named("tcgen05.alloc"):
        return bool(pairs(execution, edited.insts, reads, memory))
    return orders(edited, set(execution.rows), reads, memory)


def _leaves(edited: Edited, finding: Finding) -> bool:
    """A CTA's threads know at its end that the use is over, and without the edited instruction they do not."""
    execution, insts = edited.execution, of_step(edited.execution, finding.steps[0])
    if finding.steps[0].what.startswith("arrives") or _are(execution, insts, "mbarrier."):
        return any(edited.acts(inst) & edited.offsets for inst in insts)
    found = [pair for number in _last(execution, insts) for pair in _ends(execution, number)]
    known: dict[tuple[int, int], list[tuple[bool, bool]]] = defaultdict(list)
    for pair, as_is, cut in followed(execution, found, edited.cut):
        known[pair.source.event, pair.source.rank].append((as_is, cut))
    return any(np.any(each, axis=0).tolist() == [True, False] for each in known.values())


def _last(execution: Execution, insts: set[int]) -> list[int]:
    """Of each warp, the last event by some instructions that touches memory: a box outside its array does not."""
    numbers = sorted(number for inst in insts for number in execution.rows.get(inst, ()))
    touching = [n for n in numbers if any(len(access.cells) for access in execution.accesses(execution.event(n)))]
    return list({execution.event(number).row.warp: number for number in touching}.values())


def _ends(execution: Execution, number: int) -> Iterator[Pair]:
    """A use of memory, and the end of those who have to know that it is over: its lane, or the other CTA's lanes."""
    for access in (access for access in execution.accesses(execution.event(number)) if len(access.cells)):
        for lane, rank in _distinct(_each(access.lanes, access), _each(access.ranks, access)):
            own = rank == lane // (32 * execution.per_cta)
            knowing = [lane] if own else range(rank * execution.per_cta * 32, (rank + 1) * execution.per_cta * 32)
            source = Source(number, lane, rank, False, access.write)
            yield from (Pair(source, len(execution.events), each, False, False) for each in knowing)


def _loads(edited: Edited, finding: Finding) -> bool:
    """The edited wait is the first one behind the load, in the text, and the other uses a register of it."""
    execution = edited.execution
    loads, uses = (of_step(execution, step) for step in finding.steps)
    waits = sorted(execution.insts[inst].line for inst in execution.named("tcgen05.wait::ld"))
    for load in loads:
        behind = next((line for line in waits if line > execution.insts[load].line), 0)
        made = set(mentions(execution.insts[load])[1])
        if behind == edited.edit.line + 1 and any(made & set(mentions(execution.insts[use])[0]) for use in uses):
            return True
    return False


def _fence(edited: Edited, finding: Finding) -> bool:
    """The edited fence is a warp's last one before the product, and the use of a register of it is not before the fence
    before."""
    execution, products = edited.execution, of_step(edited.execution, finding.steps[-1])
    used = [of_step(execution, step) for step in finding.steps[:-1]]
    fences = execution.named("wgmma.fence")
    since: dict[int, tuple[int, set[int], set[int]]] = {}
    for event in (event for event in execution.events if isinstance(event, Event)):
        inst, warp = event.inst.index, event.row.warp
        last, before, behind = since.get(warp, (-1, set(), set()))
        if inst in fences:
            since[warp] = inst, behind, set()
        elif inst in products and last in edited.insts:
            names = set(execution.registers(inst))
            if not used or any(names & set(execution.registers(each)) for each in used[0] & (before | behind)):
                return True
        else:
            behind.add(inst)
            since[warp] = last, before, behind
    return False


def _behind_grid(edited: Edited, finding: Finding) -> bool:
    """The access comes behind the wait for earlier launches in its warp."""
    execution = edited.execution
    waited: set[int] = set()
    waits, uses = edited.insts, of_step(execution, finding.steps[0])
    for number in sorted(number for inst in waits | uses for number in execution.rows.get(inst, ())):
        event = execution.event(number)
        if event.inst.index in uses:
            return event.row.warp in waited
        waited.add(event.row.warp)
    return False


def _between_grids(edited: Edited, finding: Finding) -> bool:
    """Of one of the accesses and an atomic operation of its CTA, which tells other CTAs and is told by them, one comes
    behind the other by the edited instruction."""
    execution = edited.execution
    atomics = {inst.index for inst in execution.insts if inst.name in ("atom", "red") and "global" in inst.opcode}
    return any(
        orders(edited, uses, atomics, lanes_of) or orders(edited, atomics, uses, lanes_of)
        for uses in (of_step(execution, step) for step in finding.steps)
    )


_JUDGED: dict[str, Callable[[Edited, Finding], bool]] = {
    "race": _race,
    **dict.fromkeys(("proxy-fence", "tcgen05-fence"), _either(memory)),
    "mbarrier-init": _either(beginnings),
    "barrier-count": _either(barriers),
    "mbarrier-lapped": _lapped,
    "mbarrier-count": _same_barrier,
    "deadlock": _deadlock,
    "fault": _fault,
    "uninitialised": _unwritten,
    "exit-early": _leaves,
    "tmem-registers": _loads,
    "wgmma-registers": _either(registers),
    "wgmma-fence": _fence,
    "grid-dependency": _behind_grid,
    "grid-race": _between_grids,
}


def right(executions: Sequence[Execution], edit: Edit, finding: Finding) -> bool:
    """Whether a finding's lines are those that the edit makes wrong."""
    judge = _JUDGED.get(finding.rule.id)
    shortest = sorted(executions, key=lambda execution: len(execution.events))
    return judge is not None and any(judge(Edited(execution, edit), finding) for execution in shortest)
