"""Asynchronous copies between global and shared memory (PTX ISA 9.1 sections 9.7.9.25 and 9.7.9.27)."""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.checks.memory.accesses import NEVER, Cells
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES
from warpwright.vgpu.checks.order.clocks import GENERIC
from warpwright.vgpu.checks.watch import Row, Watch, meaning
from warpwright.vgpu.engines.op import Op

__all__: list[str] = []


@meaning(
    "cp.async.bulk", "cp.async.bulk.tensor", "cp.reduce.async.bulk", "cp.reduce.async.bulk.tensor", "st.async",
    "red.async", "clusterlaunchcontrol.try_cancel.async",
)  # fmt: skip
def copy(watch: Watch, row: Row) -> None:
    """What the copy reads is over with its bulk group, what it writes with the phase that its bytes belong to."""
    for _ in range(row.a):
        op = watch.op()
        for cells in watch.prints.reads(op):
            _read(watch, op, cells)
        writes = [_write(watch, op, cells) for cells in watch.prints.writes(op)]
        _outside(watch, op, writes)
        if writes:
            watch.flying[op.number] = watch.clocks.of(watch.lane(op)), writes
            signals(watch, op, watch.prints.barrier(op))


def _outside(watch: Watch, op: Op, writes: list[int]) -> None:
    """What the copy reads of global memory is over with what it does to shared memory, and so is its use of a tensor
    map; what it writes there, with its bulk group."""
    kind = watch.globals.kinds[op.inst.index]
    if kind is None:
        return
    lane = watch.lane(op)
    group = watch.counts.get(("bulk", lane), 0) + 1
    used = (-1 - writes[-1], 0) if writes else (watch.column("bulk read", lane), group)
    epoch = (watch.column("bulk", lane), group) if kind.writes else used
    watch.contexts.issue(op.number, lane, epoch, used, kind.writes)


def signals(watch: Watch, op: Op, place: int) -> None:
    """An engine will count at the mbarrier: its initialisation must be visible to the async proxy."""
    held = watch.mbarriers.get(place)
    if held is None:
        return
    lane = watch.lane(op)
    if lane in held.seen:
        return
    ids, who = np.array([held.init]), np.array([lane])
    if not (watch.accesses.unknown(ids, who) | watch.accesses.unseen(ids, who)).any():
        held.seen.add(lane)
    else:
        watch.clash("mbarrier-init", held.init, op.inst.index, lane, "the async proxy need not see it")


def _read(watch: Watch, op: Op, cells: Cells) -> None:
    lane = watch.lane(op)
    if not watch.judge(watch.shared, cells, lane, op.inst.index, write=False, engine=True):
        watch.find("uninitialised", (watch.step("reads", op.inst.index, lane),), "nobody has written there")
    group = watch.counts.get(("bulk", lane), 0) + 1
    access = watch.accesses.one(watch.column("bulk read", lane), group, True, op.inst.index, lane)
    watch.shared.read(cells, access)
    watch.stores[lane] = group, op.inst.index


def _write(watch: Watch, op: Op, cells: Cells) -> int:
    lane = watch.lane(op)
    watch.judge(watch.shared, cells, lane, op.inst.index, write=True, engine=True)
    if np.count_nonzero(watch.held[_words(watch, cells)]):
        watch.overwritten(cells * watch.prints.cell // BARRIER_BYTES, lane, op.inst.index)
    access = watch.accesses.one(0, NEVER, True, op.inst.index, lane)
    watch.shared.write(cells, access)
    return access


def _words(watch: Watch, cells: Cells) -> slice:
    """The words of 8 bytes that a span of cells lies in."""
    if not len(cells):
        return slice(0)
    width = watch.prints.cell
    return slice(int(cells[0]) * width // BARRIER_BYTES, ((int(cells[-1]) + 1) * width - 1) // BARRIER_BYTES + 1)


@meaning("cp.async.bulk.commit_group")
def commit_group(watch: Watch, row: Row) -> None:
    for lane in row.lanes.tolist():
        watch.count("bulk", lane)


@meaning("cp.async.bulk.wait_group")
def wait_group(watch: Watch, row: Row) -> None:
    kinds = ("bulk read",) if "read" in watch.insts[row.inst].opcode else ("bulk read", "bulk")
    for lane in row.lanes.tolist():
        over = watch.counts.get(("bulk", lane), 0) - row.a
        for kind in kinds if over > 0 else ():
            watch.clocks.reach(np.array([lane]), watch.column(kind, lane), over)


@meaning("cp.async")
def lane_copy(watch: Watch, row: Row) -> None:
    """Each lane's copy is over with the next commit, arrive or wait that covers it."""
    for _ in range(row.a):
        op = watch.op()
        lane = watch.lane(op)
        cells = watch.prints.span(*watch.prints.place(op, 0), op.words[2])
        watch.judge(watch.shared, cells, lane, op.inst.index, write=True)
        part = watch.counts.get(("copies", lane), 0) + 1
        access = watch.accesses.one(watch.column("copies", lane), part, False, op.inst.index, lane)
        watch.shared.write(cells, access)
        epoch = watch.column("copies", lane), part
        watch.contexts.issue(op.number, lane, epoch, epoch, False)


@meaning("cp.async.commit_group")
def lane_commit(watch: Watch, row: Row) -> None:
    for lane in row.lanes.tolist():
        watch.lane_groups.setdefault(lane, []).append(watch.count("copies", lane))


@meaning("cp.async.wait_group", "cp.async.wait_all")
def lane_wait(watch: Watch, row: Row) -> None:
    every = watch.insts[row.inst].name.endswith("wait_all")
    for lane in row.lanes.tolist():
        groups = watch.lane_groups.get(lane, [])
        over = watch.count("copies", lane) if every else groups[-1 - row.a] if len(groups) > row.a else 0
        watch.clocks.reach(np.array([lane]), watch.column("copies", lane), over)


@meaning("cp.async.mbarrier.arrive")
def lane_arrive(watch: Watch, row: Row) -> None:
    """The lane's copies so far are over with the phase in which this arrives, and so is what the lane knows. Without
    .noinc the phase waits for one arrival more, this one."""
    more = "noinc" not in watch.insts[row.inst].opcode.split(".")
    for _ in range(row.a):
        op = watch.op()
        lane = watch.lane(op)
        rank, offset = watch.prints.place(op, 0)
        column, clock = watch.column("copies", lane), watch.clocks.of(lane)
        clock[GENERIC, column] = watch.count("copies", lane)
        place = rank * watch.cluster.shared_stride + offset
        watch.commits[op.number, place] = clock, lane, clock[GENERIC]
        if more and place in watch.mbarriers:
            watch.mbarriers[place].pending += 1


@meaning("tcgen05.relinquish_alloc_permit", "call.vprintf", "call.__assertfail", "tensormap.replace")
def service(watch: Watch, row: Row) -> None:
    """Done at once, with nothing that the checks follow."""
    for _ in range(row.a):
        watch.op()
