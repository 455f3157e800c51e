"""Asynchronous copies between global and shared memory (PTX ISA 9.1 sections 9.7.9.25 and 9.7.9.27)."""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.checks.accesses import NEVER, Cells
from warpwright.vgpu.checks.footprints import BARRIER_BYTES
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
        if writes:
            watch.flying[op.number] = watch.clocks.of(watch.lane(op)), writes
            signals(watch, op, watch.prints.barrier(op))


def signals(watch: Watch, op: Op, place: int) -> None:
    """An engine will count at the mbarrier: its initialisation must be visible to the async proxy."""
    held = watch.mbarriers.get(place)
    if held is None:
        return
    lane = watch.lane(op)
    ids, who = np.array([held.init]), np.array([lane])
    if (watch.accesses.unknown(ids, who) | watch.accesses.unseen(ids, who)).any():
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
    watch.overwritten(cells * watch.prints.cell // BARRIER_BYTES, lane, op.inst.index)
    access = watch.accesses.one(0, NEVER, True, op.inst.index, lane)
    watch.shared.write(cells, access)
    return access


@meaning("cp.async.bulk.commit_group", "cp.async.commit_group")
def commit_group(watch: Watch, row: Row) -> None:
    kind = "bulk" if "bulk" in watch.insts[row.inst].name else "copies"
    for lane in row.lanes.tolist():
        watch.count(kind, lane)


@meaning("cp.async.bulk.wait_group", "cp.async.wait_group", "cp.async.wait_all")
def wait_group(watch: Watch, row: Row) -> None:
    inst = watch.insts[row.inst]
    bulk = "bulk" in inst.name
    kinds = ("bulk read",) if "read" in inst.opcode else ("bulk read", "bulk") if bulk else ("copies",)
    for lane in row.lanes.tolist():
        over = watch.counts.get(("bulk" if bulk else "copies", lane), 0) - row.a + inst.name.endswith("wait_all")
        for kind in kinds if over > 0 else ():
            watch.clocks.reach(np.array([lane]), watch.column(kind, lane), over)


@meaning("cp.async")
def lane_copy(watch: Watch, row: Row) -> None:
    """Each lane's copy is over with its group."""
    for _ in range(row.a):
        op = watch.op()
        lane = watch.lane(op)
        cells = watch.prints.span(*watch.prints.place(op, 0), op.words[2])
        watch.judge(watch.shared, cells, lane, op.inst.index, write=True)
        group = watch.counts.get(("copies", lane), 0) + 1
        access = watch.accesses.one(watch.column("copies", lane), group, False, op.inst.index, lane)
        watch.shared.write(cells, access)


@meaning("cp.async.mbarrier.arrive")
def lane_arrive(watch: Watch, row: Row) -> None:
    """The lane's copies so far are over with the phase in which this arrives, and so is what the lane knows."""
    for _ in range(row.a):
        op = watch.op()
        lane = watch.lane(op)
        rank, offset = watch.prints.place(op, 0)
        group = watch.counts.get(("copies", lane), 0) + 1
        column = watch.column("copies", lane)
        clock = watch.clocks.of(lane)
        clock[0, column] = group
        watch.commits[op.number, rank * watch.cluster.shared_stride + offset] = clock


@meaning("tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit", "call.vprintf", "call.__assertfail",
         "tensormap.replace", "setmaxnreg")  # fmt: skip
def service(watch: Watch, row: Row) -> None:
    """Done at once: tcgen05.alloc writes an address to shared memory, tcgen05.dealloc ends the life of columns."""
    for _ in range(row.a):
        op = watch.op()
        lanes = row.lanes[:1]
        if op.inst.name == "tcgen05.alloc":
            cells = watch.prints.span(*watch.prints.place(op, 0), 4)
            ids = watch.accesses.add(lanes, watch.clocks.now(lanes), False, row.inst, lanes)
            watch.judge(watch.shared, cells, int(lanes[0]), row.inst, write=True)
            watch.shared.write(cells, int(ids[0]))
        if op.inst.name == "tcgen05.dealloc":
            cells = watch.prints.columns(op.rank, op.words[0] & 0xFFFF, op.words[1] & 0xFFFF_FFFF)
            watch.judge(watch.tensor, cells, int(lanes[0]), row.inst, write=True)
