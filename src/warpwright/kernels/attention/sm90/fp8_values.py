"""The launch before FP8 attention on Hopper: V transposed, because wgmma reads 8-bit operands along K only.

The keys of V are K of P·V. A slab has 32 of them, K of one wgmma, for all columns: 32 bytes a column, in the 32-byte
swizzle of a K-major operand, so that a block of keys is one contiguous copy. The order of keys within a slab is that in
which a thread's float32 scores are packed into its fragment of A: a sum over the keys does not depend on their order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.fp8_plan import COLUMNS, SLAB, THREADS
from warpwright.lang import (
    Expr,
    Global,
    If,
    Kernel,
    ctaid,
    kernel,
    ld,
    min,
    nctaid,
    prmt,
    select,
    st,
    tid,
    u32,
    u64,
)

__all__ = ["KEY_ORDER", "kernel_of", "transpose_values"]

HALF = SLAB // 2
WORD_KEYS = 4  # keys in a word of a column
# The key, within 16, at each position: a thread of a quad has scores of the keys 2c, 2c + 1, 2c + 8 and 2c + 9.
KEY_ORDER = tuple(8 * (i >> 1) + 2 * c + (i & 1) for c in range(WORD_KEYS) for i in range(WORD_KEYS))
LOW_PAIRS, HIGH_PAIRS = 0x5140, 0x7362  # bytes 0 and 1 of two words side by side, bytes 2 and 3
LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632


@kernel("sm_90a", threads=THREADS)
def transpose_values(
    v: u64,
    of_batch: u32,
    of_head: u32,
    of_row: u32,
    columns: u32,
    out: u64,
    kv_len: u32,
    slabs: u32,
    *,
    head_dim: int = 128,
) -> None:
    """A thread moves four columns of one slab; keys from ``kv_len`` on and columns from ``columns`` on are 0.

    The head is ``ctaid.y``, the batch ``ctaid.z``; ``of_batch``, ``of_head`` and ``of_row`` are strides in bytes.
    """
    index = ctaid.x * THREADS + tid.x
    slab, column = index // (head_dim // COLUMNS), index % (head_dim // COLUMNS) * COLUMNS
    first = slab * SLAB
    with If(slab < slabs):
        base = v + ctaid.z.to(u64) * of_batch.to(u64) + ctaid.y.to(u64) * of_head.to(u64)
        inside = select(column < columns, column, 0)
        words = []
        for key in range(SLAB):
            row = min(first + key, kv_len - 1)
            word = ld(Global(u32, base + row.to(u64) * of_row.to(u64) + inside.to(u64)), nc=True)
            words.append(select((first + key < kv_len) & (column < columns), word, 0))
        of_columns = [transpose_words([words[16 * half + key] for key in KEY_ORDER]) for half in range(2)]
        head = ctaid.z * nctaid.y + ctaid.y
        start = out + (head.to(u64) * slabs.to(u64) + slab.to(u64)) * (head_dim * SLAB) + (column * SLAB).to(u64)
        swapped = (column // COLUMNS % 2) * HALF  # the swizzle exchanges the 16-byte chunks of every other four columns
        for half in range(2):
            for number in range(COLUMNS):
                place = start + (swapped ^ (half * HALF)).to(u64)
                st(Global(u32, place, number * SLAB), *of_columns[half][number])


def transpose_words(words: list[Expr]) -> list[list[Any]]:
    """Returns 16 words, each of four columns of a key, as four columns, each of four words of four keys."""
    quads = [transpose_quad(words[first : first + WORD_KEYS]) for first in range(0, len(words), WORD_KEYS)]
    return [[quad[column] for quad in quads] for column in range(COLUMNS)]


def transpose_quad(words: list[Expr]) -> list[Any]:
    """Returns the transpose of a matrix of 4 x 4 bytes, a word a row."""
    a, b, c, d = words
    pairs = [(prmt(a, b, way), prmt(c, d, way)) for way in (LOW_PAIRS, HIGH_PAIRS)]
    return [prmt(upper, lower, way).bitcast(u32) for upper, lower in pairs for way in (LOW_HALVES, HIGH_HALVES)]


@cache
def kernel_of(head_dim: int) -> Kernel:
    """Returns the kernel for tiles of ``head_dim`` columns."""
    return transpose_values.configure(head_dim=head_dim)
