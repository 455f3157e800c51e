"""Attention backward on Hopper: gradients of softmax(scale · Q·Kᵀ)·V by Q, K and V, in three launches.

`prepare` computes for each query the mean gradient of its weights, the sum of O ∘ dO less the gradient ``dlse`` of its
log-sum-exp (if given), and clears the sums of dQ. `gradients` has a CTA for each block of keys, which walks the queries
that see these keys, keeps dK and dV in registers and adds its part of dQ to float32 sums in global memory, in no fixed
order. `convert` scales and rounds these sums.

With P = softmax(S), S = scale · Q·Kᵀ and dP = dO·Vᵀ: dV = Pᵀ·dO, dS = P ∘ (dP - mean), dQ = scale · dS·K,
dK = scale · dSᵀ·Q. The five matrix multiplications of a tile of queries are issued so that the tensor cores have one in
flight while a warpgroup computes: dP during the weights, dV during dS, and dK while dQ leaves for the sums. S and dP of
the next tile are issued after that (head dimension 128), or S before dQ and dP with the weights (64).
"""

from __future__ import annotations

from functools import cache

from warpwright.kernels.attention.sm90.backward_plan import CONFIGS, ROW, BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import (
    CONSUMER_BARRIER,
    BackwardConsumer,
    Memory,
    QueryMask,
    QueryTiles,
    load_panels,
    load_rows_when_empty,
    multiply_elements,
    pack_pairs,
    slot_at,
    store_transposed,
)
from warpwright.kernels.attention.sm90.plan import WARPGROUP
from warpwright.kernels.attention.sm90.steps import LOG2E, init_barriers
from warpwright.kernels.tiles import WARP_ROWS, WARPS
from warpwright.lang import (
    Global,
    If,
    Kernel,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    nctaid,
    role,
    s32,
    select,
    setmaxnreg,
    smem,
    st,
    tid,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["convert", "gradients", "kernels_of", "prepare"]

COPY_REGISTERS, MULTIPLY_REGISTERS = 24, 240


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
    *,
    config: BackwardConfig = CONFIGS[128, True],
    dtype: type[Scalar] = bf16,
) -> None:
    """A tile of queries: ``shifts`` = -log2 e · lse, -inf where a query sees no key; ``means``; sums of dQ set to 0."""
    queries, head_dim = config.tile[0], config.head_dim
    tiles = [smem.tile(dtype, (queries, head_dim), swizzle=128) for _ in range(2)]
    full, one = mbarrier(1, name="rows_full"), (warp.id == 0) & elect_one()
    row, head = ctaid.x * queries, ctaid.z * nctaid.y + ctaid.y
    with If(one):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(2 * tiles[0].nbytes)
        for each, source in zip(tiles, (o, do), strict=True):
            load_panels(each, source, (ctaid.z, ctaid.y, row), full)
    bar.sync()
    place = head * nctaid.x + ctaid.x
    corner = sums + place.to(u64) * (queries * head_dim) + tid.x * 4
    for start in range(0, queries * head_dim, WARPGROUP * 4):
        st(corner + start, 0.0, 0.0, 0.0, 0.0)
    full.wait(0)
    with If(tid.x < queries):
        total, shift = var(f32, 0.0), var(f32, float("-inf"))
        for column in range(0, head_dim, 8):
            for product in multiply_elements(tiles[0].at(tid.x, column), tiles[1].at(tid.x, column), dtype):
                total += product
        with If(row + tid.x < q_len):
            number = head * q_len + row + tid.x
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
    *,
    config: BackwardConfig = CONFIGS[128, True],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """A block of keys of one head, and all queries that see some of them, of the heads that share these keys.

    role      warps  moves                                                 waits for           signals
    load      0      K, V; Q, dO, shifts and means of the queries -> rings  empty of each       full of each
    save      1      ring `sums` -> added to the sums of dQ                 sums.full           sums.empty
    multiply  4-     rings -> registers -> dS, ring `sums`; dK, dV          full, sums.empty    empty, sums.full
    """
    memory, (queries, keys) = Memory.of(config, dtype), config.tile
    mask = QueryMask(q_len, kv_len, begin if bounds[0] else None, end if bounds[1] else None, config.tile)
    key, batch, first_head = ctaid.x * keys, ctaid.z, ctaid.y * group
    first, count = mask.tiles(key)
    order = QueryTiles(first, count, first + count * ctaid.x // nctaid.x if config.rotated else first)
    of_all = (batch * nctaid.y + ctaid.y) * group
    init_barriers((memory.kv, *memory.rings), (q, k, v, do, dk, dv, sums))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(COPY_REGISTERS)

    @role(warp=0, elect=True)
    def load() -> None:
        to_q, to_do, at = memory.q.producer(), memory.do.producer(), order.begin()
        memory.kv.arrive_expect_tx(memory.k.nbytes + memory.v.nbytes)
        load_panels(memory.k, k, (batch, ctaid.y, key), memory.kv)
        load_panels(memory.v, v, (batch, ctaid.y, key), memory.kv)
        for number in loop(group):
            head, place = first_head + number, (of_all + number) * tiles
            for _ in loop(count):
                row = at.tile * queries
                load_rows_when_empty(to_q, q, (batch, head, row), memory.stats[0], shifts + (place * queries + row))
                load_rows_when_empty(to_do, do, (batch, head, row), memory.stats[1], means + (place * queries + row))
                at.advance()

    @role(warp=1, elect=True)
    def save() -> None:
        phase, rows, at = var(u32, 0), memory.sums.members["sums"].shape[0], order.begin()
        for number in loop(group):
            for _ in loop(count):
                place = ((of_all + number) * tiles + at.tile) * (2 * rows)
                slots = [Slot(memory.sums, var(u32, own), phase.to(u32)) for own in range(2)]
                for own, slot in enumerate(slots):
                    slot.full.wait()
                    tma.reduce(sums[place + own * rows, 0], slot.sums)
                    tma.commit_group()
                for own, slot in enumerate(slots):
                    tma.wait_group(1 - own, read=True)
                    slot.empty.arrive()
                phase ^= 1
                at.advance()

    @role(warps=range(WARPS, 3 * WARPS))
    def multiply() -> None:
        setmaxnreg.inc(MULTIPLY_REGISTERS)
        consumer = BackwardConsumer(memory, mask, key, order, scale * LOG2E, config)
        memory.kv.wait(0)
        consumer.wait_and_issue_scores(slot_at(memory.q, var(u32, 0)))
        if config.next_after_dq:
            consumer.wait_and_issue_dp(slot_at(memory.do, var(u32, 0)))
        wgmma.wait_group(1 if config.next_after_dq else 0)
        steps = group * count
        for number in loop(steps - 1):
            consumer.step(number, True)
        consumer.step(steps - 1, False)
        # dV leaves through the tile of V, and dK through that of K when neither consumer reads K any more.
        consumer.store_and_commit(memory.v, consumer.dv, dv, (batch, ctaid.y, key), None)
        wgmma.wait_group(0)
        bar.sync(*CONSUMER_BARRIER)
        consumer.store_and_commit(memory.k, consumer.dk, dk, (batch, ctaid.y, key), scale)
        with If(consumer.one):
            tma.wait_group(0, read=True)


@kernel("sm_90a", threads=256)
def convert(
    sums: Global[f32],
    dq: tma.Map[Scalar],
    scale: f32,
    *,
    config: BackwardConfig = CONFIGS[128, True],
    dtype: type[Scalar] = bf16,
) -> None:
    """A tile of queries of dQ: the fragments that `gradients` summed, scaled, rounded and transposed."""
    queries, head_dim = config.tile[0], config.head_dim
    out, count = smem.tile(dtype, (queries, head_dim), swizzle=128), queries * head_dim // ROW
    own, row = warp.id // WARPS, ctaid.x * queries
    place = (ctaid.z * nctaid.y + ctaid.y) * nctaid.x + ctaid.x
    corner = sums + place.to(u64) * (queries * head_dim) + (own * (count * WARPGROUP) + tid.x % WARPGROUP * 4)
    values = [value * scale for start in range(0, count, 4) for value in ld(corner + start * WARPGROUP, vec=4)]
    halves = head_dim == 64
    top = own * (queries // 2) if halves else 0
    left = warp.id % WARPS * WARP_ROWS if halves else warp.id * WARP_ROWS
    store_transposed(out, pack_pairs(values, dtype), top, left)
    fence.proxy_async()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        for column in range(0, head_dim, 64):
            tma.store(dq[ctaid.z, ctaid.y, row, column], out[:, column : column + 64])
        tma.commit_group()
        tma.wait_group(0, read=True)


@cache
def kernels_of(config: BackwardConfig, bounds: tuple[bool, bool]) -> tuple[Kernel, Kernel, Kernel]:
    """Returns `prepare`, `gradients` and `convert`; configure ``dtype`` on them."""
    wide = gradients.configure(config=config, bounds=bounds, threads=config.threads)
    return prepare.configure(config=config), wide, convert.configure(config=config)
