"""Accumulators of tcgen05.mma in tensor memory (PTX ISA 9.1 section 9.7.16.10.5, layouts A to G).

Tensor memory is stored column by column, so a block of the transposed accumulator, N by M, is a rectangle of it.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import ProtocolError
from warpwright.layout import TmemAddress, tmem_d_layout
from warpwright.layout.tmem import COLUMNS
from warpwright.vgpu.engines.op import Fabric, Op

__all__ = ["Block", "blocks", "cells_of", "check_columns", "update", "values_of", "width"]

GRANULE = 32
Floats = NDArray[np.float32]

# (M, cta_group, .ws): row blocks of M side by side in lanes, parts of N in different lanes
_BLOCKS = {
    (256, 2, False): (128, 1),
    (128, 2, False): (64, 2),
    (128, 1, False): (128, 1),
    (128, 1, True): (128, 1),
    (64, 1, True): (64, 2),
    (64, 1, False): (16, 1),
    (32, 1, True): (32, 4),
}


class Block(NamedTuple):
    """A rectangle of tensor memory (columns relative to the accumulator's) and its block of the N by M accumulator."""

    cta: int
    columns: slice
    lanes: slice
    n: slice
    m: slice


@cache
def blocks(m: int, n: int, cta_group: int, ws: bool, upper: bool) -> tuple[Block, ...]:
    """The rectangles of an ``m`` by ``n`` accumulator; ``upper``: the address names lane 16 (M = 64)."""
    rows, parts = _BLOCKS[m, cta_group, ws]
    layout = tmem_d_layout(m, n, cta_group, ws=ws, upper=upper)
    found = []
    for row in range(0, m, rows):
        for part in range(0, n, n // parts):
            cta, lane, column = layout(row, part)
            found.append(
                Block(
                    cta,
                    slice(column, column + n // parts),
                    slice(lane, lane + rows),
                    slice(part, part + n // parts),
                    slice(row, row + rows),
                )
            )
    return tuple(found)


def width(rectangles: tuple[Block, ...]) -> int:
    """Columns that an accumulator spans."""
    return max([int(block.columns.stop) for block in rectangles])


def _missing(first: int, count: int, allocated: int) -> bool:
    """Whether any of ``count`` columns from ``first`` is outside the allocation bits."""
    last = first + count - 1
    run = (1 << (last // GRANULE - first // GRANULE + 1)) - 1 << first // GRANULE
    return last >= COLUMNS or allocated & run != run


def check_columns(fabric: Fabric, op: Op, rank: int, address: int, count: int, lanes: tuple[int, ...] = (0,)) -> None:
    """Raises ProtocolError unless the columns are allocated in the CTA and the address names one of ``lanes``."""
    lane, first = TmemAddress.decode(address)
    if lane not in lanes:
        raise fabric.failure(
            ProtocolError,
            op,
            f"tensor memory address 0x{address & 0xFFFFFFFF:08x} names lane {lane}; expected lane "
            f"{' or '.join(map(str, lanes))}; clear bits 16 to 31 of the address",
        )
    if _missing(first, count, fabric.tmem_allocated(rank)):
        raise fabric.failure(
            ProtocolError,
            op,
            f"tensor memory columns {first}..{first + count - 1} are not allocated in CTA {rank}: allocate them with "
            "tcgen05.alloc before, and free them only after this instruction is complete",
        )


def update(
    cells: NDArray[np.int32], work: Floats, type: str, *, accumulate: bool, factor: float, saturate: bool
) -> None:
    """Store ``cells`` × ``factor`` + ``work``, or ``work`` alone without ``accumulate``; one 32-bit column an element.

    f16 fills the low halves and zeroes the high ones; s32 wraps around, or clamps with ``saturate``.
    """
    if type == "f32":
        sums = cells.view(np.float32)
        if not accumulate:
            sums[...] = work
            return
        if factor != 1:
            sums *= np.float32(factor)
        sums += work
    elif type == "f16":
        old = cells.astype(np.uint16).view(np.float16).astype(np.float32) * np.float32(factor)
        cells[...] = (work + old if accumulate else work).astype(np.float16).view(np.uint16)
    else:
        total = work.astype(np.int64) + (cells if accumulate else 0)
        cells[...] = np.clip(total, -(1 << 31), (1 << 31) - 1) if saturate else total.astype(np.int32)


def values_of(cells: NDArray[np.int32], type: str) -> Floats:
    """The values of a block as float32."""
    return cells.view(np.float32) if type == "f32" else cells.astype(np.uint16).view(np.float16).astype(np.float32)


def cells_of(fabric: Fabric, base: int, address: int, block: Block) -> NDArray[np.int32]:
    """The rectangle of an accumulator at ``address`` in the CTAs from ``base`` on, columns by lanes."""
    first = address & 0xFFFF
    return fabric.tmem[base + block.cta, first + block.columns.start : first + block.columns.stop, block.lanes]
