"""The steps of `sm120_shared`: scores, weights and outputs in shared memory, spread over warps by blocks and rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm120.steps import (
    BLOCK,
    CHUNK,
    INFINITY,
    LANES,
    PACKED,
    PANEL_BYTES,
    Blocks,
    Bounds,
    ByTma,
    halves,
    hide,
    log_sum_exp,
    multiply,
)
from warpwright.lang import (
    Expr,
    If,
    Shared,
    b32,
    ex2,
    f32,
    fence,
    fma,
    ld,
    loop,
    max,
    mma,
    pack,
    rcp,
    s32,
    select,
    shfl,
    smem,
    st,
    var,
    warp,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["Held", "convert", "leave", "mask", "score", "soften", "weigh"]

IDLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """What a CTA keeps in shared memory, and this warp's number ``own`` among the ``count`` that compute.

    ``weights`` takes the place of the first half of ``scores``: row by row, the same bytes. ``greatest`` and ``totals``
    have an element for each row. A warp that does not compute has a number beyond all blocks and rows.
    """

    q: Tile
    scores: Tile
    weights: Tile
    sums: Tile
    greatest: Shared[f32]
    totals: Shared[f32]
    own: Expr
    count: int

    @classmethod
    def of(cls, tile: tuple[int, int], head_dim: int, dtype: type[Scalar], computing: range) -> Held:
        """Tiles for ``tile`` rows of Q and keys; ``computing`` are warps, up to the last one."""
        rows, keys = tile
        greatest, totals = smem.array(f32, rows), smem.array(f32, rows)
        q, sums = smem.tile(dtype, (rows, head_dim), swizzle=128), smem.tile(f32, (rows, head_dim), swizzle=128)
        scores, weights = smem.tile(f32, (rows, keys), swizzle=128), smem.tile(dtype, (rows, keys), swizzle=128)
        overlaid = weights.placed(*scores.place.known())
        own = select(warp.id >= computing.start, warp.id - computing.start, IDLE) if computing.start else warp.id
        return cls(q, scores, overlaid, sums, greatest, totals, own, len(computing))

    def clear(self) -> None:
        """No scores yet."""
        for row in loop(self.own, self.q.shape[0], self.count):
            wide = self.sums.shape[1] // LANES
            st(self.sums.at(row, warp.lane * wide), *[0.0] * wide)
            with If(warp.lane == 0):
                self.greatest[row] = -INFINITY
                self.totals[row] = 0.0


def score(held: Held, keys: Tile, masked: tuple[Any, Any, Bounds] | None = None) -> None:
    """Q·Kᵀ, 16 × 16 scores at a time; ``masked``: row, column and bounds, to hide keys while they are in registers."""
    lane, (rows, columns) = warp.lane, held.scores.shape
    for unit in loop(held.own, rows * columns // BLOCK**2, held.count):
        row, column = unit % (rows // BLOCK) * BLOCK, unit // (rows // BLOCK) * BLOCK
        left = Blocks(held.q, row + lane % BLOCK, lane // BLOCK)
        right = Blocks(keys, column + lane % CHUNK + lane // BLOCK * CHUNK, lane // CHUNK % 2)
        sums = [mma.accumulator(f32) for _ in range(2)]
        for k in range(0, held.q.shape[1], BLOCK):
            dtype = held.q.dtype
            multiply([sums], [mma.left(dtype, left.load(0, k))], halves([right.load(0, k)], dtype))
        if masked:
            hide(sums, masked[0] + row.to(s32), masked[1] + column.to(s32), masked[2])
        for place, regs in places(held.scores, sums, row, column):
            st(place, *regs)


def places(tile: Tile, sums: list[Fragment], row: Expr, column: Expr) -> list[tuple[Any, list[Any]]]:
    """Where the neighbouring registers of (16, 8) sums stand in a tile."""
    lane = warp.lane
    return [
        (
            tile.at(row + lane // 4 + half * CHUNK, column + lane % 4 * 2 + number * CHUNK),
            block.regs[2 * half : 2 * half + 2],
        )
        for number, block in enumerate(sums)
        for half in range(2)
    ]


def mask(held: Held, top: Any, first: Any, bounds: Bounds) -> None:
    """Scores of keys that a row does not see become -inf; the tile begins at row ``top`` and key ``first``."""
    for row in loop(held.own, held.scores.shape[0], held.count):
        own, pair = top + row.to(s32), held.scores.at(row, warp.lane * 2)
        low, high, key = bounds.first(own), bounds.stop(own), first + (warp.lane * 2).to(s32)
        scores = ld(pair, vec=2)
        seen = [(key + i >= low) & (key + i < high) for i in range(2)]
        st(pair, *[select(here, score, -INFINITY) for here, score in zip(seen, scores, strict=True)])


def soften(held: Held, factor: Expr, softmax: int, *, convert: bool) -> None:
    """Scores become weights, row by row; what was summed up under another maximum fades. See `sm120_steps.soften`."""
    rows = held.scores.shape[0]
    for row in loop(select(held.own < softmax, held.own, rows), rows, softmax):
        pair = held.scores.at(row, warp.lane * 2)
        scores, before = ld(pair, vec=2), held.greatest[row]
        top = across(max, max(*scores, before))
        shift = select(top == -INFINITY, 0.0, top) * -factor
        fade = ex2(fma(before, factor, shift))
        weights = [ex2(fma(score, factor, shift)) for score in scores]
        total = across(lambda a, b: a + b, weights[0] + weights[1])
        warp.sync()
        put(held, row, weights) if convert else st(pair, *weights)
        with If(warp.lane == 0):
            held.greatest[row] = top
            held.totals[row] = fma(held.totals[row], fade, total)
        wide = held.sums.shape[1] // LANES
        place = held.sums.at(row, warp.lane * wide)
        st(place, *[x * fade for x in ld(place, vec=wide)])


def across(combine: Any, value: Expr) -> Expr:
    """``combine`` over all lanes."""
    for distance in (16, 8, 4, 2, 1):
        value = combine(value, shfl.bfly(value, distance))
    return value


def put(held: Held, row: Expr, weights: list[Any]) -> None:
    """This lane's two weights of a row, rounded."""
    st(held.weights.at(row, warp.lane * 2).cast(b32), pack(PACKED[held.weights.dtype], *weights).bitcast(b32))


def convert(held: Held, meet: Callable[[], None]) -> None:
    """Weights to their own type in the place of the scores: all are read before the first is written."""
    rows = held.scores.shape[0]
    own = [held.own + number * held.count for number in range(-(-rows // held.count))]
    read = [[var(f32, 0.0) for _ in range(2)] for _ in own]
    for row, pair in zip(own, read, strict=True):
        with If(row < rows):
            found = ld(held.scores.at(row, warp.lane * 2), vec=2)
            for i in range(2):
                pair[i].set(found[i])
    meet()
    for row, pair in zip(own, read, strict=True):
        with If(row < rows):
            put(held, row, pair)


def weigh(held: Held, values: Tile) -> None:
    """Add weights times V to the outputs, 16 × 16 of them at a time."""
    lane, (rows, columns) = warp.lane, held.sums.shape
    for unit in loop(held.own, rows * columns // BLOCK**2, held.count):
        row, block = unit % (rows // BLOCK) * BLOCK, unit // (rows // BLOCK)
        left = Blocks(held.weights, row + lane % BLOCK, lane // BLOCK)
        right = Blocks(values, lane % BLOCK, lane // BLOCK + block % 4 * 2, block // 4)
        sums = [mma.accumulator(f32) for _ in range(2)]
        spots = places(held.sums, sums, row, block * BLOCK)
        for place, regs in spots:
            for register, value in zip(regs, ld(place, vec=2), strict=True):
                register.set(value)
        for k in range(0, values.shape[0], BLOCK):
            lefts = [mma.left(values.dtype, left.load(0, k))]
            multiply([sums], lefts, halves([right.load(k, 0, trans=True)], values.dtype))
        for place, regs in spots:
            st(place, *regs)


def leave(
    held: Held,
    source: ByTma,
    top: Any,
    lse: Expr,
    factor: Expr,
    bounds: Bounds,
    meet: Callable[[], None],
    leader: Expr,
) -> None:
    """Outputs over the sums of their weights, rounded, to the place of Q and from there to O; log-sum-exps."""
    (rows, columns), dtype = held.sums.shape, held.q.dtype
    wide = columns // LANES
    for row in loop(held.own, rows, held.count):
        total = held.totals[row]
        scale = select(total == 0.0, 0.0, rcp(total))
        values = [x * scale for x in ld(held.sums.at(row, warp.lane * wide), vec=wide)]
        words = [pack(PACKED[dtype], *values[i : i + 2]).bitcast(b32) for i in range(0, wide, 2)]
        st(held.q.at(row, warp.lane * wide).cast(b32), *words)
        log_sum_exp(lse, top + row.to(s32), held.greatest[row], total, factor, bounds, warp.lane == 0)
    fence.proxy_async()
    meet()
    base, start = held.q.place.known()
    for below in range(0, rows, BLOCK):
        source.store(held.q[:BLOCK, :].placed(base, start + below * PANEL_BYTES), top + below, bounds, leader)
    source.leave(leader)
