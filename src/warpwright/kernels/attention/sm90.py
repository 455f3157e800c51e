"""Attention forward on Hopper: O = softmax(scale · Q·Kᵀ)·V and the log-sum-exp of the scores.

A CTA takes tiles of queries of one head. Its warpgroups have 64 queries each; keys and values come by blocks, from the
last one that a query sees to the first. The products of the next block's scores are under way while the softmax of
this one is computed, also from one tile to the next, and P stays in registers. ``scale`` has the factor log2 e: all
powers are of 2.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90_plan import HopperConfig
from warpwright.kernels.attention.sm90_steps import (
    STRIP,
    WARPS,
    Mask,
    Rows,
    Turns,
    Work,
    add,
    free,
    load_tile,
    put_rows,
    rescale,
    score,
    seen,
    softmax,
    store_tile,
    take,
    weights,
    write_lse,
)
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
    loop,
    nctaid,
    rcp,
    role,
    s32,
    select,
    setmaxnreg,
    smem,
    st,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["attention", "kernel_of"]

REGISTERS = {1: (56, 256), 2: (24, 240), 3: (32, 160)}


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
    begin: s32,
    end: s32,
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
    chained: bool = True,
    lazy: bool = True,
    dynamic: bool = False,
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles one after the other, in the order of their numbers.

    Numbers count ``tiles`` tiles of queries of each of ``section`` heads, the heads of a section side by side; where
    there is a right bound from the last queries on, which see most keys. O leaves through the slot of Q.

    role      warps  moves                                       waits for               signals
    load      0      numbers -> `work`; Q, K, V -> rings         empty of each           full of each
    multiply  4-     rings -> registers -> slot of Q             full of each            empty of K, V; o.full
    save      1      slot of Q -> O                              o.full                  q.empty
    """
    queries, keys = tile
    consumers = queries // STRIP
    shapes = {"q": (queries, head_dim), "k": (keys, head_dim), "v": (keys, head_dim)}
    tiles_of = {name: {name: smem.tile(dtype, shape, swizzle=128)} for name, shape in shapes.items()}
    work = Ring(2, empty=consumers * WARPS + 1, name="work", item=smem.tile(u32, (1, 4)))
    qs, results = Ring(q_stages, name="q", **tiles_of["q"]), Ring(q_stages, full=consumers * WARPS, name="o")
    ks, vs = (Ring(stages, empty=consumers, name=name, **tiles_of[name]) for name in "kv")
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)

    @role(warp=0, elect=True)
    def init() -> None:
        for ring in (work, qs, results, ks, vs):
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
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (work, qs, ks, vs)]
        number = var(u32, ctaid.x)

        def publish(*words: Any) -> None:
            slot = next(items)
            slot.empty.wait()
            st(slot.item.at(0, 0), *words)
            slot.full.arrive()

        for _ in loop():
            Break(when=number >= total)
            taken = atom.inc(Global(u32, counter), total - 1) if dynamic else number
            within, before = number % (section * tiles), number // (section * tiles) * section
            place, both = within // section, before + within % section
            row, batch, head = (tiles - 1 - place if bounds[1] else place) * queries, both // heads, both % heads
            first, count = mask.blocks(row, queries)
            publish(row, both, first, count)
            of, last = (batch, head // group), (first + count - 1) * keys
            load_tile(to_k, "k", k, *of, last)
            load_tile(to_q, "q", q, batch, head, row)
            for step in loop(1, count):
                load_tile(to_k, "k", k, *of, last - step * keys)
                load_tile(to_v, "v", v, *of, last - (step - 1) * keys)
            load_tile(to_v, "v", v, *of, first * keys)
            number.set(taken + nctaid.x)
        publish(0, 0, 0, 0)
        for cursor in cursors:
            cursor.drain()

    @role(warp=1, elect=True)
    def save() -> None:
        items, of_q = work.consumer(), qs.consumer()
        for _ in loop():
            row, both, _, count = take(items)
            Break(when=count == 0)
            slot = next(of_q)
            Slot(results, slot.stage, slot.phase).full.wait()
            store_tile(slot.q, o, both // heads, both % heads, row)
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        turns, one, strip = Turns(consumers, in_turn), elect_one(), warp.id - WARPS
        leads = one & (warp.id % WARPS == 0)
        scores, sums = wgmma.accumulator(f32, (STRIP, keys)), wgmma.accumulator(f32, (STRIP, head_dim))
        held, rows, at = [var(b32, 0) for _ in range(keys // 4)], Rows(), Work.begin(bounds[0])
        items, of_q, of_k, of_v = (ring.consumer() for ring in (work, qs, ks, vs))

        def scored(slot: Any) -> None:
            """Begin the scores of the next block."""
            slot.full.wait()
            turns.wait()
            score(scores, of_q.peek().q, turns.own, slot.k)

        def added(slot: Any, more: Any) -> None:
            """Begin to add the values of the block before it."""
            slot.full.wait()
            add(sums, held, slot.v, more)

        def begin_tile(slot: Any) -> None:
            of_q.peek().full.wait()
            scored(slot)

        def weigh(masked: bool, number: Any = 0) -> tuple[list[Any], list[Any], Any]:
            values: list[Any] = scores.regs
            if masked:
                block = (at.first + at.count - 1 - number) * keys
                values = seen(mask, values, at.row + strip * 16 + warp.lane // 4, block)
            return softmax(values, rows, scale, lazy)

        def first_scores() -> None:
            begin_tile(slot := next(of_k))
            turns.pass_on()
            wgmma.wait_group(0)
            free(slot, leads)
            weights(dtype, held, weigh(True)[0])

        def end_rows() -> list[Any]:
            """What the tile's rows of O are to be multiplied by; their log-sum-exp is written."""
            shifts, totals = rows.begin()
            with If(lse != 0):
                own_lse = Global(f32, lse) + at.head * q_len
                write_lse(own_lse, at.row + strip * 16 + warp.lane // 4, q_len, shifts, totals)
            return [select(each == 0.0, each, rcp(each)) for each in totals]

        def put_out(slot: Any, factors: list[Any]) -> None:
            rescale(sums, factors)
            put_rows(sums, slot.q, strip, Slot(results, slot.stage, slot.phase).full, one)

        def last_values() -> None:
            """The values of the last block, and O."""
            added(slot := next(of_v), at.count > 1)
            wgmma.wait_group(0)
            free(slot, leads)
            put_out(next(of_q), end_rows())

        at.set(take(items, one))
        first_scores()
        for _ in loop():
            start: Any = 1
            for masked, stop in mask.runs(at.row + turns.own * STRIP, at.first, at.count):
                for number in loop(start, stop):
                    slot_k, slot_v = next(of_k), next(of_v)
                    scored(slot_k)
                    added(slot_v, number > 1)
                    turns.pass_on()
                    wgmma.wait_group(1)
                    free(slot_k, leads)
                    values, factors, grown = weigh(masked, number)
                    wgmma.wait_group(0)
                    free(slot_v, leads)
                    weights(dtype, held, values)
                    with If(grown):
                        rescale(sums, factors)
                start = stop
            words = take(items, one)
            if not chained:
                last_values()
            Break(when=words[3] == 0)
            if not chained:
                at.set(words)
                first_scores()
            else:
                slot_q, slot_k, slot_v, more = next(of_q), next(of_k), next(of_v), at.count > 1
                added(slot_v, more)
                begin_tile(slot_k)
                turns.pass_on()
                factors = end_rows()
                at.set(words)
                wgmma.wait_group(1)
                free(slot_v, leads)
                put_out(slot_q, factors)
                wgmma.wait_group(0)
                free(slot_k, leads)
                weights(dtype, held, weigh(True)[0])
        if chained:
            last_values()


@cache
def kernel_of(config: HopperConfig) -> Kernel:
    """The kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on what is seen."""
    return attention.configure(**config.keywords)
