"""Attention forward on datacentre Blackwell: O = softmax(scale · Q·Kᵀ)·V and the log-sum-exp of the scores.

Scores, weights and output live in tensor memory. A tile of 128 queries has a thread for each row: its warpgroup reads
the scores of a block of keys, a row a thread, and leaves the weights in their place, as A of the next products. Two
tiles are in flight, so that the tensor cores work for one while the other's softmax is computed. Another warpgroup
brings the output up to date where a row's greatest score has grown, and stores it (base 2 throughout: ``scale`` has the
factor log2 e). Keys and values come by blocks, from the last one that a query sees to the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.steps import Mask, load_when_empty
from warpwright.kernels.attention.sm100.plan import KEYS, ROWS, BlackwellConfig
from warpwright.kernels.attention.sm100.roles import Rings, add_up, soften, update
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Expr,
    Kernel,
    bar,
    bf16,
    ctaid,
    f32,
    fence,
    kernel,
    loop,
    nctaid,
    role,
    s32,
    setmaxnreg,
    tcgen05,
    tma,
    tmem,
    u32,
    u64,
)
from warpwright.types import Scalar

__all__ = ["attention", "kernel_of"]

REGISTERS = {1: (240, 152, 112), 2: (176, 96, 64)}  # of softmax, correction, the others: all of an SM's


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
    head_dim: int = 128,
    tiles: int = 2,
    stages: int = 4,
    lazy: float = 8.0,
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 512,
) -> None:
    """Persistent: CTAs take parts of ``tiles`` · 128 queries, ``parts`` of them to a head; where there is a right bound
    from the last queries on, which see most keys.

    Each tile has rings of one stage: `s` goes to its softmax with scores and comes back with weights, `row` carries a
    factor or a sum for each row, `sum` is O. O leaves through the slot of Q, which is free by then.

    role       warps     moves                                     waits for             signals
    softmax    0-3, 4-7  `s` -> registers -> `s`, `row`            s.full, row.empty     s.empty, row.full
    correct    8-11      `sum` -> registers -> `sum`, or Q -> O    row.full, sum.full    row.empty, sum.empty, q.empty
    multiply   12        Q, `kv` -> `s`; `s`, `kv` -> `sum`        full of each          s.full, sum.full, kv.empty
    load       13        Q, K, V: global -> rings                  q.empty, kv.empty     q.full, kv.full
    """
    rings = Rings.of(tiles, stages, head_dim, dtype)
    last = WARPS * (tiles + 1)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, KEYS)

    @role(warp=last, elect=True)
    def init() -> None:
        rings.init()
        fence.mbarrier_init()
        for each in (q, k, v, o):
            tma.prefetch_map(each)

    @role(warp=last + 2)
    def alloc() -> None:
        tmem.alloc()
        tcgen05.relinquish_alloc_permit()

    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()

    def work() -> Iterator[tuple[Expr, Expr, Expr, Any, Expr]]:
        """First row, head, batch, first block and number of blocks of this CTA's parts: the same in every role."""
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
        to_q.drain()
        to_kv.drain()

    @role(warp=last, elect=True)
    def multiply() -> None:
        add_up(rings, work)

    def weigh(tile: int) -> None:
        @role(warps=range(WARPS * tile, WARPS * (tile + 1)))
        def softmax() -> None:
            setmaxnreg.inc(REGISTERS[tiles][0])
            soften(rings, tile, work, mask, lse, heads, q_len, scale, lazy, dtype)

    for tile in range(tiles):
        weigh(tile)

    @role(warps=range(WARPS * tiles, WARPS * (tiles + 1)))
    def correct() -> None:
        setmaxnreg.dec(REGISTERS[tiles][1])
        update(rings, work, o)

    tcgen05.fence_before_thread_sync()
    bar.sync()

    @role(warp=last + 2)
    def free() -> None:
        tmem.dealloc()


@cache
def kernel_of(config: BlackwellConfig) -> Kernel:
    """The kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on what is seen."""
    return attention.configure(**config.keywords)
