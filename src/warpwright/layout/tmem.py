"""Tensor memory: addresses, layouts of accumulators, and the cells that tcgen05.ld, .st and .cp access.

PTX ISA 9.1 sections 9.7.16.1, 9.7.16.2.3 and 9.7.16.8 to 9.7.16.10. Tensor memory of a CTA has 128 lanes of 512
columns of 32 bits; an address is lane << 16 | column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from warpwright.errors import UsageError

__all__ = [
    "COLUMNS",
    "LANES",
    "LD_SHAPES",
    "TmemAddress",
    "tmem_a_layout",
    "tmem_cp_map",
    "tmem_d_layout",
    "tmem_ld_map",
    "tmem_ld_registers",
]

LANES = 128
COLUMNS = 512

IntArray = np.ndarray[Any, np.dtype[np.int64]]
Cell = tuple[Any, Any, Any]
Layout = Callable[[Any, Any], Cell]


class TmemAddress(NamedTuple):
    """Lane and column of a tensor-memory address."""

    lane: int
    column: int

    @staticmethod
    def decode(address: int) -> TmemAddress:
        """Returns lane and column of a 32-bit address."""
        return TmemAddress(address >> 16 & 0xFFFF, address & 0xFFFF)

    def encode(self) -> int:
        """Returns the 32-bit address."""
        return self.lane << 16 | self.column


def tmem_d_layout(
    m: int, n: int, cta_group: int, *, ws: bool = False, sparse: bool = False, upper: bool = False
) -> Layout:
    """Returns the layout of the accumulator of an ``m`` by ``n`` tcgen05.mma: A to G of PTX (section 9.7.16.10.5).

    The layout is a function of row and column (ints or int arrays that broadcast); it returns the CTA of the pair, the
    lane, and the column relative to the address of D. Set ``upper`` for a layout of 16-lane groups if the address of D
    names lane 16. Raises UsageError for a shape without a layout.
    """
    layout = _D_LAYOUTS.get((m, cta_group, ws, sparse and (m, cta_group) == (128, 2)))
    if layout is None:
        suffix = ".ws" if ws else ""
        raise UsageError(
            f"given M={m} with cta_group::{cta_group}{suffix}; expected M = "
            "128 or 256 with cta_group::2, 64 or 128 with cta_group::1, 32, 64 or 128 with .ws"
        )
    shift = 16 if upper else 0

    def cell(row: Any, column: Any) -> Cell:
        cta, lane, at = layout(row, column, n)
        return cta, lane + shift, at

    return cell


def _layout_a(m: Any, n: Any, extent: int) -> Cell:
    return m // 128, m % 128, n


def _layout_b(m: Any, n: Any, extent: int) -> Cell:
    half = extent // 2
    return m // 64, m % 64 + 64 * (n // half), n % half


def _layout_c(m: Any, n: Any, extent: int) -> Cell:
    return m // 64, m % 16 + 32 * (m % 64 // 16), n


def _layout_d(m: Any, n: Any, extent: int) -> Cell:
    return 0 * m, m, n


def _layout_e(m: Any, n: Any, extent: int) -> Cell:
    half = extent // 2
    return 0 * m, m + 64 * (n // half), n % half


def _layout_f(m: Any, n: Any, extent: int) -> Cell:
    return 0 * m, m % 16 + 32 * (m // 16), n


def _layout_g(m: Any, n: Any, extent: int) -> Cell:
    quarter = extent // 4
    return 0 * m, m + 32 * (n // quarter), n % quarter


# (M, cta_group, .ws, sparse)
_D_LAYOUTS: dict[tuple[int, int, bool, bool], Callable[[Any, Any, int], Cell]] = {
    (256, 2, False, False): _layout_a,
    (128, 2, False, False): _layout_b,
    (128, 2, False, True): _layout_c,
    (128, 1, False, False): _layout_d,
    (128, 1, True, False): _layout_d,
    (64, 1, True, False): _layout_e,
    (64, 1, False, False): _layout_f,
    (32, 1, True, False): _layout_g,
}


def tmem_a_layout(m: int, cta_group: int, *, ws: bool = False, sparse: bool = False) -> Layout:
    """Returns the layout of an A operand in tensor memory: the lanes of D, with K packed into 32-bit columns.

    The layout is a function of row and 32-bit column of K; it returns CTA, lane and column. A dense M = 128 of a CTA
    pair has each CTA's 64 rows twice, in lanes 0-63 and in lanes 64-127; the layout returns lanes 0-63.
    """
    return tmem_d_layout(m, 4 * COLUMNS, cta_group, ws=ws, sparse=sparse)


# shape: (registers a thread and repetition, columns a repetition, lanes)
LD_SHAPES = {
    "32x32b": (1, 1, 32),
    "16x64b": (1, 2, 16),
    "16x128b": (2, 4, 16),
    "16x256b": (4, 8, 16),
    "16x32bx2": (1, 1, 16),
}


def tmem_ld_registers(shape: str, num: int) -> int:
    """Returns the registers a thread needs for tcgen05.ld or .st of ``shape`` with ``.x<num>``.

    Raises UsageError for an unknown shape, or a repetition that needs more than 128 registers.
    """
    if shape not in LD_SHAPES:
        raise UsageError(f"given shape {shape!r}; expected one of {', '.join(LD_SHAPES)}")
    registers = LD_SHAPES[shape][0] * num
    if num not in (1, 2, 4, 8, 16, 32, 64, 128) or registers > 128:
        raise UsageError(
            f"given .x{num} with shape {shape}; expected a power of two up to .x{128 // LD_SHAPES[shape][0]}"
        )
    return registers


@cache
def tmem_ld_map(shape: str, num: int, split: int = 0) -> tuple[IntArray, IntArray]:
    """Returns the cell of tensor memory, relative to the address, of each register of each thread of a warp.

    The result is two read-only int64 arrays of shape (registers, 32): lanes of tensor memory, and columns. ``split`` is
    the immediate of 16x32bx2. With .pack::16b or .unpack::16b, a register at column c holds the low halves of columns
    2c and 2c + 1. Raises UsageError as ``tmem_ld_registers`` does.
    """
    registers = tmem_ld_registers(shape, num)
    r = np.arange(registers, dtype=np.int64)[:, None]
    t = np.arange(32, dtype=np.int64)[None, :]
    rows, columns = _LD_FORMULAS[shape](r, t, split)
    maps = np.broadcast_to(rows, (registers, 32)).copy(), np.broadcast_to(columns, (registers, 32)).copy()
    for array in maps:
        array.flags.writeable = False
    return maps


def _ld_16x256b(r: IntArray, t: IntArray, split: int) -> tuple[IntArray, IntArray]:
    return t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2


_LD_FORMULAS: dict[str, Callable[[IntArray, IntArray, int], tuple[IntArray, IntArray]]] = {
    "32x32b": lambda r, t, split: (t + 0 * r, r + 0 * t),
    "16x64b": lambda r, t, split: (t // 4 + 8 * (t & 1), 2 * r + (t >> 1 & 1)),
    "16x128b": lambda r, t, split: (t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4),
    "16x256b": _ld_16x256b,
    "16x32bx2": lambda r, t, split: (t % 16, r + split * (t // 16)),
}


@cache
def tmem_cp_map(shape: str, multicast: str = "") -> tuple[IntArray, int]:
    """Returns the lanes that tcgen05.cp writes, relative to the address, and the 32-bit columns of a row.

    The lanes are a read-only int64 array of shape (copies, rows). ``shape`` is 128x256b, 4x256b, 128x128b, 64x128b or
    32x128b; ``multicast`` is the modifier that the last two need: warpx2::02_13, warpx2::01_23 or warpx4. Section
    9.7.16.9.2. Raises UsageError for another combination.
    """
    lanes = _CP_LANES.get((shape, multicast))
    if lanes is None:
        known = ", ".join(".".join(filter(None, key)) for key in _CP_LANES)
        raise UsageError(f"given tcgen05.cp shape {shape}{multicast and '.' + multicast}; expected one of {known}")
    array = np.array(lanes, dtype=np.int64)
    array.flags.writeable = False
    return array, 8 if shape.endswith("256b") else 4


_CP_LANES: dict[tuple[str, str], list[list[int]]] = {
    ("128x256b", ""): [list(range(128))],
    ("4x256b", ""): [[0, 32, 64, 96]],
    ("128x128b", ""): [list(range(128))],
    ("64x128b", "warpx2::02_13"): [[r + 64 * copy for r in range(64)] for copy in range(2)],
    ("64x128b", "warpx2::01_23"): [[r % 32 + 64 * (r // 32) + 32 * copy for r in range(64)] for copy in range(2)],
    ("32x128b", "warpx4"): [[r + 32 * copy for r in range(32)] for copy in range(4)],
}
