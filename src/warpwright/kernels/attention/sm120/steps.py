"""Steps of the mma.sync attention kernels: the mask, copies by TMA or cp.async, mma.sync, online softmax, results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm120.plan import LANES
from warpwright.kernels.tiles import PACKED, Blocks
from warpwright.lang import (
    Expr,
    Global,
    If,
    Pointer,
    b32,
    cp_async,
    ctaid,
    ex2,
    f32,
    fence,
    fma,
    ld,
    lg2,
    max,
    mbarrier,
    min,
    mma,
    nctaid,
    pack,
    rcp,
    s32,
    select,
    shfl,
    st,
    stmatrix,
    tma,
    u32,
    u64,
    var,
    warp,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.smem import Tile
from warpwright.layout.tensor_map import RAGGED_ROWS
from warpwright.types import Scalar

__all__ = [
    "BLOCK",
    "INFINITY",
    "LANES",
    "LN_2",
    "PANEL",
    "CpAsyncCopies",
    "Mask",
    "RaggedCopies",
    "TmaCopies",
    "accumulate_values",
    "apply_mask",
    "compute_scores",
    "lse_of_head",
    "multiply",
    "online_softmax",
    "pack_left",
    "pack_weights",
    "reduce_quad",
    "reduce_tree",
    "right_operands",
    "store_output",
    "write_lse",
    "write_row_lse",
]

BLOCK = 16  # rows and columns of a block: one ldmatrix of four matrices
PANEL_BYTES = 128
CHUNK = 8  # elements of 16 bytes
COPY_BYTES = 16
INFINITY = math.inf
LN_2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a row of Q sees, in run-time values, s32; ``left`` and ``right`` are 2**30 without a bound."""

    q_len: Expr
    kv_len: Expr
    left: Any
    right: Any

    def first(self, row: Any) -> Any:
        """Returns the first key that ``row`` sees."""
        return max(row + (self.kv_len - self.q_len) - self.left, 0)

    def stop(self, row: Any) -> Any:
        """Returns the key after the last one that ``row`` sees, 0 or less if it sees none."""
        return min(row + (self.kv_len - self.q_len) + self.right + 1, self.kv_len)

    def blocks(self, row: Any, rows: int, keys: int) -> tuple[Any, Any]:
        """Returns the first block of ``keys`` keys that ``rows`` rows from ``row`` on see, and the end block."""
        stop = max(self.stop(min(row + rows, self.q_len) - 1), 0)
        return self.first(row).to(u32) // keys, (stop + (keys - 1)).to(u32) // keys


@dataclass(frozen=True, slots=True)
class TmaCopies:
    """Copies of Q, K, V and O through tensor maps; ``heads`` are the coordinates of their heads, before the row and the
    column. One thread issues a copy."""

    maps: dict[str, tma.Map[Scalar]]
    heads: dict[str, tuple[Any, ...]]
    arrivals = 1
    elect = True

    def load_and_arrive(self, name: str, tile: Tile, row: Any, full: mbarrier) -> None:
        """Load rows of Q, K or V from ``row`` on, with zeros beyond the array; ``full`` completes with the rows."""
        full.arrive_expect_tx(tile.nbytes)
        self.issue_loads(name, tile, row, full)

    def issue_loads(self, name: str, tile: Tile, row: Any, full: mbarrier) -> None:
        """Issue the loads of rows whose bytes ``full`` expects."""
        for column in range(0, tile.shape[1], PANEL):
            panel = tile[:, column : column + PANEL]
            tma.load(panel, self.maps[name][self.place(name, row, column)], full)

    def place(self, name: str, row: Any, column: int) -> tuple[Any, ...]:
        """Returns the coordinates of an element of an array."""
        return (*self.heads[name], row, column)

    def sync_and_store(self, tile: Tile, row: Any, mask: Mask, leader: Expr, name: str = "o") -> None:
        """Store the 16 rows of O, or of another result, that this warp wrote to ``tile``; commits the group."""
        fence.proxy_async()
        warp.sync()
        with If(leader):
            for column in range(0, tile.shape[1], PANEL):
                corner = self.maps[name][self.place(name, row, column)]
                tma.store(corner, tile[:BLOCK, column : column + PANEL])
            tma.commit_group()

    def wait_stores(self, leader: Expr) -> None:
        """Wait until the stores have read shared memory."""
        with If(leader):
            tma.wait_group(0, read=True)


@dataclass(frozen=True, slots=True)
class RaggedCopies(TmaCopies):
    """Copies of the rows of one of several packed sequences, through ragged maps (`layout.tensor_map.ragged`).

    ``heads`` are (R, row after the sequence, head); ``lengths`` are those of the sequence in Q, K and V.
    """

    lengths: dict[str, Expr]

    def place(self, name: str, row: Any, column: int) -> tuple[Any, ...]:
        """Returns the coordinates of an element; rows count from the beginning of the sequence."""
        return (*self.heads[name], row + (RAGGED_ROWS - self.lengths[name].to(s32)), column)


@dataclass(frozen=True, slots=True)
class CpAsyncCopies:
    """Copies of Q, K, V and O through addresses: each lane of the loading warps copies 16 bytes at a time by cp.async.

    ``rows`` are the first elements of this head, ``pitches`` the row strides in elements (u64), ``extents`` the numbers
    of rows, ``columns`` the number of columns; the ``threads`` of the loading warps begin at thread 0. Nothing is read
    beyond the last row and column, so addresses may point anywhere there.
    """

    rows: dict[str, Pointer[Any]]
    pitches: Mapping[str, Expr]
    extents: Mapping[str, Expr]
    columns: Expr
    thread: Expr
    threads: int
    elect = False

    @property
    def arrivals(self) -> int:
        """Arrivals of one copy on its barrier: one a thread."""
        return self.threads

    def load_and_arrive(self, name: str, tile: Tile, row: Any, full: mbarrier) -> None:
        """Load rows of Q, K or V from ``row`` on, with zeros beyond the array; ``full`` completes with the rows."""
        chunks = tile.shape[1] // CHUNK
        step = self.threads // chunks  # rows that the threads copy at once
        down, across = self.thread // chunks, self.thread % chunks * CHUNK
        own = row + down.to(s32)
        source = self.rows[name] + (own.to(u64) * self.pitches[name] + across.to(u64))
        left, whole = select(across < self.columns, self.extents[name] - own, 0), var(u32, COPY_BYTES)
        places = [tile.at(down + first, across) for first in range(0, CHUNK, step)]  # the swizzle repeats after 8 rows
        for first in range(0, tile.shape[0], step):
            turn, again = first // step % len(places), first // (step * len(places)) * (step * len(places))
            taken = select(left > first, whole, 0)
            cp_async.copy(places[turn] + again * PANEL, source + self.pitches[name] * first, COPY_BYTES, taken=taken)
        cp_async.arrive(full)

    def sync_and_store(self, tile: Tile, row: Any, mask: Mask, leader: Expr) -> None:
        """Store the 16 rows of O that this warp wrote to ``tile``."""
        warp.sync()
        chunks = tile.shape[1] // CHUNK
        for number in range(0, BLOCK * chunks, LANES):
            index = warp.lane + number
            down, across = index // chunks, index % chunks * CHUNK
            at = row + down.to(s32)
            values = ld(tile.at(down, across).cast(b32), vec=4)
            with If((at < mask.q_len) & (across < self.columns)):
                st((self.rows["o"] + (at.to(u64) * self.pitches["o"] + across.to(u64))).cast(b32), *values)

    def wait_stores(self, leader: Expr) -> None:
        """Return at once: the stores are synchronous."""


def compute_scores(queries: Sequence[Blocks], keys: Blocks, dtype: type[Scalar]) -> list[list[Fragment]]:
    """Returns Q·Kᵀ of each block of 16 rows of Q and all rows of a tile of K, as (16, 8) accumulators."""
    rows, columns = keys.tile.shape
    sums = [[mma.accumulator(f32) for _ in range(rows // CHUNK)] for _ in queries]
    for k in range(0, columns, BLOCK):
        lefts = [mma.left(dtype, block.load(0, k)) for block in queries]
        multiply(sums, lefts, right_operands([keys.load(row, k) for row in range(0, rows, BLOCK)], dtype))
    return sums


def accumulate_values(outputs: Sequence[list[Fragment]], lefts: Sequence[list[Fragment]], values: Blocks) -> None:
    """Add P·V, over all rows of a tile of V, to the outputs of each block of 16 rows."""
    rows, columns = values.tile.shape
    for k in range(0, rows, BLOCK):
        loaded = [values.load(k, column, trans=True) for column in range(0, columns, BLOCK)]
        multiply(outputs, [left[k // BLOCK] for left in lefts], right_operands(loaded, values.tile.dtype))


def right_operands(loaded: list[list[Expr]], dtype: type[Scalar]) -> list[Fragment]:
    """Returns the two right operands (16, 8) of each loaded block."""
    return [mma.right(dtype, registers[i : i + 2]) for registers in loaded for i in (0, 2)]


def multiply(sums: Sequence[list[Fragment]], lefts: Sequence[Fragment], rights: Sequence[Fragment]) -> None:
    """Add each left operand times each right operand to its accumulator."""
    for number, right in enumerate(rights):
        for own, left in zip(sums, lefts, strict=True):
            mma.sync(own[number], left, right)


def apply_mask(sums: list[Fragment], row: Any, column: Any, mask: Mask) -> None:
    """Set scores of keys that a row does not see to -inf; the block begins at ``row`` and ``column``."""
    for half in range(2):
        own = row + (warp.lane // 4).to(s32) + CHUNK * half
        first = mask.first(own)
        visible = max(mask.stop(own) - first, 0).to(u32)
        begin = (column + (warp.lane % 4 * 2).to(s32) - first).to(u32)
        for number, block in enumerate(sums):
            for i in range(2):
                score = block.regs[2 * half + i]
                score.set(select(begin + (CHUNK * number + i) < visible, score, -INFINITY))


def online_softmax(
    sums: list[Fragment], outputs: list[Fragment], row_max: list[Any], row_sum: list[Any], factor: Expr
) -> None:
    """Replace the scores by weights 2^(factor · (score - row max)); rescale outputs and row sums to the new row max.

    A thread has two rows of a block, each shared by the four lanes of a quad. A row max of -inf counts as 0: then all
    weights are 0.
    """
    for half in range(2):
        scores = [block.regs[2 * half + i] for block in sums for i in range(2)]
        top = reduce_tree(max, [row_max[half], *scores])
        for distance in (1, 2):
            top = max(top, shfl.bfly(top, distance))
        shift = select(top == -INFINITY, 0.0, top) * -factor
        rescale = ex2(fma(row_max[half], factor, shift))
        row_max[half].set(top)
        for score in scores:
            score.set(ex2(fma(score, factor, shift)))
        row_sum[half].set(fma(row_sum[half], rescale, reduce_tree(lambda a, b: a + b, scores)))
        for output in outputs:
            for i in range(2):
                output.regs[2 * half + i] *= rescale


def reduce_tree(combine: Any, values: list[Any]) -> Any:
    """Returns all values combined pairwise in a tree, the shortest dependency chain."""
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [combine(*pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return values[0]


def pack_weights(sums: list[Fragment], dtype: type[Scalar]) -> list[Fragment]:
    """Returns blocks of 16 columns of weights as left operands: a thread has the same elements in both layouts."""
    return [mma.left(dtype, pack_left(sums[i : i + 2], dtype)) for i in range(0, len(sums), 2)]


def pack_left(sums: Sequence[Fragment], dtype: type[Scalar], scales: Sequence[Any] = ()) -> list[Expr]:
    """Returns two neighbouring (16, 8) accumulators packed in four registers, rounded, rows times ``scales``."""
    registers = [[block.regs[2 * half : 2 * half + 2] for half in range(2)] for block in sums]
    scaled = [[[x * scales[half] if scales else x for x in pair] for half, pair in enumerate(two)] for two in registers]
    return [pack(PACKED[dtype], *pair) for two in scaled for pair in two]


def reduce_quad(partial: Any) -> Any:
    """Returns the sum of a row over the four lanes that share it."""
    own = partial + shfl.bfly(partial, 1)
    return own + shfl.bfly(own, 2)


def store_output(outputs: list[Fragment], row_sum: list[Any], blocks: Blocks) -> None:
    """Store outputs divided by their row sums, rounded, to 16 rows of shared memory; 0 if all weights are 0."""
    scales = [select(total == 0.0, 0.0, rcp(total)) for total in row_sum]
    for i in range(0, len(outputs), 2):
        stmatrix(blocks.at(0, i * CHUNK), pack_left(outputs[i : i + 2], blocks.tile.dtype, scales))


def write_lse(lse: Expr, row: Any, row_max: list[Any], row_sum: list[Any], factor: Expr, mask: Mask) -> None:
    """Write the log-sum-exp of the two rows of a quad."""
    for half in range(2):
        own = row + (warp.lane // 4).to(s32) + CHUNK * half
        write_row_lse(lse, own, row_max[half], row_sum[half], factor, mask, warp.lane % 4 == 0)


def lse_of_head(lse: Expr, mask: Mask) -> Any:
    """Returns the address of the log-sum-exp of this head's first row (0: none), of float32 (batch, heads, q_len) from
    ``lse`` on."""
    place = (ctaid.z * nctaid.y + ctaid.y).to(u64) * mask.q_len.to(u64)
    return select(lse != 0, lse + place * f32.nbytes, 0)


def write_row_lse(lse: Expr, row: Any, row_max: Any, row_sum: Any, factor: Expr, mask: Mask, writes: Expr) -> None:
    """Write the log-sum-exp of a row; ``lse`` is the address of the head's first one (0: none)."""
    value = select(row_sum == 0.0, -INFINITY, (row_max * factor + lg2(row_sum)) * LN_2)
    with If((lse != 0) & writes & (row < mask.q_len)):
        st(Global(f32, lse) + row.to(u64), value)
