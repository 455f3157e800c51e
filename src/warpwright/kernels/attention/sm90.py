"""Attention forward on Hopper: O = softmax(scale · Q·Kᵀ)·V and the log-sum-exp of the scores.

A CTA takes tiles of queries of one head. Its warpgroups have 64 queries each; keys and values come by blocks, from the
last one that a query sees to the first. The products of the next block's scores are under way while the softmax of
this one is computed, and P stays in registers (base 2 throughout: ``scale`` has the factor log2 e).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90_plan import HopperConfig
from warpwright.kernels.attention.sm90_steps import (
    LN2,
    Rows,
    hidden,
    load_tile,
    quad,
    read,
    scale_rows,
    softmax,
    store,
    weigh,
    weights,
    write_lse,
)
from warpwright.kernels.gemm.sm90_steps import WARPS, part
from warpwright.lang import (
    Break,
    Global,
    If,
    Kernel,
    Ring,
    atom,
    b32,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
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
    shfl,
    smem,
    st,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)
from warpwright.types import Scalar

__all__ = ["attention", "kernel_of"]

STRIP = 64
REGISTERS = {1: (56, 256), 2: (24, 240), 3: (32, 160)}
FIRST_TURN = 1  # named barriers: one a warpgroup


@kernel("sm_90a", threads=384)
def attention(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    counter: u64,
    q_len: u32,
    kv_len: u32,
    offset: s32,
    heads: u32,
    group: u32,
    tiles: u32,
    total: u32,
    section: u32,
    scale: f32,
    *,
    head_dim: int = 128,
    tile: tuple[int, int] = (128, 128),
    stages: int = 2,
    q_stages: int = 2,
    in_turn: bool = True,
    dynamic: bool = False,
    lazy: float = 0.0,
    computed: tuple[int, int] = (0, 1),
    causal: bool = False,
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles one after the other, in the order of their numbers.

    Numbers count ``tiles`` tiles of queries of each of ``section`` heads, the heads of a section side by side; causal
    ones from the last queries, which see most keys. O leaves through the slot of Q, which is free by then.

    role      warps  moves                                       waits for               signals
    load      0      numbers -> `work`; Q, K, V -> rings         empty of each           full of each
    multiply  4-     rings -> registers -> slot of Q -> O        full of each            empty of each
    """
    queries, keys = tile
    consumers = queries // STRIP
    work = Ring(2, full=1, empty=consumers * WARPS, name="work", item=smem.tile(u32, (1, 4)))
    qs = Ring(q_stages, full=1, empty=consumers * WARPS, name="q", q=smem.tile(dtype, (queries, head_dim), swizzle=128))
    ks = Ring(stages, full=1, empty=consumers, name="k", k=smem.tile(dtype, (keys, head_dim), swizzle=128))
    vs = Ring(stages, full=1, empty=consumers, name="v", v=smem.tile(dtype, (keys, head_dim), swizzle=128))

    @role(warp=0, elect=True)
    def init() -> None:
        for ring in (work, qs, ks, vs):
            ring.init()
        fence.mbarrier_init()
        for each in (q, k, v, o):
            tma.prefetch_map(each)

    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_k, to_v = (ring.producer() for ring in (work, qs, ks, vs))
        number = var(u32, ctaid.x)

        def publish(*words: Any) -> None:
            slot = next(items)
            slot.empty.wait()
            st(slot.item.at(0, 0), *words)
            slot.full.arrive()

        for _ in loop():
            Break(when=number >= total)
            taken = atom.inc(Global(u32, counter), total - 1) if dynamic else number
            within, first = number % (section * tiles), number // (section * tiles) * section
            place = within // section
            row = (tiles - 1 - place if causal else place) * queries
            both = first + within % section
            batch, head = both // heads, both % heads
            stop = kv_len
            if causal:
                stop = min(max((row + queries).to(s32) + offset, 1), kv_len.to(s32)).to(u32)
            blocks = (stop + (keys - 1)) // keys
            publish(row, head, batch, blocks)
            kv_head = head // group
            load_tile(to_k, "k", k, batch, kv_head, (blocks - 1) * keys)
            load_tile(to_q, "q", q, batch, head, row)
            for step in loop(1, blocks):
                at = (blocks - 1 - step) * keys
                load_tile(to_k, "k", k, batch, kv_head, at)
                load_tile(to_v, "v", v, batch, kv_head, at + keys)
            load_tile(to_v, "v", v, batch, kv_head, 0)
            number.set(taken + nctaid.x)
        publish(0, 0, 0, 0)
        for cursor in (items, to_q, to_k, to_v):
            cursor.drain()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        own = shfl.idx(warp.id // WARPS - 1, 0)
        one, strip = elect_one(), warp.id - WARPS
        leads = one & (warp.id % WARPS == 0)
        scores, sums = wgmma.accumulator(f32, (STRIP, keys)), wgmma.accumulator(f32, (STRIP, head_dim))
        held = [var(b32, 0) for _ in range(keys // 4)]
        rows = Rows()
        items, of_q, of_k, of_v = (ring.consumer() for ring in (work, qs, ks, vs))

        def turn(barrier: Any) -> None:
            if in_turn:
                bar.sync(barrier + FIRST_TURN, 256)

        def pass_on(barrier: Any) -> None:
            if in_turn:
                bar.arrive(barrier + FIRST_TURN, 256)

        following = select(own == consumers - 1, own * 0, own + 1)
        if in_turn:
            with If(own == consumers - 1):
                bar.arrive(FIRST_TURN, 256)

        def free(slot: Any) -> None:
            with If(leads):
                slot.empty.arrive()

        later, stored = var(u32, 0), qs.consumer()

        def release_q() -> None:
            """Give back the slot of Q that O left by, once it has been read."""
            slot = next(stored)
            with If(one):
                tma.wait_group(0, read=True)
                slot.empty.arrive()
            warp.sync()

        for _ in loop():
            item = next(items)
            item.full.wait()
            row, head, batch, blocks = ld(item.item.at(0, 0), vec=4)
            warp.sync()
            with If(one):
                item.empty.arrive()
            Break(when=blocks == 0)
            rows.clear()
            first_row = row + strip * 16 + warp.lane // 4
            limits = []
            for which in (0, 1):
                stop = kv_len.to(s32)
                if causal:
                    stop = min(stop, (first_row + 8 * which + 1).to(s32) + offset)
                limits.append(stop)
            block = var(u32, (blocks - 1) * keys)
            slot_q = next(of_q)
            slot_q.full.wait()
            strip_q = part(slot_q.q, own, STRIP, "k")

            slot_k = next(of_k)
            slot_k.full.wait()
            turn(own)
            wgmma.fence()
            weigh(scores, strip_q, slot_k.k)
            pass_on(following)
            if q_stages > 1:
                with If(later > 0):
                    release_q()
            wgmma.wait_group(0)
            free(slot_k)
            values, _, _ = softmax(scores, rows, scale, hidden(limits, block), lazy)
            weights(dtype, held, values)

            def step(masked: bool, more: Any) -> None:
                slot_k, slot_v = next(of_k), next(of_v)
                block.set(block - keys)
                slot_k.full.wait()
                turn(own)
                wgmma.fence()
                weigh(scores, strip_q, slot_k.k)
                slot_v.full.wait()
                wgmma.fence()
                read(sums, held, slot_v.v, more)
                pass_on(following)
                wgmma.wait_group(1)
                free(slot_k)
                values, factors, grown = softmax(scores, rows, scale, hidden(limits, block) if masked else None, lazy, computed)
                wgmma.wait_group(0)
                free(slot_v)
                weights(dtype, held, values)
                if grown is None:
                    scale_rows(sums, factors)
                else:
                    with If(grown):
                        scale_rows(sums, factors)

            masked_until = var(u32, blocks)
            if causal:
                seen = min(max((row + own * STRIP).to(s32) + offset + 1, 0), kv_len.to(s32)).to(u32) // keys
                masked_until.set(max(min(seen, blocks - 1), 0) + 0)
                for number in loop(1, blocks - masked_until):
                    step(True, number > 1)
                rest = max(blocks - masked_until, 1)
            else:
                rest = blocks * 0 + 1
            for number in loop(rest, blocks):
                step(False, number > 1)
            slot_v = next(of_v)
            slot_v.full.wait()
            wgmma.fence()
            read(sums, held, slot_v.v, blocks > 1)
            wgmma.wait_group(0)
            free(slot_v)
            totals = [quad(lambda a, b: a + b, total) for total in rows.total]
            scale_rows(sums, [select(each == 0.0, 0.0 * each, rcp(each)) for each in totals])
            store(sums, o, slot_q.q, strip, batch, head, row + strip * 16, one)
            with If(lse != 0):
                sizes = [(shift + lg2(each)) * LN2 for shift, each in zip(rows.shift, totals, strict=True)]
                write_lse(Global(f32, lse), (batch * heads + head) * q_len, first_row, q_len, sizes)
            later.set(1)
            if q_stages == 1:
                release_q()
        if q_stages > 1:
            with If(later > 0):
                release_q()


@cache
def kernel_of(config: HopperConfig) -> Kernel:
    """The kernel of a configuration; configure ``dtype`` (bf16, f16) and ``causal``."""
    return attention.configure(**config.keywords)
