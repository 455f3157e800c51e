"""The correct source lines of a finding that an edit of a kernel causes.

They follow from the execution of the unedited kernel (`execution`) and from the edited instruction. The two accesses of
a race touch the same cells, and either the unedited kernel orders them and the kernel in which the edited instruction
publishes nothing does not (`orders`); or they touch the same cells only by an address that the edit changes, and
nothing orders them (`unknown_arrival`). A wait, an arrival or an instruction that stops acts on a barrier of the edited
instruction.
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
from tests.races.happens_before import Cut, Pair, Source, pair_orders
from warpwright.ptx import nodes
from warpwright.vgpu.checks.findings import Finding, Step
from warpwright.vgpu.program.program import Inst, mentions, registers_of

__all__ = ["has_right_lines"]

Ints = NDArray[np.int64]
SAMPLED = 200  # pairs of two instructions: the first ones, and about as many of the others
OF_WARPS = 1000  # of two warps
NEXT = 8  # bytes from an mbarrier to the next
_ENGINES = (
    *("tcgen05.mma", "tcgen05.cp", "tcgen05.shift", "wgmma.mma_async", "cp.async.bulk", "cp.reduce.async.bulk"),
    "clusterlaunchcontrol.try_cancel",
)
_EARLY = "bytes too few, one arrival less, twice the bytes, one arrival more, two arrivals"


class Edited:
    """The edited instruction in an execution: ``insts`` (for an edited address, the instructions that use it), the
    ``offsets`` of its mbarriers in a CTA, those that it acts on by the edit (``next_offsets``), and the ``numbers`` of
    its named barriers. ``early`` are the offsets of mbarriers that may complete a phase early."""

    def __init__(self, execution: Execution, edit: Edit, early: frozenset[int] = frozenset()) -> None:
        self.execution, self.edit, self.early = execution, edit, early
        self.insts = {inst.index for inst in execution.insts if inst.line == edit.line + 1}
        if self.replaces_peer:
            self.insts = _users(execution, self.insts)
        self.offsets = set().union(*(self.offsets_of(inst) for inst in self.insts))
        self.next_offsets = {offset + NEXT for offset in self.offsets} if "next barrier" in edit.what else set()
        self.numbers = {number for inst in self.insts for number in bar_numbers(execution, inst)}

    def offsets_of(self, inst: int) -> set[int]:
        """Returns the offsets of the mbarriers that an instruction of the unedited kernel acts on."""
        return {
            place % self.execution.stride
            for event in self.execution.events_of(inst)
            for place in self.execution.barriers(event)
        }

    def edited_offsets_of(self, inst: int) -> set[int]:
        """Returns the offsets of the mbarriers that an instruction acts on, with those of the edit."""
        return self.offsets_of(inst) | (self.next_offsets if inst in self.insts else set())

    def memory(self, execution: Execution, event: Event) -> Iterator[Access]:
        """Yields an event's accesses at the edited address; without the peer's address they are in the CTA's own
        memory."""
        next_offsets = self.replaces_peer and event.inst.index in self.insts
        yield from map(execution.in_own_cta, execution.accesses(event)) if next_offsets else execution.accesses(event)

    @property
    def replaces_peer(self) -> bool:
        """Whether the edit replaces an address in a peer's memory by the CTA's own."""
        return self.edit.what == "no peer"

    @property
    def cut(self) -> Cut:
        """What the edited instruction no longer publishes. An mbarrier with too many arrivals or too few expected bytes
        may complete a phase early."""
        early: set[int] = set(self.early)
        if self.edit.what in _EARLY or self.replaces_peer:
            early = self.offsets
        elif self.next_offsets and "wait" not in self.edit.opcode:
            early = self.next_offsets
        stride, ranks = self.execution.stride, range(self.execution.ranks)
        places = frozenset(rank * stride + offset for rank in ranks for offset in early)
        return Cut(frozenset(self.insts), places, self.edit.what == "arrives at once")


def bar_numbers(execution: Execution, inst: int) -> set[int]:
    """Returns the numbers of the named barriers that an instruction arrives at."""
    if not execution.insts[inst].name.startswith(("bar.sync", "bar.arrive", "bar.red", "barrier.sync", "barrier.cta")):
        return set()
    return {event.row.a for event in execution.events_of(inst)}


def _users(execution: Execution, insts: set[int]) -> set[int]:
    """Returns the instructions that access an address written by ``insts``, or an address computed from it."""
    addresses: set[str] = set()
    more = {name for inst in insts for name in mentions(execution.insts[inst])[1]}
    while more > addresses:
        addresses = more
        readers = [inst for inst in execution.insts if addresses & set(mentions(inst)[0]) and not _bases(inst)]
        more = addresses | {name for inst in readers for name in mentions(inst)[1]}
    return {inst.index for inst in execution.insts if addresses & _bases(inst)}


def _bases(inst: Inst) -> set[str]:
    """Returns the registers of the addresses that an instruction accesses."""
    operands = (inst.find(operand.names[0]) for operand in inst.match.spelling.named) if inst.match else ()
    bases = (operand.base for operand in operands if isinstance(operand, nodes.Address))
    return {register.name for base in bases for register in registers_of(base)}


def of_step(execution: Execution, step: Step) -> set[int]:
    """Returns the instructions with the line, the opcode and the role of a step."""
    names, place = execution.names, (step.opcode, step.where, step.role)
    return {i.index for i in execution.insts if (i.opcode, names.places[i.index], names.roles[i.index]) == place}


Touches = Callable[[Execution, Event], Iterator[Access]]


def memory(execution: Execution, event: Event) -> Iterator[Access]:
    """Cells of shared and tensor memory."""
    yield from execution.accesses(event)


def barriers(execution: Execution, event: Event) -> Iterator[Access]:
    """mbarriers and named barriers, as if each lane that uses one wrote to it."""
    lanes = {int(event.row.lanes[0]), int(event.row.lanes[-1])}  # a lane may know alone what others learn
    if event.ops:
        lanes = {(op.rank * execution.per_cta + op.warp) * 32 + op.lane for op in event.ops}
    cells = [(place // NEXT, place // execution.stride) for place in execution.barriers(event)]
    rank = event.row.warp // execution.per_cta
    first = execution.stride * execution.ranks // NEXT + NUMBERS * rank
    cells += [(first + number, rank) for number in bar_numbers(execution, event.inst.index)]
    for (cell, owner), lane in product(cells, sorted(lanes)):
        yield Access(np.array([cell]), lane, True, owner)


def initialisations(execution: Execution, event: Event) -> Iterator[Access]:
    """mbarriers, whose initialisation engines must see."""
    yield from barriers(execution, event)


def registers(execution: Execution, event: Event) -> Iterator[Access]:
    """Registers of a warp."""
    numbers, lane = execution.registers(event.inst.index), int(event.row.lanes[0])
    cells = np.array(numbers, np.int64) * (execution.lanes // 32) + event.row.warp
    yield Access(cells, lane, True, execution.rank_of(lane))


def tensor_columns(execution: Execution, event: Event) -> Iterator[Access]:
    """Tensor memory as a whole, as one cell that is allocated, used and freed."""
    lane = int(event.row.lanes[0])
    if event.inst.name.startswith("tcgen05."):
        yield Access(np.zeros(1, np.int64), lane, True, execution.rank_of(lane))


def lanes_of(execution: Execution, event: Event) -> Iterator[Access]:
    """One cell that each lane of the warp writes."""
    lanes = event.row.lanes.astype(np.int64)
    yield Access(np.zeros(len(lanes), np.int64), lanes, True, execution.rank_of(lanes))


Warps = tuple["int | None", "int | None"]
ANY: Warps = (None, None)


def pairs(execution: Execution, first: set[int], second: set[int], touches: Touches, warps: Warps = ANY) -> list[Pair]:
    """Returns each access by an instruction of ``first`` with the next access by one of ``second`` to the same cells;
    at least one of the two writes. ``warps``: those of a CTA whose accesses count, for each of the two."""
    found: dict[Pair, None] = {}
    sources: list[Source] = []
    last = {write: np.full(execution.cells, -1, np.int64) for write in (True, False)}
    rows = execution.uses if touches is registers else execution.rows
    for number in sorted({number for inst in first | second for number in rows.get(inst, ())}):
        event = execution.event(number)
        accesses = [access for access in touches(execution, event) if len(access.cells)]
        earlier_warp, later_warp = (warp in (None, event.row.warp % execution.per_cta) for warp in warps)
        if event.inst.index in second and later_warp:
            for access in accesses:
                for earlier in (last[True], last[False])[: 2 if access.write else 1]:
                    for source, lane in _distinct_pairs(earlier[access.cells], _per_cell(access.lanes, access)):
                        if source >= 0 and sources[source].event != number:
                            found[_pair(execution, sources[source], number, lane, touches)] = None
        if event.inst.index in first and earlier_warp:
            for access in accesses:
                last[access.write][access.cells] = _add_sources(number, access, sources)
    return list(found)


def _per_cell(values: Ints | int, access: Access) -> Ints:
    """Returns an array with one value for each cell of an access."""
    return np.broadcast_to(np.asarray(values, np.int64), access.cells.shape)


def _distinct_pairs(left: Ints, right: Ints) -> list[tuple[int, int]]:
    packed = np.unique(left << 20 | right)
    return list(zip((packed >> 20).tolist(), (packed & 0xFFFFF).tolist(), strict=True))


def _add_sources(number: int, access: Access, sources: list[Source]) -> Ints:
    """Add a source for each lane and CTA of an access; returns the number of each cell's source."""
    lanes, ranks = _per_cell(access.lanes, access), _per_cell(access.ranks, access)
    packed, which = np.unique(lanes << 4 | ranks, return_inverse=True)
    first = len(sources)
    sources += [Source(number, key >> 4, key & 15, access.tensor, access.write) for key in packed.tolist()]
    numbers: Ints = first + which
    return numbers


def _pair(execution: Execution, source: Source, number: int, lane: int, touches: Touches) -> Pair:
    issuer, name = execution.event(source.event).inst.name, execution.event(number).inst.name
    crosses = not source.tensor and name.startswith(_ENGINES) and not issuer.startswith(_ENGINES)
    fenced = source.tensor and source.lane // 32 != lane // 32 and name != "tcgen05.dealloc"
    return Pair(source, number, lane, crosses and touches in (memory, initialisations), fenced and touches is memory)


def orders(edited: Edited, first: set[int], second: set[int], touches: Touches, warps: Warps = ANY) -> bool:
    """Returns whether an access by ``second`` is ordered after one by ``first`` in the unedited kernel, but not
    without the edited instruction."""
    found = _sample(pairs(edited.execution, first, second, touches, warps), SAMPLED if warps == ANY else OF_WARPS)
    return any(uncut and not cut for _, uncut, cut in pair_orders(edited.execution, found, edited.cut))


def unknown_arrival(edited: Edited, first: set[int], second: set[int]) -> bool:
    """Returns whether an access by ``second`` reaches cells of one by ``first`` only because of the edit, and
    nothing orders it after that access."""
    before = {_identity(pair) for pair in pairs(edited.execution, first, second, memory)}
    found = _sample(
        [pair for pair in pairs(edited.execution, first, second, edited.memory) if _identity(pair) not in before]
    )
    return not all(cut for _, _, cut in pair_orders(edited.execution, found, edited.cut))


def _identity(pair: Pair) -> tuple[int, int, int, int]:
    """Returns the two events and their lanes."""
    return pair.source.event, pair.source.lane, pair.event, pair.lane


def _sample(found: list[Pair], most: int = SAMPLED) -> list[Pair]:
    """Returns the first ``most`` pairs and a sample of about as many of the others."""
    return found[:most] + found[most :: max(1, len(found) // most)]


def _either_order(touches: Touches) -> Callable[[Edited, Finding], bool]:
    """Returns a judge of two accesses in either order."""

    def judge(edited: Edited, finding: Finding) -> bool:
        one, two = (of_step(edited.execution, step) for step in finding.steps)
        return orders(edited, one, two, touches) or orders(edited, two, one, touches)

    return judge


def _race(edited: Edited, finding: Finding) -> bool:
    """Two accesses in either order, by any warps or by those of the finding, where several warps access the same cells;
    for an edited address also the accesses that the edit moves there, for a wait the mbarriers of `_early_offsets`."""
    one, two = (of_step(edited.execution, step) for step in finding.steps)
    if all(re.match(r"(ld|st)\b.*\.global", edited.execution.insts[inst].opcode) for inst in one | two):
        return _global_race(edited, finding)
    first, second = (step.thread // 32 for step in finding.steps)
    if _either_order(memory)(edited, finding) or orders(edited, one, two, memory, (first, second)):
        return True
    if edited.replaces_peer and (unknown_arrival(edited, one, two) or unknown_arrival(edited, two, one)):
        return True
    lapped = Edited(edited.execution, edited.edit, _early_offsets(edited))
    return bool(lapped.early) and _either_order(memory)(lapped, finding)


def _global_race(edited: Edited, finding: Finding) -> bool:
    """Two loads or stores of global memory, whose addresses an execution lacks: of the two threads, any such two."""
    execution, events = edited.execution, []
    for step in finding.steps:
        lane = (step.cta[0] % execution.ranks * execution.per_cta) * 32 + step.thread
        numbers = sorted(number for inst in of_step(execution, step) for number in execution.rows.get(inst, ()))
        events.append([Source(n, lane, 0, False, True) for n in numbers if lane in execution.event(n).row.lanes])
    found = [Pair(one, two.event, two.lane, False, False) for one, two in product(*events)]
    return any(uncut and not cut for _, uncut, cut in pair_orders(execution, _sample(found), edited.cut))


def _early_offsets(edited: Edited) -> frozenset[int]:
    """Returns the offsets of the mbarriers whose arrivals the edited wait orders after the waits for the phase before:
    without it such an arrival may count in that phase, which then completes early."""
    execution, waits = edited.execution, {inst for inst in edited.execution.rows if _is_wait(edited.execution, inst)}
    arrivals = {inst for inst in execution.rows if execution.insts[inst].name.startswith("mbarrier.arrive")}
    at = defaultdict[int, set[int]](set)
    for inst in (waits | arrivals) if edited.insts <= waits else ():
        for offset in edited.offsets_of(inst):
            at[offset].add(inst)
    return frozenset(each for each, insts in at.items() if orders(edited, insts & waits, insts & arrivals, barriers))


def _deadlock(edited: Edited, finding: Finding) -> bool:
    """A step waits at a barrier of the edited instruction; or at a barrier whose arrivals were ordered after the waits
    by the edited instruction, and now arrive too early."""
    execution = edited.execution
    waits = {inst for step in finding.steps for inst in of_step(execution, step) if _is_wait(execution, inst)}
    return any(_shares_barrier(edited, inst) for inst in waits) or orders(edited, waits, set(execution.rows), barriers)


def _shares_barrier(edited: Edited, inst: int) -> bool:
    """Returns whether an instruction uses a barrier of the edited instruction."""
    execution = edited.execution
    if any(
        _any_named(execution, edited.insts, kind) and _any_named(execution, {inst}, kind) for kind in _WITHOUT_PLACE
    ):
        return True
    return bool(
        edited.edited_offsets_of(inst) & (edited.offsets | edited.next_offsets)
        or bar_numbers(execution, inst) & edited.numbers
    )


def _fault(edited: Edited, finding: Finding) -> bool:
    """The edited instruction itself stops, or an instruction at its barrier or of its tensor memory; or the edited
    instruction ordered an arrival, or a use of tensor memory, that is now too early."""
    execution, stops = edited.execution, of_step(edited.execution, finding.steps[0])
    names = {execution.insts[inst].name for inst in edited.insts}
    mbarrier = re.search(r"mbarrier at offset (0x\w+)", finding.message)
    if edited.insts & stops:
        return True
    if mbarrier and int(mbarrier[1], 16) in edited.offsets | edited.next_offsets:
        if "more arrivals" in finding.message or "has all of its arrivals" in finding.message:
            return any(
                int(mbarrier[1], 16) in edited.edited_offsets_of(inst) and not _is_wait(execution, inst)
                for inst in stops
            )
        return bool(stops & (_first_events(execution, int(mbarrier[1], 16)) | edited.insts))
    if mbarrier and "not initialised" in finding.message:
        return orders(edited, execution.instructions("mbarrier.init"), stops, barriers)
    if mbarrier:
        return orders(edited, set(execution.rows), stops, barriers)
    if any(_shares_barrier(edited, inst) for inst in stops) or (
        names & _LIVES and _any_named(execution, stops, "tcgen05.")
    ):
        return True
    ends = orders(edited, stops, execution.instructions("tcgen05.dealloc"), tensor_columns)
    return ends or orders(edited, execution.instructions("tcgen05.alloc"), stops, tensor_columns)


_WAITS = re.compile(
    r"mbarrier\.(try|test)_wait|bar(rier)?\.(cta\.)?(sync|red)|barrier\.cluster\.wait|setmaxnreg|wgmma\.wait"
)
_WITHOUT_PLACE = ("barrier.cluster", "setmaxnreg")
_LIVES = {"tcgen05.alloc", "tcgen05.dealloc"}


def _first_events(execution: Execution, offset: int) -> set[int]:
    """Returns each warp's first instructions at an mbarrier of that offset. An engine's arrival may come after the
    instructions that follow, so these count too."""
    found: set[int] = set()
    warps: set[int] = set()
    for event in execution.events_at(offset):
        if event.inst.name != "mbarrier.init" and event.row.warp not in warps:
            found.add(event.inst.index)
            warps |= set() if event.ops else {event.row.warp}
    return found


def _any_named(execution: Execution, insts: set[int], kind: str) -> bool:
    return any(execution.insts[inst].name.startswith(kind) for inst in insts)


def _is_wait(execution: Execution, inst: int) -> bool:
    return _WAITS.match(execution.insts[inst].name) is not None


def _same_barrier(edited: Edited, finding: Finding) -> bool:
    """Both steps act on a barrier of the edited instruction."""
    acts = [
        set().union(*(edited.edited_offsets_of(i) for i in of_step(edited.execution, step))) for step in finding.steps
    ]
    return bool(set.intersection(*acts) & (edited.offsets | edited.next_offsets))


def _lapped_wait(edited: Edited, finding: Finding) -> bool:
    """The edited instruction orders the completion of the next phase after the waits for the last one; or it is one of
    the two."""
    if not any(_is_wait(edited.execution, inst) for inst in of_step(edited.execution, finding.steps[0])):
        return False
    if any(edited.insts & of_step(edited.execution, step) for step in finding.steps):
        return _same_barrier(edited, finding)
    return _either_order(barriers)(edited, finding)


def _missing_write(edited: Edited, finding: Finding) -> bool:
    """The edited instruction orders the read after the write; or it is the write."""
    execution, reads = edited.execution, of_step(edited.execution, finding.steps[0])
    if edited.insts & execution.instructions("tcgen05.alloc"):
        return bool(pairs(execution, edited.insts, reads, memory))
    return orders(edited, set(execution.rows), reads, memory)


def _early_exit(edited: Edited, finding: Finding) -> bool:
    """A CTA's threads know at their exit that the use of memory is complete, and without the edited instruction they do
    not."""
    execution, insts = edited.execution, of_step(edited.execution, finding.steps[0])
    if finding.steps[0].what.startswith("arrives") or _any_named(execution, insts, "mbarrier."):
        return any(edited.edited_offsets_of(inst) & edited.offsets for inst in insts)
    found = [pair for number in _last_touches(execution, insts) for pair in _exit_pairs(execution, number)]
    known: dict[tuple[int, int], list[tuple[bool, bool]]] = defaultdict(list)
    for pair, uncut, cut in pair_orders(execution, found, edited.cut):
        known[pair.source.event, pair.source.rank].append((uncut, cut))
    return any(np.any(each, axis=0).tolist() == [True, False] for each in known.values())


def _last_touches(execution: Execution, insts: set[int]) -> list[int]:
    """Returns each warp's last event of some instructions that touches memory; a box outside its array touches none."""
    numbers = sorted(number for inst in insts for number in execution.rows.get(inst, ()))
    touching = [n for n in numbers if any(len(access.cells) for access in execution.accesses(execution.event(n)))]
    return list({execution.event(number).row.warp: number for number in touching}.values())


def _exit_pairs(execution: Execution, number: int) -> Iterator[Pair]:
    """Yields a use of memory with the exit of each lane that must know of its completion: the issuing lane, or all
    lanes of the other CTA that has the memory."""
    for access in (access for access in execution.accesses(execution.event(number)) if len(access.cells)):
        for lane, rank in _distinct_pairs(_per_cell(access.lanes, access), _per_cell(access.ranks, access)):
            own = rank == lane // (32 * execution.per_cta)
            knowing = [lane] if own else range(rank * execution.per_cta * 32, (rank + 1) * execution.per_cta * 32)
            source = Source(number, lane, rank, False, access.write)
            yield from (Pair(source, len(execution.events), each, False, False) for each in knowing)


def _tensor_load(edited: Edited, finding: Finding) -> bool:
    """The edited wait is the first one after the load in the text, and the second step uses a register of the load."""
    execution = edited.execution
    loads, uses = (of_step(execution, step) for step in finding.steps)
    waits = sorted(execution.insts[inst].line for inst in execution.instructions("tcgen05.wait::ld"))
    for load in loads:
        wait = next((line for line in waits if line > execution.insts[load].line), 0)
        results = set(mentions(execution.insts[load])[1])
        if wait == edited.edit.line + 1 and any(results & set(mentions(execution.insts[use])[0]) for use in uses):
            return True
    return False


def _wgmma_fence(edited: Edited, finding: Finding) -> bool:
    """The edited fence is the warp's last one before the wgmma, and the register's use is after the fence before it."""
    execution, matmuls = edited.execution, of_step(edited.execution, finding.steps[-1])
    used = [of_step(execution, step) for step in finding.steps[:-1]]
    fences = execution.instructions("wgmma.fence")
    since: dict[int, tuple[int, set[int], set[int]]] = {}
    for event in (event for event in execution.events if isinstance(event, Event)):
        inst, warp = event.inst.index, event.row.warp
        last, before, after = since.get(warp, (-1, set(), set()))
        if inst in fences:
            since[warp] = inst, after, set()
        elif inst in matmuls and last in edited.insts:
            names = set(execution.registers(inst))
            if not used or any(names & set(execution.registers(each)) for each in used[0] & (before | after)):
                return True
        else:
            after.add(inst)
            since[warp] = last, before, after
    return False


def _grid_dependency(edited: Edited, finding: Finding) -> bool:
    """The warp executes the wait for earlier launches before the access."""
    execution = edited.execution
    waited: set[int] = set()
    waits, uses = edited.insts, of_step(execution, finding.steps[0])
    for number in sorted(number for inst in waits | uses for number in execution.rows.get(inst, ())):
        event = execution.event(number)
        if event.inst.index in uses:
            return event.row.warp in waited
        waited.add(event.row.warp)
    return False


def _grid_race(edited: Edited, finding: Finding) -> bool:
    """The edited instruction orders one of the accesses and an atomic operation of its CTA, which synchronises with
    other CTAs; or it waits for a bulk copy before that operation."""
    execution = edited.execution
    atomics = {inst.index for inst in execution.insts if inst.name in ("atom", "red") and "global" in inst.opcode}
    accesses = [of_step(execution, step) for step in finding.steps]
    if _any_named(execution, edited.insts, "cp.async.bulk.wait_group"):
        return any(execution.passes(uses, edited.insts, atomics) for uses in accesses)
    return any(orders(edited, *each, lanes_of) for uses in accesses for each in ((uses, atomics), (atomics, uses)))


# rule: the judge of its findings; a judge's docstring states when the lines are right
_JUDGES: dict[str, Callable[[Edited, Finding], bool]] = {
    "race": _race,
    "tmem-freed": _race,
    **dict.fromkeys(("proxy-fence", "tcgen05-fence"), _either_order(memory)),
    "mbarrier-init": _either_order(initialisations),
    "barrier-count": _either_order(barriers),
    "mbarrier-lapped": _lapped_wait,
    "mbarrier-count": _same_barrier,
    "deadlock": _deadlock,
    "fault": _fault,
    "uninitialised": _missing_write,
    "exit-early": _early_exit,
    "tmem-registers": _tensor_load,
    "wgmma-registers": _either_order(registers),
    "wgmma-fence": _wgmma_fence,
    "grid-dependency": _grid_dependency,
    "grid-race": _grid_race,
}


def has_right_lines(executions: Sequence[Execution], edit: Edit, finding: Finding) -> bool:
    """Returns whether a finding's lines are those that the edit makes wrong."""
    judge = _JUDGES.get(finding.rule.id)
    shortest = sorted(executions, key=lambda execution: len(execution.events))
    return judge is not None and any(judge(Edited(execution, edit), finding) for execution in shortest)
