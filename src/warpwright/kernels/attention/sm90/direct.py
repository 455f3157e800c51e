"""Attention forward on Hopper whose O leaves from registers, for head dimensions with room for one Q in shared memory.

As `sm90.forward`; but the slot of Q is empty as soon as the last QKᵀ of a tile is done. So the next Q arrives during
the last softmax, and its first QKᵀ runs while O is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90 import forward
from warpwright.kernels.attention.sm90.forward import REGISTERS, Consumer
from warpwright.kernels.attention.sm90.plan import CONFIGS, Config
from warpwright.kernels.attention.sm90.sliding import attention_sliding
from warpwright.kernels.attention.sm90.softmax import HALVES
from warpwright.kernels.attention.sm90.steps import (
    Mask,
    Rings,
    init_barriers,
    load_when_empty,
    publish_when_empty,
    rescale,
    schedule,
)
from warpwright.kernels.tiles import PACKED, WARPS
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Kernel,
    Pointer,
    atom,
    b16,
    b32,
    bar,
    bf16,
    ctaid,
    f32,
    kernel,
    loop,
    nctaid,
    pack,
    role,
    s32,
    select,
    setmaxnreg,
    shfl,
    st,
    tma,
    u32,
    u64,
    var,
    warp,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["attention_direct", "kernel_of"]

GROUP = 8  # columns of O of which a lane has two


@kernel("sm_90a", threads=384)
def attention_direct(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: Global[b16],
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    columns: u32,
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
    config: Config = CONFIGS["256: 128x80"],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles in the order of their numbers, as in `sm90.forward.attention`.

    O (batch, heads, q_len, ``columns``) has strides ``o_batch``, ``o_head`` and ``o_row`` in elements, multiples of 8.

    role      warps  moves                              waits for          signals
    load      0      numbers -> `work`; Q, K, V         empty of each      full of each
    multiply  4-     Q, K, V -> registers -> O          full of each       empty of each
    """
    (queries, keys), consumers = config.tile, config.consumers
    rings = Rings.of(config, dtype, of_q=consumers, of_work=consumers * WARPS)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    init_barriers((rings.work, rings.q, rings.k, rings.v), (q, k, v))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        number = var(u32, ctaid.x)
        for _ in loop():
            Break(when=number >= total)
            row, head = schedule(number, tiles, section, queries, bounds[1])
            first, count = mask.blocks(row, queries)
            publish_when_empty(items, (row, head, first, count))
            batch, own = head // heads, head % heads
            of, last = (batch, own // group), (first + count - 1) * keys
            # K of the last block and Q, then K a block ahead of V.
            load_when_empty(to_k, "k", k, *of, last)
            load_when_empty(to_q, "q", q, batch, own, row)
            for step in loop(1, count):
                load_when_empty(to_k, "k", k, *of, last - step * keys)
                load_when_empty(to_v, "v", v, *of, last - (step - 1) * keys)
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.inc(Global(u32, counter), total - 1))
            load_when_empty(to_v, "v", v, *of, first * keys)
            number.set(taken + nctaid.x)
        publish_when_empty(items, (0, 0, 0, 0))
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        output = Output(o, (o_batch, o_head, o_row), columns, heads)
        consumer = DirectConsumer(rings, mask, scale, config, output)
        consumer.run(consumer.wait_item(), lse, q_len)


@dataclass(frozen=True)
class Output:
    """O in global memory: its address, the strides of batch, head and row in elements, its columns and heads."""

    o: Pointer[Any]
    strides: tuple[Expr, Expr, Expr]
    columns: Expr
    heads: Expr

    def row(self, head: Any, row: Any) -> Pointer[Any]:
        """Returns the address of a row of a head, counted through all batches."""
        of_batch, of_head, of_row = self.strides
        batch, own = (head // self.heads).to(u64), (head % self.heads).to(u64)
        found: Pointer[Any] = self.o + (batch * of_batch + own * of_head + row.to(u64) * of_row)
        return found


class DirectConsumer(Consumer):
    """A consumer warpgroup that stores O from registers.

    ``place`` is the address of this thread's first row, ``rows`` the number of queries from this row on.
    """

    def __init__(self, rings: Rings, mask: Mask, scale: Expr, config: Config, output: Output) -> None:
        super().__init__(rings, mask, scale, config)
        self.output, self.place, self.rows = output, var(u64, 0), var(s32, 0)

    @property
    def overlaps(self) -> bool:
        """Whether the next tile's first QKᵀ runs during the epilogue: always, because O takes no slot of Q."""
        return True

    def release_queries(self, number: Any) -> None:
        """Arrive on empty of Q if block ``number`` is the tile's last one."""
        with If(self.leader & (self.tile.count == number + 1)):
            self.of_q.peek().empty.arrive()

    def finish_softmax(self, lse: Expr, q_len: Any) -> list[Any]:
        """Write the log-sum-exp; returns the factors 1 / row sum of O, 0 for a row without weights."""
        self.place.set(self.output.row(self.tile.head, self.row).address)
        self.rows.set(q_len.to(s32) - self.row.to(s32))
        return super().finish_softmax(lse, q_len)

    def epilogue(self, slot: Slot, factors: Sequence[Any]) -> None:
        """Divide O by the row sums and store it; ``slot`` is that of Q, which has been released."""
        slot_v = next(self.of_v)
        with If(self.leader):
            slot_v.empty.arrive()
        rescale(self.out, factors)
        pairs = [self.out.regs[v : v + 2] for v in range(0, len(self.out.regs), 2)]
        words = [pack(PACKED[self.dtype], *pair).bitcast(b32) for pair in pairs]
        for half in HALVES:
            below = self.output.strides[2] * (self.apart * half * b16.nbytes)
            self.store_row(words[half::2], self.place + below, self.rows > self.apart * half)

    def store_row(self, words: Sequence[Any], place: Any, exists: Expr) -> None:
        """Store a row of O, of which this lane has a word (two columns) of each `GROUP`, if the row ``exists``.

        Lanes exchange words with their neighbour, so that a quad stores 32 bytes, a sector of L2, at a time.
        """
        odd = warp.lane % 2 == 1
        first = warp.lane % 2 * GROUP + warp.lane % 4 // 2 * (GROUP // 2)
        for number in range(0, len(words), 2):
            left, right = words[number : number + 2]
            got, own = shfl.bfly(select(odd, left, right), 1), select(odd, right, left)
            column = first + number * GROUP
            with If(exists & (column < self.output.columns)):
                st(Global(b32, place) + column // 2, select(odd, got, own), select(odd, own, got))


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on it."""
    function = attention_direct if config.direct else attention_sliding if config.sliding else forward.attention
    return function.configure(config=config, threads=config.threads)
