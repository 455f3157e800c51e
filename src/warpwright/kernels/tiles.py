"""Parts, windows and packing of tiles, shared by the kernels of every family."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warpwright.lang import Expr, Shared, b16, bf16, bf16x2, f16, f16x2, ldmatrix, pack, st, stmatrix, u16, warp
from warpwright.lang.fragment import Fragment
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "CHUNK_BYTES",
    "PACKED",
    "ROW_BYTES",
    "SWIZZLE_ROWS",
    "WARPS",
    "WARP_ROWS",
    "WGMMA_BYTES",
    "Blocks",
    "atom",
    "clear",
    "pack_neighbours",
    "part",
    "shift_mask",
    "store_packed_rows",
    "store_rows_to_smem",
    "strip_of",
    "window",
]

WARPS = 4  # of a warpgroup, and of an epilogue
WARP_ROWS = 16  # rows of a wgmma accumulator that one warp holds
ROW_BYTES = 128  # of a tile with the 128-byte swizzle
WGMMA_BYTES = 32  # of K that one wgmma multiplies
CHUNK_BYTES = 16
SWIZZLE_ROWS = 8
PACKED = {bf16: bf16x2, f16: f16x2}


def atom(dtype: type[Scalar]) -> int:
    """Returns the elements in a row of 128 bytes, the smallest K of a stage."""
    return ROW_BYTES // dtype.nbytes


def part(tile: Tile, index: Any, rows: int, major: str) -> Tile:
    """Returns block ``index`` of ``rows`` rows of an operand; ``index`` may be a run-time value."""
    base, start = tile.place.known()
    if major == "k":
        return tile[:rows, :].placed(base + index * (rows * tile.span), start)
    panels = rows * tile.dtype.nbytes // tile.span
    return tile[:, :rows].placed(base + index * (panels * tile.rows * tile.span), start)


def strip_of(tile: Tile, index: Any, rows: int, major: str) -> Tile:
    """`part`, but of a tile of fewer rows than a strip the strip continues into what follows in shared memory.

    That must be another tile of the same stage. The tensor core computes rows of D from it that do not exist.
    """
    if major == "k" and tile.shape[0] < rows:
        return replace(tile, shape=(rows, tile.shape[1]))
    return part(tile, index, rows, major)


def window(tile: Tile, kk: int, major: str) -> Any:
    """Returns the 32 bytes of K, from column ``kk`` on, that one wgmma multiplies."""
    inside = slice(kk, kk + WGMMA_BYTES // tile.dtype.nbytes)
    return tile[:, inside] if major == "k" else tile[inside, :].T


class Blocks:
    """The ldmatrix addresses of this lane in the blocks of 16 rows × 32 bytes of a tile with the 128-byte swizzle.

    ``row`` and ``chunk`` are the row and the 16-byte chunk of this lane's address in the first block of panel ``panel``
    (128 bytes wide). The swizzle permutes chunks within eight rows only, so blocks below and in other panels are at
    constant offsets.
    """

    def __init__(self, tile: Tile, row: Expr, chunk: Expr, panel: Any = 0) -> None:
        base, self.start = tile.place.known()
        self.tile = tile
        lane = row * ROW_BYTES + ((chunk ^ (row % SWIZZLE_ROWS)) * CHUNK_BYTES)
        corner = base + panel * (tile.rows * ROW_BYTES)
        self.places = [corner + (lane ^ step) for step in range(0, ROW_BYTES, 2 * CHUNK_BYTES)]

    def at(self, row: int, column: int) -> Shared[Any]:
        """Returns this lane's address in the block that begins at ``row`` and ``column``, in elements."""
        panel, inner = divmod(column * self.tile.dtype.nbytes, ROW_BYTES)
        below = (panel * self.tile.rows + row) * ROW_BYTES
        return Shared(self.tile.dtype, self.places[inner // (2 * CHUNK_BYTES)], self.start + below)

    def load(self, row: int, column: int, *, trans: bool = False) -> list[Expr]:
        """Load a block; returns four registers, alternately of its upper and lower (``trans``: left and right) half."""
        return ldmatrix(self.at(row, column), 4, trans=trans)


def shift_mask(mask: int, by: Any) -> Any:
    """Returns ``mask << by`` as a mask of CTA ranks; a Python int if ``by`` is one."""
    return (mask << by).to(u16).bitcast(b16) if isinstance(by, Expr) else mask << by


def clear(*sums: Fragment) -> None:
    """Set every register of the accumulators to zero."""
    for register in (register for acc in sums for register in acc.regs):
        register.set(0.0)


def pack_neighbours(words: list[Expr], out: type[Scalar], *, relu: bool = False) -> list[Expr]:
    """Packs neighbouring float32 words into registers of two 16-bit elements, with ``relu`` at least 0; float32 output
    stays as it is."""
    word = PACKED.get(out)
    return [pack(word, *words[i : i + 2], relu=relu) for i in range(0, len(words), 2)] if word else words


def store_rows_to_smem(block: Tile, regs: list[Expr], matrices: bool, *, relu: bool = False, first: int = 0) -> None:
    """Store a warp's 16 rows of accumulators to ``block``, from column ``first`` on: as packed 8 × 8 matrices
    (stmatrix), or pair by pair.

    ``relu`` is applied by the rounding to a block of 16-bit elements.
    """
    lane, word = warp.lane, PACKED.get(block.dtype)
    pairs = [regs[i : i + 2] for i in range(0, len(regs), 2)]
    store_packed_rows(
        block, [[pack(word, *pair, relu=relu)] for pair in pairs] if word else pairs, lane, matrices, first
    )


def store_packed_rows(block: Tile, packed: list[list[Expr]], lane: Expr, matrices: bool, first: int = 0) -> None:
    """`store_rows_to_smem` of pairs of neighbours: each is one register of two 16-bit elements, or two registers."""
    for start in range(0, len(packed), 4):
        column = first + 4 * start
        if matrices:
            corner = block.at(lane % WARP_ROWS, lane // WARP_ROWS * 8 + column)
            stmatrix(corner, [each for (each,) in packed[start : start + 4]])
            continue
        for i, values in enumerate(packed[start : start + 4]):
            corner = block.at(lane // 4 + i % 2 * 8, lane % 4 * 2 + column + i // 2 * 8)
            st(corner.cast(values[0].type), *values)
