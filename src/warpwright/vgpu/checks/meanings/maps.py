"""Tensor maps that a kernel changes, and the proxy through which copies see them.

PTX ISA 9.1 sections 9.7.9.28 (tensormap.replace), 9.7.13.4 (fences of the proxy), 9.7.13.16 (tensormap.cp_fenceproxy).
"""

from __future__ import annotations

from warpwright.layout.tensor_map_bytes import MAP_BYTES
from warpwright.vgpu.checks.knowledge import Knowledge, meaning
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES
from warpwright.vgpu.checks.order.access_kinds import fence_of
from warpwright.vgpu.checks.row import Row
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.state import SHARED_WINDOW

__all__: list[str] = []


@meaning("tensormap.replace")
def replace_field(known: Knowledge, row: Row) -> None:
    """A weak access of all 128 bytes, in shared or global memory."""
    for _ in range(row.a):
        op = known.op()
        if op.inst["space"].startswith("shared") or op["addr"] >> 32 == SHARED_WINDOW >> 32:
            _inside(known, op, "addr", write=True)
        else:
            _outside(known, op)


@meaning("tensormap.cp_fenceproxy")
def publish(known: Knowledge, row: Row) -> None:
    """The warp copies a map from shared to global memory and releases it to the tensor-map proxy."""
    for _ in range(row.a):
        op = known.op()
        _inside(known, op, "src_mem", write=False)
        _outside(known, op)
        known.contexts.settle()
        scope = fence_of(op.inst)
        if known.globals.synchronises:
            known.flags.fence(row.lanes, scope)
    known.clocks.release(row.lanes)


@meaning("fence.proxy.tensormap::generic")
def fence_proxy(known: Knowledge, row: Row) -> None:
    """Releases what the lanes have done to tensor maps, or lets them use what was released."""
    inst = known.insts[row.inst]
    points = known.contexts.points(row.lanes)
    if inst["sem"] == "release":
        known.contexts.map_releases += points
        if known.globals.synchronises:
            known.flags.fence(row.lanes, fence_of(inst))
    else:
        known.contexts.map_acquires += points
    known.clocks.release(row.lanes)


def _inside(known: Knowledge, op: Op, name: str, write: bool) -> None:
    lane = known.lane(op)
    cells = known.footprints.span(*known.footprints.place(op, name), MAP_BYTES)
    access = known.accesses.one(lane, int(known.clocks.table[0, lane, lane]), False, op.inst.index, lane)
    known.touch(known.shared, cells, lane, op.inst.index, access, write=write)
    if write:
        known.check_overwrite(cells.numbers * known.footprints.cell // BARRIER_BYTES, lane, op.inst.index)


def _outside(known: Knowledge, op: Op) -> None:
    known.contexts.settle()
    lane = known.lane(op)
    epoch = lane, int(known.clocks.table[0, lane, lane])
    known.contexts.issue(op.number, lane, epoch, epoch, writes=True)
