"""Attention with mma.sync, for consumer Blackwell and for targets without a kernel of their own.

`attention` keeps scores, weights and outputs in registers: a warp owns whole rows, so warps wait only for copies, never
for each other. `attention_cp_async` is the same without TMA. sm_120a has no wgmma: ptxas and the language reject it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.steps import init_barriers
from warpwright.kernels.attention.sm120.plan import CONFIGS, CP_ASYNC, Config
from warpwright.kernels.attention.sm120.reference_kernel import attention_meeting, attention_shared
from warpwright.kernels.attention.sm120.steps import (
    BLOCK,
    INFINITY,
    LANES,
    PANEL_BYTES,
    CpAsyncCopies,
    Mask,
    TmaCopies,
    accumulate_values,
    apply_mask,
    compute_scores,
    lse_of_head,
    online_softmax,
    pack_weights,
    reduce_quad,
    store_output,
    write_lse,
)
from warpwright.kernels.tiles import Blocks
from warpwright.lang import (
    Expr,
    Global,
    If,
    Kernel,
    Ring,
    b16,
    bar,
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

__all__ = ["attention", "attention_cp_async", "forward", "kernel_of"]


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
    config: Config = CONFIGS[128],
    dtype: type[Scalar] = bf16,
    threads: int = 288,
) -> None:
    """A CTA for each tile of queries, the last ones first: with a causal mask these take longest.

    ``factor`` is log2(e) times the scale; ``group`` heads of Q share a head of K and V.

    role      warps       moves                                   waits for               signals
    load      0           Q -> `q`; K, V -> rings `k`, `v`        k.empty, v.empty        q_full, k.full, v.full
    compute   producers-  rings -> registers -> `q` -> O          q_full, k.full, v.full  k.empty, v.empty
    """
    head, batch = ctaid.y, ctaid.z
    heads = {"q": (batch, head), "o": (batch, head), "k": (batch, head // group), "v": (batch, head // group)}
    source = TmaCopies({"q": q, "k": k, "v": v, "o": o}, heads)
    mask = Mask(q_len, kv_len, left, right)
    forward(source, mask, top_of_tile(config), lse_of_head(lse, mask), factor, config, dtype)


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
    config: Config = CP_ASYNC[128],
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """`attention` without tensor maps: arrays with their strides of batch, head and row in elements.

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
    source = CpAsyncCopies(rows, pitches, extents, columns, tid.x, config.producers * LANES)
    mask = Mask(q_len, kv_len, left, right)
    forward(source, mask, top_of_tile(config), lse_of_head(lse, mask), factor, config, dtype)


def top_of_tile(config: Config) -> Any:
    """Returns the first row of this CTA's tile of Q; the last tile is that of the first CTA."""
    return ((nctaid.x - 1 - ctaid.x) * config.tile[0]).to(s32)


def forward(
    source: TmaCopies | CpAsyncCopies,
    mask: Mask,
    top: Any,
    lse: Expr,
    factor: Expr,
    config: Config,
    dtype: type[Scalar],
) -> None:
    """Compute the rows of Q from ``top`` on, with copies by ``source``; ``lse`` is as in `write_row_lse`."""
    (tile_q, tile_kv), producers, consumers = config.tile, config.producers, config.consumers
    q, q_full = smem.tile(dtype, (tile_q, config.head_dim), swizzle=128), mbarrier(source.arrivals, name="q_full")
    block = smem.tile(dtype, (tile_kv, config.head_dim), swizzle=128)
    keys = Ring(config.stages, full=source.arrivals, empty=consumers, name="k", tile=block)
    values = Ring(config.stages, full=source.arrivals, empty=consumers, name="v", tile=block)
    init_barriers((q_full, keys, values))
    bar.sync()
    first, stop = mask.blocks(top, tile_q, tile_kv)
    rows = tile_q // consumers

    @role(warps=range(producers if not source.elect else 1), elect=source.elect)
    def load() -> None:
        to_k, to_v = keys.producer(), values.producer()
        source.load_and_arrive("q", q, top, q_full)
        for number in loop(first, stop):
            for name, cursor in (("k", to_k), ("v", to_v)):
                slot = next(cursor)
                slot.empty.wait()
                source.load_and_arrive(name, slot.tile, (number * tile_kv).to(s32), slot.full)

    @role(warps=range(producers, producers + consumers))
    def compute() -> None:
        own, leader = (warp.id - producers) * rows, elect_one()
        row, lane = top + own.to(s32), warp.lane
        queries = [Blocks(q, own + i + lane % BLOCK, lane // BLOCK) for i in range(0, rows, BLOCK)]
        outputs = [[mma.accumulator(f32) for _ in range(config.head_dim // 8)] for _ in queries]
        row_max = [[var(f32, -INFINITY) for _ in range(2)] for _ in queries]
        row_sum = [[var(f32, 0.0) for _ in range(2)] for _ in queries]
        of_k, of_v = keys.consumer(), values.consumer()
        q_full.wait(0)
        for number in loop(first, stop):
            column, slot = (number * tile_kv).to(s32), next(of_k)
            slot.full.wait()
            sums = compute_scores(queries, Blocks(slot.tile, lane % 8 + lane // 16 * 8, lane // 8 % 2), dtype)
            # What this warp has read comes before the next copy to the slot, also one of the async proxy.
            fence.proxy_async()
            warp.sync()
            with If(leader):
                slot.empty.arrive()
            with If((column + tile_kv > mask.stop(row)) | (column < mask.first(row + (rows - 1)))):
                for i, scores in enumerate(sums):
                    apply_mask(scores, row + i * BLOCK, column, mask)
            for each in zip(sums, outputs, row_max, row_sum, strict=True):
                online_softmax(*each, factor)
            slot = next(of_v)
            slot.full.wait()
            lefts = [pack_weights(scores, dtype) for scores in sums]
            accumulate_values(outputs, lefts, Blocks(slot.tile, lane % BLOCK, lane // BLOCK))
            fence.proxy_async()
            warp.sync()
            with If(leader):
                slot.empty.arrive()
        for i, blocks in enumerate(queries):
            totals = [reduce_quad(partial) for partial in row_sum[i]]
            store_output(outputs[i], totals, blocks)
            write_lse(lse, row + i * BLOCK, row_max[i], totals, factor, mask)
            base, start = q.place.known()
            strip = q[:BLOCK, :].placed(base + (own + i * BLOCK) * PANEL_BYTES, start)
            source.sync_and_store(strip, row + i * BLOCK, mask, leader)
        source.wait_stores(leader)


KERNELS = {
    "registers": attention,
    "cp.async": attention_cp_async,
    "meeting": attention_meeting,
    "shared": attention_shared,
}


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) on it."""
    return KERNELS[config.kernel].configure(config=config, threads=config.threads)
