"""Steps of the reference kernel: scores, weights and outputs in shared memory, split over warps by blocks and rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm120 import steps
from warpwright.kernels.attention.sm120.plan import Config
from warpwright.kernels.attention.sm120.steps import (
    BLOCK,
    CHUNK,
    INFINITY,
    LANES,
    PANEL_BYTES,
    Mask,
    TmaCopies,
    lse_of_head,
    multiply,
    right_operands,
    write_row_lse,
)
from warpwright.kernels.tiles import PACKED, Blocks
from warpwright.lang import (
    Expr,
    If,
    Shared,
    Var,
    b32,
    ex2,
    f32,
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

__all__ = [
    "SharedState",
    "accumulate_values",
    "apply_mask",
    "compute_scores",
    "convert_weights",
    "load_weights",
    "online_softmax",
    "sync_and_store_output",
    "write_output",
]

IDLE = 1 << 20


@dataclass(frozen=True, slots=True)
class SharedState:
    """The shared memory of a CTA, and this warp's number ``own`` among the ``count`` computing warps.

    ``weights`` takes the place of the first half of ``scores``: row by row, the same bytes. ``row_max`` and ``row_sum``
    have an element for each row. A warp that does not compute has a number beyond all blocks and rows.
    """

    q: Tile
    scores: Tile
    weights: Tile
    sums: Tile
    row_max: Shared[f32]
    row_sum: Shared[f32]
    own: Expr
    count: int

    @classmethod
    def of(cls, config: Config, dtype: type[Scalar], computing: range) -> SharedState:
        """Returns the tiles of a configuration; ``computing`` are warps, up to the last one."""
        (rows, keys), head_dim = config.tile, config.head_dim
        row_max, row_sum = smem.array(f32, rows), smem.array(f32, rows)
        q, sums = smem.tile(dtype, (rows, head_dim), swizzle=128), smem.tile(f32, (rows, head_dim), swizzle=128)
        scores, weights = smem.tile(f32, (rows, keys), swizzle=128), smem.tile(dtype, (rows, keys), swizzle=128)
        overlaid = weights.placed(*scores.place.known())
        own = select(warp.id >= computing.start, warp.id - computing.start, IDLE) if computing.start else warp.id
        return cls(q, scores, overlaid, sums, row_max, row_sum, own, len(computing))

    def clear(self) -> None:
        """Set sums of O and row sums to 0, row maxima to -inf."""
        for row in loop(self.own, self.q.shape[0], self.count):
            wide = self.sums.shape[1] // LANES
            st(self.sums.at(row, warp.lane * wide), *[0.0] * wide)
            with If(warp.lane == 0):
                self.row_max[row] = -INFINITY
                self.row_sum[row] = 0.0


def compute_scores(state: SharedState, keys: Tile, masked: tuple[Any, Any, Mask] | None = None) -> None:
    """Compute Q·Kᵀ, 16 × 16 scores at a time; with ``masked`` (row, column, mask) apply the mask in registers."""
    lane, (rows, columns) = warp.lane, state.scores.shape
    for unit in loop(state.own, rows * columns // BLOCK**2, state.count):
        row, column = unit % (rows // BLOCK) * BLOCK, unit // (rows // BLOCK) * BLOCK
        left = Blocks(state.q, row + lane % BLOCK, lane // BLOCK)
        right = Blocks(keys, column + lane % CHUNK + lane // BLOCK * CHUNK, lane // CHUNK % 2)
        sums = [mma.accumulator(f32) for _ in range(2)]
        for k in range(0, state.q.shape[1], BLOCK):
            dtype = state.q.dtype
            multiply([sums], [mma.left(dtype, left.load(0, k))], right_operands([right.load(0, k)], dtype))
        if masked:
            steps.apply_mask(sums, masked[0] + row.to(s32), masked[1] + column.to(s32), masked[2])
        for place, regs in addresses_of(state.scores, sums, row, column):
            st(place, *regs)


def addresses_of(tile: Tile, sums: list[Fragment], row: Expr, column: Expr) -> list[tuple[Any, list[Any]]]:
    """Returns the address in a tile of each pair of neighbouring registers of (16, 8) accumulators."""
    lane = warp.lane
    return [
        (
            tile.at(row + lane // 4 + half * CHUNK, column + lane % 4 * 2 + number * CHUNK),
            block.regs[2 * half : 2 * half + 2],
        )
        for number, block in enumerate(sums)
        for half in range(2)
    ]


def apply_mask(state: SharedState, top: Any, first: Any, mask: Mask) -> None:
    """Set scores of keys that a row does not see to -inf; the block begins at row ``top`` and key ``first``."""
    for row in loop(state.own, state.scores.shape[0], state.count):
        own, pair = top + row.to(s32), state.scores.at(row, warp.lane * 2)
        low, high, key = mask.first(own), mask.stop(own), first + (warp.lane * 2).to(s32)
        scores = ld(pair, vec=2)
        visible = [(key + i >= low) & (key + i < high) for i in range(2)]
        st(pair, *[select(here, score, -INFINITY) for here, score in zip(visible, scores, strict=True)])


def online_softmax(state: SharedState, factor: Expr, softmax: int, *, convert: bool) -> None:
    """Replace scores by weights and rescale sums and row sums, row by row, as `steps.online_softmax` does.

    The first ``softmax`` warps take rows in turn; with ``convert`` the weights are rounded to their own type.
    """
    rows = state.scores.shape[0]
    for row in loop(select(state.own < softmax, state.own, rows), rows, softmax):
        pair = state.scores.at(row, warp.lane * 2)
        scores, before = ld(pair, vec=2), state.row_max[row]
        top = reduce_warp(max, max(*scores, before))
        shift = select(top == -INFINITY, 0.0, top) * -factor
        rescale = ex2(fma(before, factor, shift))
        weights = [ex2(fma(score, factor, shift)) for score in scores]
        total = reduce_warp(lambda a, b: a + b, weights[0] + weights[1])
        warp.sync()
        store_weights(state, row, weights) if convert else st(pair, *weights)
        with If(warp.lane == 0):
            state.row_max[row] = top
            state.row_sum[row] = fma(state.row_sum[row], rescale, total)
        wide = state.sums.shape[1] // LANES
        place = state.sums.at(row, warp.lane * wide)
        st(place, *[x * rescale for x in ld(place, vec=wide)])


def reduce_warp(combine: Any, value: Expr) -> Expr:
    """Returns the value combined over all lanes."""
    for distance in (16, 8, 4, 2, 1):
        value = combine(value, shfl.bfly(value, distance))
    return value


def store_weights(state: SharedState, row: Expr, weights: Sequence[Any]) -> None:
    """Store this lane's two weights of a row, rounded."""
    st(state.weights.at(row, warp.lane * 2).cast(b32), pack(PACKED[state.weights.dtype], *weights).bitcast(b32))


def load_weights(state: SharedState) -> list[tuple[Expr, list[Var]]]:
    """Returns the rows of this warp, each with this lane's two float32 weights.

    All warps load their weights before `convert_weights` stores the first one in the place of the scores.
    """
    rows = state.scores.shape[0]
    own = [state.own + number * state.count for number in range(-(-rows // state.count))]
    weights = [[var(f32, 0.0) for _ in range(2)] for _ in own]
    for row, pair in zip(own, weights, strict=True):
        with If(row < rows):
            loaded = ld(state.scores.at(row, warp.lane * 2), vec=2)
            for i in range(2):
                pair[i].set(loaded[i])
    return list(zip(own, weights, strict=True))


def convert_weights(state: SharedState, weights: list[tuple[Expr, list[Var]]]) -> None:
    """Store the weights of `load_weights`, rounded to their own type."""
    for row, pair in weights:
        with If(row < state.scores.shape[0]):
            store_weights(state, row, pair)


def accumulate_values(state: SharedState, values: Tile) -> None:
    """Add P·V to the sums of O, 16 × 16 elements at a time."""
    lane, (rows, columns) = warp.lane, state.sums.shape
    for unit in loop(state.own, rows * columns // BLOCK**2, state.count):
        row, block = unit % (rows // BLOCK) * BLOCK, unit // (rows // BLOCK)
        left = Blocks(state.weights, row + lane % BLOCK, lane // BLOCK)
        right = Blocks(values, lane % BLOCK, lane // BLOCK + block % 4 * 2, block // 4)
        sums = [mma.accumulator(f32) for _ in range(2)]
        pairs = addresses_of(state.sums, sums, row, block * BLOCK)
        for place, regs in pairs:
            for register, value in zip(regs, ld(place, vec=2), strict=True):
                register.set(value)
        for k in range(0, values.shape[0], BLOCK):
            lefts = [mma.left(values.dtype, left.load(0, k))]
            multiply([sums], lefts, right_operands([right.load(k, 0, trans=True)], values.dtype))
        for place, regs in pairs:
            st(place, *regs)


def write_output(state: SharedState, top: Any, lse: Expr, factor: Expr, mask: Mask) -> None:
    """Write O divided by the row sums, rounded, to the tile of Q, and the log-sum-exp to global memory."""
    (rows, columns), dtype = state.sums.shape, state.q.dtype
    wide = columns // LANES
    for row in loop(state.own, rows, state.count):
        total = state.row_sum[row]
        scale = select(total == 0.0, 0.0, rcp(total))
        values = [x * scale for x in ld(state.sums.at(row, warp.lane * wide), vec=wide)]
        words = [pack(PACKED[dtype], *values[i : i + 2]).bitcast(b32) for i in range(0, wide, 2)]
        st(state.q.at(row, warp.lane * wide).cast(b32), *words)
        write_row_lse(
            lse_of_head(lse, mask), top + row.to(s32), state.row_max[row], total, factor, mask, warp.lane == 0
        )


def sync_and_store_output(state: SharedState, source: TmaCopies, top: Any, mask: Mask, leader: Expr) -> None:
    """Store the output in the tile of Q to O, 16 rows at a time."""
    base, start = state.q.place.known()
    for below in range(0, state.q.shape[0], BLOCK):
        strip = state.q[:BLOCK, :].placed(base, start + below * PANEL_BYTES)
        source.sync_and_store(strip, top + below, mask, leader)
