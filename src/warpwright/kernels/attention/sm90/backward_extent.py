"""The rows that a CTA of the Hopper attention backward works on: those of a batch, or of a packed sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from warpwright.kernels.attention.sequences import find_sequence, rows_of
from warpwright.lang import Expr, Global, ctaid, max, nctaid, s32, select, u32, var
from warpwright.layout.tensor_map import RAGGED_ROWS

__all__ = ["Extent", "QueryTiles", "TileOfQueries"]


@dataclass(frozen=True)
class TileOfQueries:
    """A tile of queries of one CTA: its first row among the ``q_len`` rows of its sequence, its head among those of all
    batches, and the coordinates of the tile in a tensor map. ``first`` is the row of the sequence's first query among
    ``total`` rows of a head."""

    row: Any
    q_len: Any
    head: Any
    place: tuple[Any, ...]
    total: Any
    first: Any = 0

    @staticmethod
    def of_grid(total: Any, rows: int, packed: Sequence[Any]) -> TileOfQueries:
        """Returns tile ctaid.x of head ctaid.y of batch ctaid.z; a head has ``total`` queries, a tile ``rows``."""
        return TileOfQueries.at(ctaid.x, (ctaid.z, ctaid.y), nctaid.y, total, rows, packed)

    @staticmethod
    def at(
        number: Any, place: tuple[Any, Any], heads: Any, total: Any, rows: int, packed: Sequence[Any]
    ) -> TileOfQueries:
        """Returns a tile of the batch and head ``place``, of ``heads`` in a batch; with ``packed``, the arrays of first
        rows and the number of sequences, a number without a tile is a tile beyond the last row."""
        batch, head = place
        if not packed:
            row = number * rows
            return TileOfQueries(row, total, batch * heads + head, (batch, head, row), total)
        cu_q, _, sequences = packed
        index = find_sequence(Global(u32, cu_q), sequences, total, rows, number)
        first, stop = rows_of(Global(u32, cu_q), index, total)
        length, row = stop - first, (number - (first // rows + index)) * rows
        row = select(row < length, row, length)
        return TileOfQueries(row, length, head, (RAGGED_ROWS, stop, head, RAGGED_ROWS - length + row), total, first)

    def lse_at(self, thread: Any) -> Any:
        """Returns the index of a query's log-sum-exp."""
        return self.head * self.total + self.first + self.row + thread


@dataclass(frozen=True)
class Extent:
    """The queries and keys of a CTA or a cluster for a block of keys from row ``key`` on. Query i sees the keys from
    ``begin`` + i up to ``end`` + i; ``first_tile`` is the number of the first tile of queries among those of a head.

    ``stops`` are the ends of the queries and of the keys of a packed sequence, None for a dense batch.
    """

    q_len: Any
    kv_len: Any
    begin: Any
    end: Any
    key: Any
    batch: Any
    first_tile: Any = 0
    stops: tuple[Any, Any] | None = None

    @staticmethod
    def of_block(
        block: Any,
        batch: Any,
        lengths: tuple[Expr, Expr],
        begin: Expr,
        end: Expr,
        tile: tuple[int, int],
        packed: Sequence[Any],
    ) -> Extent:
        """Returns the extent of a block of keys of a batch. With ``packed``, the arrays of first rows and the number of
        sequences, ``lengths`` are those of all sequences, and the bounds those of a query at key 0."""
        queries, keys = tile
        if not packed:
            return Extent(*lengths, begin, end, block * keys, batch)
        *starts, sequences = packed
        cu_q: Global[Any]
        cu_k: Global[Any]
        cu_q, cu_k = (Global(u32, each) for each in starts)
        index = find_sequence(cu_k, sequences, lengths[1], keys, block)
        first_query, stop_query = rows_of(cu_q, index, lengths[0])
        first_key, stop_key = rows_of(cu_k, index, lengths[1])
        q_len, kv_len = stop_query - first_query, stop_key - first_key
        apart, key = kv_len.to(s32) - q_len.to(s32), (block - (first_key // keys + index)) * keys
        first_tile, stops = first_query // queries + index, (stop_query, stop_key)
        return Extent(q_len, kv_len, begin + apart, end + apart, key, 0, first_tile, stops)

    @property
    def masked_len(self) -> Any:
        """The number of queries for a mask: at least one, because the CTA takes at least one tile of queries."""
        return self.q_len if self.stops is None else max(self.q_len, 1)

    @property
    def exists(self) -> Any:
        """Whether the CTA has keys (pred): there are more numbers than blocks of packed sequences."""
        return True if self.stops is None else self.key < self.kv_len

    def queries_at(self, head: Any, row: Any) -> tuple[Any, ...]:
        """Returns the coordinates of a row of queries in a tensor map."""
        if self.stops is None:
            return self.batch, head, row
        return RAGGED_ROWS, self.stops[0], head, RAGGED_ROWS - self.q_len + row

    def keys_at(self, head: Any, row: Any) -> tuple[Any, ...]:
        """Returns the coordinates of a row of keys in a tensor map."""
        if self.stops is None:
            return self.batch, head, row
        return RAGGED_ROWS, self.stops[1], head, RAGGED_ROWS - self.kv_len + row


@dataclass(frozen=True)
class QueryTiles:
    """A cursor over ``count`` tiles of queries from ``first`` on, which wraps around; ``tile`` is the current one. With
    ``rotated``, a block's number and the number of blocks, each block begins at another tile."""

    first: Any
    count: Any
    rotated: tuple[Any, Any] | None = None
    tile: Any = None

    def begin(self) -> QueryTiles:
        """Returns a cursor at the start."""
        start = self.first
        if self.rotated is not None:
            block, blocks = self.rotated
            start = start + self.count * block // blocks
        return replace(self, tile=var(u32, start))

    def total(self, group: Any) -> Any:
        """Returns the number of tiles of ``group`` heads."""
        return group * self.count

    def enter(self, number: Any) -> None:
        """Go to the next head of a group: its tiles are those of the head before."""

    def tile_and_cut(self) -> tuple[Any, Any]:
        """Returns the current tile, and whether a mask function cuts it, u32: none does."""
        return self.tile, 0

    def advance(self) -> None:
        """Advance to the next tile, from the last one to the first."""
        last = self.first + self.count - 1
        self.tile.set(select(self.tile == last, self.first, self.tile + 1))
