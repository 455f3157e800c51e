"""Steps of the Blackwell attention backward: memory, MMAs, and moves between registers, tensor and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm90.backward_steps import QueryMask, pack_pairs, slot_at
from warpwright.kernels.attention.sm90.plan import STRIP
from warpwright.kernels.attention.sm100.backward_plan import STAGES, BackwardConfig
from warpwright.kernels.attention.sm100.plan import KEYS, ROWS, WARP_ROWS
from warpwright.kernels.attention.sm100.steps import COLUMNS, fence_and_arrive
from warpwright.kernels.tiles import WARPS, Blocks, part
from warpwright.lang import (
    Expr,
    If,
    Ring,
    ex2,
    f32,
    f32x2,
    fence,
    fma,
    ld,
    mbarrier,
    pack,
    smem,
    stmatrix,
    tcgen05,
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
BLOCK = 16
FRAGMENTS = [(first, half) for first in HALVES for half in range(2)]  # of a warp's scores: their query, their strip


@dataclass(frozen=True)
class Memory:
    """Shared and tensor memory of a CTA, see `sm100.backward.gradients`. ``stats`` are the shifts of the queries
    in the stages of `q`, and the means of those of `do`. ``scores`` is the tile of tensor memory in `s`; that of `dp`
    receives dQ too."""

    k: Tile
    v: Tile
    k_full: mbarrier
    v_full: mbarrier
    q: Ring
    do: Ring
    stats: tuple[Tile, Tile]
    scores: tmem.TmemTile
    s: Ring
    rest: Ring
    read: Ring
    dp: Ring
    ds: Ring
    dq: Ring
    dk_full: mbarrier
    dk: tmem.TmemTile
    dv: tmem.TmemTile

    @property
    def barriers(self) -> tuple[Ring | mbarrier, ...]:
        """Every barrier."""
        rings = self.q, self.do, self.s, self.rest, self.read, self.dp, self.ds, self.dq
        return (self.k_full, self.v_full, *rings, self.dk_full)

    @staticmethod
    def of(config: BackwardConfig, dtype: type[Scalar]) -> Memory:
        """Returns the memory of a configuration."""
        stats = smem.tile(f32, (STAGES, ROWS)), smem.tile(f32, (STAGES, ROWS))
        for each in stats:
            each.place.known()  # next to the barriers, not after the tiles, which begin at multiples of 1024 bytes
        rows, keys = (smem.tile(dtype, (count, config.head_dim), swizzle=128) for count in (ROWS, KEYS))
        scores, dp = (tmem.tile(f32, (KEYS, ROWS)) for _ in range(2))
        return Memory(
            k=keys,
            v=smem.tile(dtype, keys.shape, swizzle=128),
            k_full=mbarrier(1, name="k_full"),
            v_full=mbarrier(1, name="v_full"),
            q=Ring(STAGES, name="q", rows=rows),
            do=Ring(STAGES, name="do", rows=rows),
            stats=stats,
            scores=scores,
            s=Ring(1, empty=2 * WARPS, name="s", s=scores),
            rest=Ring(1, full=2 * WARPS, empty=0, name="rest"),
            read=Ring(1, empty=0, name="read"),
            dp=Ring(1, empty=WARPS, name="dp", dp=dp),
            ds=Ring(1, full=2 * WARPS, empty=0, name="ds", ds=smem.tile(dtype, (KEYS, ROWS), swizzle=128)),
            dq=Ring(1, empty=0, name="dq"),
            dk_full=mbarrier(1, name="dk_full"),
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
    """A warp of the role compute: 32 keys, in two strips of 16, and 32 queries of each half of a step.

    The scores, and P, dP and dS after them, are transposed: (keys, queries), in fragments like those of wgmma, so that
    a thread needs the statistics of a quarter of the queries. Pᵀ of 32 queries replaces the first half of their
    scores, so that no warp overwrites scores of another.
    """

    def __init__(self, memory: Memory, mask: QueryMask, key: Any, scale: Expr) -> None:
        self.memory, self.mask, self.scale, self.dtype = memory, mask, scale, memory.k.dtype
        self.left, own = warp.id // WARPS * COLUMNS, warp.id % WARPS * WARP_ROWS
        self.strip, self.key = key + own // STRIP * STRIP, key + own + warp.lane // 4
        ds = step_slot(memory.ds, 0).ds
        self.blocks = Blocks(ds, own + warp.lane % BLOCK, warp.lane // BLOCK + self.left // 8)
        self.values: list[list[Any]] = []

    def columns(self, tile: tmem.TmemTile, first: int, count: int = COLUMNS) -> tmem.TmemTile:
        """Returns ``count`` columns of this warpgroup's part of the half from ``first`` on."""
        return tile[:, first : first + count].at_shift(self.left)

    def stats_of(self, which: int, stage: Any, first: int) -> list[Any]:
        """Returns the shifts (0) or means (1) of the queries of a fragment in the half from ``first`` on, as pairs."""
        corner = part(self.memory.stats[which], stage, 1, "k").at(0, self.left + warp.lane % 4 * 2) + first
        pairs = [pack(f32x2, *ld(corner + column, vec=2)) for column in range(0, COLUMNS, 8)]
        return [pair for pair in pairs for _ in range(2)]

    def compute_weights(self, number: Any, row: Any) -> None:
        """Replace the scores of step ``number``, of the queries from ``row`` on, by P; keep P in registers."""
        slot = step_slot(self.memory.s, number)
        slot_at(self.memory.q, number).full.wait()
        shifts = [self.stats_of(0, number % STAGES, first) for first in HALVES]
        slot.full.wait()
        tcgen05.fence_after_thread_sync()
        loaded = [tcgen05.ld(self.columns(slot.s, first), "16x256b", half=half) for first, half in FRAGMENTS]
        tcgen05.wait_ld()
        scores = [[var(f32, value) for value in each] for each in loaded]
        with If(self.mask.hidden(row, self.strip)):
            for each, (first, half) in zip(scores, FRAGMENTS, strict=True):
                self.mask.apply(each, row + first + self.left, self.key + half * BLOCK)
        scale = pack(f32x2, self.scale, self.scale)
        self.values = []
        for each, (first, half) in zip(scores, FRAGMENTS, strict=True):
            powers = [fma(x, scale, y) for x, y in zip(pairs_of(each), shifts[first // HALVES[1]], strict=True)]
            self.values.append([ex2(power) for pair in powers for power in unpack(pair, f32)])
            words = pack_pairs(self.values[-1], self.dtype)
            tcgen05.st(self.columns(slot.s, first, COLUMNS // 2), words, "16x128b", half=half)
            if half:
                tcgen05.wait_st()
                fence_and_arrive(slot.empty if first == 0 else step_slot(self.memory.rest, number).full)

    def compute_ds(self, number: Any) -> None:
        """Store dSᵀ = Pᵀ ∘ (dPᵀ - mean) of step ``number`` to shared memory."""
        dp, ds = step_slot(self.memory.dp, number), step_slot(self.memory.ds, number)
        slot_at(self.memory.do, number).full.wait()
        means = [self.stats_of(1, number % STAGES, first) for first in HALVES]
        # The commit of dP covers all MMAs before it, also dQ and dK of the step before: they have read dS.
        dp.full.wait()
        tcgen05.fence_after_thread_sync()
        for first in HALVES:
            loaded = [tcgen05.ld(self.columns(dp.dp, first), "16x256b", half=half) for half in range(2)]
            tcgen05.wait_ld()
            for half, each in enumerate(loaded):
                weights = self.values[FRAGMENTS.index((first, half))]
                triples = zip(pairs_of(weights), pairs_of(each), means[first // HALVES[1]], strict=True)
                found = [x * (y - mean) for x, y, mean in triples]
                words = pack_pairs([value for pair in found for value in unpack(pair, f32)], self.dtype)
                for column in range(0, COLUMNS, BLOCK):
                    stmatrix(self.blocks.at(half * BLOCK, first + column), words[column // 4 : column // 4 + 4])
        fence.proxy_async()
        fence_and_arrive(ds.full)


def pairs_of(values: list[Any]) -> list[Any]:
    """Returns neighbouring floats as pairs."""
    return [pack(f32x2, *values[i : i + 2]) for i in range(0, len(values), 2)]
