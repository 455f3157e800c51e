"""Steps of the mma.sync GEMM: the ring, a warp's place in the tile, ldmatrix and mma.sync of a k-block, stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.gemm.epilogue import Finish
from warpwright.kernels.gemm.sm120.configs import BLOCK_BYTES, COLUMNS, ROWS, STORES, Config
from warpwright.kernels.tiles import PACKED, Blocks, atom, part, store_rows_to_smem
from warpwright.lang import Expr, If, Ring, fence, mma, smem, tma, warp
from warpwright.lang.fragment import Fragment
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "Place", "Sums", "clear_sums", "left_fragments", "multiply_block", "operand_ring", "right_fragments",
    "store_blocks", "store_tile", "warp_position",
]  # fmt: skip

K_BYTES = 32  # of K that one mma.sync multiplies
Sums = Sequence[Sequence[Fragment]]  # of each strip of 16 rows, of each 8 columns


@dataclass(frozen=True, slots=True)
class Place:
    """A warp's part of the tile of D: from ``row`` on the first of each of ``strips``, from ``column`` on the first of
    each of ``spans``; a strip has 16 rows, a span 32 columns. ``own`` numbers the multiplying warps.

    Warps interleave, so that the distances of a warp's strips are constants also in panels of 64 rows.
    """

    own: Expr
    row: Expr
    column: Expr
    strips: range
    spans: range


def warp_position(config: Config) -> Place:
    """Returns the part of this warp."""
    down, across = config.warps
    own = warp.id
    row, column = own % down * ROWS, own // down * COLUMNS
    strips, spans = range(0, config.tile[0], down * ROWS), range(0, config.tile[1], across * COLUMNS)
    return Place(own, row, column, strips, spans)


def operand_ring(
    config: Config, arrivals: int, majors: tuple[str, str], dtypes: tuple[type[Scalar], type[Scalar]]
) -> Ring:
    """The ring of A and B: tiles of (rows, K), or (K, rows) for major "mn"; K is 128 bytes."""
    k = atom(dtypes[0])
    shapes = [(rows, k) if major == "k" else (k, rows) for rows, major in zip(config.tile, majors, strict=True)]
    a, b = (smem.tile(dtype, shape, swizzle=128) for dtype, shape in zip(dtypes, shapes, strict=True))
    return Ring(config.stages, full=1, empty=arrivals, name="ab", a=a, b=b)


def store_blocks(config: Config, out: type[Scalar]) -> Tile:
    """Blocks of 16 rows of 64 bytes, two for each multiplying warp."""
    shape = config.consumers * STORES * ROWS, BLOCK_BYTES // out.nbytes
    return smem.tile(out, shape, swizzle=BLOCK_BYTES if config.matrices else 0)


def clear_sums(sums: Sums) -> None:
    """Set every sum to zero."""
    for register in (register for strip in sums for acc in strip for register in acc.regs):
        register.set(0.0)


def multiply_block(sums: Sums, slot: Any, place: Place, majors: tuple[str, str], ahead: bool) -> None:
    """Add the products of a k-block. With ``ahead`` the fragments of the next 32 bytes of K are loaded before those of
    this step are multiplied."""
    lefts, rights = left_fragments(slot.a, place, majors[0]), right_fragments(slot.b, place, majors[1])
    steps = zip(lefts, rights, strict=True)
    waiting = next(steps) if ahead else None
    for loaded in steps:
        multiply(sums, *(waiting or loaded))
        waiting = loaded if ahead else None
    if waiting:
        multiply(sums, *waiting)


def multiply(sums: Sums, lefts: Sequence[Fragment], rights: Sequence[Fragment]) -> None:
    """Add each left operand times each right operand to its sums."""
    for number, right in enumerate(rights):
        for strip, left in zip(sums, lefts, strict=True):
            mma.sync(strip[number], left, right)


def left_fragments(tile: Tile, place: Place, major: str) -> Iterator[list[Fragment]]:
    """Loads the left operands of each 32 bytes of K, one a strip. A register has rows 0-7 or 8-15, alternately."""
    lane, k_of_step = warp.lane, K_BYTES // tile.dtype.nbytes
    if major == "k":
        blocks = Blocks(tile, place.row + lane % 16, lane // 16)
    else:
        blocks = Blocks(tile, lane % 8 + lane // 16 * 8, lane // 8 % 2 + place.row // 8)
    for k in range(0, atom(tile.dtype), k_of_step):
        loaded = [blocks.load(at, k) if major == "k" else blocks.load(k, at, trans=True) for at in place.strips]
        yield [mma.left(tile.dtype, registers) for registers in loaded]


def right_fragments(tile: Tile, place: Place, major: str) -> Iterator[list[Fragment]]:
    """Loads the right operands of each 32 bytes of K, four a span. Two registers are one operand, of eight columns."""
    lane, k_of_step = warp.lane, K_BYTES // tile.dtype.nbytes
    if major == "k":
        blocks = Blocks(tile, place.column + lane % 8 + lane // 16 * 8, lane // 8 % 2)
    else:
        inner, panel = place.column % atom(tile.dtype), place.column // atom(tile.dtype)
        blocks = Blocks(tile, lane % 16, lane // 16 + inner // 8, panel)
    for k in range(0, atom(tile.dtype), k_of_step):
        columns = [span + half for span in place.spans for half in (0, COLUMNS // 2)]
        loaded = [blocks.load(at, k) if major == "k" else blocks.load(k, at, trans=True) for at in columns]
        yield [mma.right(tile.dtype, registers[i : i + 2]) for registers in loaded for i in (0, 2)]


def store_tile(
    sums: Sums,
    d: tma.Map[Scalar],
    blocks: Tile,
    place: Place,
    matrix: tuple[Expr, ...],
    row: Expr,
    col: Expr,
    leader: Expr,
    finish: Finish,
    matrices: bool,
) -> None:
    """This warp's sums to D after ``finish``: block by block to shared memory, from which TMA stores.

    A warp has two blocks: it writes one while TMA reads the other. A tile starts with the first block. After an odd
    number of blocks the last tile ended with that block too: then TMA must have read it.
    """
    columns, number = blocks.shape[1], 0
    odd = len(place.strips) * len(place.spans) * (COLUMNS // columns) % STORES
    for top, strip in zip(place.strips, sums, strict=True):
        regs = [register for acc in strip for register in acc.regs]
        for first, span in zip(range(0, len(regs), COLUMNS // 2), place.spans, strict=True):
            for left in range(0, COLUMNS, columns):
                block = part(blocks, place.own * STORES + number % STORES, ROWS, "k")
                own = regs[first + left // 2 : first + (left + columns) // 2]
                values = finish(own, col + place.column + (span + left))
                with If(leader):  # TMA has read this block's last contents
                    tma.wait_group(STORES - 1 if number or not odd else 0, read=True)
                warp.sync()
                store_rows_to_smem(block, values, matrices and blocks.dtype in PACKED)
                fence.proxy_async()
                warp.sync()
                with If(leader):
                    tma.store(d[(*matrix, row + place.row + top, col + place.column + (span + left))], block)
                    tma.commit_group()
                number += 1
