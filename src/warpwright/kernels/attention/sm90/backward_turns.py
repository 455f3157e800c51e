"""The order in which the CTAs of a head add to the sums of dQ, where the sums have the same bits in every run.

A CTA adds to a tile of queries after the CTA of a neighbouring block of keys: of the block before its own, or with
``ascending`` of the block after it. Block j sees tiles f(j) to l(j), and neither f nor l falls with j. So if all CTAs
walk their tiles from the last one to the first, block j comes to a tile after no fewer steps than block j - 1; if they
walk from the first to the last, after no fewer than block j + 1, and after more where f rises. A CTA waits for its
neighbour no longer than one handover, if it did not begin earlier, and not at all where f rises. The blocks that see a
tile are consecutive, for the same reason: all that come before in the order have added if the neighbour has.

The walk is free of deadlock whatever the number of CTAs that run at a time. The GPU starts CTAs in the order of their
numbers, and `BlockOfKeys` gives a block of a head a greater number than its neighbour. A CTA then waits for CTAs of
smaller numbers only: here for the neighbour, in `Progress` for heads at least ``width`` before its own, all of whose
CTAs have smaller numbers. The CTA of the smallest number among those that have not ended runs, and what it waits for
has happened. A CTA that has ended has counted all its tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from warpwright.kernels.attention.sm90.backward_extent import QueryTiles
from warpwright.kernels.attention.sm90.backward_plan import BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import QueryMask
from warpwright.lang import Break, Expr, Global, Pointer, Var, ctaid, ld, loop, max, min, nctaid, red, select, u32, var

__all__ = ["Turns", "block_of", "tiles_of"]

NO_TILE = 1 << 31  # above the number of any tile


class BlockOfGrid:
    """The block of keys ctaid.x of head ctaid.y of K of batch ctaid.z."""

    number = property(lambda self: ctaid.x)
    head = property(lambda self: ctaid.y)
    batch = property(lambda self: ctaid.z)


@dataclass(frozen=True)
class BlockOfKeys:
    """The block of keys of a CTA: its number among those of a head of K, its head of K among those of a batch, and its
    batch."""

    number: Any
    head: Any
    batch: Any

    @staticmethod
    def descending() -> BlockOfKeys:
        """Returns the block of this CTA's number if those of a head begin with the last one."""
        return BlockOfKeys(nctaid.x - 1 - ctaid.x, ctaid.y, ctaid.z)

    @staticmethod
    def interleaved(width: Expr) -> BlockOfKeys:
        """Returns the block of this CTA's number if ``width`` heads take turns, block by block."""
        number = (ctaid.z * nctaid.y + ctaid.y) * nctaid.x + ctaid.x
        first = number // (width * nctaid.x) * width
        number, wide = number - first * nctaid.x, min(width, nctaid.y * nctaid.z - first)
        head = first + number % wide
        return BlockOfKeys(number // wide, head % nctaid.y, head // nctaid.y)


def block_of(config: BackwardConfig, more: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Returns the block of keys of this CTA, and the parameters ``more`` without those of an ordered configuration."""
    if config.ordered:
        return BlockOfKeys.descending() if config.ascending else BlockOfKeys.interleaved(more[0]), more[1:]
    return BlockOfGrid(), more


class DescendingTiles(QueryTiles):
    """A cursor over ``count`` tiles of queries from ``first`` on, from the last one to the first."""

    def begin(self) -> DescendingTiles:
        """Returns a cursor at the last tile."""
        return replace(self, tile=var(u32, self.first + self.count - 1))

    def advance(self) -> None:
        """Advance to the tile before, from the first one to the last."""
        self.tile.set(select(self.tile == self.first, self.first + self.count, self.tile) - 1)


def tiles_of(config: BackwardConfig, mask: QueryMask, key: Any, block: Any, blocks: Any) -> Any:
    """Returns a cursor over the tiles of queries that see keys of ``block``, the one from ``key`` on of ``blocks``."""
    first, count = mask.tiles(key)
    if config.ordered and not config.ascending:
        return DescendingTiles(first, count)
    return QueryTiles(first, count, (block.number, blocks) if config.rotated else None)


@dataclass(frozen=True)
class Turns:
    """The turns of a CTA: ``counter`` counts the tiles to which it has added, ``before`` those of the block that adds
    before its own, which has ``count`` tiles in each head. With ``ascending`` these are the tiles from ``edge`` on,
    else those below ``edge``. ``seen`` is what this thread knows of ``before``."""

    counter: Pointer[u32]
    before: Pointer[u32]
    edge: Any
    count: Any
    ascending: bool
    seen: Var

    @staticmethod
    def of(
        config: BackwardConfig, progress: Expr, place: tuple[Any, Any, Any], mask: QueryMask, key: Any
    ) -> Turns | None:
        """Returns the turns of a block of keys from ``key`` on, None without an order; ``place``: its head among those
        of K of all batches, the blocks of a head, and its number among them. The counters are after the two words of
        each head of K."""
        if not config.ordered:
            return None
        head, blocks, block = place
        counters, keys = Global[Any](u32, progress) + 2 * nctaid.y * nctaid.z, mask.tile[1]
        counter = counters + (head * blocks + block)
        if config.ascending:
            there = key + keys < mask.kv_len
            first, count = mask.tiles(select(there, key + keys, key))
            return Turns(counter, counter + 1, select(there, first, NO_TILE), count, True, var(u32, 0))
        first, count = mask.tiles(max(key, keys) - keys)
        return Turns(counter, counter - 1, select(key == 0, 0, first + count), count, False, var(u32, 0))

    def wait(self, number: Any, tile: Any) -> None:
        """Wait until the block before has added to ``tile`` of head ``number`` of the group; this thread acquires it.

        The counts of a block before are known for all its tiles: most waits load nothing.
        """
        shared, steps = tile < self.edge, self.edge - tile
        if self.ascending:
            shared, steps = tile >= self.edge, tile + 1 - self.edge
        needed = select(shared, number * self.count + steps, 0)
        for _ in loop():
            Break(when=self.seen >= needed)
            self.seen.set(ld(self.before, sem="acquire", scope="gpu"))

    def count_tile(self) -> None:
        """Count a tile. Issued by the thread whose adds to the tile are complete: it releases them."""
        red.add(self.counter, 1, sem="release", scope="gpu")
