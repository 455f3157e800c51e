"""Roles of the Blackwell attention that dense arrays and packed sequences share: MMAs, softmax, correction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from warpwright.kernels.attention.sm90.steps import LN2, LOWEST, Mask, panel, reduce
from warpwright.kernels.attention.sm100.plan import KEYS, ROWS, WARP_ROWS, Config
from warpwright.kernels.attention.sm100.steps import (
    Rings,
    fence_and_arrive,
    issue_scores,
    issue_values,
    load_scores,
    receive_when_full,
    rescale,
    send_when_empty,
    store_rows,
    store_weights,
    visible_columns,
)
from warpwright.kernels.tiles import part
from warpwright.lang import (
    Else,
    Expr,
    Global,
    If,
    bar,
    elect_one,
    ex2,
    f32,
    fence,
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
    var,
    vote,
    warp,
)
from warpwright.types import Scalar

__all__ = ["Part", "alloc_and_sync", "issue_products", "soften", "sync_and_dealloc", "write_results"]

NOWHERE = 0xFFFFFFFF


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
    """The role multiply, one thread: QKᵀ of a key block and PV of the block before, for one tile after the other."""
    tiles = range(len(rings.ss))
    of_q, of_kv = rings.qs.consumer(), rings.kv.consumer()
    to_s, of_p = [each.producer() for each in rings.ss], [each.producer() for each in rings.ss]
    to_sum, of_sum = [each.producer() for each in rings.sums], [each.consumer() for each in rings.sums]
    for each in of_p:
        next(each)  # one slot ahead of to_s: that slot is empty when P of this slot is there

    def wait_and_issue_values(tile: int, value: Any, accumulate: Any) -> None:
        result = next(to_sum[tile])
        next(of_p[tile]).empty.wait()
        result.empty.wait()
        tcgen05.fence_after_thread_sync()
        issue_values(result.sum, rings.scores[tile], value.kv, accumulate)
        tcgen05.commit(result.full)
        # The next scores take the place of P, and an MMA of another shape may overtake this one.
        next(of_sum[tile]).full.wait()
        tcgen05.fence_after_thread_sync()

    def issue_and_commit_scores(tile: int, query: Any, key: Any) -> None:
        result = next(to_s[tile])
        issue_scores(result.s, query.q, key.kv)
        tcgen05.commit(result.full)

    for item in work():
        blocks = item.blocks
        key, queries = next(of_kv), [next(of_q) for _ in tiles]
        key.full.wait()
        for tile in tiles:
            queries[tile].full.wait()
            issue_and_commit_scores(tile, queries[tile], key)
        tcgen05.commit(key.empty)
        for step in loop(1, blocks + 1):
            value = next(of_kv)
            value.full.wait()
            with If(step < blocks):
                key = next(of_kv)
                for tile in tiles:
                    wait_and_issue_values(tile, value, step > 1)
                    key.full.wait()
                    issue_and_commit_scores(tile, queries[tile], key)
                tcgen05.commit(key.empty)
            with Else():
                for tile in tiles:
                    wait_and_issue_values(tile, value, step > 1)
            tcgen05.commit(value.empty)


def soften(rings: Rings, tile: int, work: Parts, scale: Expr, lse: Expr, config: Config, dtype: type[Scalar]) -> None:
    """The role softmax of a tile, a thread a row: scores → weights, factors and sums of rows, log-sum-exp."""
    of_s, to_row, own = rings.ss[tile].consumer(), rings.rows[tile].producer(), tid.x % ROWS
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
                shift = max(reduce(max, scores) * scale, row_max)
                shift = select(shift - row_max > config.lazy, shift, row_max)
                factor = ex2(row_max - shift)
                row_max.set(shift)
                send_when_empty(next(to_row), own, factor)
                weights = [ex2(fma(score, scale, -shift)) for score in scores]
                store_weights(slot.s, weights, dtype)
                fence_and_arrive(slot.empty)
                row_sum.set(fma(row_sum, factor, reduce(lambda a, b: a + b, weights)))
        send_when_empty(next(to_row), own, row_sum)
        with If(at != NOWHERE):
            Global(f32, lse)[at] = (row_max + lg2(row_sum)) * LN2


def write_results(rings: Rings, work: Parts, o: tma.Map[Scalar]) -> None:
    """The role correct, a thread a row: rescales O where a row max has grown, and stores it at the end of a part."""
    tiles = range(len(rings.ss))
    of_q, own = rings.qs.consumer(), tid.x % ROWS
    of_row, of_sum = [each.consumer() for each in rings.rows], [each.consumer() for each in rings.sums]
    for item in work():
        for tile in tiles:
            receive_when_full(next(of_row[tile]), own)  # the factor of the first block, which has no O before it
        for _ in loop(1, item.blocks):
            for tile in tiles:
                slot = next(of_sum[tile])
                factor = receive_when_full(next(of_row[tile]), own)
                slot.full.wait()
                tcgen05.fence_after_thread_sync()
                with If(vote.any(factor != 1.0)):
                    rescale(slot.sum, factor)
                fence_and_arrive(slot.empty)
        for tile in tiles:
            row_sum = receive_when_full(next(of_row[tile]), own)
            slot, query, top = next(of_sum[tile]), next(of_q), item.row + tile * ROWS
            slot.full.wait()
            tcgen05.fence_after_thread_sync()
            share = select(row_sum == 0.0, 0.0 * row_sum, rcp(row_sum))  # a row without weights becomes 0
            strip = part(query.q, tid.x % ROWS // WARP_ROWS, WARP_ROWS, "k")
            store_rows(slot.sum, share, strip)
            fence_and_arrive(slot.empty)
            fence.proxy_async()
            warp.sync()
            with If(elect_one()):
                width = panel(strip.shape[1])
                for left in range(0, strip.shape[1], width):
                    corner = o[(*item.place(top + tid.x % ROWS // WARP_ROWS * WARP_ROWS), left)]
                    tma.store(corner, strip[:, left : left + width])
                tma.commit_group()
                tma.wait_group(0, read=True)
                query.empty.arrive()
            warp.sync()
