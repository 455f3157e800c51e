"""Register fragments: which element of a matrix each thread of a warp or warpgroup holds (PTX ISA 9.1 9.7.14, 9.7.15).

``thread`` is the lane in a warp, or the thread in a warpgroup (0 to 127) for wgmma; ``element`` counts the elements of
one thread, lowest register and lowest bits first. Both may be ints, integer arrays, or any type with ``+ * // %``.
The fragment of a warpgroup stacks the fragments of its four warps along M.
"""

from __future__ import annotations

from typing import Any

__all__ = ["LANES", "ROWS", "a_operand", "accumulator", "b_operand", "matrix"]

LANES = 32
ROWS = 16
REGISTER = 32


def accumulator(thread: Any, element: Any) -> tuple[Any, Any]:
    """Returns row and column in D or C of mma m16n8 (4 elements a thread) and of wgmma m64nN (N/2 elements a thread).

    Sections 9.7.14.5.1 to 9.7.14.5.11 and 9.7.15.5.1.1.
    """
    return _row(thread) + element // 2 % 2 * 8, thread % 4 * 2 + (element % 2 + element // 4 * 8)


def a_operand(thread: Any, element: Any, bits: int) -> tuple[Any, Any]:
    """Returns row and k in A of mma m16n8, or in A of a wgmma with A in registers; ``bits`` is 4, 8, 16 or 32."""
    per = REGISTER // bits
    register = element // per
    return _row(thread) + register % 2 * 8, thread % 4 * per + (element % per + register // 2 * (4 * per))


def b_operand(thread: Any, element: Any, bits: int) -> tuple[Any, Any]:
    """Returns k and column in B of mma m16n8; ``bits`` of an element is 4, 8, 16 or 32."""
    per = REGISTER // bits
    return thread % 4 * per + (element % per + element // per * (4 * per)), thread % LANES // 4


def matrix(lane: Any, half: Any, *, trans: bool = False) -> tuple[Any, Any]:
    """Returns row and column in an 8 × 8 matrix of 16-bit elements, for half 0 or 1 of an ldmatrix, stmatrix register.

    Register j holds matrix j; lane 8·j + r supplies the address of row r of matrix j. Section 9.7.14.5.15.
    """
    row, column = lane // 4, lane % 4 * 2 + half
    return (column, row) if trans else (row, column)


def _row(thread: Any) -> Any:
    """Returns the first row of a thread: four threads share a row, and each warp has 16 rows."""
    return thread % LANES // 4 + thread // LANES * ROWS
