"""Attention forward on Hopper for sequences of any lengths, packed one behind the other: rows ``cu_q[i]`` to
``cu_q[i + 1]`` of Q are queries of sequence i, and rows ``cu_k[i]`` to ``cu_k[i + 1]`` of K and V its keys.

The warpgroups do what they do in `sm90`; where a tile comes from and how far it goes is what the loading warp reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.forward import REGISTERS
from warpwright.kernels.attention.sm90.plan import HopperConfig
from warpwright.kernels.attention.sm90.steps import (
    STRIP,
    WARPS,
    Mask,
    Work,
    load_tile,
    rings_of,
    set_up,
    store_tile,
    take,
)
from warpwright.kernels.attention.sm90.warpgroup import Warpgroup
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Kernel,
    Var,
    atom,
    bf16,
    ctaid,
    f32,
    kernel,
    loop,
    max,
    min,
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
from warpwright.layout.tensor_map import RAGGED_ROWS
from warpwright.types import Scalar

__all__ = ["attention_varlen", "kernel_of"]

WORDS = 8  # of an item: first query, head, first block, blocks; keys, keys before query 0, queries, first log-sum-exp


@kernel("sm_90a", threads=384)
def attention_varlen(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    counter: u64,
    cu_q: u64,
    cu_k: u64,
    sequences: u32,
    total_q: u32,
    total_k: u32,
    left: s32,
    right: s32,
    heads: u32,
    group: u32,
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
    """Persistent: CTAs take tiles one after the other, in the order of their numbers, as in `sm90.attention`.

    Numbers count the tiles of one sequence after those of another; only the loading warp knows how many there are. Maps
    are ragged (`warpwright.tensormap.ragged`), so that no tile reads or writes rows of the next sequence.
    """
    queries, keys = tile
    consumers = queries // STRIP
    rings = rings_of(tile, head_dim, stages, q_stages, dtype, WORDS)
    set_up(rings, (q, k, v, o))

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        number, at = var(u32, ctaid.x), Sequences((cu_q, cu_k), (total_q, total_k), sequences, queries, heads)

        def publish(*words: Any) -> None:
            slot = next(items)
            slot.empty.wait()
            for first in range(0, WORDS, 4):
                st(slot.item.at(0, first), *words[first : first + 4])
            slot.full.arrive()

        for _ in loop():
            at.find(number)
            Break(when=number - at.before >= at.count)
            local, tiles = number - at.before, at.tiles
            within, first_head = local % (section * tiles), local // (section * tiles) * section
            place, head = within // section, first_head + within % section
            row = (tiles - 1 - place if bounds[1] else place) * queries
            offset = at.keys.to(s32) - at.queries.to(s32)
            mask = Mask(at.keys, offset - left if bounds[0] else None, offset + right + 1 if bounds[1] else None, keys)
            first, count = mask.blocks(row, queries)
            publish(row, head, first, count, at.keys, offset.to(u32), at.queries, head * total_q + at.first_query)
            of = RAGGED_ROWS, at.stop_key, head // group
            last = RAGGED_ROWS - at.keys + (first + count - 1) * keys
            load_tile(to_k, "k", k, *of, last)
            load_tile(to_q, "q", q, RAGGED_ROWS, at.stop_query, head, RAGGED_ROWS - at.queries + row)
            for step in loop(1, count):
                load_tile(to_k, "k", k, *of, last - step * keys)
                load_tile(to_v, "v", v, *of, last - (step - 1) * keys)
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.add(Global(u32, counter), 1))
            load_tile(to_v, "v", v, *of, last - (count - 1) * keys)
            number.set(taken + nctaid.x)
        with If((counter != 0) & (number == at.before + at.count + (nctaid.x - 1))):  # nobody takes a number any more
            atom.exch(Global(u32, counter), 0)
        publish(*[0] * WORDS)
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warp=1, elect=True)
    def save() -> None:
        items, of_q = rings.work.consumer(), rings.q.consumer()
        for _ in loop():
            row, head, _, count, _, _, length, log = take(items)
            Break(when=count == 0)
            slot = next(of_q)
            Slot(rings.o, slot.stage, slot.phase).full.wait()
            stop = log - head * total_q + length
            store_tile(slot.q, o, RAGGED_ROWS, stop, head, RAGGED_ROWS - length + row)
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        at = PackedWork.among(left if bounds[0] else None, right if bounds[1] else None, keys)
        own = Warpgroup(rings, at.mask, scale, consumers, in_turn=in_turn, together=together, at=at)
        first = own.take()
        with If(first[3] != 0):  # how many tiles there are is not known where CTAs are
            own.tiles(first, lse, at.queries)


class Sequences:
    """Sequence by sequence: where its queries and keys are, and the numbers of its tiles, for a thread that goes on.

    Places beyond the arrays, and places before the last one, count as the end of the array and as that one: whatever
    is in ``cu_q`` and ``cu_k``, no other memory is touched.
    """

    def __init__(
        self, starts: tuple[Expr, Expr], totals: tuple[Expr, Expr], sequences: Expr, rows: int, heads: Expr
    ) -> None:
        self.sequences, self.rows, self.heads = sequences, rows, heads
        self.starts: list[tuple[Global[Any], Expr]] = [
            (Global(u32, each), total) for each, total in zip(starts, totals, strict=True)
        ]
        self.index, self.before, self.tiles = (var(u32, 0) for _ in range(3))
        self.first_query, self.first_key = (var(u32, 0) for _ in self.starts)
        self.stop_query, self.stop_key = (var(u32, min(cu[0], total)) for cu, total in self.starts)

    @property
    def queries(self) -> Any:
        """How many this sequence has."""
        return self.stop_query - self.first_query

    @property
    def keys(self) -> Any:
        """How many this sequence has."""
        return self.stop_key - self.first_key

    @property
    def count(self) -> Any:
        """Tiles of this sequence, in all heads."""
        return self.tiles * self.heads

    def find(self, number: Expr) -> None:
        """Go on to the sequence that has the tile of this number, or to the last one."""
        for _ in loop():
            Break(when=(number - self.before < self.count) | (self.index == self.sequences))
            self.before += self.count
            self.index += 1
            firsts, stops = (self.first_query, self.first_key), (self.stop_query, self.stop_key)
            found = [cu[self.index] for cu, _ in self.starts]
            for first, stop, here, (_, total) in zip(firsts, stops, found, self.starts, strict=True):
                first.set(stop)
                stop.set(max(min(here, total), first))
            self.tiles.set((self.queries + (self.rows - 1)) // self.rows)


@dataclass(frozen=True)
class PackedWork(Work):
    """The tile at hand, and its sequence: which of its ``keys`` a query sees, how many ``queries`` it has, and where
    the log-sum-exp of the first one is."""

    mask: Mask
    keys: Var
    queries: Var
    log: Var
    window: tuple[Expr | None, Expr | None]

    @staticmethod
    def among(left: Expr | None, right: Expr | None, block: int) -> PackedWork:
        """A tile to be set, with blocks of so many keys, where queries see so far to the left and to the right."""
        row, head, count, keys, queries, log = (var(u32, 0) for _ in range(6))
        begin, end = (None if bound is None else var(s32, 0) for bound in (left, right))
        first = 0 if left is None else var(u32, 0)
        return PackedWork(row, head, first, count, Mask(keys, begin, end, block), keys, queries, log, (left, right))

    def logs(self, lse: Expr, q_len: Any) -> Any:
        """Where the log-sum-exp of the first query of the sequence is."""
        return Global(f32, lse) + self.log

    def set(self, words: Sequence[Any]) -> None:
        """Go on to another tile."""
        super().set(words[:4])
        keys, offset, queries, log = words[4:]
        left, right = self.window
        self.keys.set(keys)
        self.queries.set(queries)
        self.log.set(log)
        if isinstance(self.mask.begin, Var):
            self.mask.begin.set(offset.to(s32) - left)
        if isinstance(self.mask.end, Var):
            self.mask.end.set(offset.to(s32) + right + 1)


@cache
def kernel_of(config: HopperConfig) -> Kernel:
    """The kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on what is seen."""
    return attention_varlen.configure(**config.keywords)
