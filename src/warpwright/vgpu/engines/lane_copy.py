"""Copies that every lane issues for itself: cp.async and its arrival (PTX ISA 9.1, 9.7.9.25.3 and 9.7.13.15.15)."""

from __future__ import annotations

import numpy as np

from warpwright.errors import MemoryFault
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.jit.state import RANK_SHIFT, RESERVED_SHARED
from warpwright.vgpu.program.program import Register

__all__ = ["LANE_COPIES", "complete"]

LANE_COPIES = ("cp.async", "cp.async.mbarrier.arrive")


def complete(fabric: Fabric, ops: list[Op]) -> None:
    """Carry out the copies of all lanes in the order of issue."""
    for op in ops:
        _cp_async(fabric, op) if op.inst.name == "cp.async" else fabric.arrive(op, *_place(op))


def _place(op: Op) -> tuple[int, int]:
    address = op.words[0] & 0xFFFF_FFFF
    return address >> RANK_SHIFT, address & ((1 << RANK_SHIFT) - 1)


def _cp_async(fabric: Fabric, op: Op) -> None:
    """``size`` bytes to shared memory, those past ``src_size`` zero, or all of them where the source is ignored."""
    rank, offset = _place(op)
    size = op.words[2]
    taken = _taken(op, size)
    if rank != op.rank or not RESERVED_SHARED <= offset <= fabric.shared_limit - size or offset % size:
        text = f"destination 0x{op.words[0]:x} is not {size} aligned bytes of the CTA's own shared memory."
        raise fabric.failure(MemoryFault, op, text)
    if not fabric.computes:
        return
    if taken and op.words[1] % size:
        text = f"source 0x{op.words[1]:x} is not a multiple of the {size} bytes that are copied."
        raise fabric.failure(MemoryFault, op, text)
    target = fabric.shared[rank, offset : offset + size]
    target[:] = np.uint8(0)
    if taken:
        target[:taken] = fabric.global_memory(op, op.words[1], taken)


def _taken(op: Op, size: int) -> int:
    """Bytes of the source. The operand after the size is their number, or a predicate that says to take none."""
    more = op.inst.operands[3:4]
    if not more or (op.inst["hint"] and len(op.inst.operands) == 4):
        return size
    if isinstance(more[0], Register) and more[0].bits == 1:
        return 0 if op.words[3] else size
    return min(size, op.words[3] & 0xFFFF_FFFF)
