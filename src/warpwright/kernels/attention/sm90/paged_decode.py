"""Attention forward on Hopper for few queries and keys in pages (`sm90.pages`), of a length for each sequence.

As `sm90.decode`, but the CTAs have equal shares of the key blocks of all sequences, whose lengths only the GPU knows:
warp 0 adds up the blocks and finds the sequence in which its CTA's share begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.decode_plan import (
    AT_ONCE,
    COMBINE_THREADS,
    CONFIGS,
    QUAD,
    DecodeConfig,
)
from warpwright.kernels.attention.sm90.decode_steps import (
    REGISTERS,
    DecodeConsumer,
    Output,
    Workspace,
    combine_parts,
    load_queries_when_empty,
    rings_of,
)
from warpwright.kernels.attention.sm90.pages import Cut, PagedTiles, rows_at
from warpwright.kernels.attention.sm90.plan import WARPGROUP
from warpwright.kernels.attention.sm90.steps import init_barriers, publish_when_empty
from warpwright.kernels.attention.sm90.varlen import VarlenTile
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Else,
    Expr,
    Global,
    If,
    Kernel,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    griddepcontrol,
    kernel,
    loop,
    max,
    min,
    role,
    s32,
    select,
    setmaxnreg,
    smem,
    tid,
    tma,
    u32,
    u64,
    var,
)
from warpwright.types import Scalar

__all__ = ["WORDS", "PagedShare", "attention", "combine", "combine_of", "combine_paged", "kernel_of", "shares"]

WORDS = 12  # of an item: those of `VarlenTile`; parts, slot of the first part, batch, heads


@kernel("sm_90a", threads=256)
def attention(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: Global[Scalar],
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    columns: u32,
    lse: u64,
    workspace: u64,
    block_table: u64,
    lengths: u64,
    width: u32,
    pages: u32,
    new: u32,
    k_page: u32,
    v_page: u32,
    sequences: u32,
    q_len: u32,
    left: s32,
    right: s32,
    kv_heads: u32,
    group: u32,
    rows: u32,
    ctas: u32,
    reserve: u32,
    scale: f32,
    *,
    config: DecodeConfig = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    size: int = 64,
    dtype: type[Scalar] = bf16,
    ctas_per_sm: int = 1,
) -> None:
    """A CTA computes its share of the key blocks; of each tile the blocks in that share, from right to left.

    With ``config.last`` the CTA that stores the last part of a tile combines all parts.

    role         warps  moves                                          waits for        signals
    load_keys    0      parts of tiles -> `work`; Q, K                 empty of each    full of each
    load_values  1      V                                              empty            full
    multiply     4-7    Q, K, V -> registers -> O, or workspace -> O   full of each     empty of each

    K and V have a thread each: if pages are small, a block has so many boxes that one thread fills the rings slowly.
    """
    keys, places = config.keys, config.places
    flag, rings = smem.scalar(u32), rings_of(config, dtype, WORDS)
    of_pages = rows_at(block_table, lengths, width, pages, new, size)
    window = left if bounds[0] else None, right if bounds[1] else None
    tiles = PagedTiles(of_pages, sequences, q_len, kv_heads, group, places, keys, config.rows, *window)
    init_barriers((rings.work, rings.q, rings.k, rings.v), (q, k, v))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        if ctas_per_sm > 1:
            setmaxnreg.dec(REGISTERS[0])

    @role(warp=0)
    def load_keys() -> None:
        if not config.last:
            griddepcontrol.launch_dependents()
        found = shares_of_cta(tiles, ctas)
        with If(elect_one()):
            items, to_q, to_k = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k)]
            for share in shares(tiles, *found):
                of, last = (share.sequence, share.keys, share.kv_head), (share.first + share.count - 1) * keys
                of_pages.load_when_empty(to_k, "k", k, k_page, of, last)
                load_queries_when_empty(to_q, q, places, share.sequence, share.kv_head, share.member, 0)
                publish_when_empty(items, share.words(tiles))
                for step in loop(1, share.count):
                    of_pages.load_when_empty(to_k, "k", k, k_page, of, last - step * keys)
            publish_when_empty(items, (0,) * WORDS)
            for cursor in cursors:
                cursor.wait_all_empty()

    @role(warp=1)
    def load_values() -> None:
        found = shares_of_cta(tiles, ctas)
        with If(elect_one()):
            to_v = rings.v.producer()
            for share in shares(tiles, *found):
                of, last = (share.sequence, share.keys, share.kv_head), (share.first + share.count - 1) * keys
                for step in loop(share.count):
                    of_pages.load_when_empty(to_v, "v", v, v_page, of, last - step * keys)
            to_v.wait_all_empty()

    @role(warps=range(WARPS, 2 * WARPS))
    def multiply() -> None:
        if ctas_per_sm > 1:
            setmaxnreg.inc(REGISTERS[1])
        tile = replace(VarlenTile.with_bounds(*window, keys), first=var(u32, 0))  # a part begins at any block
        consumer = DecodeConsumer(rings, tile.mask, scale, config, tile)
        space = Workspace.at(workspace, reserve, ctas, rows, config.head_dim)
        out = Output(o.cast(dtype), (o_batch, o_head, o_row), columns, lse, kv_heads * group, q_len)
        for _ in loop():
            words = consumer.wait_item()
            parts, slot = words[8:10]
            Break(when=words[3] == 0)
            shifts, totals = consumer.compute_part(words)
            with If(parts == 1):
                out.store_tile(consumer.out, words, places, shifts, totals)
            with Else():
                space.store(consumer.out, max(ctaid.x * 2, slot), shifts, totals)
                if config.last:
                    with If(space.sync_and_count(slot, parts, flag)):
                        for first in loop(0, rows * (config.head_dim // QUAD), WARPGROUP):
                            combine_paged(out, space, places, words, parts, first + tid.x % WARPGROUP)


@kernel("sm_90a", threads=COMBINE_THREADS)
def combine(
    o: Global[Scalar],
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    columns: u32,
    lse: u64,
    workspace: u64,
    block_table: u64,
    lengths: u64,
    width: u32,
    pages: u32,
    new: u32,
    k_page: u32,
    v_page: u32,
    sequences: u32,
    q_len: u32,
    left: s32,
    right: s32,
    kv_heads: u32,
    group: u32,
    rows: u32,
    ctas: u32,
    reserve: u32,
    *,
    config: DecodeConfig = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    size: int = 64,
    dtype: type[Scalar] = bf16,
) -> None:
    """Combine the parts of a tile, four columns of a row a thread: the tile that is cut where the share of CTA
    ``ctaid.x`` of `attention` ends, unless an earlier cut is in the same tile.

    As `sm90.decode.combine`, the grid may start before that of `attention` has ended.
    """
    of_pages = rows_at(block_table, lengths, width, pages, new, size)
    window = left if bounds[0] else None, right if bounds[1] else None
    tiles = PagedTiles(of_pages, sequences, q_len, kv_heads, group, config.places, config.keys, config.rows, *window)
    space = Workspace.at(workspace, reserve, ctas, rows, config.head_dim)
    out = Output(o.cast(dtype), (o_batch, o_head, o_row), columns, lse, kv_heads * group, q_len)
    cut = Cut(tiles.total(), ctas)
    end = cut.start(ctaid.x + 1)
    sequence, base = tiles.find(end)
    with If(end < cut.total):
        share = PagedShare.at(tiles, cut, sequence, base, end, end + 1)
        with If(cut.owner(share.begin) == ctaid.x):
            griddepcontrol.wait()
            words = share.words(tiles)
            item = ctaid.y * COMBINE_THREADS + tid.x
            combine_paged(out, space, config.places, words, words[8], item, config.at_once)


@dataclass(frozen=True)
class PagedShare:
    """The part of a tile that a CTA computes: ``count`` key blocks from ``first`` on, of a ``sequence`` of ``keys``
    keys. The tile is that of the heads of Q from ``member`` on in the group of head ``kv_head``; its first block has
    the number ``begin``. ``parts`` CTAs share the tile, and ``slot`` is the first part's slot in the workspace."""

    sequence: Any
    keys: Any
    kv_head: Any
    member: Any
    first: Any
    count: Any
    begin: Any
    parts: Any
    slot: Any

    @staticmethod
    def at(tiles: PagedTiles, cut: Cut, sequence: Any, base: Any, block: Any, end: Any) -> PagedShare:
        """Returns the part of a share that ends before block ``end`` from ``block`` on, which is in the tiles of
        ``sequence``; these begin at block ``base``."""
        keys = tiles.pages.keys(sequence)
        first, blocks = tiles.blocks(keys)
        number, offset = (block - base) // blocks, (block - base) % blocks
        begin, room = block - offset, tiles.rows // tiles.places
        lead = cut.owner(begin)
        return PagedShare(
            sequence,
            keys,
            number // tiles.across,
            number % tiles.across * room,
            first + offset,
            min(blocks - offset, end - block),
            begin,
            cut.owner(begin + blocks - 1) + 1 - lead,
            select(cut.start(lead) < begin, lead * 2 + 1, lead * 2),
        )

    def words(self, tiles: PagedTiles) -> tuple[Any, ...]:
        """The item of the ring `work` as the consumer reads it."""
        head, room = self.kv_head * tiles.group + self.member, tiles.rows // tiles.places
        heads, offset = min(tiles.group - self.member, room), self.keys - tiles.q_len
        of_tile = 0, head, self.first, self.count, self.keys, offset, tiles.q_len, 0
        return (*of_tile, self.parts, self.slot, self.sequence, heads)


@dataclass(frozen=True)
class Slots:
    """The slots of the workspace, as `combine_parts` asks for them."""

    places: int

    def slot(self, cta: Any, number: Any) -> Any:
        """Returns the slot for the part that ``cta`` computes of a tile whose first part has slot ``number``.

        Each CTA has two slots. The second one is for a part that does not begin its share, which only a first part does
        not.
        """
        return max(cta * 2, number)


def combine_paged(
    out: Output, space: Workspace, places: int, words: Any, parts: Any, item: Expr, at_once: int = AT_ONCE
) -> None:
    """Combine the ``parts`` of four columns of a row, the ``item``-th four of the tile of ``words``."""
    combine_parts(out, space, Slots(places), words, (None, words[9] // 2, parts), item, at_once)


def shares_of_cta(tiles: PagedTiles, ctas: Expr) -> tuple[Cut, Any, Any, Any, Any]:
    """Returns the arguments of `shares` for this CTA; by a whole warp."""
    cut = Cut(tiles.total(), ctas)
    begin, end = cut.start(ctaid.x), cut.start(ctaid.x + 1)
    return (cut, *tiles.find(begin), begin, end)


def shares(tiles: PagedTiles, cut: Cut, sequence: Any, base: Any, begin: Any, end: Any) -> Iterator[PagedShare]:
    """Yields the parts of tiles in the blocks from ``begin`` to ``end``; the tiles of ``sequence``, to which the first
    one belongs, begin at block ``base``."""
    block, sequence, base = var(u32, begin), var(u32, sequence), var(u32, base)
    for _ in loop():
        Break(when=block >= end)
        share = PagedShare.at(tiles, cut, sequence, base, block, end)
        yield share
        block += share.count
        with If(block == base + tiles.blocks(share.keys)[1] * tiles.each):
            base.set(block)
            sequence.set(min(sequence + 1, tiles.sequences - 1))


@cache
def kernel_of(config: DecodeConfig) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16), ``bounds`` (left, right) and the ``size``
    of a page on it."""
    return attention.configure(config=config, ctas_per_sm=config.ctas_per_sm)


@cache
def combine_of(config: DecodeConfig) -> Kernel:
    """Returns `combine` of a configuration; configure the same."""
    return combine.configure(config=config)
