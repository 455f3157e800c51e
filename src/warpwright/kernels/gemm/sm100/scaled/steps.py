"""The steps of the block-scaled Blackwell GEMMs: loads of scale factors, their copies to tensor memory, the MMAs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpwright.kernels.gemm.formats import Format
from warpwright.kernels.gemm.sm100.configs import LANES
from warpwright.kernels.gemm.sm100.scaled.configs import ROW_BYTES, SCALE_BYTES, Config
from warpwright.kernels.gemm.sm100.steps import load_operand
from warpwright.kernels.tiles import WGMMA_BYTES
from warpwright.lang import Expr, Ring, smem, tcgen05, tma, tmem
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["Factors", "claim_factors", "load_stage", "multiply_scaled", "operand_ring"]

QUARTER = 32  # lanes of tensor memory, and rows between its columns of scale factors
CHUNK = 16  # scale factors of a tile in a row of shared memory
TILE_COLUMNS = 4  # of tensor memory that a tile of scale factors takes


@dataclass(frozen=True, slots=True)
class Factors:
    """The scale factors in tensor memory of one k-block: ``a`` of this CTA's rows of A, ``b`` of all rows of B.

    Tiles of ``b`` that belong to the same blocks of K are side by side, ``rows`` of them.
    """

    a: tmem.TmemTile
    b: tmem.TmemTile
    rows: int


def operand_ring(config: Config, formats: tuple[Format, Format]) -> Ring:
    """Returns the ring of A, B and their scale factors: of the rows of A of this CTA, of the rows of B of the pair."""
    (a, b), (tile_m, tile_n) = formats, config.tile
    lines = a.count * SCALE_BYTES // ROW_BYTES
    return Ring(
        config.stages_for(a),
        full=1,
        empty=1,
        name="ab",
        a=smem.tile(a.dtype, (tile_m, ROW_BYTES), swizzle=128),
        b=smem.tile(b.dtype, (tile_n // config.ctas, ROW_BYTES), swizzle=128),
        sfa=smem.tile(a.scale, (1, lines, ROW_BYTES)),
        sfb=smem.tile(b.scale, (config.scale_rows, lines, ROW_BYTES)),
    )


def claim_factors(config: Config, format: Format) -> Factors:
    """Claim tensor memory for the scale factors of one k-block."""
    scale, count, rows = format.scale, format.count, config.scale_rows
    a, b = (tmem.scales(scale, each * count * LANES, cta_group=config.ctas) for each in (1, rows))
    return Factors(a, b, rows)


def load_stage(
    slot: Any, maps: tuple[tma.Map[Scalar], ...], row: Any, col: Any, half: Any, step: Expr, full: Any, ctas: int
) -> None:
    """Load A, B and their scale factors of k-block ``step``: A from ``row`` on, this CTA's part of B from ``col`` on.

    The tensor map of scale factors has a tile of 128 rows and four blocks of K as 4 lines of 128 bytes.
    """
    a, b, sfa, sfb = maps
    load_operand(slot.a, a, "k", (), row, step * ROW_BYTES, full, ctas)
    load_operand(slot.b, b, "k", (), col + half * slot.b.shape[0], step * ROW_BYTES, full, ctas)
    for tile, source, first in ((slot.sfa, sfa, row), (slot.sfb, sfb, col)):
        corner = source[first // LANES, step * tile.shape[1], 0]
        tma.load(tile, corner, full, cta_group=ctas if ctas > 1 else None)


def multiply_scaled(
    acc: tmem.TmemTile,
    slot: Any,
    factors: Factors,
    col: Any,
    more: Any,
    format: Format,
    ctas: int,
) -> None:
    """Copy the scale factors of a slot to tensor memory and issue its four MMAs.

    Without ``more`` the first MMA overwrites ``acc``. A copy does not wait for the MMAs before it, which read the scale
    factors that it overwrites: the tensor core executes copies and MMAs of a thread in order.
    """
    count = format.count
    for number in range(count):
        tcgen05.cp_scales(_scales(factors.a, number, 1), _tile(slot.sfa, number), cta_group=ctas)
    for number in range(count * factors.rows):
        block, row = divmod(number, factors.rows)
        tcgen05.cp_scales(_scales(factors.b, number, 1), _tile(slot.sfb, row * count + block), cta_group=ctas)
    for step, left in enumerate(range(0, ROW_BYTES, WGMMA_BYTES)):
        inside, (block, first) = slice(left, left + WGMMA_BYTES), divmod(step * count, TILE_COLUMNS)
        scale_a, scale_b = _scales(factors.a, block, 1), _rows_of_b(factors, block, col, acc.shape[1])
        tcgen05.mma_block_scale(
            acc, slot.a[:, inside], slot.b[:, inside], scale_a, scale_b,
            accumulate=True if step else more, block=format.block, first=first, cta_group=ctas,
        )  # fmt: skip


def _scales(factors: tmem.TmemTile, number: int, count: int) -> tmem.TmemTile:
    """Returns ``count`` tiles of scale factors in tensor memory, from tile ``number`` on."""
    return factors[:, CHUNK * number : CHUNK * (number + count)]


def _tile(scales: Tile, number: int) -> Tile:
    """Returns tile ``number`` of scale factors in shared memory as rows of 16 bytes, the source of a copy."""
    base, start = scales.place.known()
    return smem.tile(scales.dtype, (QUARTER, CHUNK)).placed(base, start + number * SCALE_BYTES)


def _rows_of_b(factors: Factors, block: int, col: Any, columns: int) -> tmem.TmemTile:
    """Returns the scale factors of the tile's rows of B, which begin at a multiple of 32 rows within a tile of 128."""
    tiles = _scales(factors.b, block * factors.rows, factors.rows)
    if columns % LANES == 0:
        return tiles
    return tiles[:, : TILE_COLUMNS * (columns // QUARTER)].at_shift(col % LANES // QUARTER)
