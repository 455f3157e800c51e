"""Attention with mma.sync, for consumer Blackwell and wherever there is no other tensor core in reach.

`attention` keeps scores, weights and outputs in registers: a warp owns whole rows, so that no two warps ever wait for
each other, only for the copies. `attention_cp_async` is the same without TMA.

There is no wgmma on sm_120a: ptxas refuses it, and so does the language.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from warpwright.kernels.attention.sm120.plan import Sm120Config
from warpwright.kernels.attention.sm120.reference_kernel import attention_meeting, attention_shared
from warpwright.kernels.attention.sm120.steps import (
    BLOCK,
    INFINITY,
    LANES,
    PANEL_BYTES,
    Blocks,
    Bounds,
    ByLanes,
    ByTma,
    add_values,
    finish,
    hide,
    multiply_keys,
    set_up,
    soften,
    total_of,
    weights,
    write_lse,
)
from warpwright.lang import (
    Expr,
    Global,
    If,
    Kernel,
    Ring,
    b16,
    bf16,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    mma,
    nctaid,
    role,
    s32,
    smem,
    tid,
    tma,
    u32,
    u64,
    var,
    warp,
)
from warpwright.types import Scalar

__all__ = ["attention", "attention_cp_async", "kernel_of"]


@kernel("sm_120a", threads=288)
def attention(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    q_len: s32,
    kv_len: s32,
    left: s32,
    right: s32,
    group: u32,
    factor: f32,
    *,
    tile: tuple[int, int] = (128, 64),
    head_dim: int = 128,
    stages: int = 2,
    producers: int = 1,
    consumers: int = 8,
    dtype: type[Scalar] = bf16,
    threads: int = 288,
) -> None:
    """A CTA for each tile of rows of Q, the last ones first: with a causal mask these take longest.

    ``factor`` is log2(e) times the scale; ``group`` the heads of Q that share one of K and V.

    role      warps       moves                                   waits for               signals
    load      0           Q -> `q`; K, V -> rings `k`, `v`        k.empty, v.empty        q_full, k.full, v.full
    compute   producers-  rings -> registers -> `q` -> O          q_full, k.full, v.full  k.empty, v.empty
    """
    head, batch = ctaid.y, ctaid.z
    heads = {"q": (batch, head), "k": (batch, head // group), "v": (batch, head // group)}
    source = ByTma({"q": q, "k": k, "v": v, "o": o}, heads)
    forward(
        source, Bounds(q_len, kv_len, left, right), lse, factor, tile, head_dim, stages, producers, consumers, dtype
    )


@kernel("sm_120a", threads=384)
def attention_cp_async(
    q: Global[b16],
    k: Global[b16],
    v: Global[b16],
    o: Global[b16],
    q_batch: u64,
    q_head: u64,
    q_row: u64,
    k_batch: u64,
    k_head: u64,
    k_row: u64,
    v_batch: u64,
    v_head: u64,
    v_row: u64,
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    columns: u32,
    lse: u64,
    q_len: s32,
    kv_len: s32,
    left: s32,
    right: s32,
    group: u32,
    factor: f32,
    *,
    tile: tuple[int, int] = (128, 64),
    head_dim: int = 128,
    stages: int = 2,
    producers: int = 4,
    consumers: int = 8,
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """`attention` without tensor maps: arrays, their elements from batch to batch, head to head and row to row.

    role      warps       moves                                   waits for               signals
    load      0-          Q -> `q`; K, V -> rings `k`, `v`        k.empty, v.empty        q_full, k.full, v.full
    compute   producers-  rings -> registers -> `q` -> O          q_full, k.full, v.full  k.empty, v.empty
    """
    head, batch = ctaid.y.to(u64), ctaid.z.to(u64)
    shared = (ctaid.y // group).to(u64)
    rows = {
        "q": q + (batch * q_batch + head * q_head),
        "k": k + (batch * k_batch + shared * k_head),
        "v": v + (batch * v_batch + shared * v_head),
        "o": o + (batch * o_batch + head * o_head),
    }
    pitches, extents = {"q": q_row, "k": k_row, "v": v_row, "o": o_row}, {"q": q_len, "k": kv_len, "v": kv_len}
    source = ByLanes(rows, pitches, extents, columns, tid.x, producers * LANES)
    forward(
        source, Bounds(q_len, kv_len, left, right), lse, factor, tile, head_dim, stages, producers, consumers, dtype
    )


def forward(
    source: ByTma | ByLanes,
    bounds: Bounds,
    lse: Expr,
    factor: Expr,
    tile: tuple[int, int],
    head_dim: int,
    stages: int,
    producers: int,
    consumers: int,
    dtype: type[Scalar],
) -> None:
    """The rows of one tile of Q, whichever way they are copied."""
    tile_q, tile_kv = tile
    q, q_full = smem.tile(dtype, (tile_q, head_dim), swizzle=128), mbarrier(source.arrivals, name="q_full")
    block = smem.tile(dtype, (tile_kv, head_dim), swizzle=128)
    keys = Ring(stages, full=source.arrivals, empty=consumers, name="k", tile=block)
    values = Ring(stages, full=source.arrivals, empty=consumers, name="v", tile=block)
    set_up(q_full, keys, values)
    top = ((nctaid.x - 1 - ctaid.x) * tile_q).to(s32)
    first, stop = bounds.tiles(top, tile_q, tile_kv)
    wide = tile_q // consumers

    def fill(name: str, cursor: Any, number: Expr) -> None:
        slot = next(cursor)
        slot.empty.wait()
        source.load(name, slot.tile, (number * tile_kv).to(s32), slot.full)

    @role(warps=range(producers if not source.elect else 1), elect=source.elect)
    def load() -> None:
        k_slots, v_slots = keys.producer(), values.producer()
        source.load("q", q, top, q_full)
        for number in loop(first, stop):
            fill("k", k_slots, number)
            fill("v", v_slots, number)

    @role(warps=range(producers, producers + consumers))
    def compute() -> None:
        own, leader = (warp.id - producers) * wide, elect_one()
        row, lane = top + own.to(s32), warp.lane
        queries = [Blocks(q, own + i + lane % BLOCK, lane // BLOCK) for i in range(0, wide, BLOCK)]
        outputs = [[mma.accumulator(f32) for _ in range(head_dim // 8)] for _ in queries]
        greatest = [[var(f32, -INFINITY) for _ in range(2)] for _ in queries]
        totals = [[var(f32, 0.0) for _ in range(2)] for _ in queries]
        k_slots, v_slots = keys.consumer(), values.consumer()
        q_full.wait(0)
        for number in loop(first, stop):
            column, slot = (number * tile_kv).to(s32), next(k_slots)
            slot.full.wait()
            sums = multiply_keys(queries, Blocks(slot.tile, lane % 8 + lane // 16 * 8, lane // 8 % 2), dtype)
            release(slot, leader)
            with If((column + tile_kv > bounds.stop(row)) | (column < bounds.first(row + (wide - 1)))):
                for i, scores in enumerate(sums):
                    hide(scores, row + i * BLOCK, column, bounds)
            for each in zip(sums, outputs, greatest, totals, strict=True):
                soften(*each, factor)
            slot = next(v_slots)
            slot.full.wait()
            lefts = [weights(scores, dtype) for scores in sums]
            add_values(outputs, lefts, Blocks(slot.tile, lane % BLOCK, lane // BLOCK))
            release(slot, leader)
        for i, blocks in enumerate(queries):
            whole = [total_of(total) for total in totals[i]]
            finish(outputs[i], whole, blocks)
            write_lse(lse, row + i * BLOCK, greatest[i], whole, factor, bounds)
            base, start = q.place.known()
            source.store(
                q[:BLOCK, :].placed(base + (own + i * BLOCK) * PANEL_BYTES, start), row + i * BLOCK, bounds, leader
            )
        source.leave(leader)


def release(slot: Any, leader: Expr) -> None:
    """This warp has read a slot; what it has read comes before what is copied there next."""
    fence.proxy_async()
    warp.sync()
    with If(leader):
        slot.empty.arrive()


KERNELS = {
    "registers": attention,
    "cp.async": attention_cp_async,
    "meeting": attention_meeting,
    "shared": attention_shared,
}


@cache
def kernel_of(config: Sm120Config) -> Kernel:
    """The kernel of a configuration; configure ``dtype`` (bf16, f16)."""
    return KERNELS[config.kernel].configure(**config.keywords)
