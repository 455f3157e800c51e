"""Steps of the Blackwell attention backward: memory, MMAs, and moves between registers, tensor and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm90.backward_steps import QueryMask, pack_pairs
from warpwright.kernels.attention.sm90.plan import STRIP
from warpwright.kernels.attention.sm100.backward_plan import STAGES, BackwardConfig
from warpwright.kernels.attention.sm100.plan import KEYS, ROWS
from warpwright.kernels.attention.sm100.steps import COLUMNS, fence_and_arrive
from warpwright.kernels.tiles import WARPS, part
from warpwright.lang import (
    Expr,
    If,
    Ring,
    Var,
    b32,
    ex2,
    f32,
    f32x2,
    fence,
    fma,
    ld,
    mbarrier,
    pack,
    s32,
    select,
    smem,
    st,
    tcgen05,
    tid,
    tmem,
    unpack,
    var,
    warp,
)
from warpwright.lang.ring import Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["Memory", "Weights", "issue_left_in_tmem", "issue_transposed", "step_slot"]

K = 16
HALVES = (0, ROWS // 2)  # the first query of each half of a step
VECTOR = 4


@dataclass(frozen=True)
class Memory:
    """Shared and tensor memory of a CTA, see `sm100.backward.gradients`. ``stats`` are the shifts and the means of the
    queries in the stages of `q`. The tensor memory of `dp` receives dQ too, as `dq`."""

    k: Tile
    v: Tile
    k_full: mbarrier
    v_full: mbarrier
    q: Ring
    do: Ring
    stats: tuple[Tile, Tile]
    s: Ring
    rest: Ring
    read: Ring
    dp: Ring
    ds: Ring
    dq: Ring
    dk: tmem.TmemTile
    dv: tmem.TmemTile

    @property
    def barriers(self) -> tuple[Ring | mbarrier, ...]:
        """Every barrier."""
        rings = self.q, self.do, self.s, self.rest, self.read, self.dp, self.ds, self.dq
        return (self.k_full, self.v_full, *rings)

    @staticmethod
    def of(config: BackwardConfig, dtype: type[Scalar]) -> Memory:
        """Returns the memory of a configuration."""
        stats = smem.tile(f32, (STAGES, ROWS)), smem.tile(f32, (STAGES, ROWS))
        for each in stats:
            each.place.known()  # next to the barriers, not after the tiles, which begin at multiples of 1024 bytes
        rows, keys = (smem.tile(dtype, (count, config.head_dim), swizzle=128) for count in (ROWS, KEYS))
        dp = tmem.tile(f32, (KEYS, ROWS))
        return Memory(
            k=keys,
            v=smem.tile(dtype, keys.shape, swizzle=128),
            k_full=mbarrier(1, name="k_full"),
            v_full=mbarrier(1, name="v_full"),
            q=Ring(STAGES, name="q", rows=rows),
            do=Ring(STAGES, name="do", rows=rows),
            stats=stats,
            s=Ring(1, empty=2 * WARPS, name="s", s=tmem.tile(f32, (KEYS, ROWS))),
            rest=Ring(1, full=2 * WARPS, empty=0, name="rest"),
            read=Ring(1, empty=0, name="read"),
            dp=Ring(1, empty=WARPS, name="dp", dp=dp),
            ds=Ring(1, full=2 * WARPS, name="ds", ds=smem.tile(dtype, (KEYS, ROWS), swizzle=128)),
            dq=Ring(1, empty=0, name="dq"),
            dk=tmem.tile(f32, (KEYS, config.head_dim)),
            dv=tmem.tile(f32, (KEYS, config.head_dim)),
        )


def step_slot(ring: Ring, number: Any) -> Slot:
    """Returns the slot of step ``number`` of a ring of one stage."""
    return Slot(ring, 0, number % 2)


def issue_left_in_tmem(result: tmem.TmemTile, weights: tmem.TmemTile, rows: Tile, first: int, accumulate: Any) -> None:
    """Issue ``result`` += Pᵀ·rows for the half of the queries from ``first`` on; Pᵀ is where `Weights` stores it."""
    for query in range(first, first + ROWS // 2, K):
        left = query // COLUMNS * COLUMNS + query % COLUMNS // 2
        operand = weights[:, left : left + K // 2].packed(rows.dtype)
        tcgen05.mma(result, operand, rows[query : query + K, :].T, accumulate=accumulate if query == 0 else True)


def issue_transposed(result: tmem.TmemTile, left: Any, right: Tile, accumulate: Any) -> None:
    """Issue ``result`` (+)= left·right, with rows of ``right`` along K; ``left`` has its K in its columns."""
    for kk in range(0, right.shape[0], K):
        tcgen05.mma(result, left[:, kk : kk + K], right[kk : kk + K, :].T, accumulate=accumulate if kk == 0 else True)


class Weights:
    """A thread of the role compute: a key, and 32 queries of each half of a step.

    The scores, and P, dP and dS after them, are transposed: (keys, queries). Pᵀ of 32 queries replaces the first half
    of their scores, so that no thread overwrites scores of another.
    """

    def __init__(self, memory: Memory, mask: QueryMask, key: Any, scale: Expr) -> None:
        self.memory, self.mask, self.scale, self.dtype = memory, mask, scale, memory.k.dtype
        self.left, self.row = warp.id // WARPS * COLUMNS, tid.x % KEYS
        self.strip, self.key = key + self.row // STRIP * STRIP, key + self.row
        tile = memory.ds.members["ds"]
        assert isinstance(tile, Tile)
        slot = step_slot(memory.ds, 0)
        self.places = [slot.ds.at(self.row, self.left + column).cast(b32) for column in range(0, COLUMNS, 2 * VECTOR)]
        self.values: list[list[Any]] = []

    def columns(self, tile: tmem.TmemTile, first: int, count: int = COLUMNS) -> tmem.TmemTile:
        """Returns ``count`` columns of this warpgroup's part of the half from ``first`` on."""
        return tile[:, first : first + count].at_shift(self.left)

    def stats_of(self, which: int, stage: Any, first: int) -> list[Any]:
        """Returns the shifts (0) or means (1) of the queries of a half, as pairs."""
        corner = part(self.memory.stats[which], stage, 1, "k").at(0, self.left) + first
        quads = [ld(corner + column, vec=VECTOR) for column in range(0, COLUMNS, VECTOR)]
        return [pack(f32x2, *quad[i : i + 2]) for quad in quads for i in (0, 2)]

    def compute_weights(self, number: Any, stage: Any, row: Any) -> None:
        """Replace the scores of step ``number``, of the queries from ``row`` on, by P; keep P in registers."""
        slot = step_slot(self.memory.s, number)
        slot.full.wait()
        tcgen05.fence_after_thread_sync()
        loaded = [tcgen05.ld(self.columns(slot.s, first)) for first in HALVES]
        tcgen05.wait_ld()
        scores = [[var(f32, value) for value in half] for half in loaded]
        with If(self.mask.hidden(row, self.strip)):
            for half, first in zip(scores, HALVES, strict=True):
                self.hide(half, row + first + self.left)
        scale = pack(f32x2, self.scale, self.scale)
        self.values = []
        for half, first in zip(scores, HALVES, strict=True):
            pairs = [pack(f32x2, *half[i : i + 2]) for i in range(0, COLUMNS, 2)]
            powers = [fma(x, scale, y) for x, y in zip(pairs, self.stats_of(0, stage, first), strict=True)]
            self.values.append([ex2(each) for pair in powers for each in unpack(pair, f32)])
            tcgen05.st(self.columns(slot.s, first, COLUMNS // 2), pack_pairs(self.values[-1], self.dtype))
            tcgen05.wait_st()
            fence_and_arrive(slot.empty if first == 0 else step_slot(self.memory.rest, number).full)

    def hide(self, scores: list[Var], row: Any) -> None:
        """Set scores to -inf where the queries from ``row`` on do not see this thread's key."""
        start, stop = self.mask.range_of(self.key, row.to(s32))
        for column, score in enumerate(scores):
            inside = start <= column
            if stop is not None:
                inside &= stop > column
            score.set(select(inside, score, float("-inf")))

    def compute_ds(self, number: Any, stage: Any) -> None:
        """Store dSᵀ = Pᵀ ∘ (dPᵀ - mean) of step ``number`` to shared memory."""
        dp, ds = step_slot(self.memory.dp, number), step_slot(self.memory.ds, number)
        dp.full.wait()
        tcgen05.fence_after_thread_sync()
        ds.empty.wait()
        for weights, first in zip(self.values, HALVES, strict=True):
            loaded = tcgen05.ld(self.columns(dp.dp, first))
            tcgen05.wait_ld()
            pairs = [pack(f32x2, *loaded[i : i + 2]) for i in range(0, COLUMNS, 2)]
            p = [pack(f32x2, *weights[i : i + 2]) for i in range(0, COLUMNS, 2)]
            means = self.stats_of(1, stage, first)
            found = [x * (y - mean) for x, y, mean in zip(p, pairs, means, strict=True)]
            words = pack_pairs([each for pair in found for each in unpack(pair, f32)], self.dtype)
            for i, place in enumerate(self.places):
                st(place + first * KEYS // 2, *words[VECTOR * i : VECTOR * (i + 1)])
        fence.proxy_async()
        fence_and_arrive(ds.full)
