"""The steps of the GEMM whose clusters add their slices of K: halves of a tile, pieces of it in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.gemm.sm100.steps import add_words, columns_from, store_column
from warpwright.kernels.gemm.sm100.tilings import LANES, Tiling
from warpwright.kernels.tiles import WGMMA_BYTES, part, window
from warpwright.lang import Expr, Global, If, clusterid, fence, ld, mbarrier, st, tcgen05, tid, tma, tmem, warp
from warpwright.lang.smem import Tile

__all__ = ["Pieces", "barrier_at", "load_sums", "multiply_half", "store_block", "store_words"]

WARP_SIZE = 32
MBARRIER_BYTES = 8


def multiply_half(acc: tmem.TmemTile, slot: Any, side: Any, more: Expr, majors: tuple[str, str], ctas: int = 1) -> None:
    """`multiply_block` with half of each CTA's rows of B, the upper ones if ``side`` is 0."""
    half = part(slot.b, side, acc.shape[1] // ctas, majors[1])
    for kk in range(0, slot.a.shape[1 if majors[0] == "k" else 0], WGMMA_BYTES // slot.a.dtype.nbytes):
        left, right = window(slot.a, kk, majors[0]), window(half, kk, majors[1])
        tcgen05.mma(acc, left, right, accumulate=True if kk else more, cta_group=ctas)


def load_sums(accumulators: Sequence[tmem.TmemTile], first: Any, count: int) -> list[Expr]:
    """Wait for and return the sums of a lane's ``count`` columns from ``first`` on, of all ``accumulators``."""
    loaded = [tcgen05.ld(columns_from(each, first, count)) for each in accumulators]
    tcgen05.wait_ld()
    return add_words(loaded[0], loaded[1:])


def store_words(place: Global[Any], words: list[Expr]) -> None:
    """Store a lane's ``words`` to device memory, 16 bytes at a time; those of a warp's lanes are side by side."""
    for i in range(0, len(words), 4):
        st(place + (i * WARP_SIZE + warp.lane * 4), *words[i : i + 4])


def load_words(place: Global[Any], count: int) -> list[Expr]:
    """Returns the ``count`` words of this lane that `store_words` stored at ``place``."""
    return [word for i in range(0, count, 4) for word in ld(place + (i * WARP_SIZE + warp.lane * 4), vec=4)]


def barrier_at(barriers: Sequence[mbarrier], index: Any) -> mbarrier:
    """Returns the mbarrier of an array at a run-time index."""
    first = barriers[0]
    return mbarrier.at_address(first.address + index * MBARRIER_BYTES, 0, first.count, name=first.name)


@dataclass(frozen=True)
class Pieces:
    """The pieces of a cluster's tile: ``config.piece`` columns, of which each slice of K owns some.

    ``parts`` has the partial sums of each CTA, (columns, 128) float32, piece by piece. ``number`` is this CTA's slice.
    """

    parts: Global[Any]
    number: Any
    config: Tiling

    def owned(self, number: Any) -> tuple[Any, Any]:
        """Returns the first piece of slice ``number``, and the first one after its pieces."""
        slices, pieces = self.config.slices, self.config.pieces
        return (number * pieces + (slices - 1)) // slices, ((number + 1) * pieces + (slices - 1)) // slices

    def owner(self, piece: Any) -> tuple[Any, Any]:
        """Returns the slice that owns a piece, and the number of the piece among those of the slice."""
        owner = piece * self.config.slices // self.config.pieces
        return owner, piece - self.owned(owner)[0]

    def half(self, turn: int) -> Any:
        """Returns the half of the tile that is multiplied first or second; in the second this CTA owns pieces."""
        second = (self.owned(self.number)[1] - 1) // (self.config.pieces // 2)
        return second if turn else second ^ 1

    def place(self, number: Any, piece: Any) -> Any:
        """Returns where this warp's lanes have a piece of the sums of slice ``number``."""
        (_, columns), rows = self.config.tile, self.config.piece
        cta, own = clusterid.x * self.config.slices + number, tid.x % LANES // WARP_SIZE * WARP_SIZE
        return self.parts + (cta * (columns * LANES) + (piece * LANES + own) * rows)

    def load_others(self, piece: Any) -> list[list[Expr]]:
        """Returns this lane's words of a piece in every other slice."""
        slices = self.config.slices
        others = [(self.number + distance) % slices for distance in range(1, slices)]
        return [load_words(self.place(other, piece), self.config.piece) for other in others]


def store_block(place: tma.Box, block: Tile, words: list[Expr], one: Expr, *, relu: bool = False) -> None:
    """Store a lane's column to ``block`` (`store_column`); the thread with ``one`` stores the block by TMA."""
    store_column(block, words, relu=relu)
    fence.proxy_async()
    warp.sync()
    with If(one):
        tma.store(place, block)
