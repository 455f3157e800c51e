"""New rows of K and V, written into the pages of their sequences after the keys that are there."""

from __future__ import annotations

from typing import Any

from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Else,
    Expr,
    Global,
    If,
    ctaid,
    kernel,
    ld,
    loop,
    min,
    select,
    st,
    u32,
    u64,
    var,
    warp,
)

__all__ = ["append"]

LANES = 32
NBYTES = 16  # that a thread moves at a time
PER_CHUNK = 8  # elements of these


@kernel("sm_90a", threads=128)
def append(
    k_new: u64,
    v_new: u64,
    k: u64,
    v: u64,
    k_from: u64,
    k_head: u64,
    v_from: u64,
    v_head: u64,
    k_page: u64,
    k_row: u64,
    k_page_head: u64,
    v_page: u64,
    v_row: u64,
    v_page_head: u64,
    head_dim: u32,
    cu_rows: u64,
    block_table: u64,
    lengths: u64,
    width: u32,
    pages: u32,
    rows: u32,
    sequences: u32,
    total: u32,
    kv_heads: u32,
    *,
    size: int = 64,
    packed: bool = True,
) -> None:
    """A warp copies the heads of one of ``total`` rows, of K if ``ctaid.y`` is 0, else of V. Strides are in elements.

    Sequence i has the rows from ``cu_rows[i]`` to ``cu_rows[i + 1]``; sequences that are not ``packed``
    have ``rows`` rows each. Rows that the table has no page for are not written.
    """
    number, of_k = ctaid.x * WARPS + warp.id, ctaid.y == 0
    sequence, first, stop = number // rows, number // rows * rows, total
    if packed:
        starts: Global[Any] = Global(u32, cu_rows)
        sequence = sequence_of(starts, sequences, number)
        first, stop = starts[sequence], min(starts[sequence + 1], total)
    with If((number >= first) & (number < stop)):
        row = Global(u32, lengths)[sequence] + (number - first)
        page = var(u32, pages)
        with If(row // size < width):
            page.set(Global(u32, block_table)[sequence * width + row // size])
        with If(page < pages):
            source = select(of_k, k_new, v_new) + number.to(u64) * select(of_k, k_from, v_from) * 2
            place = page.to(u64) * select(of_k, k_page, v_page) + (row % size).to(u64) * select(of_k, k_row, v_row)
            target, chunks = select(of_k, k, v) + place * 2, head_dim // PER_CHUNK
            for item in loop(warp.lane, kv_heads * chunks, LANES):
                head, inside = (item // chunks).to(u64), (item % chunks * NBYTES).to(u64)
                words = ld(_words(source + head * select(of_k, k_head, v_head) * 2 + inside), vec=4)
                st(_words(target + head * select(of_k, k_page_head, v_page_head) * 2 + inside), *words)


def _words(address: Any) -> Global[Any]:
    return Global(u32, address)


def sequence_of(starts: Global[Any], sequences: Expr, row: Expr) -> Any:
    """Returns the last sequence that begins at ``row`` or before."""
    found, stop = var(u32, 0), var(u32, sequences)
    for _ in loop():
        Break(when=stop - found <= 1)
        middle = (found + stop) // 2
        with If(starts[middle] <= row):
            found.set(middle)
        with Else():
            stop.set(middle)
    return found
