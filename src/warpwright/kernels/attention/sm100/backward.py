"""Attention backward on datacentre Blackwell: gradients of softmax(scale · Q·Kᵀ)·V by Q, K and V, in three launches.

`prepare` is that of Hopper. `gradients` has a CTA for each block of 128 keys, which walks the queries that see these
keys, keeps dK and dV in tensor memory and adds its part of dQ to float32 sums in global memory, in no fixed order.
`convert` scales and rounds these sums.

With P = softmax(S), S = scale · Q·Kᵀ and dP = dO·Vᵀ: dV = Pᵀ·dO, dS = P ∘ (dP - mean), dQ = scale · dS·K,
dK = scale · dSᵀ·Q. A step takes 128 queries. The order of its five GEMMs, with Sᵀ of the next step among them, is
dP, dV, S, dQ, dK: the exponentials of the next step run during dQ and dK, and dQ leaves tensor memory during dK, before
dP of the next step takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.backward import prepare
from warpwright.kernels.attention.sm90.backward_extent import QueryTiles, TileOfQueries
from warpwright.kernels.attention.sm90.backward_steps import (
    QueryMask,
    load_panels,
    load_rows_when_empty,
    slot_at,
)
from warpwright.kernels.attention.sm90.steps import LOG2E, init_barriers
from warpwright.kernels.attention.sm100.backward_plan import CONFIGS, BackwardConfig
from warpwright.kernels.attention.sm100.backward_steps import (
    HALVES,
    Memory,
    Weights,
    issue_left_in_tmem,
    issue_transposed,
    step_slot,
)
from warpwright.kernels.attention.sm100.plan import ROWS, WARP_ROWS
from warpwright.kernels.attention.sm100.roles import alloc_and_sync, sync_and_dealloc
from warpwright.kernels.attention.sm100.steps import (
    COLUMNS,
    fence_and_arrive,
    issue_scores,
    next_slot,
    store_rows,
)
from warpwright.kernels.tiles import WARPS, pack_neighbours, part
from warpwright.lang import (
    Expr,
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
    min,
    nctaid,
    red,
    role,
    s32,
    select,
    setmaxnreg,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    u64,
    var,
    warp,
)
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["convert", "gradients", "kernels_of"]

VECTOR = 4
COMPUTE_REGISTERS, ADD_REGISTERS, OTHER_REGISTERS = 136, 152, 88


@kernel("sm_100a", threads=512)
def gradients(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    do: tma.Map[Scalar],
    dk: tma.Map[Scalar],
    dv: tma.Map[Scalar],
    sums: Global[f32],
    shifts: Global[f32],
    means: Global[f32],
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    group: u32,
    tiles: u32,
    blocks: u32,
    kv_heads: u32,
    scale: f32,
    *,
    config: BackwardConfig = CONFIGS[128, True],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 512,
) -> None:
    """A block of keys of one head, and all queries that see some of them, of the heads that share these keys.

    The rings of one stage are filled once a step: `s` brings Sᵀ and takes Pᵀ of the first half of the queries back,
    `rest` tells that the other half is stored, `read` that dV has read them; `dp` brings dPᵀ, `ds` is dS in shared
    memory, and `dq` tells that dQ is in the tensor memory of `dp`.

    role      warps  moves                                   waits for                   signals
    compute   0-7    `s` -> registers -> `s`                 s.full, q.full              s.empty, rest.full
                     `dp` -> registers -> `ds`               dp.full, do.full            ds.full
                     dV, dK -> global                        read.full, dk_full
    add       8-11   `dp` (dQ) -> registers -> sums of dQ    dq.full                     dp.empty
    multiply  12     K, V, rings -> `s`, `dp`, dV, dK        full of q, do, rest, read,  full of s, dp, read, dq,
                                                             ds; empty of s, dp          empty of q, do; dk_full
    load      13     K, V; Q with shifts, dO with means      q.empty, do.empty           q.full, do.full
    """
    memory, (queries, keys) = Memory.of(config, dtype), config.tile
    block, both = block_and_head(blocks, config.together)
    key, batch, head, of_all = block * keys, both // kv_heads, both % kv_heads, both * group
    mask = QueryMask(q_len, kv_len, begin if bounds[0] else None, end if bounds[1] else None, config.tile)
    first, count = mask.tiles(key)
    order = QueryTiles(first, count, (block, blocks) if config.rotated else None)
    init_barriers(memory.barriers, (q, k, v, do, dk, dv), on_warp=3 * WARPS)
    alloc_and_sync(3 * WARPS + 2)

    @role(warps=range(3 * WARPS, 4 * WARPS))
    def spare() -> None:
        setmaxnreg.dec(OTHER_REGISTERS)

    @role(warp=3 * WARPS + 1, elect=True)
    def load() -> None:
        to_q, to_do, at = memory.q.producer(), memory.do.producer(), order.begin()
        memory.k_full.arrive_expect_tx(memory.k.nbytes)
        load_panels(memory.k, k, (batch, head, key), memory.k_full)
        for number in loop(group):
            for step in loop(at.count):
                row = at.tile * queries
                rows, where = (batch, head * group + number, row), (of_all + number) * tiles * queries + row
                load_rows_when_empty(to_q, q, rows, memory.stats[0], shifts + where)
                with If((number == 0) & (step == 0)):
                    memory.v_full.arrive_expect_tx(memory.v.nbytes)
                    load_panels(memory.v, v, (batch, head, key), memory.v_full)
                load_rows_when_empty(to_do, do, rows, memory.stats[1], means + where)
                at.advance()
        to_q.wait_all_empty()
        to_do.wait_all_empty()

    @role(warp=3 * WARPS, elect=True)
    def multiply() -> None:
        issue_steps(memory, order.total(group))

    @role(warps=range(2 * WARPS, 3 * WARPS))
    def add() -> None:
        setmaxnreg.inc(ADD_REGISTERS)
        at, size, phase = order.begin(), queries * config.head_dim, var(u32, 0)
        corner = sums + (of_all * tiles).to(u64) * size + tid.x % ROWS * VECTOR
        for number in loop(group):
            for _ in loop(at.count):
                add_dq(memory, phase, config.head_dim, corner + (number * tiles + at.tile).to(u64) * size)
                phase ^= 1
                at.advance()

    @role(warps=range(2 * WARPS))
    def compute() -> None:
        setmaxnreg.inc(COMPUTE_REGISTERS)
        weights, at = Weights(memory, mask, key, scale * LOG2E), order.begin()
        steps = order.total(group)
        for number in loop(steps):
            weights.compute_weights(number, at.tile * queries)
            weights.compute_ds(number)
            at.advance()
        place = batch, head, key
        for own in range(2):
            with If(warp.id // WARPS == own):
                store_gradients(memory, own, steps - 1, (dk, dv), place, scale)

    sync_and_dealloc(3 * WARPS + 2)


def block_and_head(blocks: Expr, together: int) -> tuple[Any, Any]:
    """Returns the block of keys of this CTA and its head among those of all batches."""
    heads, number = nctaid.x // blocks, ctaid.x
    alone = (heads - min(heads, together)) * blocks
    last = number >= alone
    width, inside = select(last, heads - alone // blocks, 1), select(last, number - alone, number % blocks)
    return inside // width, select(last, alone // blocks + inside % width, number // blocks)


def issue_steps(memory: Memory, steps: Expr) -> None:
    """The role multiply, one thread: dV, dP, S of the next step, dQ and dK of each step."""
    memory.k_full.wait(0)
    issue_and_commit_scores(memory, var(u32, 0))
    memory.v_full.wait(0)
    for number in loop(steps):
        q, do = (slot_at(ring, number) for ring in (memory.q, memory.do))
        s, dp, ds = (step_slot(ring, number) for ring in (memory.s, memory.dp, memory.ds))
        do.full.wait()
        # dQ of the step before has left.
        dp.empty.wait()
        tcgen05.fence_after_thread_sync()
        issue_scores(dp.dp, memory.v, do.rows)
        tcgen05.commit(dp.full)
        for first, stored in zip(
            HALVES, (next_slot(memory.s, s).empty, step_slot(memory.rest, number).full), strict=True
        ):
            stored.wait()
            tcgen05.fence_after_thread_sync()
            issue_left_in_tmem(memory.dv, s.s, do.rows, first, number > 0)
        tcgen05.commit(memory.read.full[0])
        with If(number + 1 < steps):
            # The next scores take the place of P, and an MMA of another shape may overtake dV.
            step_slot(memory.read, number).full.wait()
            tcgen05.fence_after_thread_sync()
            issue_and_commit_scores(memory, number + 1)
        ds.full.wait()
        tcgen05.fence_after_thread_sync()
        issue_transposed(dp.dp[:, : memory.k.shape[1]], ds.ds.T, memory.k, False)
        tcgen05.commit(memory.dq.full[0])
        issue_transposed(memory.dk, ds.ds, q.rows, number > 0)
        for ring in (q, do):
            tcgen05.commit(ring.empty)
    tcgen05.commit(memory.dk_full)


def issue_and_commit_scores(memory: Memory, number: Any) -> None:
    """Issue Sᵀ = K·Qᵀ of a step when its Q is there."""
    q = slot_at(memory.q, number)
    q.full.wait()
    issue_scores(memory.scores, memory.k, q.rows)
    tcgen05.commit(memory.s.full[0])


def add_dq(memory: Memory, number: Any, head_dim: int, corner: Any) -> None:
    """Add dQ of step ``number`` to its sums, four columns of a row at a time."""
    step_slot(memory.dq, number).full.wait()
    tcgen05.fence_after_thread_sync()
    slot = step_slot(memory.dp, number)
    loaded = [tcgen05.ld(slot.dp[:, first : first + COLUMNS]) for first in range(0, head_dim, COLUMNS)]
    tcgen05.wait_ld()
    fence_and_arrive(slot.empty)
    values = [value for columns in loaded for value in columns]
    for column in range(0, head_dim, VECTOR):
        red.add(corner + column * ROWS, *values[column : column + VECTOR])


def store_gradients(
    memory: Memory, own: int, last: Any, maps: Sequence[tma.Map[Scalar]], place: tuple[Any, ...], scale: Expr
) -> None:
    """Store this warp's 32 keys of dV and then of dK after step ``last``, a panel of each by warpgroup ``own``, through
    the tiles of V and K; of a single panel dV by the first warpgroup and dK by the other."""
    dk, dv = maps
    panels = range(0, memory.k.shape[1], PANEL)
    left = panels[own % len(panels)]
    if own < len(panels):
        step_slot(memory.read, last).full.wait()
        tcgen05.fence_after_thread_sync()
        store_panel(memory.v, memory.dv, left, 1.0, dv, place)
    if own or len(panels) > 1:
        memory.dk_full.wait(0)
        tcgen05.fence_after_thread_sync()
        store_panel(memory.k, memory.dk, left, scale, dk, place)
    with If(warp.lane == 0):
        tma.wait_group(0, read=True)


def store_panel(
    tile: Tile, source: tmem.TmemTile, left: int, factor: Any, target: tma.Map[Scalar], place: tuple[Any, ...]
) -> None:
    """Store 32 keys of a panel of a gradient, times ``factor``, through this warp's rows of ``tile``, and commit."""
    number, (*before, row) = warp.id % WARPS, place
    strip = part(tile, number, WARP_ROWS, "k")[:, left : left + PANEL]
    store_rows(source[:, left : left + PANEL], factor, strip)
    fence.proxy_async()
    warp.sync()
    with If(warp.lane == 0):
        tma.store(target[(*before, row + number * WARP_ROWS, left)], strip)
        tma.commit_group()


@kernel("sm_100a", threads=128)
def convert(
    sums: Global[f32],
    dq: tma.Map[Scalar],
    scale: f32,
    *,
    config: BackwardConfig = CONFIGS[128, True],
    dtype: type[Scalar] = bf16,
) -> None:
    """A tile of queries of dQ, a thread a row: the sums of `gradients`, scaled and rounded."""
    queries, head_dim = config.tile[0], config.head_dim
    out, tile = smem.tile(dtype, (queries, head_dim), swizzle=128), TileOfQueries.of_grid(0, queries, ())
    place = tile.head * nctaid.x + ctaid.x
    corner = sums + place.to(u64) * (queries * head_dim) + tid.x * VECTOR
    for column in range(0, head_dim, 2 * VECTOR):
        values = [value * scale for start in (0, VECTOR) for value in ld(corner + (column + start) * ROWS, vec=VECTOR)]
        words = pack_neighbours(values, dtype)
        st(out.at(tid.x, column).cast(words[0].type), *words)
    fence.proxy_async()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        for column in range(0, head_dim, PANEL):
            tma.store(dq[(*tile.place, column)], out[:, column : column + PANEL])
        tma.commit_group()
        tma.wait_group(0, read=True)


@cache
def kernels_of(config: BackwardConfig, bounds: tuple[bool, bool]) -> tuple[Kernel, Kernel, Kernel]:
    """Returns `prepare`, `gradients` and `convert`; configure ``dtype`` on them."""
    wide = gradients.configure(config=config, bounds=bounds, threads=config.threads)
    return prepare.configure(config=config), wide, convert.configure(config=config)
