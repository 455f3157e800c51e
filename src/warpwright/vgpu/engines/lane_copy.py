"""Copies that every lane issues for itself: cp.async and its arrival (PTX ISA 9.1, 9.7.9.25.3 and 9.7.13.15.15)."""

from __future__ import annotations

import numpy as np

from warpwright.errors import MemoryFault
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.program.memory_map import RANK_SHIFT, RESERVED_SHARED
from warpwright.vgpu.program.program import Register

__all__ = ["ENGINES", "complete"]


def complete(fabric: Fabric, ops: list[Op]) -> None:
    """Complete the copies of all lanes in the order of issue."""
    for op in ops:
        ENGINES[op.inst.name](fabric, op)


def _arrive(fabric: Fabric, op: Op) -> None:
    fabric.arrive(op, *_place(op["mbar"]))


def _place(address: int) -> tuple[int, int]:
    return (address & 0xFFFF_FFFF) >> RANK_SHIFT, address & ((1 << RANK_SHIFT) - 1)


def _cp_async(fabric: Fabric, op: Op) -> None:
    """Copy ``size`` bytes to shared memory; bytes past ``src_size`` are zero, or all bytes with ignore-src."""
    rank, offset = _place(op["dst_mem"])
    size, source = op["size"], op["src_mem"]
    count = _source_bytes(op, size)
    if rank != op.rank or not RESERVED_SHARED <= offset <= fabric.shared_limit - size or offset % size:
        text = f"destination 0x{op['dst_mem']:x} is not {size} aligned bytes of the CTA's own shared memory."
        raise fabric.failure(MemoryFault, op, text)
    if not fabric.computes:
        return
    if count and source % size:
        text = f"source 0x{source:x} is not a multiple of the {size} bytes that are copied."
        raise fabric.failure(MemoryFault, op, text)
    target = fabric.shared[rank, offset : offset + size]
    target[:] = np.uint8(0)
    if count:
        target[:count] = fabric.global_memory(op, source, count)


def _source_bytes(op: Op, size: int) -> int:
    """Bytes of the source. The operand after the size is their number, or the ignore-src predicate."""
    operand = op.inst.find("src_size")
    if operand is None:
        return size
    if isinstance(operand, Register) and operand.bits == 1:
        return 0 if op["src_size"] else size
    return min(size, op["src_size"] & 0xFFFF_FFFF)


ENGINES = {"cp.async": _cp_async, "cp.async.mbarrier.arrive": _arrive}
