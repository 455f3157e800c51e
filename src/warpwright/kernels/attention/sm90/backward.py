"""Attention backward on Hopper: gradients of softmax(scale · Q·Kᵀ)·V by Q, K and V, in three launches.

`prepare` computes for each query the mean gradient of its weights, the sum of O ∘ dO less the gradient ``dlse`` of its
log-sum-exp (if given), and clears the sums of dQ. `gradients` has a CTA for each block of keys, which walks the queries
that see these keys, keeps dK and dV in registers and adds its part of dQ to float32 sums in global memory, in no fixed
order. `convert` scales and rounds these sums.

With P = softmax(S), S = scale · Q·Kᵀ and dP = dO·Vᵀ: dV = Pᵀ·dO, dS = P ∘ (dP - mean), dQ = scale · dS·K,
dK = scale · dSᵀ·Q. A warpgroup computes its weights while the tensor cores compute dP, and stores dQ while they compute
dK; the other warpgroup fills the rest. `BackwardConfig` says when which of the five products is issued.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

from warpwright.kernels.attention.mods import NO_MODS, Mods
from warpwright.kernels.attention.sm90.backward_dq import CONVERTERS, Converter, Progress, convert
from warpwright.kernels.attention.sm90.backward_extent import Extent, TileOfQueries
from warpwright.kernels.attention.sm90.backward_mods import ListedTiles, ModifiedBackwardConsumer
from warpwright.kernels.attention.sm90.backward_plan import CONFIGS, BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import (
    CONSUMER_BARRIER,
    BackwardConsumer,
    Memory,
    QueryMask,
    load_panels,
    load_rows_when_empty,
    multiply_elements,
    store_and_commit,
)
from warpwright.kernels.attention.sm90.backward_turns import Turns, block_of, tiles_of
from warpwright.kernels.attention.sm90.backward_wide import gradients_wide
from warpwright.kernels.attention.sm90.plan import WARPGROUP
from warpwright.kernels.attention.sm90.steps import LOG2E, init_barriers, panel
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
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
    griddepcontrol,
    kernel,
    loop,
    mbarrier,
    nctaid,
    role,
    s32,
    select,
    setmaxnreg,
    shfl,
    smem,
    st,
    tid,
    tma,
    u32,
    u64,
    var,
    warp,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["LISTS", "PACKED", "convert", "gradients", "kernels_of", "prepare", "sink_gradients"]


@kernel("sm_90a", threads=128)
def prepare(
    o: tma.Map[Scalar],
    do: tma.Map[Scalar],
    lse: Global[f32],
    dlse: u64,
    shifts: Global[f32],
    means: Global[f32],
    sums: Global[f32],
    q_len: u32,
    *more: Any,
    config: BackwardConfig = CONFIGS[128, True],
    dtype: type[Scalar] = bf16,
    ahead: bool = False,
) -> None:
    """A tile of queries: ``shifts`` = -log2 e · lse, -inf where a query sees no key; ``means``; sums of dQ set to 0.

    With ``ahead`` there are sums of the first ``sum_heads`` heads, and the ``counters`` of ``progress`` are set to 0.
    ``more`` are the parameters of `AHEAD` then, and of `PACKED` for packed sequences.
    """
    griddepcontrol.launch_dependents()
    queries, head_dim = config.tile[0], config.head_dim
    tiles = [smem.tile(dtype, (queries, head_dim), swizzle=panel(head_dim) * dtype.nbytes) for _ in range(2)]
    full, one = mbarrier(1, name="rows_full"), (warp.id == 0) & elect_one()
    (sum_heads, progress, counters), packed = (more[:3], more[3:]) if ahead else ((None,) * 3, more)
    tile = TileOfQueries.of_grid(q_len, queries, packed)
    with If(one):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(2 * tiles[0].nbytes)
        for each, source in zip(tiles, (o, do), strict=True):
            load_panels(each, source, tile.place, full)
    bar.sync()
    place = tile.head * nctaid.x + ctaid.x
    corner = sums + place.to(u64) * (queries * head_dim) + tid.x * 4
    with If(tile.head < sum_heads) if ahead else nullcontext():
        for start in range(0, queries * head_dim, WARPGROUP * 4):
            st(corner + start, 0.0, 0.0, 0.0, 0.0)
    if ahead:
        for number in loop(place * WARPGROUP + tid.x, counters, nctaid.x * nctaid.y * nctaid.z * WARPGROUP):
            Global(u32, progress)[number] = 0
    full.wait(0)
    with If(tid.x < queries):
        total, shift = var(f32, 0.0), var(f32, float("-inf"))
        for column in range(0, head_dim, 8):
            for product in multiply_elements(tiles[0].at(tid.x, column), tiles[1].at(tid.x, column), dtype):
                total += product
        with If(tile.row + tid.x < tile.q_len):
            number = tile.lse_at(tid.x)
            row_lse = lse[number]
            shift.set(select(row_lse == float("-inf"), row_lse, row_lse * -LOG2E))
            with If(dlse != 0):
                total -= Global(f32, dlse)[number]
        shifts[place * queries + tid.x] = shift
        means[place * queries + tid.x] = total


@kernel("sm_90a", threads=384)
def gradients(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    do: tma.Map[Scalar],
    dk: tma.Map[Scalar],
    dv: tma.Map[Scalar],
    sums: tma.Map[f32],
    shifts: Global[f32],
    means: Global[f32],
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    group: u32,
    tiles: u32,
    scale: f32,
    dq: tma.Map[Scalar],
    sums_at: Global[f32],
    progress: u64,
    blocks: u32,
    items: u32,
    lag: u32,
    slots: u32,
    *more: Any,
    config: BackwardConfig = CONFIGS[128, True],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    mods: Mods = NO_MODS,
    packed: bool = False,
    threads: int = 384,
) -> None:
    """A block of keys of one head, and all queries that see some of them, of the heads that share these keys.

    ``more``: the parameters of `ORDERED` for an ordered configuration (`Turns`), then of `PACKED` for packed sequences,
    or of `LISTS` if ``mods`` has a mask function, and the arrays that the functions capture.

    role      warps  moves                                                 waits for           signals
    load      0      K, V; Q, dO, shifts and means of the queries -> rings  empty of each       full of each
    save      1      ring `sums` -> added to the sums of dQ                 sums.full           sums.empty
    convert   2-3    sums of an earlier head -> dQ, unless crowded          staged.full
    multiply  4-     rings -> registers -> dS, ring `sums`; dK, dV          full, sums.empty    empty, sums.full
    """
    memory, queries = Memory.of(config, dtype), config.tile[0]
    block, more = block_of(config, more)
    sequences, of_keys = more if packed else (), block.batch * nctaid.y + block.head
    converter = None if config.crowded else Converter(config, sums_at, dtype, scale)
    extent = Extent.of_block(block.number, block.batch, (q_len, kv_len), begin, end, config.tile, sequences)
    key, mask = extent.key, QueryMask.of(extent, bounds, config.tile)
    order, of_all, captured = tiles_of(config, mask, key, block, blocks), of_keys * group, more
    if mods.mask:
        order, captured = ListedTiles.of(more, q_len, config.tile, group, key, of_all)
    rings = *memory.rings, *([converter.staged] if converter else [])
    init_barriers((memory.kv, *rings), (q, k, v, do, dk, dv, dq, sums))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(config.registers[0])

    @role(warp=0, elect=True, when=extent.exists)
    def load() -> None:
        to_q, to_do, at = memory.q.producer(), memory.do.producer(), order.begin()
        memory.kv.arrive_expect_tx(memory.k.nbytes + memory.v.nbytes)
        load_panels(memory.k, k, extent.keys_at(block.head, key), memory.kv, config.dq_columns)
        load_panels(memory.v, v, extent.keys_at(block.head, key), memory.kv)
        griddepcontrol.wait()
        for number in loop(group):
            at.enter(number)
            head, place = block.head * group + number, (of_all + number) * tiles + extent.first_tile
            for _ in loop(at.count):
                tile, cut = at.tile_and_cut()
                row = tile * queries
                rows, where = extent.queries_at(head, row), place * queries + row
                load_rows_when_empty(to_q, q, rows, memory.stats[0], shifts + where, memory.items, (row, head, cut, 0))
                load_rows_when_empty(to_do, do, rows, memory.stats[1], means + where)
                at.advance()

    @role(warp=1, elect=True)
    def save() -> None:
        phase, rows, at = var(u32, 0), memory.sums.members["sums"].shape[0], order.begin()
        done = Progress(Global(u32, progress), blocks, slots, converter is not None)
        griddepcontrol.wait()
        done.wait_free(of_keys)
        turns = Turns.of(config, progress, (of_keys, blocks, block.number), mask, key)
        if turns is None:
            # These sums were cleared by the generic proxy, TMA adds to them by the async one.
            fence.proxy_async("global")
        for number in loop(select(extent.exists, group, 0)):
            at.enter(number)
            for _ in loop(at.count):
                place = (of_keys % slots * group + number) * tiles + extent.first_tile + at.tile_and_cut()[0]
                halves = [Slot(memory.sums, var(u32, own), phase.to(u32)) for own in range(2)]
                if turns is not None:
                    turns.wait(number, at.tile_and_cut()[0])
                    # Zeros and adds of the block before are acquired by the generic proxy, TMA adds by the async one.
                    fence.proxy_async("global")
                for own, slot in enumerate(halves):
                    slot.full.wait()
                    tma.reduce(sums[place * (2 * rows) + own * rows, 0], slot.sums)
                    tma.commit_group()
                for own, slot in enumerate(halves):
                    tma.wait_group(1 - own, read=True)
                    slot.empty.arrive()
                if turns is not None:
                    tma.wait_group(0)
                    turns.count_tile()
                phase ^= 1
                at.advance()
        if turns is None:
            tma.wait_group(0)
        done.count_end(of_keys)
        # No earlier: the CTAs of `convert` would wait on SMs where CTAs of a launch on another stream could run.
        griddepcontrol.launch_dependents()

    if converter is not None:

        @role(warps=CONVERTERS, when=of_keys >= lag)
        def convert_ahead() -> None:
            converter.begin()
            done, before = Progress(Global(u32, progress), blocks, slots), of_keys - lag
            griddepcontrol.wait()
            done.wait_ended(before)
            # The sums are acquired by the generic proxy, TMA reads them by the async one.
            fence.proxy_async("global")
            for item in loop(block.number, items, blocks):
                converter.round(before % slots * items + item)
                at_head = before // nctaid.y, before % nctaid.y * group + item // tiles
                tile = TileOfQueries.at(item % tiles, at_head, nctaid.y * group, q_len, queries, sequences).place
                converter.store(dq, tile)
            with If(converter.one):
                done.count_conversion(before)

    @role(warps=range(WARPS, 3 * WARPS), when=extent.exists)
    def multiply() -> None:
        setmaxnreg.inc(config.registers[1])
        consumer = new_consumer(memory, mask, (block.batch, key), scale, config, mods, captured)
        memory.kv.wait(0)
        if config.early:
            consumer.issue_scores_and_dp(var(u32, 0))
        steps = order.total(group)
        for number in loop(steps - 1):
            consumer.step(number, True)
        consumer.step(steps - 1, False)
        # dV leaves through the tile of V, and dK through that of K when neither consumer reads K any more.
        store_and_commit(
            memory.v, consumer.dv, dv, extent.keys_at(block.head, key), None, consumer.number, consumer.one
        )
        bar.sync(*CONSUMER_BARRIER)
        store_and_commit(
            memory.dk, consumer.dk, dk, extent.keys_at(block.head, key), scale, consumer.number, consumer.one
        )
        with If(consumer.one):
            tma.wait_group(0, read=True)


def new_consumer(
    memory: Memory,
    mask: QueryMask,
    place: tuple[Any, Any],
    scale: Expr,
    config: BackwardConfig,
    mods: Mods,
    arrays: Any,
) -> BackwardConsumer:
    """Returns the state of a consumer warpgroup for the keys at ``place``, their batch and the first of them."""
    if mods.changes_scores or mods.indexed:
        return ModifiedBackwardConsumer(memory, mask, place, scale, config, mods, arrays)
    return BackwardConsumer(memory, mask, place[1], scale * LOG2E, config)


@kernel("sm_90a", threads=256)
def sink_gradients(
    sinks: Global[f32], dsinks: Global[f32], shifts: Global[f32], means: Global[f32], batch: u32, padded: u32
) -> None:
    """The gradient of the sink of head ctaid.x: minus the sum of weight · mean over ``padded`` queries of each batch.

    The sink is a key with value 0, so its weight exp(sink - log-sum-exp) changes O, dO and the log-sum-exp as others.
    """
    total, sink, parts = var(f32, 0.0), sinks[ctaid.x] * LOG2E, smem.array(f32, 8)
    for number in loop(batch):
        before = (number * nctaid.x + ctaid.x) * padded
        for row in loop(before + tid.x, before + padded, 256):
            total -= ex2(sink + shifts[row]) * means[row]
    for distance in (16, 8, 4, 2, 1):
        total += shfl.bfly(total, distance)
    with If(warp.lane == 0):
        parts[warp.id] = total
    bar.sync()
    with If(tid.x == 0):
        dsinks[ctaid.x] = sum(parts[number] for number in range(1, 8)) + parts[0]


ORDERED = {"width": u32}
AHEAD = {"sum_heads": u32, "progress": u64, "counters": u32}
LISTS = {"lists": u64, "of_batch": u32, "of_head": u32}
PACKED = {"cu_q": u64, "cu_k": u64, "sequences": u32}


@cache
def kernels_of(
    config: BackwardConfig, bounds: tuple[bool, bool], mods: Mods = NO_MODS, packed: bool = False
) -> tuple[Kernel, Kernel, Kernel]:
    """Returns `prepare`, `gradients` and `convert`; configure ``dtype`` on them."""
    first = prepare.configure(config=config) if config.wide else prepare.configure(config=config, ahead=True)
    first = first if config.wide else first.with_params(**AHEAD)
    middle = (gradients_wide if config.wide else gradients).configure(
        config=config, bounds=bounds, mods=mods, packed=packed, threads=config.threads
    )
    last = convert.configure(config=config, threads=config.convert_threads)
    ordered = ORDERED if config.ordered else {}
    if packed:
        both = first.with_params(**PACKED), middle.with_params(**ordered, **PACKED)
        return *both, last.with_params(q_len=u32, **PACKED)
    return first, middle.with_params(**ordered, **(LISTS if mods.mask else {}), **mods.params), last
