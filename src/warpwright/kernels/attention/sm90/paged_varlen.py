"""Attention forward on Hopper for many queries and keys in pages (`sm90.pages`): chunks of prompts, packed or of equal
lengths, whose keys begin before them.

The consumers are those of `sm90.forward`. The role `load` finds the sequence of each tile, as in `sm90.varlen`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.forward import Consumer
from warpwright.kernels.attention.sm90.pages import Pages
from warpwright.kernels.attention.sm90.plan import CONFIGS, Config
from warpwright.kernels.attention.sm90.steps import (
    Mask,
    Rings,
    init_barriers,
    load_when_empty,
    publish_when_empty,
    read_item,
    schedule,
    store_panels,
)
from warpwright.kernels.attention.sm90.varlen import VarlenTile
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Kernel,
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

__all__ = ["attention_paged", "kernel_of"]

REGISTERS = 56, 224  # of the loading warpgroup, which holds the numbers of a block's pages, and of a consumer
WORDS = 12  # of an item: those of `VarlenTile`; the row of Q after the last query


@kernel("sm_90a", threads=384)
def attention_paged(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    counter: u64,
    cu_q: u64,
    block_table: u64,
    lengths: u64,
    width: u32,
    pages: u32,
    new: u32,
    k_page: u32,
    v_page: u32,
    q_len: u32,
    sequences: u32,
    total_q: u32,
    most: u32,
    left: s32,
    right: s32,
    heads: u32,
    group: u32,
    section: u32,
    scale: f32,
    *,
    config: Config = CONFIGS["128: 128x128"],
    bounds: tuple[bool, bool] = (False, False),
    size: int = 64,
    packed: bool = True,
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles in the order of their numbers, as in `sm90.varlen.attention_varlen`.

    Sequence i has the rows ``cu_q[i]`` to ``cu_q[i + 1]`` of Q, and ``new`` (0 or 1) times as many new keys; sequences
    that are not ``packed`` have ``q_len`` rows and ``new`` new keys each.
    """
    (queries, keys), consumers = config.tile, config.consumers
    rings = Rings.of(config, dtype, WORDS)
    init_barriers(rings, (q, k, v, o))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[0])

    @role(warp=0, elect=True)
    def load() -> None:
        of_pages = Pages(Global(u32, block_table), Global(u32, lengths), width, pages, new, size)
        starts: Global[Any] | None = Global(u32, cu_q) if packed else None
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        number, at = var(u32, ctaid.x), PagedCursor(of_pages, starts, q_len, total_q, sequences, queries, heads)
        for _ in loop():
            at.advance_to(number)
            Break(when=number - at.before >= at.count)
            row, head = schedule(number - at.before, at.tiles, section, queries, bounds[1])
            offset = at.keys.to(s32) - at.queries.to(s32)
            mask = Mask(at.keys, offset - left if bounds[0] else None, offset + right + 1 if bounds[1] else None, keys)
            first, count = mask.blocks(row, queries)
            of_tile = row, head, first, count, at.keys, offset.to(u32), at.queries, at.lse_row(head)
            publish_when_empty(items, (*of_tile, at.stop, 0, 0, 0))
            of, last = (at.index - 1, at.keys, head // group), (first + count - 1) * keys
            of_pages.load_when_empty(to_k, "k", k, k_page, of, last)
            load_when_empty(to_q, "q", q, RAGGED_ROWS, at.stop, head, RAGGED_ROWS - at.queries + row)
            for step in loop(1, count):
                of_pages.load_when_empty(to_k, "k", k, k_page, of, last - step * keys)
                of_pages.load_when_empty(to_v, "v", v, v_page, of, last - (step - 1) * keys)
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.add(Global(u32, counter), 1))
            of_pages.load_when_empty(to_v, "v", v, v_page, of, last - (count - 1) * keys)
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
            row, head, _, count, _, _, length, _, stop, *_ = read_item(item)
            item.empty.arrive()
            Break(when=count == 0)
            slot = next(of_q)
            Slot(rings.o, slot.stage, slot.phase).full.wait()
            store_panels(slot.q, o, RAGGED_ROWS, stop, head, RAGGED_ROWS - length + row)
            tma.commit_group()
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[1])
        tile = VarlenTile.with_bounds(left if bounds[0] else None, right if bounds[1] else None, keys)
        consumer = Consumer(rings, tile.mask, scale, config, tile)
        first = consumer.wait_item()
        with If(first[3] != 0):  # a CTA may get no tile at all
            consumer.run(first, lse, tile.queries)


class PagedCursor:
    """The current sequence of one thread, number ``index`` - 1: its rows of Q, its keys, and the numbers of its tiles.

    ``starts`` are the first rows, None for ``q_len`` rows each. As in `sm90.varlen.SequenceCursor`, no other memory is
    accessed, whatever they contain.
    """

    def __init__(
        self,
        pages: Pages,
        starts: Global[Any] | None,
        q_len: Expr,
        total: Expr,
        sequences: Expr,
        rows: int,
        heads: Expr,
    ) -> None:
        self.pages, self.starts, self.q_len, self.total = pages, starts, q_len, total
        self.sequences, self.rows, self.heads = sequences, rows, heads
        self.index, self.before, self.tiles, self.first, self.stop, self.keys = (var(u32, 0) for _ in range(6))
        if starts is not None:
            self.stop.set(min(starts[0], total))

    @property
    def queries(self) -> Any:
        """Queries of this sequence."""
        return self.stop - self.first

    @property
    def count(self) -> Any:
        """Tiles of this sequence, in all heads."""
        return self.tiles * self.heads

    def lse_row(self, head: Any) -> Any:
        """Returns where the log-sum-exp of the first query is: of (heads, rows), or of (sequences, heads, q_len)."""
        if self.starts is None:
            return ((self.index - 1) * self.heads + head) * self.q_len
        return head * self.total + self.first

    def advance_to(self, number: Expr) -> None:
        """Advance to the sequence that tile ``number`` belongs to, or to the last one."""
        for _ in loop():
            Break(when=(number - self.before < self.count) | (self.index == self.sequences))
            self.before += self.count
            self.first.set(self.stop)
            of = self.pages
            if self.starts is None:
                self.stop += self.q_len
            else:
                self.stop.set(max(min(self.starts[self.index + 1], self.total), self.first))
                of = replace(of, new=of.new * self.queries)
            self.keys.set(of.keys(self.index))
            self.tiles.set((self.queries + (self.rows - 1)) // self.rows)
            self.index += 1


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16), ``bounds`` (left, right), ``packed`` and
    the ``size`` of a page on it."""
    return attention_paged.configure(config=config, threads=config.threads)
