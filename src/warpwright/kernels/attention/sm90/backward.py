"""Attention backward on Hopper: gradients of softmax(scale · Q·Kᵀ)·V by Q, K and V, in three launches.

`prepare` finds for each query the mean gradient of its weights, the sum of O ∘ dO, less the gradient ``dlse`` of its
log-sum-exp where one is given, and clears the sums of dQ.
`gradients` has a CTA for each block of keys: it goes through the queries that see them, keeps dK and dV in registers
and adds its part of dQ to float32 sums in global memory, in any order. `convert` scales and rounds these.

With P = softmax(S), S = scale · Q·Kᵀ and dP = dO·Vᵀ: dV = Pᵀ·dO, dS = P ∘ (dP - mean), dQ = scale · dS·K,
dK = scale · dSᵀ·Q. For each tile of queries the five products are issued so that the tensor cores always have one to
do: the next tile's scores and slopes come before the sums of this one are done.
"""

from __future__ import annotations

from functools import cache

from warpwright.kernels.attention.sm90.backward_plan import BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import (
    LOG2E,
    Seen,
    Strip,
    Walk,
    load_panels,
    load_rows,
    meet,
    memory_of,
    packed,
    products,
    put_transposed,
    slot_of,
)
from warpwright.kernels.attention.sm90.steps import WARP_ROWS, WARPS
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
    head_dim: int = 128,
    tile: tuple[int, int] = (64, 128),
    dtype: type[Scalar] = bf16,
) -> None:
    """A tile of queries: ``shifts`` = -log2 e · lse, -inf where a query sees no key; ``means``; 0 sums."""
    queries = tile[0]
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
    for start in range(0, queries * head_dim, 128 * 4):
        st(corner + start, 0.0, 0.0, 0.0, 0.0)
    full.wait(0)
    with If(tid.x < queries):
        total, shift = var(f32, 0.0), var(f32, float("-inf"))
        for column in range(0, head_dim, 8):
            for product in products(tiles[0].at(tid.x, column), tiles[1].at(tid.x, column), dtype):
                total += product
        with If(row + tid.x < q_len):
            number = head * q_len + row + tid.x
            given = lse[number]
            shift.set(select(given == float("-inf"), given, given * -LOG2E))
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
    head_dim: int = 128,
    tile: tuple[int, int] = (64, 128),
    chained: bool = True,
    rotated: bool = False,
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """A block of keys of one head, and all queries of the heads that share it which see some of them.

    role      warps  moves                                                waits for           signals
    load      0      K, V; Q, dO and what is known of each query -> rings  empty of each       full of each
    save      1      ring `sums` -> added to the sums of dQ                sums.full           sums.empty
    multiply  4-     rings -> registers -> dS, ring `sums`; dK, dV         full, sums.empty    empty, sums.full
    """
    memory = memory_of(tile, head_dim, dtype)
    seen = Seen(q_len, kv_len, begin if bounds[0] else None, end if bounds[1] else None, tile)
    queries, keys = tile
    key, batch, first_head = ctaid.x * keys, ctaid.z, ctaid.y * group
    first, count = seen.tiles(key)
    walk = Walk(first, count, first + count * ctaid.x // nctaid.x if rotated else first)
    of_all = (batch * nctaid.y + ctaid.y) * group

    @role(warp=0, elect=True)
    def init() -> None:
        memory.kv.init()
        for ring in memory.rings:
            ring.init()
        fence.mbarrier_init()
        for each in (q, k, v, do, dk, dv, sums):
            tma.prefetch_map(each)

    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(COPY_REGISTERS)

    @role(warp=0, elect=True)
    def load() -> None:
        to_q, to_do, at = memory.q.producer(), memory.do.producer(), walk.begin()
        memory.kv.arrive_expect_tx(memory.k.nbytes + memory.v.nbytes)
        load_panels(memory.k, k, (batch, ctaid.y, key), memory.kv)
        load_panels(memory.v, v, (batch, ctaid.y, key), memory.kv)
        for number in loop(group):
            head, place = first_head + number, (of_all + number) * tiles
            for _ in loop(count):
                row = at.tile * queries
                load_rows(to_q, q, (batch, head, row), memory.stats[0], shifts + (place * queries + row))
                load_rows(to_do, do, (batch, head, row), memory.stats[1], means + (place * queries + row))
                at.advance()

    @role(warp=1, elect=True)
    def save() -> None:
        phase, rows, at = var(u32, 0), memory.sums.members["sums"].shape[0], walk.begin()
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
        strip = Strip(memory, seen, key, walk, scale * LOG2E, chained)
        memory.kv.wait(0)
        strip.begin_scores(slot_of(memory.q, var(u32, 0)))
        wgmma.wait_group(0)
        steps = group * count
        for number in loop(steps - 1):
            strip.step(number, True)
        strip.step(steps - 1, False)
        strip.put_out(memory.v, strip.by_v, dv, (batch, ctaid.y, key), None)
        wgmma.wait_group(0)
        meet()
        strip.put_out(memory.k, strip.by_k, dk, (batch, ctaid.y, key), scale)
        with If(strip.one):
            tma.wait_group(0, read=True)


@kernel("sm_90a", threads=256)
def convert(
    sums: Global[f32],
    dq: tma.Map[Scalar],
    scale: f32,
    *,
    head_dim: int = 128,
    tile: tuple[int, int] = (64, 128),
    dtype: type[Scalar] = bf16,
) -> None:
    """A tile of queries of dQ: the fragments that `gradients` has summed up, scaled, rounded and turned."""
    queries = tile[0]
    out, count = smem.tile(dtype, (queries, head_dim), swizzle=128), queries * head_dim // 256
    own, row = warp.id // WARPS, ctaid.x * queries
    place = (ctaid.z * nctaid.y + ctaid.y) * nctaid.x + ctaid.x
    corner = sums + place.to(u64) * (queries * head_dim) + (own * (count * 128) + tid.x % 128 * 4)
    values = [value * scale for start in range(0, count, 4) for value in ld(corner + start * 128, vec=4)]
    halves = head_dim == 64
    top = own * (queries // 2) if halves else 0
    left = warp.id % WARPS * WARP_ROWS if halves else warp.id * WARP_ROWS
    put_transposed(out, packed(dtype, values), top, left)
    fence.proxy_async()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        for column in range(0, head_dim, 64):
            tma.store(dq[ctaid.z, ctaid.y, row, column], out[:, column : column + 64])
        tma.commit_group()
        tma.wait_group(0, read=True)


@cache
def kernels_of(config: BackwardConfig) -> tuple[Kernel, Kernel, Kernel]:
    """`prepare`, `gradients` and `convert` of a configuration; configure ``dtype``, and ``bounds`` of `gradients`."""
    some = {"head_dim": config.head_dim, "tile": config.tile}
    return prepare.configure(**some), gradients.configure(**config.keywords), convert.configure(**some)
