"""Stores of the Hopper GEMM: a warpgroup's sums through blocks of shared memory to D, at once or a tile later.

Each warp stores 16 rows to a block of 128 bytes a row, from which TMA stores. With two blocks it writes one while TMA
reads the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from warpwright.kernels.gemm.epilogue import Finish
from warpwright.kernels.gemm.sm90.configs import STORES, STRIP
from warpwright.kernels.tiles import (
    PACKED,
    ROW_BYTES,
    WARP_ROWS,
    WARPS,
    pack_neighbours,
    part,
    store_packed_rows,
    store_rows_to_smem,
)
from warpwright.lang import Expr, If, fence, loop, min, smem, tma, u32, var, warp
from warpwright.lang.fragment import Fragment
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["DelayedTile", "store_strip", "unchanged"]

PACE = 2  # k-blocks from one block of a delayed tile to the next


def store_strip(
    acc: Fragment,
    d: tma.Map[Scalar] | tma.PeerMaps[Scalar],
    blocks: Tile,
    own: Expr,
    matrix: tuple[Expr, ...],
    row: Expr,
    col: Expr,
    stores: Expr,
    finish: Finish,
    matrices: bool,
    rest: tma.Map[Scalar] | None = None,
    each: int = STORES,
    at_once: int = ROW_BYTES,
) -> None:
    """A strip to D after ``finish``. ``own`` numbers the storing warps, which have ``each`` so many blocks. A last
    block of fewer columns than the others is stored by ``rest``, a tensor map of D with such a box. ``at_once`` columns
    are finished together: fewer than a block where registers are few."""
    columns = blocks.shape[1]
    lefts = range(0, acc.shape[1], columns)
    for number, left in enumerate(lefts):
        block, to, width = block_of(blocks, own, number, each), d, min(columns, acc.shape[1] - left)
        if width < columns and rest is not None:
            block, to = smem.tile(blocks.dtype, (WARP_ROWS, width)).placed(*block.place.known()), rest
        values = finish(acc.regs[left // 2 : (left + min(at_once, width)) // 2], col + left)
        with stored_block(block, to, (*matrix, row, col), left, own, unread(number, len(lefts), each), stores):
            for start in range(0, width, at_once):
                begin, end = left + start, left + min(start + at_once, width)
                values = finish(acc.regs[begin // 2 : end // 2], col + begin) if start else values
                store_rows_to_smem(block, values, matrices and blocks.dtype in PACKED, first=start)


class DelayedTile:
    """The tile of a warpgroup as registers of two 16-bit elements, to be stored while the next one is multiplied.

    The sums' own registers are free after `keep`. A new one keeps nothing.
    """

    def __init__(self, sums: list[Fragment], blocks: Tile, coordinates: int) -> None:
        self.blocks = blocks
        self.words = [[var(u32, 0) for _ in range(len(acc.regs) // 2)] for acc in sums]
        self.corner = [var(u32, 0) for _ in range(coordinates)]
        self.kept = var(u32, 0)

    def keep(self, sums: list[Fragment], corner: tuple[Expr, ...], finish: Finish) -> None:
        """Round the sums after ``finish``. ``corner`` is the place of the first strip in D."""
        columns, col = self.blocks.shape[1], corner[-1]
        for words, acc in zip(self.words, sums, strict=True):
            for left in range(0, acc.shape[1], columns):
                values = finish(acc.regs[left // 2 : (left + columns) // 2], col + left)
                for word, value in zip(words[left // 4 :], pack_neighbours(values, self.blocks.dtype), strict=False):
                    word.set(value.bitcast(u32))
        for place, value in zip(self.corner, corner, strict=True):
            place.set(value)
        self.kept.set(1)

    def store(self, d: tma.Map[Scalar], own: Expr, stores: Expr) -> None:
        """Store the kept tile to D, if there is one. ``own`` numbers the storing warps."""
        with If(self.kept != 0):
            self.kept.set(0)
            for store_block in self._blocks(d, own, stores):
                store_block()

    def store_due(self, d: tma.Map[Scalar], own: Expr, stores: Expr, k: Expr, start: Any, stop: Expr) -> None:
        """Store the block of the kept tile that is due after k-block ``k`` of the next one, ``start`` to ``stop`` - 1.

        A block is due every `PACE` k-blocks from the second one on, and those that are left after the last k-block.
        TMA reads the blocks of eight warps in 512 cycles, and a k-block of 128 × 256 takes 1024: all blocks at once
        would take longer than the wgmmas in flight.
        """
        with If(self.kept != 0):
            for number, store_block in enumerate(self._blocks(d, own, stores)):
                due = min(start + 1 + PACE * number, stop - 1)
                with If(k == due):
                    store_block()
            with If(k == due):
                self.kept.set(0)

    def _blocks(self, d: tma.Map[Scalar], own: Expr, stores: Expr) -> Iterator[Callable[[], None]]:
        """Yields the store of each block of the kept tile, in order."""
        pairs = self.blocks.shape[1] // 4  # of a block in a thread
        for i, words in enumerate(self.words):
            count = len(words) // pairs
            for number in range(count):
                block = [[word] for word in words[number * pairs : (number + 1) * pairs]]
                yield partial(self._store_block, block, i * STRIP, number, count, d, own, stores)

    def _store_block(
        self, words: list[list[Any]], top: int, number: int, count: int, d: tma.Map[Scalar], own: Expr, stores: Expr
    ) -> None:
        *matrix, row, col = self.corner
        block, corner = block_of(self.blocks, own, number), (*matrix, row + top, col)
        with stored_block(block, d, corner, number * self.blocks.shape[1], own, unread(number, count), stores):
            store_packed_rows(block, words, warp.lane, True)


def block_of(blocks: Tile, own: Expr, number: int, each: int = STORES) -> Tile:
    """Returns where warp ``own`` writes block ``number`` of a strip: its blocks in turn, from the first one on."""
    return part(blocks, own * each + number % each, WARP_ROWS, "k")


def unread(number: int, count: int, each: int = STORES) -> int:
    """Returns how many of a warp's stores TMA may still have to read before block ``number`` of ``count`` is written.

    After an odd number of blocks the last strip ended with the first of two blocks too: then TMA must have read it.
    """
    return each - 1 if number or count % each == 0 else 0


@contextmanager
def stored_block(
    block: Tile,
    d: tma.Map[Scalar] | tma.PeerMaps[Scalar],
    strip: tuple[Expr, ...],
    left: int,
    own: Expr,
    pending: int,
    stores: Expr,
) -> Iterator[None]:
    """The warp writes ``block`` inside; then TMA stores it to column ``left`` of the strip of D at ``strip``."""
    *matrix, row, col = strip
    with If(stores):  # TMA has read this block's last contents
        tma.wait_group(pending, read=True)
    warp.sync()
    yield
    fence.proxy_async()
    warp.sync()
    with If(stores):
        for each in maps(d):
            tma.store(each[(*matrix, row + own % WARPS * WARP_ROWS, col + left)], block)
        tma.commit_group()


def maps(d: tma.Map[Scalar] | tma.PeerMaps[Scalar]) -> Iterator[tma.Map[Scalar]]:
    """Yields the tensor map of D, or those of all ranks, this rank's last."""
    if isinstance(d, tma.PeerMaps):
        for step in loop(1, d.ranks + 1):
            yield d[(d.rank + step) % d.ranks]
    else:
        yield d


def unchanged(sums: list[Any], column: Any) -> list[Any]:
    """The epilogue that changes nothing."""
    return sums
