"""Attention backward with mma.sync: gradients of softmax(scale · Q·Kᵀ)·V by Q, K and V, in two launches.

`query_gradients` has a CTA for each block of queries, which walks the keys that these see and keeps dQ in registers. It
also computes for each query the mean gradient of its weights, the sum of O ∘ dO less the gradient ``dlse`` of its
log-sum-exp (if given). `key_gradients` has a CTA for each block of keys, which walks the queries that see these and
keeps dK and dV in registers. Every sum has a fixed order: the same bits in every run.

With P = softmax(S), S = scale · Q·Kᵀ and dP = dO·Vᵀ: dV = Pᵀ·dO, dS = P ∘ (dP - mean), dQ = scale · dS·K,
dK = scale · dSᵀ·Q. Both launches compute P and dP. A warp owns 16 rows of queries or keys, so warps wait only for
copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.steps import LOG2E, init_barriers
from warpwright.kernels.attention.sm120.backward_plan import CONFIGS, STRIP, BackwardConfig
from warpwright.kernels.attention.sm120.steps import (
    BLOCK,
    PANEL_BYTES,
    Mask,
    TmaCopies,
    accumulate_values,
    apply_mask,
    compute_scores,
    pack_left,
    pack_weights,
    reduce_quad,
)
from warpwright.kernels.tiles import Blocks, part
from warpwright.lang import (
    Expr,
    Global,
    If,
    Kernel,
    Ring,
    bar,
    bf16,
    ctaid,
    elect_one,
    ex2,
    f32,
    fence,
    fma,
    kernel,
    ld,
    loop,
    mbarrier,
    mma,
    nctaid,
    role,
    s32,
    select,
    smem,
    stmatrix,
    tma,
    u32,
    u64,
    unpack,
    var,
    warp,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["kernels_of", "key_gradients", "query_gradients"]

HALVES = (0, 1)  # a thread's two rows of a fragment, 8 apart


@kernel("sm_120a", threads=288)
def query_gradients(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    do: tma.Map[Scalar],
    dq: tma.Map[Scalar],
    lse: Global[f32],
    dlse: u64,
    shifts: Global[f32],
    means: Global[f32],
    q_len: s32,
    kv_len: s32,
    left: s32,
    right: s32,
    group: u32,
    padded: u32,
    scale: f32,
    *,
    config: BackwardConfig = CONFIGS[128],
    dtype: type[Scalar] = bf16,
    threads: int = 288,
) -> None:
    """A block of queries, the last ones first: dQ, and for `key_gradients` ``shifts`` = -log2 e · lse (-inf where a
    query sees no key) and ``means``.

    role      warps  moves                                       waits for                    signals
    load      0      Q, dO; O -> ring `v`; K, V -> `k`, `v`      k.empty, v.empty             rows_full, k.full, v.full
    compute   1-     rings -> registers -> dQ, shifts, means     rows_full, k.full, v.full    k.empty, v.empty
    """
    (queries, keys), warps = config.by_query, config.by_query[0] // STRIP
    of_q, of_k = (ctaid.z, ctaid.y), (ctaid.z, ctaid.y // group)
    maps = {"q": q, "k": k, "v": v, "o": o, "do": do, "dq": dq}
    source = TmaCopies(maps, {name: of_k if name in "kv" else of_q for name in maps})
    mask, top = Mask(q_len, kv_len, left, right), ((nctaid.x - 1 - ctaid.x) * queries).to(s32)
    tiles = {name: smem.tile(dtype, (queries, config.head_dim), swizzle=128) for name in ("q", "do")}
    block, rows_full = smem.tile(dtype, (keys, config.head_dim), swizzle=128), mbarrier(1, name="rows_full")
    ring_k, ring_v = (Ring(config.stages, empty=warps, name=name, tile=block) for name in "kv")
    init_barriers((rows_full, ring_k, ring_v))
    bar.sync()
    first, stop = mask.blocks(top, queries, keys)

    @role(warp=0, elect=True)
    def load() -> None:
        to_k, to_v = ring_k.producer(), ring_v.producer()
        load_tiles(source, tiles, top, rows_full)
        for strip in range(0, queries, keys):
            slot = next(to_v)
            slot.empty.wait()
            source.load_and_arrive("o", slot.tile, top + strip, slot.full)
        for number in loop(first, stop):
            for name, cursor in (("k", to_k), ("v", to_v)):
                slot = next(cursor)
                slot.empty.wait()
                source.load_and_arrive(name, slot.tile, (number * keys).to(s32), slot.full)

    @role(warps=range(1, 1 + warps))
    def compute() -> None:
        own, leader, lane = (warp.id - 1) * STRIP, elect_one(), warp.lane
        row = top + own.to(s32)
        lefts = {name: left_blocks(tile, own) for name, tile in tiles.items()}
        out, of_k, of_v = (
            [mma.accumulator(f32) for _ in range(config.head_dim // 8)],
            *(r.consumer() for r in (ring_k, ring_v)),
        )
        rows_full.wait(0)
        sums = [var(f32, 0.0) for _ in HALVES]
        for strip in range(0, queries, keys):
            slot = next(of_v)
            slot.full.wait()
            with If(own // keys == strip // keys):
                add_products(sums, left_blocks(slot.tile, own % keys), lefts["do"], dtype)
            fence_and_arrive(slot.empty, leader)
        place = (ctaid.z * nctaid.y + ctaid.y) * padded
        shift, mean = [], []
        for half in HALVES:
            at = row + (lane // 4 + 8 * half).to(s32)
            stats = row_stats(
                lse, dlse, reduce_quad(sums[half]), (ctaid.z * nctaid.y + ctaid.y) * q_len.to(u32), at, q_len
            )
            with If(lane % 4 == 0):
                shifts[place + at.to(u32)], means[place + at.to(u32)] = stats
            shift.append(stats[0])
            mean.append(stats[1])
        for number in loop(first, stop):
            column, slot_k, slot_v = (number * keys).to(s32), next(of_k), next(of_v)
            slot_k.full.wait()
            (scores,) = compute_scores([lefts["q"]], right_blocks(slot_k.tile), dtype)
            slot_v.full.wait()
            (dp,) = compute_scores([lefts["do"]], right_blocks(slot_v.tile), dtype)
            fence_and_arrive(slot_v.empty, leader)
            with If((column + keys > mask.stop(row)) | (column < mask.first(row + (STRIP - 1)))):
                apply_mask(scores, row, column, mask)
            for block_p, block_dp in zip(scores, dp, strict=True):
                for i, (p, each) in enumerate(zip(block_p.regs, block_dp.regs, strict=True)):
                    each.set(ex2(fma(p, scale * LOG2E, shift[i // 2])) * (each - mean[i // 2]))
            accumulate_values([out], [pack_weights(dp, dtype)], left_blocks(slot_k.tile, 0))
            fence_and_arrive(slot_k.empty, leader)
        store_rows(source, "dq", tiles["q"], own, out, scale, row, mask, leader)
        source.wait_stores(leader)


@kernel("sm_120a", threads=288)
def key_gradients(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    do: tma.Map[Scalar],
    dk: tma.Map[Scalar],
    dv: tma.Map[Scalar],
    shifts: Global[f32],
    means: Global[f32],
    q_len: s32,
    kv_len: s32,
    left: s32,
    right: s32,
    group: u32,
    padded: u32,
    scale: f32,
    *,
    config: BackwardConfig = CONFIGS[128],
    dtype: type[Scalar] = bf16,
    threads: int = 288,
) -> None:
    """A block of keys of one head, and all queries that see some of them, of the heads that share these keys: dK, dV.

    The scores are transposed, (keys, queries): Pᵀ and dSᵀ are left operands of dV and dK in registers, and the mask is
    that of keys that see queries.

    role      warps  moves                                             waits for            signals
    load      0      K, V -> tiles, which complete `rows_full`
                     Q with shifts, dO with means -> rings             q.empty, do.empty    q.full, do.full
    compute   1-     tiles, rings -> registers -> dK, dV               all full             q.empty, do.empty
    """
    (keys, queries), warps = config.by_key, config.by_key[0] // STRIP
    of_k, first_head = (ctaid.z, ctaid.y), ctaid.y * group
    source = TmaCopies({"k": k, "v": v, "dk": dk, "dv": dv}, dict.fromkeys(("k", "v", "dk", "dv"), of_k))
    mask, top = Mask(kv_len, q_len, right, left), (ctaid.x * keys).to(s32)
    stats = [smem.tile(f32, (config.stages, queries)) for _ in range(2)]
    for each in stats:
        each.place.known()  # next to the barriers, not after the tiles, which begin at multiples of 1024 bytes
    tiles = {name: smem.tile(dtype, (keys, config.head_dim), swizzle=128) for name in "kv"}
    block, rows_full = smem.tile(dtype, (queries, config.head_dim), swizzle=128), mbarrier(1, name="rows_full")
    ring_q, ring_do = (Ring(config.stages, empty=warps, name=name, tile=block) for name in ("q", "do"))
    init_barriers((rows_full, ring_q, ring_do))
    bar.sync()
    first, stop = mask.blocks(top, keys, queries)

    @role(warp=0, elect=True)
    def load() -> None:
        to_q, to_do = ring_q.producer(), ring_do.producer()
        load_tiles(source, tiles, top, rows_full)
        for member in loop(group):
            head = first_head + member
            copies = TmaCopies({"q": q, "do": do}, dict.fromkeys(("q", "do"), (ctaid.z, head)))
            place = (ctaid.z * (nctaid.y * group) + head) * padded
            for number in loop(first, stop):
                row = number * queries
                for name, cursor, own, rows in (("q", to_q, stats[0], shifts), ("do", to_do, stats[1], means)):
                    slot = next(cursor)
                    to = part(own, slot.stage, 1, "k")
                    slot.empty.wait()
                    slot.full.arrive_expect_tx(slot.nbytes + to.nbytes)
                    copies.issue_loads(name, slot.tile, row.to(s32), slot.full)
                    tma.copy(to.address, (rows + (place + row)).address, to.nbytes, slot.full)

    @role(warps=range(1, 1 + warps))
    def compute() -> None:
        own, leader = (warp.id - 1) * STRIP, elect_one()
        row = top + own.to(s32)
        lefts = {name: left_blocks(tile, own) for name, tile in tiles.items()}
        out_k, out_v = ([mma.accumulator(f32) for _ in range(config.head_dim // 8)] for _ in "kv")
        of_q, of_do = ring_q.consumer(), ring_do.consumer()
        rows_full.wait(0)
        for _ in loop(group):
            for number in loop(first, stop):
                column, slot_q, slot_do = (number * queries).to(s32), next(of_q), next(of_do)
                slot_q.full.wait()
                (scores,) = compute_scores([lefts["k"]], right_blocks(slot_q.tile), dtype)
                with If((column + queries > mask.stop(row)) | (column < mask.first(row + (STRIP - 1)))):
                    apply_mask(scores, row, column, mask)
                for each, shift in zip(scores, of_columns(stats[0], slot_q), strict=True):
                    for i, score in enumerate(each.regs):
                        score.set(ex2(fma(score, scale * LOG2E, shift[i % 2])))
                slot_do.full.wait()
                (dp,) = compute_scores([lefts["v"]], right_blocks(slot_do.tile), dtype)
                for each, weights, mean in zip(dp, scores, of_columns(stats[1], slot_do), strict=True):
                    for i, (value, p) in enumerate(zip(each.regs, weights.regs, strict=True)):
                        value.set(p * (value - mean[i % 2]))
                accumulate_values([out_v], [pack_weights(scores, dtype)], left_blocks(slot_do.tile, 0))
                fence_and_arrive(slot_do.empty, leader)
                accumulate_values([out_k], [pack_weights(dp, dtype)], left_blocks(slot_q.tile, 0))
                fence_and_arrive(slot_q.empty, leader)
        store_rows(source, "dv", tiles["v"], own, out_v, 1.0, row, mask, leader)
        store_rows(source, "dk", tiles["k"], own, out_k, scale, row, mask, leader)
        source.wait_stores(leader)


def load_tiles(source: TmaCopies, tiles: dict[str, Tile], top: Any, full: mbarrier) -> None:
    """Load the rows of each tile from ``top`` on; ``full`` completes with all of them."""
    full.arrive_expect_tx(sum(tile.nbytes for tile in tiles.values()))
    for name, tile in tiles.items():
        source.issue_loads(name, tile, top, full)


def left_blocks(tile: Tile, row: Any) -> Blocks:
    """Returns the blocks of a tile from ``row`` on as left operands; transposed, as right operands."""
    return Blocks(tile, row + warp.lane % BLOCK, warp.lane // BLOCK)


def right_blocks(tile: Tile) -> Blocks:
    """Returns the blocks of a tile as right operands, of which a row is a column."""
    return Blocks(tile, warp.lane % 8 + warp.lane // 16 * 8, warp.lane // 8 % 2)


def fence_and_arrive(empty: mbarrier, leader: Expr) -> None:
    """Arrive on ``empty``, after what this warp has read of the slot; the next copy is one of the async proxy."""
    fence.proxy_async()
    warp.sync()
    with If(leader):
        empty.arrive()


def add_products(sums: Sequence[Any], first: Blocks, second: Blocks, dtype: type[Scalar]) -> None:
    """Add to the sums of a thread's two rows its elementwise products of 16 rows of two tiles."""
    for column in range(0, first.tile.shape[1], BLOCK):
        for i, pair in enumerate(zip(first.load(0, column), second.load(0, column), strict=True)):
            for x, y in zip(*(unpack(each, dtype) for each in pair), strict=True):
                sums[i % 2].set(fma(x.to(f32), y.to(f32), sums[i % 2]))


def row_stats(lse: Global[f32], dlse: Expr, total: Any, head: Any, row: Any, q_len: Any) -> tuple[Any, Any]:
    """Returns the shift and the mean of a query; -inf and 0 beyond the last one."""
    shift, mean = var(f32, float("-inf")), var(f32, 0.0)
    with If(row < q_len):
        number = head + row.to(u32)
        row_lse = lse[number]
        shift.set(select(row_lse == float("-inf"), row_lse, row_lse * -LOG2E))
        mean.set(total)
        with If(dlse != 0):
            mean -= Global(f32, dlse)[number]
    return shift, mean


def of_columns(stats: Tile, slot: Slot) -> list[list[Any]]:
    """Returns the statistics of this thread's two columns in each (16, 8) block of a fragment."""
    corner = part(stats, slot.stage, 1, "k").at(0, warp.lane % 4 * 2)
    return [list(ld(corner + column, vec=2)) for column in range(0, stats.shape[1], 8)]


def store_rows(
    source: TmaCopies,
    name: str,
    tile: Tile,
    own: Any,
    sums: list[Fragment],
    scale: Any,
    row: Any,
    mask: Mask,
    leader: Expr,
) -> None:
    """Store this warp's 16 rows of a gradient, times ``scale``, through its own rows of ``tile``."""
    blocks = left_blocks(tile, own)
    for i in range(0, len(sums), 2):
        stmatrix(blocks.at(0, i * 8), pack_left(sums[i : i + 2], tile.dtype, [scale, scale]))
    base, start = tile.place.known()
    source.sync_and_store(tile[:STRIP, :].placed(base + own * PANEL_BYTES, start), row, mask, leader, name)


@cache
def kernels_of(config: BackwardConfig, bounds: tuple[bool, bool]) -> tuple[Kernel, Kernel]:
    """Returns `query_gradients` and `key_gradients`; configure ``dtype`` on them. They take any bounds."""
    each = (query_gradients, config.by_query), (key_gradients, config.by_key)
    by_query, by_key = (kernel.configure(config=config, threads=config.threads(tile)) for kernel, tile in each)
    return by_query, by_key
