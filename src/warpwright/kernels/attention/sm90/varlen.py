"""Attention forward on Hopper for packed sequences of any lengths: rows ``cu_q[i]`` to ``cu_q[i + 1]`` of Q are the
queries of sequence i, rows ``cu_k[i]`` to ``cu_k[i + 1]`` of K and V its keys.

The consumers are those of `sm90.forward`. The role `load` finds the sequence of each tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.forward import REGISTERS, Consumer
from warpwright.kernels.attention.sm90.plan import CONFIGS, Config
from warpwright.kernels.attention.sm90.steps import (
    CurrentTile,
    Mask,
    Rings,
    init_barriers,
    load_when_empty,
    publish_when_empty,
    read_item,
    schedule,
    store_panels,
)
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Kernel,
    Var,
    atom,
    bar,
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
    config: Config = CONFIGS["128: 128x128"],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles in the order of their numbers, as in `sm90.forward.attention`.

    Tiles are numbered through all sequences, one sequence after the other; only the role `load` computes how many there
    are. The maps are ragged (`warpwright.layout.tensor_map.ragged`), so that no tile reads or writes rows of the next
    sequence.
    """
    (queries, keys), consumers = config.tile, config.consumers
    rings = Rings.of(config, dtype, WORDS)
    init_barriers(rings, (q, k, v, o))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        number, at = var(u32, ctaid.x), SequenceCursor((cu_q, cu_k), (total_q, total_k), sequences, queries, heads)
        for _ in loop():
            at.advance_to(number)
            Break(when=number - at.before >= at.count)
            row, head = schedule(number - at.before, at.tiles, section, queries, bounds[1])
            offset = at.keys.to(s32) - at.queries.to(s32)
            mask = Mask(at.keys, offset - left if bounds[0] else None, offset + right + 1 if bounds[1] else None, keys)
            first, count = mask.blocks(row, queries)
            lengths = at.keys, offset.to(u32), at.queries
            publish_when_empty(items, (row, head, first, count, *lengths, head * total_q + at.first_query))
            of = RAGGED_ROWS, at.stop_key, head // group
            last = RAGGED_ROWS - at.keys + (first + count - 1) * keys
            load_when_empty(to_k, "k", k, *of, last)
            load_when_empty(to_q, "q", q, RAGGED_ROWS, at.stop_query, head, RAGGED_ROWS - at.queries + row)
            for step in loop(1, count):
                load_when_empty(to_k, "k", k, *of, last - step * keys)
                load_when_empty(to_v, "v", v, *of, last - (step - 1) * keys)
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.add(Global(u32, counter), 1))
            load_when_empty(to_v, "v", v, *of, last - (count - 1) * keys)
            number.set(taken + nctaid.x)
        # The CTA that took the last number of all resets the counter.
        with If((counter != 0) & (number == at.before + at.count + (nctaid.x - 1))):
            atom.exch(Global(u32, counter), 0)
        publish_when_empty(items, [0] * WORDS)
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warp=1, elect=True)
    def save() -> None:
        items, of_q = rings.work.consumer(), rings.q.consumer()
        for _ in loop():
            item = next(items)
            item.full.wait()
            row, head, _, count, _, _, length, lse_row = read_item(item)
            item.empty.arrive()
            Break(when=count == 0)
            slot = next(of_q)
            Slot(rings.o, slot.stage, slot.phase).full.wait()
            stop = lse_row - head * total_q + length
            store_panels(slot.q, o, RAGGED_ROWS, stop, head, RAGGED_ROWS - length + row)
            tma.commit_group()
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        tile = VarlenTile.with_bounds(left if bounds[0] else None, right if bounds[1] else None, keys)
        consumer = Consumer(rings, tile.mask, scale, config, tile)
        first = consumer.wait_item()
        with If(first[3] != 0):  # a CTA may get no tile at all
            consumer.run(first, lse, tile.queries)


class SequenceCursor:
    """The current sequence of one thread: the rows of its queries and keys, and the numbers of its tiles.

    An offset beyond the end of the arrays is lowered to the end, and an offset below the previous one is raised to the
    previous one: no other memory is accessed, whatever ``cu_q`` and ``cu_k`` contain.
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
        """Queries of this sequence."""
        return self.stop_query - self.first_query

    @property
    def keys(self) -> Any:
        """Keys of this sequence."""
        return self.stop_key - self.first_key

    @property
    def count(self) -> Any:
        """Tiles of this sequence, in all heads."""
        return self.tiles * self.heads

    def advance_to(self, number: Expr) -> None:
        """Advance to the sequence that tile ``number`` belongs to, or to the last one."""
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
class VarlenTile(CurrentTile):
    """The tile that a consumer works on, and its sequence: the mask, the numbers of ``keys`` and ``queries``, and the
    index ``lse_row`` of the first query's log-sum-exp."""

    mask: Mask
    keys: Var
    queries: Var
    lse_row: Var
    window: tuple[Any, Any]

    @staticmethod
    def with_bounds(left: Any, right: Any, block: int) -> VarlenTile:
        """Returns registers for a tile, not set yet; ``left`` and ``right``: the window, ``block``: the block size."""
        row, head, count, keys, queries, lse_row = (var(u32, 0) for _ in range(6))
        begin, end = (None if bound is None else var(s32, 0) for bound in (left, right))
        first = 0 if left is None else var(u32, 0)
        return VarlenTile(row, head, first, count, Mask(keys, begin, end, block), keys, queries, lse_row, (left, right))

    def lse_rows(self, lse: Expr, q_len: Any) -> Any:
        """Returns where the log-sum-exp of the sequence's first query is."""
        return Global(f32, lse) + self.lse_row

    def set(self, words: Sequence[Any]) -> None:
        """Take the tile of an item."""
        super().set(words)
        keys, offset, queries, lse_row = words[4:8]
        left, right = self.window
        self.keys.set(keys)
        self.queries.set(queries)
        self.lse_row.set(lse_row)
        if isinstance(self.mask.begin, Var):
            self.mask.begin.set(offset.to(s32) - left)
        if isinstance(self.mask.end, Var):
            self.mask.end.set(offset.to(s32) + right + 1)


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on it."""
    return attention_varlen.configure(config=config, threads=config.threads)
