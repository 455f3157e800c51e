"""Register fragments: which element of a matrix each thread of a warp or warpgroup holds (PTX ISA 9.1 9.7.14, 9.7.15).

``thread`` is the lane in a warp, or the thread in a warpgroup (0 to 127) for wgmma; ``element`` counts the elements of
one thread, lowest register and lowest bits first. Both may be ints, integer arrays, or anything else with ``+ * // %``.
A warpgroup's fragment is that of its four warps, one below the other.
"""

from __future__ import annotations

from typing import Any

__all__ = ["LANES", "ROWS", "accumulator", "left", "matrix", "right"]

LANES = 32
ROWS = 16
REGISTER = 32


def accumulator(thread: Any, element: Any) -> tuple[Any, Any]:
    """Row and column of D or C of mma m16n8 (4 elements a thread) and of wgmma m64nN (N/2).

    Sections 9.7.14.5.1 to 9.7.14.5.11 and 9.7.15.5.1.1.
    """
    return _row(thread) + element // 2 % 2 * 8, thread % 4 * 2 + (element % 2 + element // 4 * 8)


def left(thread: Any, element: Any, bits: int) -> tuple[Any, Any]:
    """Row and k of A of mma m16n8, and of A in registers of wgmma, for elements of 4, 8, 16 or 32 bits."""
    per = REGISTER // bits
    register = element // per
    return _row(thread) + register % 2 * 8, thread % 4 * per + (element % per + register // 2 * (4 * per))


def right(thread: Any, element: Any, bits: int) -> tuple[Any, Any]:
    """k and column of B of mma m16n8, for elements of 4, 8, 16 or 32 bits."""
    per = REGISTER // bits
    return thread % 4 * per + (element % per + element // per * (4 * per)), thread % LANES // 4


def matrix(lane: Any, half: Any, *, trans: bool = False) -> tuple[Any, Any]:
    """Row and column, in an 8 × 8 matrix of 16-bit elements, of half ``half`` of a register of ldmatrix or stmatrix.

    Register j belongs to matrix j, whose row r lies at the address that lane 8·j + r gives. Section 9.7.14.5.15.
    """
    across, down = lane // 4, lane % 4 * 2 + half
    return (down, across) if trans else (across, down)


def _row(thread: Any) -> Any:
    """Eight rows of four threads each; a warp has sixteen."""
    return thread % LANES // 4 + thread // LANES * ROWS
