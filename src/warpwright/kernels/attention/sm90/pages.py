"""Keys and values in pages: where the rows of a sequence are, their loads by TMA, and equal shares of all key blocks.

The rows of all pages are rows of one array, of which each page has ``size`` neighbouring ones. Tensor maps are ragged
(`warpwright.layout.tensor_map.ragged`): TMA writes zeros in place of rows after the last key, whatever the page
contains there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm90.steps import Mask, panel
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    loop,
    max,
    min,
    popc,
    redux,
    s32,
    select,
    shfl,
    tma,
    u32,
    var,
    vote,
    warp,
)
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile
from warpwright.layout.tensor_map import RAGGED_ROWS
from warpwright.types import Scalar

__all__ = ["Cut", "PagedTiles", "Pages", "box_rows", "rows_at"]

LANES = 32


def box_rows(page_size: int, keys: int) -> int:
    """Returns the rows of a box: as many as divide both a page and a block of ``keys`` keys."""
    return math.gcd(page_size, keys)


@dataclass(frozen=True)
class Pages:
    """The pages of all sequences: ``table`` has ``width`` page numbers a sequence, of ``pages`` pages of ``size`` rows.

    A number beyond the last page is lowered to that of the last page, and a length to the rows of ``width`` pages: no
    other memory is read, whatever ``table`` and ``lengths`` contain. A sequence has ``new`` keys more than its length.
    """

    table: Global[Any]
    lengths: Global[Any]
    width: Expr
    pages: Expr
    new: Any
    size: int

    def keys(self, sequence: Any) -> Any:
        """Returns how many keys a sequence has."""
        most = self.width * self.size
        return min(min(self.lengths[sequence], most) + self.new, most)

    def page(self, sequence: Any, row: Any) -> Any:
        """Returns the page of a row of a sequence."""
        return min(self.table[sequence * self.width + min(row // self.size, self.width - 1)], self.pages - 1)

    def row_of_page(self, row: Any) -> Any:
        """Returns which row of its page a row of a sequence is."""
        return row % self.size

    def load_when_empty(
        self, cursor: Cursor, name: str, source: tma.Map[Scalar], apart: Expr, of: tuple[Any, Any, Any], first: Any
    ) -> None:
        """Wait for the next empty slot and load its tile ``name``, the rows of a sequence from ``first`` on.

        ``of`` are the sequence, its keys and the head; pages begin ``apart`` rows of the map apart. Page numbers are
        read before the wait, which hides their latency.
        """
        (sequence, keys, head), slot = of, next(cursor)
        tile: Tile = getattr(slot, name)
        box, width = box_rows(self.size, tile.shape[0]), panel(tile.shape[1])
        tops = range(0, tile.shape[0], box)
        pages = [self.page(sequence, first + top) for top in tops]
        slot.empty.wait()
        slot.full.arrive_expect_tx(slot.nbytes)
        for top, page in zip(tops, pages, strict=True):
            row = first + top
            rows = min(keys - min(row, keys), box)
            stop, begin = page * apart + self.row_of_page(row) + rows, RAGGED_ROWS - rows
            for column in range(0, tile.shape[1], width):
                part = tile[top : top + box, column : column + width]
                tma.load(part, source[RAGGED_ROWS, stop, head, begin, column], slot.full)


@dataclass(frozen=True)
class WholeRows(Pages):
    """Sequences that are a page each, of ``width`` rows: ``size`` is 0. Without lengths, at address 0, all are full."""

    def keys(self, sequence: Any) -> Any:
        """Returns how many keys a sequence has."""
        found = var(u32, self.width)
        with If(self.lengths.base != 0):
            found.set(min(self.lengths[sequence], self.width))
        return found

    def page(self, sequence: Any, row: Any) -> Any:
        """Returns the page of a row of a sequence."""
        return sequence

    def row_of_page(self, row: Any) -> Any:
        """Returns which row of its page a row of a sequence is."""
        return row


def rows_at(table: Expr, lengths: Expr, width: Expr, pages: Expr, new: Any, size: int) -> Pages:
    """Returns the pages of ``size`` rows whose numbers and lengths are at these addresses; of `WholeRows` if 0."""
    kind = Pages if size else WholeRows
    return kind(Global(u32, table), Global(u32, lengths), width, pages, new, size)


@dataclass(frozen=True)
class Cut:
    """Where ``total`` key blocks are cut into at most ``ctas`` shares, the first of which may have a block more."""

    total: Any
    ctas: Expr

    @property
    def shares(self) -> Any:
        """The number of shares with a block."""
        return max(min(self.ctas, self.total), 1)

    def start(self, share: Any) -> Any:
        """Returns the first block of a share; that of the share after the last one is ``total``."""
        own = min(share, self.shares)
        return own * (self.total // self.shares) + min(own, self.total % self.shares)

    def owner(self, block: Any) -> Any:
        """Returns the share of a block."""
        few, longer = self.total // self.shares, self.total % self.shares
        edge = longer * (few + 1)
        return select(block < edge, block // (few + 1), longer + (block - min(edge, block)) // max(few, 1))


@dataclass(frozen=True)
class PagedTiles:
    """The tiles of ``sequences`` sequences, ``each`` tiles a sequence: the heads of K and V, and of each as many heads
    of Q as fit into a tile with all ``q_len`` queries. All tiles of a sequence have as many key blocks.

    The key blocks of all tiles are numbered, and the numbers cut into shares (`Cut`). ``left`` and ``right`` are the
    window, None without a bound.
    """

    pages: Pages
    sequences: Expr
    q_len: Expr
    kv_heads: Any
    group: Expr
    places: int
    block: int
    rows: int
    left: Any
    right: Any

    @property
    def across(self) -> Any:
        """Tiles of a head of K and V."""
        room = self.rows // self.places
        return (self.group + (room - 1)) // room

    @property
    def each(self) -> Any:
        """Tiles of a sequence."""
        return self.kv_heads * self.across

    def blocks(self, keys: Any) -> tuple[Any, Any]:
        """Returns the first key block that queries of a sequence of ``keys`` keys see, and the number of blocks."""
        offset = keys.to(s32) - self.q_len.to(s32)
        begin = None if self.left is None else offset - self.left
        end = None if self.right is None else offset + self.right + 1
        return Mask(keys, begin, end, self.block).blocks(var(u32, 0), self.places)

    def _blocks_of_lane(self, first: Any) -> Any:
        """Returns the blocks of a tile of sequence ``first`` + lane, 0 after the last sequence."""
        at = first + warp.lane
        _, count = self.blocks(self.pages.keys(min(at, self.sequences - 1)))
        return select(at < self.sequences, count, 0)

    def total(self) -> Any:
        """Returns the key blocks of all tiles; by a whole warp, a sequence a lane."""
        found = var(u32, 0)
        for first in loop(0, self.sequences, LANES):
            found += self._blocks_of_lane(first)
        return redux.add(found) * self.each

    def before(self, sequence: Any) -> Any:
        """Returns the key blocks of all tiles of the sequences before ``sequence``; by a whole warp."""
        found = var(u32, 0)
        for first in loop(0, sequence, LANES):
            found += select(first + warp.lane < sequence, self._blocks_of_lane(first), 0)
        return redux.add(found) * self.each

    def find(self, block: Any) -> tuple[Any, Any]:
        """Returns the sequence of a key block, and the first block of that sequence; by a whole warp."""
        index, before, mine, upto, passed = (var(u32, 0) for _ in range(5))
        for _ in loop():
            mine.set(self._blocks_of_lane(index))
            upto.set(mine)
            for distance in (1, 2, 4, 8, 16):
                lower = shfl.up(upto, distance)
                upto += select(warp.lane >= distance, lower, 0)
            passed.set(popc(vote.ballot((before + upto) * self.each <= block)))
            Break(when=(passed < LANES) | (index + LANES >= self.sequences))
            before += shfl.idx(upto, LANES - 1)
            index += LANES
        lane = min(passed, LANES - 1)
        return index + lane, (before + shfl.idx(upto - mine, lane)) * self.each
