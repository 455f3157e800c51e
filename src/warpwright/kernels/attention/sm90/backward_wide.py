"""Attention backward on Hopper for head dimensions above 128: the launch between `backward.prepare` and `convert`.

dK and dV of 64 keys fill the registers of two warpgroups, so one has dV and the other dK: the first computes S and P,
the second dP and dS, by P that the first leaves in shared memory in float32. Both are transposed, (keys, queries), so P
and dS are A operands in registers, and their wgmmas read 8 KB of shared memory for 64 × 256 × 16 products. dS also goes
to shared memory, for dQ, whose panels of 64 columns the two share. The warpgroups work in turns: while one computes
exponentials, the tensor cores have dK, dQ and dP of the other; while that computes dS, they have dV and the next S.
"""

from __future__ import annotations

from typing import Any

from warpwright.kernels.attention.mods import NO_MODS, Mods
from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.backward_extent import Extent, QueryTiles
from warpwright.kernels.attention.sm90.backward_mods import ListedTiles
from warpwright.kernels.attention.sm90.backward_plan import CONFIGS, BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import (
    CONSUMER_BARRIER,
    CONSUMERS,
    QueryMask,
    load_panels,
    load_rows_when_empty,
    slot_at,
    store_and_commit,
)
from warpwright.kernels.attention.sm90.backward_wide_steps import (
    HALVES,
    KeyGradients,
    ModifiedValueGradients,
    ValueGradients,
    WideMemory,
    halves_of,
    panel_of,
)
from warpwright.kernels.attention.sm90.plan import STRIP
from warpwright.kernels.attention.sm90.steps import LOG2E, init_barriers
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Expr,
    Global,
    If,
    bar,
    bf16,
    cluster,
    clusterid,
    ctaid,
    f32,
    griddepcontrol,
    kernel,
    loop,
    nclusterid,
    nctaid,
    role,
    s32,
    select,
    setmaxnreg,
    tma,
    u32,
    var,
    warp,
    wgmma,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["gradients_wide"]

COPY_REGISTERS, MULTIPLY_REGISTERS = 40, 232


@kernel("sm_90a", cluster=2, threads=384)
def gradients_wide(
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
    *more: Any,
    config: BackwardConfig = CONFIGS[256, True],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    mods: Mods = NO_MODS,
    packed: bool = False,
    threads: int = 384,
) -> None:
    """64 keys of one head, half of a cluster's, and all queries that see the cluster's, of the heads that share them.

    ``more`` is that of `sm90.backward.gradients`.

    role             warps  moves                                              waits for           signals
    load             0      K, V; Q, dO, shifts, means of queries -> rings     q, do.empty         kv, q, do.full
    save             1-2    `sums` of a consumer -> added to the sums of dQ    sums.full           sums.empty
    send             3      `ds` -> `others_ds` of the other CTA               ds.full             others_ds.full
    value_gradients  4-7    K, Q -> P -> `p`; P, dO -> dV                      q, do.full          q, do.empty; p.full
    key_gradients    8-11   V, dO, P -> dS -> `ds`; dS, Q -> dK                do, p.full          q, do.empty; ds.full
    both             4-11   K, `ds`, `others_ds` -> dQ -> `sums`               (others_)ds.full    ds.empty, sums.full
    """
    griddepcontrol.launch_dependents()
    memory, queries, rank = WideMemory.of(config, dtype), config.tile[0], cluster.rank
    sequences, of_keys = more if packed else (), ctaid.z * nctaid.y + ctaid.y
    extent = Extent.of_block(clusterid.x, ctaid.z, (q_len, kv_len), begin, end, config.tile, sequences)
    key, mask = extent.key + rank * STRIP, QueryMask.of(extent, bounds, config.tile)
    order: Any = QueryTiles(*mask.tiles(extent.key), (clusterid.x, nclusterid.x) if config.rotated else None)
    of_all, captured = of_keys * group, more
    if mods.mask:
        order, captured = ListedTiles.of(more, q_len, config.tile, group, extent.key, of_all)
    init_barriers((memory.kv, *memory.rings), (q, k, v, do, dk, dv, sums))
    # Both CTAs' barriers are initialised.
    cluster.arrive("relaxed")
    cluster.wait()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(COPY_REGISTERS)

    @role(warp=0, elect=True, when=extent.exists)
    def load() -> None:
        to_q, to_do, at = memory.q.producer(), memory.do.producer(), order.begin()
        memory.kv.arrive_expect_tx(memory.k.nbytes + memory.v.nbytes + memory.others_k.nbytes)
        load_panels(memory.k, k, extent.keys_at(ctaid.y, key), memory.kv)
        load_panels(memory.v, v, extent.keys_at(ctaid.y, key), memory.kv)
        others = extent.keys_at(ctaid.y, extent.key + (rank ^ 1) * STRIP)
        for own in range(CONSUMERS):
            box = k[(*others, panel_of(config, own, rank) * PANEL)]
            tma.load(memory.others_k[:, own * PANEL : (own + 1) * PANEL], box, memory.kv)
        of_head = var(u32, (of_all * tiles + extent.first_tile) * queries)  # its first row of statistics
        griddepcontrol.wait()
        for number in loop(group):
            at.enter(number)
            head = ctaid.y * group + number
            for _ in loop(at.count):
                tile, cut = at.tile_and_cut()
                row = tile * queries
                rows, where = extent.queries_at(head, row), of_head + row
                item = memory.items, (row, head, cut, 0)
                load_rows_when_empty(to_q, q, rows, memory.stats[0], shifts + where, *item)
                load_rows_when_empty(to_do, do, rows, memory.stats[1], means + where)
                at.advance()
            of_head += tiles * queries

    @role(warps=range(1, 1 + CONSUMERS), elect=True, when=extent.exists)
    def save() -> None:
        own, phase, at = warp.id - 1, var(u32, 0), order.begin()
        rows, panels = memory.sums.members["sums"].shape[0], config.head_dim // PANEL
        panel = select(own == 0, *(panel_of(config, each, rank) for each in range(CONSUMERS)))
        halves: tuple[Any, Any] = 0, HALVES
        if halves_of(config, 1) < HALVES:
            halves = select(own == 0, 0, rank), select(own == 0, HALVES, rank + 1)
        # The sums are 0: `load` has waited for the launch before, and dQ comes from what it loads.
        of_head = var(u32, of_all * tiles + extent.first_tile)  # its first tile
        for number in loop(group):
            at.enter(number)
            for _ in loop(at.count):
                tile = of_head + at.tile_and_cut()[0]
                for half in loop(*halves):
                    slot = Slot(memory.sums, own, phase.to(u32))
                    slot.full.wait()
                    tma.reduce(sums[((tile * panels + panel) * HALVES + half) * rows, 0], slot.sums)
                    tma.commit_group()
                    tma.wait_group(0, read=True)
                    slot.empty.arrive()
                    phase ^= 1
                at.advance()
            of_head += tiles

    @role(warp=1 + CONSUMERS, elect=True, when=extent.exists)
    def send() -> None:
        for number in loop(order.total(group)):
            slot, others = (slot_at(ring, number) for ring in (memory.ds, memory.others_ds))
            slot.full.wait()
            # Consumers have waited for the phase before: they computed its dQ before this dS.
            others.full.arrive_expect_tx(others.nbytes)
            target = cluster.map(others.ds.address, rank ^ 1)
            tma.copy(target, slot.ds.address, slot.nbytes, others.full.at(rank ^ 1))

    @role(warps=range(WARPS, 2 * WARPS), when=extent.exists)
    def value_gradients() -> None:
        setmaxnreg.inc(MULTIPLY_REGISTERS)
        consumer = new_value_gradients(memory, mask, key, scale, config, mods, captured)
        memory.kv.wait(0)
        consumer.wait_and_issue_scores(Slot(memory.q, var(u32, 0), var(u32, 0)))
        wgmma.wait_group(0)
        steps = order.total(group)
        for number in loop(steps - 1):
            consumer.step(number, True)
        consumer.step(steps - 1, False)
        # dV leaves through the tile of V, and dK through that of K when neither consumer reads K and V any more.
        bar.sync(*CONSUMER_BARRIER)
        store_and_commit(memory.v, consumer.dv, dv, extent.keys_at(ctaid.y, key), None, consumer.number, consumer.one)
        with If(consumer.one):
            tma.wait_group(0, read=True)

    @role(warps=range(2 * WARPS, 3 * WARPS), when=extent.exists)
    def key_gradients() -> None:
        setmaxnreg.inc(MULTIPLY_REGISTERS)
        consumer = KeyGradients(memory, config)
        memory.kv.wait(0)
        consumer.wait_and_issue_dp(var(u32, 0))
        steps = order.total(group)
        for number in loop(steps - 1):
            consumer.step(number, True)
        consumer.step(steps - 1, False)
        bar.sync(*CONSUMER_BARRIER)
        store_and_commit(memory.k, consumer.dk, dk, extent.keys_at(ctaid.y, key), scale, consumer.number, consumer.one)
        with If(consumer.one):
            tma.wait_group(0, read=True)

    # The other CTA has read this one's dS, and arrives at its barriers no more.
    cluster.sync()


def new_value_gradients(
    memory: WideMemory, mask: QueryMask, key: Any, scale: Expr, config: BackwardConfig, mods: Mods, arrays: Any
) -> ValueGradients:
    """Returns the state of the consumer warpgroup of dV."""
    if mods.changes_scores or mods.indexed:
        return ModifiedValueGradients(memory, mask, key, scale, config, mods, arrays)
    return ValueGradients(memory, mask, key, scale * LOG2E, config)
