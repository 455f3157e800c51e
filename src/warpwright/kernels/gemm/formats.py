"""Block-scaled number formats: element type, type of the scale factors, and elements of K that share a scale factor."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.types import Scalar, e2m1x2, e4m3, e5m2, ue4m3, ue8m0

__all__ = ["FORMATS", "Format"]

INSTRUCTION_BYTES = 32  # of K
TILE_BLOCKS = 4  # scale factors of a row in a tile of 512 bytes


@dataclass(frozen=True, slots=True)
class Format:
    """A block-scaled format.

    dtype  element type; `e2m1x2` is a byte with two elements
    scale  type of the scale factors: ue8m0, a power of two, or ue4m3
    block  elements of K that share a scale factor
    """

    name: str
    dtype: type[Scalar]
    scale: type[Scalar]
    block: int

    @property
    def packed(self) -> int:
        """Elements in a byte."""
        return 2 if self.dtype is e2m1x2 else 1

    @property
    def count(self) -> int:
        """Scale factors of a row that one MMA uses. A k-block of 128 bytes has four MMAs, so it has as many tiles."""
        return INSTRUCTION_BYTES * self.packed // self.block

    @property
    def step(self) -> int:
        """The unit of K: whole blocks whose rows are multiples of 16 bytes."""
        return max(self.block, 16 * self.packed)


FORMATS = {
    each.name: each
    for each in (
        Format("mxfp8", e4m3, ue8m0, 32),
        Format("mxfp8_e5m2", e5m2, ue8m0, 32),
        Format("mxfp4", e2m1x2, ue8m0, 32),
        Format("nvfp4", e2m1x2, ue4m3, 16),
    )
}
