"""Attention forward on datacentre Blackwell: O = softmax(scale · Q·Kᵀ)·V and the log-sum-exp of the scores.

Scores S, weights P and output O are in tensor memory. A tile of 128 queries has a softmax warpgroup, a thread a row: it
reads the scores of a key block and writes P in their place, as the A operand of PV. Two tiles are in flight, so that
the tensor cores work for one during the softmax of the other. The correction warpgroup rescales O where a row max has
grown, and stores O (base 2 throughout: ``scale`` has the factor log2 e). Key/value blocks come from the last one that a
query sees to the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.steps import LN2, LOWEST, Mask, init_barriers, load_when_empty, reduce
from warpwright.kernels.attention.sm100.plan import CONFIGS, KEYS, ROWS, WARP_ROWS, Config
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
from warpwright.kernels.tiles import WARPS, part
from warpwright.lang import (
    Else,
    Expr,
    Global,
    If,
    Kernel,
    bar,
    bf16,
    ctaid,
    elect_one,
    ex2,
    f32,
    fence,
    fma,
    kernel,
    lg2,
    loop,
    max,
    min,
    nctaid,
    rcp,
    role,
    s32,
    select,
    setmaxnreg,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    u64,
    var,
    vote,
    warp,
)
from warpwright.types import Scalar

__all__ = ["attention", "kernel_of"]

REGISTERS = {1: (240, 152, 112), 2: (176, 96, 64)}  # by tiles: of softmax, correction, the other warps


@kernel("sm_100a", threads=512)
def attention(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    heads: u32,
    group: u32,
    parts: u32,
    total: u32,
    scale: f32,
    *,
    config: Config = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 512,
) -> None:
    """Persistent: CTAs take parts of ``config.tiles`` · 128 queries, ``parts`` of them a head; with a right bound from
    the last queries on, which see most keys.

    Each tile has rings of one stage: `s` brings scores to its softmax and weights back, `row` brings a factor or a sum
    of each row to `correct`, `sum` is O. O leaves through the slot of Q, which no QKᵀ reads any more.

    role       warps     moves                                     waits for             signals
    softmax    0-3, 4-7  `s` -> registers -> `s`, `row`            s.full, row.empty     s.empty, row.full
    correct    8-11      `sum` -> registers -> `sum`, or Q -> O    row.full, sum.full    row.empty, sum.empty, q.empty
    multiply   12        Q, `kv` -> `s`; `s`, `kv` -> `sum`        full of each          s.full, sum.full, kv.empty
    load       13        Q, K, V: global -> rings                  q.empty, kv.empty     q.full, kv.full
    """
    tiles, rings = config.tiles, Rings.of(config, dtype)
    last = WARPS * (tiles + 1)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, KEYS)
    init_barriers((rings.qs, rings.kv, *rings.ss, *rings.sums, *rings.rows), (q, k, v, o), on_warp=last)

    @role(warp=last + 2)
    def alloc() -> None:
        tmem.alloc()
        tcgen05.relinquish_alloc_permit()

    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()

    def work() -> Iterator[tuple[Expr, Expr, Expr, Any, Expr]]:
        """Yields first row, head, batch, first block and number of blocks of each part, the same in every role."""
        for number in loop(ctaid.x, total, nctaid.x):
            place, both = number % parts, number // parts
            row = (parts - 1 - place if bounds[1] else place) * (tiles * ROWS)
            yield row, both % heads, both // heads, *mask.blocks(row, tiles * ROWS)

    @role(warps=range(last, last + WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[tiles][2])

    @role(warp=last + 1, elect=True)
    def load() -> None:
        to_q, to_kv = rings.qs.producer(), rings.kv.producer()
        for row, head, batch, first, blocks in work():
            for tile in range(tiles):
                load_when_empty(to_q, "q", q, batch, head, row + tile * ROWS)
            kv_head, last_row = head // group, (first + blocks - 1) * KEYS
            load_when_empty(to_kv, "kv", k, batch, kv_head, last_row)
            for step in loop(1, blocks):
                load_when_empty(to_kv, "kv", v, batch, kv_head, last_row - (step - 1) * KEYS)
                load_when_empty(to_kv, "kv", k, batch, kv_head, last_row - step * KEYS)
            load_when_empty(to_kv, "kv", v, batch, kv_head, first * KEYS)
        to_q.wait_all_empty()
        to_kv.wait_all_empty()

    @role(warp=last, elect=True)
    def multiply() -> None:
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

        for *_, blocks in work():
            key, queries = next(of_kv), [next(of_q) for _ in range(tiles)]
            key.full.wait()
            for tile in range(tiles):
                queries[tile].full.wait()
                issue_and_commit_scores(tile, queries[tile], key)
            tcgen05.commit(key.empty)
            for step in loop(1, blocks + 1):
                value = next(of_kv)
                value.full.wait()
                with If(step < blocks):
                    key = next(of_kv)
                    for tile in range(tiles):
                        wait_and_issue_values(tile, value, step > 1)
                        key.full.wait()
                        issue_and_commit_scores(tile, queries[tile], key)
                    tcgen05.commit(key.empty)
                with Else():
                    for tile in range(tiles):
                        wait_and_issue_values(tile, value, step > 1)
                tcgen05.commit(value.empty)

    def soften(tile: int) -> None:
        """The softmax role of a tile, a thread a row."""

        @role(warps=range(WARPS * tile, WARPS * (tile + 1)))
        def softmax() -> None:
            setmaxnreg.inc(REGISTERS[tiles][0])
            of_s, to_row, own = rings.ss[tile].consumer(), rings.rows[tile].producer(), tid.x % ROWS
            row_max, row_sum = var(f32, LOWEST), var(f32, 0.0)
            for row, head, batch, first, blocks in work():
                top = row + tile * ROWS
                low, high = mask.first(top + own), mask.stop(top + own)
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
                with If((lse != 0) & (top + own < q_len)):
                    found = (row_max + lg2(row_sum)) * LN2
                    Global(f32, lse)[(batch * heads + head) * q_len + (top + own)] = found

    for tile in range(tiles):
        soften(tile)

    @role(warps=range(WARPS * tiles, WARPS * (tiles + 1)))
    def correct() -> None:
        setmaxnreg.dec(REGISTERS[tiles][1])
        of_q, own = rings.qs.consumer(), tid.x % ROWS
        of_row, of_sum = [each.consumer() for each in rings.rows], [each.consumer() for each in rings.sums]
        for row, head, batch, _first, blocks in work():
            for tile in range(tiles):
                receive_when_full(next(of_row[tile]), own)  # the factor of the first block, which has no O before it
            for _ in loop(1, blocks):
                for tile in range(tiles):
                    slot = next(of_sum[tile])
                    factor = receive_when_full(next(of_row[tile]), own)
                    slot.full.wait()
                    tcgen05.fence_after_thread_sync()
                    with If(vote.any(factor != 1.0)):
                        rescale(slot.sum, factor)
                    fence_and_arrive(slot.empty)
            for tile in range(tiles):
                row_sum = receive_when_full(next(of_row[tile]), own)
                slot, query, top = next(of_sum[tile]), next(of_q), row + tile * ROWS
                slot.full.wait()
                tcgen05.fence_after_thread_sync()
                share = select(row_sum == 0.0, 0.0 * row_sum, rcp(row_sum))  # a row without weights becomes 0
                strip = part(query.q, tid.x % ROWS // WARP_ROWS, WARP_ROWS, "k")
                store_rows(slot.sum, share, strip)
                fence_and_arrive(slot.empty)
                fence.proxy_async()
                warp.sync()
                with If(elect_one()):
                    for left in range(0, strip.shape[1], PANEL):
                        corner = o[batch, head, top + tid.x % ROWS // WARP_ROWS * WARP_ROWS, left]
                        tma.store(corner, strip[:, left : left + PANEL])
                    tma.commit_group()
                    tma.wait_group(0, read=True)
                    query.empty.arrive()
                warp.sync()

    tcgen05.fence_before_thread_sync()
    bar.sync()

    @role(warp=last + 2)
    def free() -> None:
        tmem.dealloc()


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on it."""
    return attention.configure(config=config, threads=config.threads)
