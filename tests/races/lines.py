"""The correct source lines of a finding that an edit of a kernel causes.

They follow from the execution of the unedited kernel (`execution`) and from the edited instruction: the two accesses of
a race are a pair that the edited instruction orders, or that touch the same cells only by the edit (`pairs`). A wait,
an arrival or an instruction that stops acts on a barrier of the edited instruction.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from tests.races.edits import Edit
from tests.races.execution import Event, Execution
from tests.races.happens_before import Pair, Source, pair_orders
from tests.races.pairs import (
    Edited,
    Touches,
    bar_numbers,
    barriers,
    distinct_pairs,
    initialisations,
    lanes_of,
    memory,
    of_step,
    orders,
    pairs,
    per_cell,
    registers,
    sample,
    tensor_columns,
    unknown_arrival,
)
from warpwright.vgpu.checks.findings import Finding
from warpwright.vgpu.program.program import mentions

__all__ = ["has_right_lines"]


def _either_order(touches: Touches) -> Callable[[Edited, Finding], bool]:
    """Returns a judge of two accesses in either order."""

    def judge(edited: Edited, finding: Finding) -> bool:
        one, two = (of_step(edited.execution, step) for step in finding.steps)
        return orders(edited, one, two, touches) or orders(edited, two, one, touches)

    return judge


def _barrier_count(edited: Edited, finding: Finding) -> bool:
    """Two accesses to named barriers in either order; without an arrival of the edited instruction, or with one more,
    all later rounds of its barriers are others, so the lines may be any of these barriers."""
    steps = [of_step(edited.execution, step) for step in finding.steps]
    numbers = [{number for inst in step for number in bar_numbers(edited.execution, inst)} for step in steps]
    return _either_order(barriers)(edited, finding) or all(edited.numbers & each for each in numbers)


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
    return any(uncut and not cut for _, uncut, cut in pair_orders(execution, sample(found), edited.cut))


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
        for lane, rank in distinct_pairs(per_cell(access.lanes, access), per_cell(access.ranks, access)):
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
    "barrier-count": _barrier_count,
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
