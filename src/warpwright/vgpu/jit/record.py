"""Rows of the recorder, emitted into lane code that is compiled for timing and into no other."""

from __future__ import annotations

from warpwright.vgpu.jit.costs import NEED
from warpwright.vgpu.jit.lanes import Lanes
from warpwright.vgpu.program import Inst

__all__ = ["access", "barriers", "first", "needs", "row", "spend", "wait"]


def row(lanes: Lanes, inst: Inst, a: str = "0", b: str = "0", mask: str = "") -> None:
    """One row where a lane of ``mask`` (the active ones) is on."""
    if lanes.costs:
        offset = lanes.costs.offset.get(inst.index, 0)
        lanes.emit(
            f"call void @row(ptr %w, i32 {mask or lanes.mask}, i64 {inst.index}, i64 {offset}, i64 {a}, i64 {b})"
        )


def first(lanes: Lanes, value: str) -> str:
    """The value (``<32 x i64>``) of the lowest active lane, where rows are recorded."""
    if not lanes.costs:
        return "0"
    safe = lanes.op(f"and i32 {lanes.op(f'call i32 @llvm.cttz.i32(i32 {lanes.mask}, i1 false)')}, 31")
    return lanes.op(f"extractelement <32 x i64> {value}, i32 {safe}")


def _routine(lanes: Lanes, name: str, inst: Inst, masks: str, tail: str = "") -> None:
    if lanes.costs:
        offset = lanes.costs.offset.get(inst.index, 0)
        lanes.emit(f"call void @{name}(ptr %w, {masks}, i64 {inst.index}, i64 {offset}{tail})")


def access(lanes: Lanes, inst: Inst, nbytes: int) -> None:
    """The sectors or wavefronts of an access whose host addresses are in ``addr``."""
    _routine(lanes, "row_access", inst, f"i32 {lanes.mask}", f", i64 {nbytes}")


def barriers(lanes: Lanes, inst: Inst) -> None:
    """What an mbarrier operation does, by its operands in the warp's state."""
    _routine(lanes, "row_barriers", inst, f"i32 {lanes.mask}")


def wait(lanes: Lanes, inst: Inst, done: str) -> None:
    """A test of a phase that the lanes of ``done`` pass."""
    _routine(lanes, "row_wait", inst, f"i32 {lanes.mask}, i32 {done}")


def needs(lanes: Lanes, inst: Inst) -> None:
    """Loads whose values the instruction is the first to wait for."""
    if lanes.costs:
        _need(lanes, lanes.costs.needs.get(inst.index, ()), lanes.costs.offset.get(inst.index, 0))


def spend(lanes: Lanes) -> None:
    """The block is over: count what it costs."""
    if lanes.costs:
        total = lanes.costs.total[lanes.block]
        _need(lanes, lanes.costs.ends.get(lanes.block, ()), total)
        lanes.emit(f"call void @spend(ptr %w, i64 {total})")


def _need(lanes: Lanes, loads: tuple[int, ...], offset: int) -> None:
    for load in loads:
        lanes.emit(f"call void @row(ptr %w, i32 {lanes.block_mask}, i64 {NEED + load}, i64 {offset}, i64 0, i64 0)")
