"""The quantizing epilogue of the block-scaled Blackwell GEMMs: D and its scale factors in a format with block scales.

A thread has a row of D, so the blocks of a row need no exchange: their largest magnitudes are found in registers. The
scale factor of a block is that of the OCP Microscaling Formats v1.0, section 6.3, from the exponent bits of the largest
magnitude, and the elements are multiplied by a power of two, which is exact. So the result has the bits of `quantize`
of the float32 product. D is stored by TMA, the scale factors by each thread, in the tiles of `layout.scales`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.kernels.gemm.epilogue import Finish
from warpwright.kernels.gemm.formats import Format
from warpwright.kernels.gemm.sm100.configs import LANES
from warpwright.kernels.gemm.sm100.scaled.configs import ROW_BYTES, SCALE_BYTES, Config
from warpwright.kernels.gemm.sm100.steps import columns_from, store_fragments
from warpwright.kernels.tiles import part
from warpwright.lang import (
    Expr,
    Global,
    If,
    elect_one,
    f32,
    fence,
    max,
    min,
    pack_narrow,
    s32,
    select,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u8,
    u16,
    u32,
    warp,
)
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["output_blocks", "store_output"]

PIECE = 64  # columns of D that a warp stores at a time: two blocks of 32
WARP_SIZE = 32
CHUNK_BYTES = 16
WORD_BYTES = 4
BLOCKS = 4  # of a row in a tile of scale factors
EXPONENT_BITS, MANTISSA_BITS, NAN_CODE = 0xFF, 23, 255
UNIT_CODE = 254  # code of 2^-s of the code 127 + s, less 127 + s


@dataclass(frozen=True, slots=True)
class FactorArray:
    """The scale factors of D (``rows``, ``columns``) in global memory, in tiles of 128 rows by 4 blocks of columns."""

    address: Expr
    rows: Expr
    columns: Expr


def output_blocks(config: Config, out: type[Scalar], format: Format | None) -> Tile:
    """Returns the blocks of the epilogue: 32 rows of 128 bytes for each warp, or of 64 columns of ``format``."""
    if format is None:
        return smem.tile(out, (config.boxes * LANES, ROW_BYTES // out.nbytes), swizzle=128)
    width = PIECE // format.packed
    return smem.tile(format.dtype, (config.boxes * LANES, width), swizzle=width)


def store_output(
    acc: tmem.TmemTile,
    d: tma.Map[Scalar],
    blocks: Tile,
    factors: tuple[Expr, ...],
    row: Expr,
    col: Expr,
    finish: Finish,
    format: Format | None,
    *,
    first: Any = 0,
    early: int = 0,
) -> Iterator[str]:
    """Tensor memory to D after ``finish``, quantized if there is a ``format``; else as `store_fragments` does it."""
    if format is None:
        return store_fragments(acc, d, blocks, (), row, col, finish, False, first=first, early=early)
    return store_quantized(acc, d, blocks, FactorArray(*factors), row, col, finish, format, first=first, early=early)


def store_quantized(
    acc: tmem.TmemTile,
    d: tma.Map[Scalar],
    blocks: Tile,
    factors: FactorArray,
    row: Expr,
    col: Expr,
    finish: Finish,
    format: Format,
    *,
    first: Any = 0,
    early: int = 0,
) -> Iterator[str]:
    """Tensor memory to D in ``format``, 64 columns at a time: ``finish``, scale factors, a block, a TMA store.

    ``finish`` takes sums that are neighbours in a row. Yields "read" once all of ``acc`` is in registers, or with
    ``early`` so many columns. ``first``, 0 or a run-time value, is the column of ``acc`` where the store begins; after
    the last column follows column 0.
    """
    own, stores, stages = tid.x % LANES // WARP_SIZE, elect_one(), blocks.shape[0] // LANES
    lefts = range(0, acc.shape[1], PIECE)
    last, newer = lefts[(early or acc.shape[1]) // PIECE - 1], stages - 1 if len(lefts) % stages == 0 else 0

    def column(left: int) -> Any:
        return (first + left) % acc.shape[1] if isinstance(first, Expr) else left

    loaded = tcgen05.ld(columns_from(acc, column(0), PIECE))
    for number, left in enumerate(lefts):
        block = part(blocks, own * stages + number % stages, WARP_SIZE, "k")
        with If(stores):  # TMA has read this block's last contents
            tma.wait_group(newer, read=True)
        warp.sync()
        tcgen05.wait_ld()
        sums = loaded
        if left == last:
            yield "read"
        if left != lefts[-1]:
            loaded = tcgen05.ld(columns_from(acc, column(left + PIECE), PIECE))
        values, codes = finish(sums, column(left)), list[Expr]()
        for at in range(0, PIECE, format.block):
            words, code = quantize_block(values[at : at + format.block], format)
            store_words(block, at // format.packed, words)
            codes.append(code)
        store_codes(factors, codes, row, col + column(left), own)
        fence.proxy_async()
        warp.sync()
        with If(stores):
            corner = row + own * WARP_SIZE, (col + column(left)) // format.packed
            tma.store(d[corner], block)
            tma.commit_group()


def quantize_block(values: list[Any], format: Format) -> tuple[list[Expr], Expr]:
    """Returns a block's elements, packed in words, and the code of its scale factor.

    A block with NaN or infinity has the code of NaN and elements of 0.
    """
    amax = max(max(*values, nan=True), -min(*values, nan=True), nan=True)
    exponent = amax.bitcast(u32) >> MANTISSA_BITS & EXPONENT_BITS
    spoiled = exponent == NAN_CODE
    code = max(exponent.bitcast(s32) - largest_exponent(format), 0).bitcast(u32)
    inverse = (UNIT_CODE - code << MANTISSA_BITS).bitcast(f32)
    each = 2 * WORD_BYTES if format.packed == 2 else WORD_BYTES
    scaled = [value * inverse for value in values]
    words = [pack_narrow(format.dtype, *scaled[i : i + each]) for i in range(0, len(scaled), each)]
    return [select(spoiled, 0, word) for word in words], select(spoiled, NAN_CODE, code)


def largest_exponent(format: Format) -> int:
    """Returns the exponent of the largest number of the element type."""
    dtype = ml_dtypes.float4_e2m1fn if format.packed == 2 else format.dtype.dtype
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return int(np.frexp(largest)[1]) - 1


def store_words(block: Tile, column: int, words: list[Expr]) -> None:
    """Store words of this thread's row to ``block`` from element ``column`` on, 16 bytes at a time."""
    for i in range(0, len(words), CHUNK_BYTES // WORD_BYTES):
        chunk = words[i : i + CHUNK_BYTES // WORD_BYTES]
        st(block.at(warp.lane, column + i * WORD_BYTES).cast(u32), *chunk)


def store_codes(factors: FactorArray, codes: list[Expr], row: Expr, col: Expr, own: Expr) -> None:
    """Store the scale factors of this thread's row from column ``col`` on; 0 for those beyond D."""
    block = PIECE // len(codes)
    inside = row + own * WARP_SIZE + warp.lane < factors.rows
    low, high = (select(inside & (col + i * block < factors.columns), code, 0) for i, code in enumerate(codes))
    tile, across = col // (BLOCKS * block), (factors.columns + (BLOCKS * block - 1)) // (BLOCKS * block)
    offset = (row // LANES * across + tile) * SCALE_BYTES + warp.lane * CHUNK_BYTES + own * BLOCKS
    with If((row < factors.rows) & (tile < across)):
        st(
            Global(u8, factors.address).cast(u16) + (offset + col % (BLOCKS * block) // block) // 2,
            (low | high << 8).to(u16),
        )
