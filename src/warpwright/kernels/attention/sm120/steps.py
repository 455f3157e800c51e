"""The steps that the mma.sync attention kernels of `sm120` are made of: bounds, copies, products, softmax, results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm120.plan import LANES
from warpwright.lang import (
    Expr,
    Global,
    If,
    Pointer,
    Ring,
    Shared,
    b32,
    bar,
    bf16,
    bf16x2,
    cp_async,
    ctaid,
    ex2,
    f16,
    f16x2,
    f32,
    fence,
    fma,
    ld,
    ldmatrix,
    lg2,
    max,
    mbarrier,
    min,
    mma,
    nctaid,
    pack,
    rcp,
    role,
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
from warpwright.types import Scalar

__all__ = [
    "BLOCK",
    "INFINITY",
    "LANES",
    "LN_2",
    "PANEL",
    "Blocks",
    "Bounds",
    "ByLanes",
    "ByTma",
    "add_values",
    "finish",
    "halves",
    "hide",
    "left_of",
    "multiply",
    "multiply_keys",
    "soften",
    "total_of",
    "tree",
    "weights",
    "write_lse",
]

BLOCK = 16  # rows and columns of a block: one ldmatrix of four matrices
PANEL_BYTES = 128
CHUNK = 8  # elements of 16 bytes
COPY_BYTES = 16
INFINITY = math.inf
LN_2 = math.log(2.0)
PACKED = {bf16: bf16x2, f16: f16x2}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which keys a row of Q sees: run-time values, s32; ``left`` and ``right`` are 2**30 without a bound."""

    q_len: Expr
    kv_len: Expr
    left: Expr
    right: Expr

    def first(self, row: Any) -> Any:
        """The first key that ``row`` sees."""
        return max(row + (self.kv_len - self.q_len) - self.left, 0)

    def stop(self, row: Any) -> Any:
        """The key after the last one that ``row`` sees; 0 or less where it sees none."""
        return min(row + (self.kv_len - self.q_len) + self.right + 1, self.kv_len)

    def tiles(self, row: Any, rows: int, columns: int) -> tuple[Any, Any]:
        """First tile of ``columns`` keys that one of ``rows`` rows from ``row`` on sees, and the one after the last."""
        stop = max(self.stop(min(row + rows, self.q_len) - 1), 0)
        return self.first(row).to(u32) // columns, (stop + (columns - 1)).to(u32) // columns


@dataclass(frozen=True, slots=True)
class ByTma:
    """Q, K, V and O through tensor maps of four dimensions; one thread issues a copy."""

    maps: dict[str, tma.Map[Scalar]]
    heads: dict[str, tuple[Expr, Expr]]
    arrivals = 1
    elect = True

    def load(self, name: str, tile: Tile, row: Any, full: mbarrier) -> None:
        """Rows of Q, K or V from ``row`` on into ``tile``; zeros beyond the last row and column."""
        full.arrive_expect_tx(tile.nbytes)
        self.copy(name, tile, row, full)

    def copy(self, name: str, tile: Tile, row: Any, full: mbarrier) -> None:
        """The same where the bytes are expected already."""
        for column in range(0, tile.shape[1], PANEL):
            panel = tile[:, column : column + PANEL]
            tma.load(panel, self.maps[name][(*self.heads[name], row, column)], full)

    def store(self, tile: Tile, row: Any, bounds: Bounds, leader: Expr) -> None:
        """Sixteen rows of O that this warp has put into ``tile``."""
        fence.proxy_async()
        warp.sync()
        with If(leader):
            for column in range(0, tile.shape[1], PANEL):
                corner = self.maps["o"][(*self.heads["q"], row, column)]
                tma.store(corner, tile[:BLOCK, column : column + PANEL])
            tma.commit_group()

    def leave(self, leader: Expr) -> None:
        """Shared memory has been read."""
        with If(leader):
            tma.wait_group(0, read=True)


@dataclass(frozen=True, slots=True)
class ByLanes:
    """The same through addresses: every lane of the loading warps copies 16 bytes at a time by cp.async.

    ``rows`` are the first elements of this head's rows, ``pitches`` the elements from one row to the next (u64),
    ``extents`` the numbers of rows, ``columns`` that of columns; ``threads`` of the loading warps begin at thread 0.
    Beyond the last row and column nothing is read, so addresses may point anywhere there.
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
        """Arrivals that a copy brings: one of each thread."""
        return self.threads

    def load(self, name: str, tile: Tile, row: Any, full: mbarrier) -> None:
        """Rows of Q, K or V from ``row`` on into ``tile``; zeros beyond the last row and column."""
        chunks = tile.shape[1] // CHUNK
        step = self.threads // chunks  # rows that the threads copy at once
        down, across = self.thread // chunks, self.thread % chunks * CHUNK
        own = row + down.to(s32)
        source = self.rows[name] + (own.to(u64) * self.pitches[name] + across.to(u64))
        left, whole = select(across < self.columns, self.extents[name] - own, 0), var(u32, COPY_BYTES)
        places = [tile.at(down + first, across) for first in range(0, CHUNK, step)]  # the swizzle comes again after 8
        for first in range(0, tile.shape[0], step):
            turn, again = first // step % len(places), first // (step * len(places)) * (step * len(places))
            taken = select(left > first, whole, 0)
            cp_async.copy(places[turn] + again * PANEL, source + self.pitches[name] * first, COPY_BYTES, taken=taken)
        cp_async.arrive(full)

    def store(self, tile: Tile, row: Any, bounds: Bounds, leader: Expr) -> None:
        """Sixteen rows of O that this warp has put into ``tile``."""
        warp.sync()
        chunks = tile.shape[1] // CHUNK
        for number in range(0, BLOCK * chunks, LANES):
            index = warp.lane + number
            down, across = index // chunks, index % chunks * CHUNK
            at = row + down.to(s32)
            values = ld(tile.at(down, across).cast(b32), vec=4)
            with If((at < bounds.q_len) & (across < self.columns)):
                st((self.rows["o"] + (at.to(u64) * self.pitches["o"] + across.to(u64))).cast(b32), *values)

    def leave(self, leader: Expr) -> None:
        """Nothing is on its way."""


class Blocks:
    """The 16 × 16 blocks of a swizzled tile as ldmatrix reads them: each lane's addresses, one for each column block.

    ``row`` and ``chunk`` are the row and the group of eight columns that this lane points at in the first block, in the
    panel of 64 columns with number ``panel``. The swizzle moves 16-byte chunks within eight rows only, so blocks below
    and in other panels lie at constant distances.
    """

    def __init__(self, tile: Tile, row: Expr, chunk: Expr, panel: Any = 0) -> None:
        base, self.start = tile.place.known()
        self.tile = tile
        lane = row * PANEL_BYTES + ((chunk ^ (row % CHUNK)) * 16)
        corner = base + panel * (tile.rows * PANEL_BYTES)
        self.places = [corner + (lane ^ (2 * BLOCK * step)) for step in range(PANEL // BLOCK)]

    def at(self, row: int, column: int) -> Shared[Any]:
        """What this lane points at in the block that begins at ``row`` and ``column``."""
        panel, inner = divmod(column, PANEL)
        below = (panel * self.tile.rows + row) * PANEL_BYTES
        return Shared(self.tile.dtype, self.places[inner // BLOCK], self.start + below)

    def load(self, row: int, column: int, *, trans: bool = False) -> list[Expr]:
        """The block: four registers, those of its upper and lower (with ``trans`` left and right) halves in turn."""
        return ldmatrix(self.at(row, column), 4, trans=trans)


def multiply_keys(queries: Sequence[Blocks], keys: Blocks, dtype: type[Scalar]) -> list[list[Fragment]]:
    """Q·Kᵀ of each block of 16 rows of Q and all rows of a tile of K: sums (16, 8) side by side."""
    rows, columns = keys.tile.shape
    sums = [[mma.accumulator(f32) for _ in range(rows // CHUNK)] for _ in queries]
    for k in range(0, columns, BLOCK):
        lefts = [mma.left(dtype, block.load(0, k)) for block in queries]
        multiply(sums, lefts, halves([keys.load(row, k) for row in range(0, rows, BLOCK)], dtype))
    return sums


def add_values(outputs: Sequence[list[Fragment]], lefts: Sequence[list[Fragment]], values: Blocks) -> None:
    """Add the weights times all rows of a tile of V to the outputs of each block of 16 rows."""
    rows, columns = values.tile.shape
    for k in range(0, rows, BLOCK):
        loaded = [values.load(k, column, trans=True) for column in range(0, columns, BLOCK)]
        multiply(outputs, [left[k // BLOCK] for left in lefts], halves(loaded, values.tile.dtype))


def halves(loaded: list[list[Expr]], dtype: type[Scalar]) -> list[Fragment]:
    """The two right operands (16, 8) of each loaded block."""
    return [mma.right(dtype, registers[i : i + 2]) for registers in loaded for i in (0, 2)]


def multiply(sums: Sequence[list[Fragment]], lefts: Sequence[Fragment], rights: Sequence[Fragment]) -> None:
    """Add each left operand times each right one."""
    for number, right in enumerate(rights):
        for own, left in zip(sums, lefts, strict=True):
            mma.sync(own[number], left, right)


def hide(sums: list[Fragment], row: Any, column: Any, bounds: Bounds) -> None:
    """Scores of keys that a row does not see become -inf; the block begins at ``row`` and ``column``."""
    for half in range(2):
        own = row + (warp.lane // 4).to(s32) + CHUNK * half
        first = bounds.first(own)
        seen = max(bounds.stop(own) - first, 0).to(u32)
        begin = (column + (warp.lane % 4 * 2).to(s32) - first).to(u32)
        for number, block in enumerate(sums):
            for i in range(2):
                score = block.regs[2 * half + i]
                score.set(select(begin + (CHUNK * number + i) < seen, score, -INFINITY))


def soften(sums: list[Fragment], outputs: list[Fragment], greatest: list[Any], totals: list[Any], factor: Expr) -> None:
    """Scores become weights 2^(factor · (score - greatest)); what was summed up under another maximum fades.

    A thread has two rows of a block, each shared by the four lanes of a quad. The greatest score stands for 0 where it
    is -inf: then all weights are 0.
    """
    for half in range(2):
        scores = [block.regs[2 * half + i] for block in sums for i in range(2)]
        top = tree(max, [greatest[half], *scores])
        for distance in (1, 2):
            top = max(top, shfl.bfly(top, distance))
        shift = select(top == -INFINITY, 0.0, top) * -factor
        fade = ex2(fma(greatest[half], factor, shift))
        greatest[half].set(top)
        for score in scores:
            score.set(ex2(fma(score, factor, shift)))
        totals[half].set(fma(totals[half], fade, tree(lambda a, b: a + b, scores)))
        for output in outputs:
            for i in range(2):
                output.regs[2 * half + i] *= fade


def tree(combine: Any, values: list[Any]) -> Any:
    """``combine`` of neighbours, then of those results, and so on: the shortest chain."""
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [combine(*pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return values[0]


def weights(sums: list[Fragment], dtype: type[Scalar]) -> list[Fragment]:
    """Blocks of 16 columns of weights as left operands: the sums of a thread are those that it needs there."""
    return [mma.left(dtype, left_of(sums[i : i + 2], dtype)) for i in range(0, len(sums), 2)]


def left_of(sums: Sequence[Fragment], dtype: type[Scalar], scales: Sequence[Any] = ()) -> list[Expr]:
    """Two neighbouring (16, 8) sums in four registers, rounded; rows times ``scales``."""
    registers = [[block.regs[2 * half : 2 * half + 2] for half in range(2)] for block in sums]
    scaled = [[[x * scales[half] if scales else x for x in pair] for half, pair in enumerate(two)] for two in registers]
    return [pack(PACKED[dtype], *pair) for two in scaled for pair in two]


def total_of(partial: Any) -> Any:
    """The sum of a row over the four lanes that share it."""
    own = partial + shfl.bfly(partial, 1)
    return own + shfl.bfly(own, 2)


def finish(outputs: list[Fragment], totals: list[Any], blocks: Blocks) -> None:
    """Outputs over the sums of their weights, rounded, into 16 rows of shared memory; 0 where all weights are."""
    scales = [select(total == 0.0, 0.0, rcp(total)) for total in totals]
    for i in range(0, len(outputs), 2):
        stmatrix(blocks.at(0, i * CHUNK), left_of(outputs[i : i + 2], blocks.tile.dtype, scales))


def write_lse(lse: Expr, row: Any, greatest: list[Any], totals: list[Any], factor: Expr, bounds: Bounds) -> None:
    """The log-sum-exps of the two rows of a quad."""
    for half in range(2):
        own = row + (warp.lane // 4).to(s32) + CHUNK * half
        log_sum_exp(lse, own, greatest[half], totals[half], factor, bounds, warp.lane % 4 == 0)


def log_sum_exp(lse: Expr, row: Any, greatest: Any, total: Any, factor: Expr, bounds: Bounds, writes: Expr) -> None:
    """The log-sum-exp of a row, at address ``lse`` (0: none) of float32 (batch, heads, q_len)."""
    value = select(total == 0.0, -INFINITY, (greatest * factor + lg2(total)) * LN_2)
    place = (ctaid.z * nctaid.y + ctaid.y).to(u64) * bounds.q_len.to(u64) + row.to(u64)
    with If((lse != 0) & writes & (row < bounds.q_len)):
        st(Global(f32, lse) + place, value)


def set_up(q_full: mbarrier, *rings: Ring) -> None:
    """Barriers ready before anyone copies."""

    @role(warp=0, elect=True)
    def init() -> None:
        q_full.init()
        for ring in rings:
            ring.init()
        fence.mbarrier_init()

    bar.sync()
