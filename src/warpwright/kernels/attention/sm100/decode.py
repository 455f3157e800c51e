"""Attention forward on datacentre Blackwell for few queries and many keys (decode), see `sm90.decode`.

Tiles, shares of CTAs, the workspace and the second launch are Hopper's. A tile has 128 rows, which are lanes of tensor
memory; a thread has a row. Two blocks of scores are in tensor memory, so that the tensor cores compute the scores of
the next block during the softmax of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.decode_plan import QUAD
from warpwright.kernels.attention.sm90.decode_steps import (
    WORDS,
    Output,
    Tiles,
    Workspace,
    combine_parts,
    load_queries_when_empty,
    shares,
)
from warpwright.kernels.attention.sm90.plan import WARPGROUP
from warpwright.kernels.attention.sm90.softmax import LOWEST, reduce
from warpwright.kernels.attention.sm90.steps import (
    Mask,
    init_barriers,
    load_when_empty,
    panel,
    publish_when_empty,
    read_item,
)
from warpwright.kernels.attention.sm100.decode_plan import CONFIGS, DecodeConfig
from warpwright.kernels.attention.sm100.roles import alloc_and_sync, sync_and_dealloc
from warpwright.kernels.attention.sm100.steps import (
    COLUMNS,
    arrive_on_empty,
    fence_and_arrive,
    issue_scores,
    issue_values,
    load_scores,
    rescale,
    store_weights,
    visible_columns,
)
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Else,
    Expr,
    Global,
    If,
    Kernel,
    Ring,
    Var,
    bf16,
    ctaid,
    ex2,
    f32,
    fma,
    griddepcontrol,
    kernel,
    loop,
    max,
    min,
    role,
    s32,
    select,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    u64,
    var,
    vote,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["attention", "kernel_of"]


@kernel("sm_100a", threads=192)
def attention(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: Global[Scalar],
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    columns: u32,
    lse: u64,
    workspace: u64,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    kv_heads: u32,
    group: u32,
    strips: u32,
    total: u32,
    rows: u32,
    ctas: u32,
    reserve: u32,
    scale: f32,
    *,
    config: DecodeConfig = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
) -> None:
    """A CTA computes its share of all tiles; of each tile the key blocks in that share, from right to left.

    With ``config.last`` the CTA that stores the last part of a tile combines all parts.

    role      warps  moves                                        waits for                signals
    softmax   0-3    `s` -> registers -> `s`; `sum` -> O, or      s.full, sum.full         weights.full
                     workspace -> O
    multiply  4      Q, `kv` -> `s`; `s`, `kv` -> `sum`           q, kv, weights.full,     s.full, sum.full, s.empty,
                                                                  s.empty                  q.empty, kv.empty
    load      5      parts of tiles -> `work`; Q, K, V            empty of each            full of each
    """
    keys, places = config.keys, config.places
    flag, rings = smem.scalar(u32), DecodeRings.of(config, dtype)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    tiles = Tiles(total, strips, kv_heads, group, ctas, places, mask, config.rows)
    init_barriers(rings.all, (q, k, v), on_warp=WARPS)
    alloc_and_sync(WARPS)

    @role(warp=WARPS + 1, elect=True)
    def load() -> None:
        if not config.last:
            griddepcontrol.launch_dependents()
        items, to_q, to_kv = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.kv)]
        for share in shares(tiles):
            of, right = (share.tile.batch, share.tile.kv_head), (share.first + share.count - 1) * keys
            load_when_empty(to_kv, "kv", k, *of, right)
            load_queries_when_empty(to_q, q, places, *of, share.tile.member, share.tile.row)
            publish_when_empty(items, share.words)
            for step in loop(1, share.count):
                load_when_empty(to_kv, "kv", k, *of, right - step * keys)
                load_when_empty(to_kv, "kv", v, *of, right - (step - 1) * keys)
            load_when_empty(to_kv, "kv", v, *of, share.first * keys)
        publish_when_empty(items, (0,) * WORDS)
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warp=WARPS, elect=True)
    def multiply() -> None:
        items, of_q, of_kv = (ring.consumer() for ring in (rings.work, rings.q, rings.kv))
        to_s, of_s, to_sum = rings.s.producer(), rings.s.consumer(), rings.sum.producer()

        def wait_and_issue_scores(query: Any) -> None:
            key, result = next(of_kv), next(to_s)
            key.full.wait()
            result.empty.wait()
            issue_scores(result.s, query.q, key.kv)
            tcgen05.commit(result.full)
            tcgen05.commit(key.empty)

        for _ in loop():
            item = next(items)
            item.full.wait()
            count = read_item(item)[3]
            item.empty.arrive()
            Break(when=count == 0)
            query = next(of_q)
            query.full.wait()
            wait_and_issue_scores(query)
            for step in loop(1, count + 1):
                with If(step < count):
                    wait_and_issue_scores(query)
                with Else():
                    tcgen05.commit(query.empty)
                value, weights, result = next(of_kv), next(of_s), next(to_sum)
                value.full.wait()
                Slot(rings.weights, weights.stage, weights.phase).full.wait()
                tcgen05.fence_after_thread_sync()
                issue_values(result.sum, weights.s, value.kv, step > 1)
                tcgen05.commit(result.full)
                tcgen05.commit(value.empty)
                tcgen05.commit(weights.empty)

    @role(warps=range(WARPS))
    def softmax() -> None:
        items, of_s, of_sum = (ring.consumer() for ring in (rings.work, rings.s, rings.sum))
        space = Workspace.at(workspace, reserve, ctas, rows, config.head_dim)
        out = Output(o.cast(dtype), (o_batch, o_head, o_row), columns, lse, kv_heads * group, q_len)
        row_max, row_sum, own = var(f32, LOWEST), var(f32, 0.0), tid.x % WARPGROUP
        for _ in loop():
            item = next(items)
            item.full.wait()
            words = read_item(item)
            arrive_on_empty(item.empty, alone=False)
            row, _, first, count, blocks, number, *_ = words
            Break(when=count == 0)
            query = row + own % places
            low, high = mask.first(query), mask.stop(query)
            runs = runs_of(mask, row, first, count)
            row_max.set(LOWEST)
            row_sum.set(0.0)
            for start, stop, masked in runs:
                for step in loop(start, stop):
                    visible = visible_columns((first + count - 1 - step) * keys, low, high) if masked else None
                    slot = next(of_s)
                    slot.full.wait()
                    tcgen05.fence_after_thread_sync()
                    weights, factor = weights_of(load_scores(slot.s, visible), scale, row_max, config.lazy)
                    store_weights(slot.s, weights, dtype)
                    tcgen05.wait_st()
                    row_sum.set(fma(row_sum, factor, reduce(lambda a, b: a + b, weights)))
                    with If(step > 0):
                        earlier = next(of_sum)
                        earlier.full.wait()
                        tcgen05.fence_after_thread_sync()
                        with If(vote.any(factor != 1.0)):
                            rescale(earlier.sum, factor)
                    fence_and_arrive(Slot(rings.weights, slot.stage, slot.phase).full)
            result = next(of_sum)
            result.full.wait()
            tcgen05.fence_after_thread_sync()
            with If(count == blocks):
                store_tile(out, result.sum, words, places, own, row_max, row_sum)
            with Else():
                store_part(space, result.sum, tiles.slot(ctaid.x, number), own, row_max, row_sum)
                if config.last:
                    parts = tiles.owners(number, blocks)
                    with If(space.sync_and_count(tiles.slot(parts[1], number), parts[2], flag)):
                        for begun in loop(0, rows * (config.head_dim // QUAD), WARPGROUP):
                            combine_parts(out, space, tiles, words, parts, begun + own)

    sync_and_dealloc(WARPS)


@dataclass(frozen=True)
class DecodeRings:
    """Items of ``work``, Q, K and V; in tensor memory ``s``, two blocks of scores and weights, and ``sum``, O.
    ``weights`` has only barriers, for weights in the slots of ``s``."""

    work: Ring
    q: Ring
    kv: Ring
    s: Ring
    weights: Ring
    sum: Ring

    @property
    def all(self) -> tuple[Ring, ...]:
        """Every ring."""
        return self.work, self.q, self.kv, self.s, self.weights, self.sum

    @staticmethod
    def of(config: DecodeConfig, dtype: type[Scalar]) -> DecodeRings:
        """Returns the rings of a CTA."""
        swizzle = panel(config.head_dim) * dtype.nbytes
        queries, block = (smem.tile(dtype, (rows, config.head_dim), swizzle=swizzle) for rows in config.tile)
        return DecodeRings(
            work=Ring(2, empty=WARPS + 1, name="work", item=smem.tile(u32, (1, WORDS))),
            q=Ring(config.q_stages, name="q", q=queries),
            kv=Ring(config.stages, name="kv", kv=block),
            s=Ring(2, name="s", s=tmem.tile(f32, config.tile)),
            weights=Ring(2, full=WARPS, name="weights"),
            sum=Ring(1, name="sum", sum=tmem.tile(f32, (config.rows, config.head_dim))),
        )


def runs_of(mask: Mask, row: Any, first: Any, count: Any) -> list[tuple[Any, Any, bool]]:
    """Returns the ``count`` blocks of a part, from right to left, as runs: first, block after it, whether to mask.

    Blocks count from the last one, of a tile whose queries begin at ``row``. With a left bound all blocks are masked.
    """
    whole = count - min(max(mask.stop(row) // mask.keys, first) - first, count)
    return [(0, count, True)] if mask.begin is not None else [(0, whole, True), (whole, count, False)]


def weights_of(scores: Sequence[Any], scale: Expr, row_max: Var, lazy: float) -> tuple[list[Any], Any]:
    """Returns the weights of a block in this thread's row, and the factor of the blocks before it. ``row_max`` grows
    only where it is more than ``lazy`` below the row max, a power of 2."""
    shift = max(reduce(max, scores) * scale, row_max)
    shift = select(shift - row_max > lazy, shift, row_max)
    factor = ex2(row_max - shift)
    row_max.set(shift)
    return [ex2(fma(score, scale, -shift)) for score in scores], factor


def store_tile(
    out: Output, sums: tmem.TmemTile, words: Sequence[Any], places: int, own: Expr, shift: Any, total: Any
) -> None:
    """Store this thread's row of a whole tile."""
    row, head, *_, batch, heads = words
    query = row + own % places
    for first in range(0, sums.shape[1], COLUMNS):
        loaded = tcgen05.ld(sums[:, first : first + COLUMNS])
        tcgen05.wait_ld()
        with If((own // places < heads) & (query < out.q_len)):
            found = shift, total, loaded
            out.store_row(batch, head + own // places, query, first, found, 8, first == 0)


def store_part(space: Workspace, sums: tmem.TmemTile, slot: Expr, own: Expr, shift: Any, total: Any) -> None:
    """Store this thread's row of a part of a tile to the workspace."""
    at = slot * space.rows + own
    for first in range(0, sums.shape[1], COLUMNS):
        loaded = tcgen05.ld(sums[:, first : first + COLUMNS])
        tcgen05.wait_ld()
        with If(own < space.rows):
            for i in range(0, COLUMNS, QUAD):
                st(space.sums + (at * space.columns + (first + i)), *loaded[i : i + QUAD])
    with If(own < space.rows):
        st(space.pairs + at * 2, shift, total)


@cache
def kernel_of(config: DecodeConfig) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on it."""
    return attention.configure(config=config)
