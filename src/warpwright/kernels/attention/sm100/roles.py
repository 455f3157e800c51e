"""Roles of the Blackwell attention that dense arrays and packed sequences share: MMAs, softmax, correction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from warpwright.kernels.attention.sm90.softmax import LOWEST
from warpwright.kernels.attention.sm90.steps import LN2, Mask
from warpwright.kernels.attention.sm100.exponential import add_pairs, max_of, sum_of, weights_of
from warpwright.kernels.attention.sm100.plan import KEYS, ROWS, WARP_ROWS, Config
from warpwright.kernels.attention.sm100.steps import (
    COLUMNS,
    Rings,
    fence_and_arrive,
    issue_scores,
    issue_values,
    load_scores,
    next_slot,
    rescale,
    same_slot,
    store_and_arrive,
    store_panels,
    store_weights,
    visible_columns,
    wait_and_load,
)
from warpwright.kernels.tiles import part
from warpwright.lang import (
    Else,
    Expr,
    Global,
    If,
    bar,
    ex2,
    f32,
    fma,
    lg2,
    loop,
    max,
    min,
    rcp,
    role,
    select,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    unpack,
    var,
    vote,
    warp,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["Part", "alloc_and_sync", "issue_products", "soften", "sync_and_dealloc", "write_results"]

NOWHERE = 0xFFFFFFFF
EARLY = 96  # keys of a block whose weights are stored, and multiplied, before the others


class Part(Protocol):
    """Queries of one head, from ``row`` on, with ``blocks`` key blocks from ``first`` on, and the mask."""

    @property
    def row(self) -> Any: ...
    @property
    def first(self) -> Any: ...
    @property
    def blocks(self) -> Any: ...
    @property
    def mask(self) -> Mask: ...
    @property
    def phase(self) -> Any:
        """0 and 1 in turn: the phase of rings that are filled once a part."""

    @property
    def q_len(self) -> Any:
        """Queries of the head, or of the sequence."""

    @property
    def lse_row(self) -> Any:
        """The index of query 0 in the log-sum-exp."""

    def place(self, row: Any) -> tuple[Any, ...]:
        """Returns the coordinates of a query in the map of O, without the column."""


Parts = Callable[[], Iterator[Part]]


def alloc_and_sync(by: int) -> None:
    """Allocate tensor memory by warp ``by``, then synchronise the CTA."""

    @role(warp=by)
    def alloc() -> None:
        tmem.alloc()
        tcgen05.relinquish_alloc_permit()

    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()


def sync_and_dealloc(by: int) -> None:
    """Synchronise the CTA, then free its tensor memory by warp ``by``."""
    tcgen05.fence_before_thread_sync()
    bar.sync()

    @role(warp=by)
    def free() -> None:
        tmem.dealloc()


def issue_products(rings: Rings, work: Parts) -> None:
    """The role multiply, one thread: for one tile after the other PV of a key block, then QKᵀ of the next block."""
    tiles = range(len(rings.ss))
    of_kv, of_block = rings.kv.consumer(), rings.ss[0].consumer()

    def wait_and_issue_values(tile: int, block: Slot, value: Any, accumulate: Any) -> None:
        result, scores = same_slot(rings.sums[tile], block), rings.scores[tile]
        next_slot(rings.ss[tile], block).empty.wait()
        tcgen05.fence_after_thread_sync()
        issue_values(result.sum, scores, value.kv, accumulate, range(EARLY))
        same_slot(rings.rests[tile], block).full.wait()
        tcgen05.fence_after_thread_sync()
        issue_values(result.sum, scores, value.kv, True, range(EARLY, KEYS))
        tcgen05.commit(result.full)
        # The next scores take the place of P, and an MMA of another shape may overtake this one.
        result.full.wait()
        tcgen05.fence_after_thread_sync()

    def issue_and_commit_scores(tile: int, query: Any, key: Any) -> None:
        issue_scores(rings.scores[tile], query.q, key.kv)
        tcgen05.commit(rings.ss[tile].full[0])

    def issue_step(value: Any, key: Any, queries: Sequence[Any], accumulate: Any, *, first: bool) -> None:
        value.full.wait()
        key.full.wait()
        block = next(of_block)
        for tile in tiles:
            wait_and_issue_values(tile, block, value, accumulate)
            if first:
                queries[tile].full.wait()
            issue_and_commit_scores(tile, queries[tile], key)
        tcgen05.commit(value.empty)
        tcgen05.commit(key.empty)

    before = var(u32, 0)  # blocks of the part before, whose last PV comes between the first scores of this part
    for item in work():
        queries = [Slot(rings.qs, tile, item.phase) for tile in tiles]
        with If(before == 0):
            key = next(of_kv)
            key.full.wait()
            for tile in tiles:
                queries[tile].full.wait()
                issue_and_commit_scores(tile, queries[tile], key)
            tcgen05.commit(key.empty)
        with Else():
            issue_step(next(of_kv), next(of_kv), queries, before > 1, first=True)
        for step in loop(1, item.blocks):
            issue_step(next(of_kv), next(of_kv), queries, step > 1, first=False)
        for query in queries:
            tcgen05.commit(query.empty)
        before.set(item.blocks)
    with If(before != 0):
        value, block = next(of_kv), next(of_block)
        value.full.wait()
        for tile in tiles:
            wait_and_issue_values(tile, block, value, before > 1)
        tcgen05.commit(value.empty)


def soften(rings: Rings, tile: int, work: Parts, scale: Expr, lse: Expr, config: Config, dtype: type[Scalar]) -> None:
    """The role softmax of a tile, a thread a row: scores → weights, factors and sums of rows, log-sum-exp.

    PV begins when P of the first `EARLY` keys is stored. The slot of a factor is empty once the scores of its block are
    full: `correct` had read the factor before it let the PV before them begin.
    """
    of_s, own = rings.ss[tile].consumer(), tid.x % ROWS
    row_max, row_sum = var(f32, LOWEST), var(f32, 0.0)
    for item in work():
        mask, first, blocks, top = item.mask, item.first, item.blocks, item.row + tile * ROWS
        low, high = mask.first(top + own), mask.stop(top + own)
        # One register during the loop, in place of all that says where the log-sum-exp is, if anywhere.
        at = select((lse != 0) & (top + own < item.q_len), item.lse_row + (top + own), NOWHERE)
        whole = blocks - min(max(mask.stop(top) // KEYS, first) - first, blocks)
        row_max.set(LOWEST)
        row_sum.set(0.0)
        runs = [(0, blocks, True)] if mask.begin is not None else [(0, whole, True), (whole, blocks, False)]
        for start, stop, masked in runs:
            for step in loop(start, stop):
                visible = visible_columns((first + blocks - 1 - step) * KEYS, low, high) if masked else None
                slot = next(of_s)
                slot.full.wait()
                tcgen05.fence_after_thread_sync()
                scores = load_scores(slot.s, visible)
                # A row max that grows by no more than `lazy` stays: `correct` then gets the factor 1.
                shift = max(max_of(scores) * scale, row_max)
                shift = select(shift - row_max > config.lazy, shift, row_max)
                factor = ex2(row_max - shift)
                row_max.set(shift)
                store_and_arrive(same_slot(rings.rows[tile], slot), own, factor)
                sums: list[Any] = []
                for key in range(0, KEYS, COLUMNS):
                    pairs = weights_of(scores[key : key + COLUMNS], scale, shift, config.polynomials)
                    store_weights(slot.s, [each for pair in pairs for each in unpack(pair, f32)], dtype, key)
                    sums = add_pairs(sums + pairs)
                    if key + COLUMNS == EARLY:
                        tcgen05.wait_st()
                        fence_and_arrive(slot.empty)
                tcgen05.wait_st()
                fence_and_arrive(same_slot(rings.rests[tile], slot).full)
                row_sum.set(fma(row_sum, factor, sum_of(sums)))
        total = Slot(rings.totals[tile], 0, item.phase)
        total.empty.wait()
        store_and_arrive(total, own, row_sum)
        with If(at != NOWHERE):
            Global(f32, lse)[at] = (row_max + lg2(row_sum)) * LN2


def write_results(rings: Rings, work: Parts, o: tma.Map[Scalar]) -> None:
    """The role correct, a thread a row: rescales O where a row max has grown, and stores it at the end of a part."""
    tiles = range(len(rings.ss))
    own, strip = tid.x % ROWS, tid.x % ROWS // WARP_ROWS
    of_block = rings.ss[0].consumer()
    for item in work():
        block = next(of_block)
        for tile in tiles:
            wait_and_load(same_slot(rings.rows[tile], block), own)  # the first factor, which has no O before it
            fence_and_arrive(rings.ss[tile].empty[0])
        for _ in loop(1, item.blocks):
            block = next(of_block)
            for tile in tiles:
                factor = wait_and_load(same_slot(rings.rows[tile], block), own)
                tcgen05.fence_after_thread_sync()
                with If(vote.any(factor != 1.0)):
                    rescale(same_slot(rings.sums[tile], block).sum, factor)
                fence_and_arrive(rings.ss[tile].empty[0])
        for tile in tiles:
            total, top = Slot(rings.totals[tile], 0, item.phase), item.row + tile * ROWS + strip * WARP_ROWS
            row_sum = wait_and_load(total, own)
            fence_and_arrive(total.empty)
            slot = next_slot(rings.sums[tile], of_block.peek())  # of the last block: the parity before the next one's
            slot.full.wait()
            tcgen05.fence_after_thread_sync()
            share = select(row_sum == 0.0, 0.0 * row_sum, rcp(row_sum))  # a row without weights becomes 0
            strips = [part(each, strip, WARP_ROWS, "k") for each in rings.panels]
            store_panels(slot.sum, share, strips, o, item.place(top), tile)
    with If(warp.lane == 0):
        tma.wait_group(0, read=True)
