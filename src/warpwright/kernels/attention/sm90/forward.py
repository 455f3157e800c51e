"""Attention forward on Hopper: O = softmax(scale · Q·Kᵀ)·V and the log-sum-exp of the scores.

A CTA takes tiles of queries of one head. Its warpgroups have 64 queries each; keys and values come by blocks, from the
last one that a query sees to the first. The products of the next block's scores are under way while the softmax of
this one is computed, and P stays in registers. ``scale`` has the factor log2 e: all powers are of 2.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.plan import HopperConfig
from warpwright.kernels.attention.sm90.steps import STRIP, WARPS, Mask, load_tile, rings_of, set_up, store_tile, take
from warpwright.kernels.attention.sm90.warpgroup import Warpgroup
from warpwright.lang import (
    Break,
    Global,
    If,
    Kernel,
    atom,
    bf16,
    ctaid,
    f32,
    kernel,
    loop,
    nctaid,
    role,
    s32,
    setmaxnreg,
    st,
    tma,
    u32,
    u64,
    var,
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
    in_turn: bool = False,
    together: bool = True,
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles one after the other, in the order of their numbers.

    Numbers count ``tiles`` tiles of queries of each of ``section`` heads, the heads of a section side by side; where
    there is a bound to the right, from the last queries on, which see most keys. With the address of a ``counter`` who
    comes to the last values of a tile first takes the next number, and the last one sets it back to 0; without one CTAs
    take every n-th. O leaves through the slot of Q.

    role      warps  moves                              waits for          signals
    load      0      numbers -> `work`; Q, K, V         empty of each      full of each
    multiply  4-     Q, K, V -> registers -> slot of Q  full of each       empty of K and V, o.full
    save      1      slot of Q -> O                     o.full             q.empty
    """
    queries, keys = tile
    consumers = queries // STRIP
    rings = rings_of(tile, head_dim, stages, q_stages, dtype)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    set_up(rings, (q, k, v, o))

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        number = var(u32, ctaid.x)

        def publish(*words: Any) -> None:
            slot = next(items)
            slot.empty.wait()
            st(slot.item.at(0, 0), *words)
            slot.full.arrive()

        for _ in loop():
            Break(when=number >= total)
            within, before = number % (section * tiles), number // (section * tiles) * section
            place, head = within // section, before + within % section
            row = (tiles - 1 - place if bounds[1] else place) * queries
            first, count = mask.blocks(row, queries)
            publish(row, head, first, count)
            batch, own = head // heads, head % heads
            of, last = (batch, own // group), (first + count - 1) * keys
            load_tile(to_k, "k", k, *of, last)
            load_tile(to_q, "q", q, batch, own, row)
            for step in loop(1, count):
                load_tile(to_k, "k", k, *of, last - step * keys)
                load_tile(to_v, "v", v, *of, last - (step - 1) * keys)
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.inc(Global(u32, counter), total - 1))
            load_tile(to_v, "v", v, *of, first * keys)
            number.set(taken + nctaid.x)
        publish(0, 0, 0, 0)
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warp=1, elect=True)
    def save() -> None:
        items, of_q = rings.work.consumer(), rings.q.consumer()
        for _ in loop():
            row, head, _, count = take(items)
            Break(when=count == 0)
            slot = next(of_q)
            Slot(rings.o, slot.stage, slot.phase).full.wait()
            store_tile(slot.q, o, head // heads, head % heads, row)
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        own = Warpgroup(rings, mask, scale, consumers, in_turn=in_turn, together=together)
        own.tiles(own.take(), lse, q_len)


@cache
def kernel_of(config: HopperConfig) -> Kernel:
    """The kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on what is seen."""
    return attention.configure(**config.keywords)
