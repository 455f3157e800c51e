"""Asynchronous copies between global and shared memory (PTX ISA 9.1 sections 9.7.9.25 and 9.7.9.27)."""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.checks.knowledge import COPIES, Knowledge, meaning
from warpwright.vgpu.checks.lifetime import check_entry
from warpwright.vgpu.checks.memory.accesses import ENGINE, NEVER, WRITE, Repeated
from warpwright.vgpu.checks.memory.cells import Cells
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES
from warpwright.vgpu.checks.missing import UNWRITTEN
from warpwright.vgpu.checks.order.clocks import GENERIC, Clock
from warpwright.vgpu.checks.row import Row
from warpwright.vgpu.checks.rules import EVIDENCE
from warpwright.vgpu.engines.op import Op

__all__: list[str] = []


@meaning(
    "cp.async.bulk", "cp.async.bulk.tensor", "cp.reduce.async.bulk", "cp.reduce.async.bulk.tensor", "st.async",
    "red.async", "clusterlaunchcontrol.try_cancel.async",
    compiled=COPIES,
)  # fmt: skip
def copy(known: Knowledge, row: Row) -> None:
    """The copy's writes are over with the phase that its bytes belong to; so are its reads if it is between two CTAs,
    otherwise they are over with its bulk group."""
    for _ in range(row.a):
        op = known.op()
        lane = known.lane(op)
        reads = [_read(known, op, lane, cells) for cells in known.footprints.reads(op)]
        writes = [_write(known, op, lane, cells) for cells in known.footprints.writes(op)]
        clock = known.clocks.of(lane) if writes else None
        _outside(known, op, lane, writes, clock)
        if clock is not None:
            if reads:
                known.accesses.rows["value"][reads] = NEVER
            known.in_flight[op.number] = clock, [[*reads, write] for write in writes]
            for place in known.footprints.barriers(op):
                check_entry(known, lane, place // known.cluster.shared_stride, op.inst.index)
                signals(known, op, lane, place)


def _outside(known: Knowledge, op: Op, lane: int, writes: list[int], clock: Clock | None) -> None:
    """The copy's reads of global memory, and its use of a tensor map, are over with its writes to shared memory; its
    writes to global memory are over with its bulk group."""
    kind = known.globals.kinds[op.inst.index]
    if kind is None:
        return
    group = known.counts.get(("bulk", lane), 0) + 1
    used = (-1 - writes[-1], 0) if writes else (known.column("bulk read", lane), group)
    epoch = (known.column("bulk", lane), group) if kind.writes else used
    known.contexts.issue(op.number, lane, epoch, used, kind.writes, clock)


def signals(known: Knowledge, op: Op, lane: int, place: int) -> None:
    """An engine will complete on the mbarrier: its initialisation must be visible to the async proxy."""
    mbarrier = known.mbarriers.get(place)
    if mbarrier is None:
        return
    if lane in mbarrier.seen_async:
        return
    ids, who = np.array([mbarrier.init]), np.array([lane])
    unknown, unseen = known.accesses.unknown(ids, who).any(), known.accesses.unseen(ids, who).any()
    if not (unknown or unseen):
        mbarrier.seen_async.add(lane)
    else:
        text, evidence = "the async proxy may not see the initialisation", "" if unknown else EVIDENCE["fence"]
        known.find_pair("mbarrier-init", mbarrier.init, op.inst.index, lane, text, evidence)


def _read(known: Knowledge, op: Op, lane: int, cells: Cells) -> int:
    group = known.counts.get(("bulk", lane), 0) + 1
    access = known.accesses.one(known.column("bulk read", lane), group, True, op.inst.index, lane)
    if not known.touch(known.shared, cells, lane, op.inst.index, access, write=False, engine=True):
        known.find("uninitialised", (known.step("reads", op.inst.index, lane),), UNWRITTEN)
    if not op.inst.find("mbar"):
        known.bulk_reads[lane] = group, op.inst.index
    return access


def _write(known: Knowledge, op: Op, lane: int, cells: Cells) -> int:
    inst, key = op.inst.index, (id(op), cells.where)
    if key not in known.writes:
        known.writes[key] = Repeated(0, inst, lane, -1, [(known.shared, cells, WRITE | ENGINE, False)])
    access = known.writes[key].enter(NEVER)
    if access < 0:
        access = known.accesses.one(0, NEVER, True, inst, lane)
        known.touch(known.shared, cells, lane, inst, access, write=True, engine=True)
    width = known.footprints.cell
    for first, end in cells.runs.tolist():
        if known.mbarrier_marks.find(1, first * width // BARRIER_BYTES, (end * width - 1) // BARRIER_BYTES + 1) >= 0:
            known.check_overwrite(cells.numbers * width // BARRIER_BYTES, lane, inst)
    return access


@meaning("cp.async.bulk.commit_group")
def commit_group(known: Knowledge, row: Row) -> None:
    for lane in row.lanes.tolist():
        known.count("bulk", lane)


@meaning("cp.async.bulk.wait_group")
def wait_group(known: Knowledge, row: Row) -> None:
    kinds = ("bulk read",) if known.insts[row.inst]["read"] else ("bulk read", "bulk")
    for lane in row.lanes.tolist():
        over = known.counts.get(("bulk", lane), 0) - row.a
        for kind in kinds if over > 0 else ():
            known.clocks.reach(np.array([lane]), known.column(kind, lane), over)


@meaning("cp.async")
def lane_copy(known: Knowledge, row: Row) -> None:
    """Each lane's copy is over with the next commit, arrive or wait that covers it."""
    for _ in range(row.a):
        op = known.op()
        lane = known.lane(op)
        cells = known.footprints.span(*known.footprints.place(op, "dst_mem"), op["size"])
        part = known.counts.get(("copies", lane), 0) + 1
        access = known.accesses.one(known.column("copies", lane), part, False, op.inst.index, lane)
        known.touch(known.shared, cells, lane, op.inst.index, access, write=True)
        epoch = known.column("copies", lane), part
        known.contexts.issue(op.number, lane, epoch, epoch, False)


@meaning("cp.async.commit_group")
def lane_commit(known: Knowledge, row: Row) -> None:
    for lane in row.lanes.tolist():
        known.lane_groups.setdefault(lane, []).append(known.count("copies", lane))


@meaning("cp.async.wait_group", "cp.async.wait_all")
def lane_wait(known: Knowledge, row: Row) -> None:
    every = known.insts[row.inst].name.endswith("wait_all")
    for lane in row.lanes.tolist():
        groups = known.lane_groups.get(lane, [])
        over = known.count("copies", lane) if every else groups[-1 - row.a] if len(groups) > row.a else 0
        known.clocks.reach(np.array([lane]), known.column("copies", lane), over)


@meaning("cp.async.mbarrier.arrive")
def lane_arrive(known: Knowledge, row: Row) -> None:
    """Let the phase that gets this arrival release the lane's copies so far and what the lane knows. Without .noinc the
    phase waits for one more arrival, this one."""
    more = not known.insts[row.inst]["noinc"]
    for _ in range(row.a):
        op = known.op()
        lane = known.lane(op)
        rank, offset = known.footprints.place(op, "mbar")
        column, clock = known.column("copies", lane), known.clocks.of(lane)
        clock[GENERIC, column] = known.count("copies", lane)
        place = rank * known.cluster.shared_stride + offset
        known.commits[op.number, place] = clock, lane, clock[GENERIC]
        if more and place in known.mbarriers:
            known.mbarriers[place].pending += 1


@meaning("tcgen05.relinquish_alloc_permit", "call.vprintf", "call.__assertfail")
def service(known: Knowledge, row: Row) -> None:
    """Consume the operation of an instruction that the checks ignore."""
    for _ in range(row.a):
        known.op()
