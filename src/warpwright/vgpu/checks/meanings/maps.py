"""Tensor maps that a kernel changes, and the proxy through which copies see them.

PTX ISA 9.1 sections 9.7.9.28 (tensormap.replace), 9.7.13.4 (fences of the proxy), 9.7.13.16 (tensormap.cp_fenceproxy).
"""

from __future__ import annotations

from warpwright.vgpu.checks.memory.access_kinds import fence_of
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES
from warpwright.vgpu.checks.watch import Row, Watch, meaning
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.state import SHARED_WINDOW
from warpwright.vgpu.machine.maps import MAP_BYTES

__all__: list[str] = []


@meaning("tensormap.replace")
def replaced(watch: Watch, row: Row) -> None:
    """A weak access of all 128 bytes, in shared or global memory."""
    for _ in range(row.a):
        op = watch.op()
        if op.inst["space"].startswith("shared") or op.words[0] >> 32 == SHARED_WINDOW >> 32:
            _inside(watch, op, 0, write=True)
        else:
            _outside(watch, op)


@meaning("tensormap.cp_fenceproxy")
def published(watch: Watch, row: Row) -> None:
    """The warp copies a map from shared to global memory, and releases it to the tensor-map proxy."""
    for _ in range(row.a):
        op = watch.op()
        _inside(watch, op, 1, write=False)
        _outside(watch, op)
        watch.contexts.settle()
        scope = fence_of(op.inst)
        if watch.globals.synchronises:
            watch.flags.fence(row.lanes, scope)
    watch.clocks.release(row.lanes)


@meaning("fence.proxy.tensormap::generic")
def fence_proxy(watch: Watch, row: Row) -> None:
    """Releases what the lanes have done to tensor maps, or lets them use what was released."""
    inst = watch.insts[row.inst]
    points = watch.contexts.points(row.lanes)
    if inst["sem"] == "release":
        watch.contexts.map_releases += points
        if watch.globals.synchronises:
            watch.flags.fence(row.lanes, fence_of(inst))
    else:
        watch.contexts.map_acquires += points
    watch.clocks.release(row.lanes)


def _inside(watch: Watch, op: Op, word: int, write: bool) -> None:
    lane = watch.lane(op)
    cells = watch.prints.span(*watch.prints.place(op, word), MAP_BYTES)
    watch.judge(watch.shared, cells, lane, op.inst.index, write=write)
    access = watch.accesses.one(lane, int(watch.clocks.table[0, lane, lane]), False, op.inst.index, lane)
    if write:
        watch.overwritten(cells * watch.prints.cell // BARRIER_BYTES, lane, op.inst.index)
        return watch.shared.write(cells, access)
    watch.shared.read(cells, access)


def _outside(watch: Watch, op: Op) -> None:
    watch.contexts.settle()
    lane = watch.lane(op)
    epoch = lane, int(watch.clocks.table[0, lane, lane])
    watch.contexts.issue(op.number, lane, epoch, epoch, writes=True)
