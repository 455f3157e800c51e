"""Operands of block-scaled MMAs (PTX ISA 9.1 section 9.7.16.10.7): scale factors in memory and in tensor memory, and
packed 4-bit elements.

A matrix of scale factors has one byte for each row (M or N) and block of 16 or 32 elements of K. In global and shared
memory it is stored in tiles of 128 rows by 4 blocks, 512 bytes each: the layout of cuBLAS and of CUTLASS's
Sm1xxBlockScaledConfig. tcgen05.cp.32x128b.warpx4 copies a tile to four columns of tensor memory.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from warpwright.errors import UsageError

__all__ = ["SCALE_TILE", "pack_e2m1", "scale_columns", "scale_offsets", "scale_tiles", "tmem_scale_map"]

IntArray = np.ndarray[Any, np.dtype[np.int64]]

SCALE_TILE = (128, 4)  # rows and blocks of a tile
_LANES = 32


def scale_offsets(rows: int, blocks: int) -> IntArray:
    """Returns the byte offset of each scale factor of a matrix of ``rows`` by ``blocks`` that is stored in tiles.

    The tiles of 128 rows follow each other along the blocks first. A partial tile takes 512 bytes too.
    """
    row, block = np.arange(rows, dtype=np.int64)[:, None], np.arange(blocks, dtype=np.int64)
    height, width = SCALE_TILE
    tile = row // height * -(-blocks // width) + block // width
    inside = row % _LANES * 16 + row % height // _LANES * width + block % width
    return tile * (height * width) + inside


def scale_tiles(scales: Any) -> Any:
    """Returns scale factors (rows, blocks) of a dtype of one byte in tiles: an array of (rows / 128, blocks / 4, 32, 4,
    4), rounded up, with bytes of 0 where there is no scale factor. Raises UsageError for another shape or dtype."""
    scales = np.asarray(scales)
    if scales.ndim != 2 or scales.dtype.itemsize != 1:
        raise UsageError(
            f"given scale factors of shape {scales.shape} and dtype {scales.dtype}; expected (rows, blocks) of a dtype "
            "of one byte, ml_dtypes.float8_e8m0fnu or float8_e4m3fn"
        )
    rows, blocks = scales.shape
    tiles = np.zeros((-(-rows // 128), -(-blocks // 4), _LANES, 4, 4), np.uint8)
    tiles.reshape(-1)[scale_offsets(rows, blocks)] = scales.view(np.uint8)
    return tiles.view(scales.dtype)


def pack_e2m1(values: Any) -> Any:
    """Returns an array of ml_dtypes.float4_e2m1fn, (…, K), as bytes of two elements, (…, K / 2) of uint8: `e2m1x2`.

    The element of even k is in the low bits. Raises UsageError for another dtype or an odd K.
    """
    values = np.asarray(values)
    if values.dtype != ml_dtypes.float4_e2m1fn or values.shape[-1] % 2:
        raise UsageError(
            f"given an array of {values.dtype} and shape {values.shape}; expected ml_dtypes.float4_e2m1fn with an even "
            "last dimension"
        )
    codes = values.view(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def scale_columns(rows: int) -> int:
    """Returns the 32-bit columns of tensor memory that hold up to 4 scale factors for each of ``rows``."""
    return -(-rows // _LANES)


def tmem_scale_map(rows: int) -> tuple[IntArray, IntArray]:
    """Returns the lanes, (4, rows), and the columns, (rows,), of the scale factors of each row, relative to their
    address: four copies, one in each quarter of the lanes. Byte b of a cell is the row's scale factor b."""
    row = np.arange(rows, dtype=np.int64)
    return row % _LANES + _LANES * np.arange(4, dtype=np.int64)[:, None], row // _LANES
