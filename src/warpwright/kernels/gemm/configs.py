"""The Blackwell GEMM ladder as data: one configuration a level, each a small change to the one before it."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.errors import UsageError

__all__ = ["CLUSTER", "LEVELS", "GemmConfig", "config_of"]

CLUSTER = 2
CONTROL_BYTES = 1024
ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """One level of D = A·Bᵀ on a pair of CTAs.

    ``tile`` is (M, N, K) of one CTA's output and k-block, in elements; a stage of the ring holds tile_m × tile_k of A
    and tile_n/2 × tile_k of B in each CTA. ``writers`` is how many CTAs of the pair store the tile.
    """

    level: int
    stages: int
    writers: int
    summary: str
    tile: tuple[int, int, int] = (128, 128, 64)
    threads: int = 128

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage in one CTA, bytes."""
        m, n, k = self.tile
        return (m + n // CLUSTER) * k * ELEMENT_BYTES

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of one CTA, bytes: 1024 for the barriers, then the stages."""
        return CONTROL_BYTES + self.stages * self.stage_bytes

    @property
    def tmem_columns(self) -> int:
        """Columns of tensor memory allocated in each CTA."""
        return self.tile[1]


LEVELS = {
    level.level: level
    for level in (
        GemmConfig(1, stages=1, writers=2, summary="correct baseline: cta_group::2, a cluster sync in every k-block"),
        GemmConfig(2, stages=2, writers=1, summary="full and empty barriers in one loop; the leader stores"),
        GemmConfig(3, stages=8, writers=1, summary="separate load and mma roles, an eight-stage ring"),
    )
}


def config_of(level: int) -> GemmConfig:
    """The configuration of ``level``. Raises UsageError for a level that does not exist."""
    found = LEVELS.get(level)
    if found is None:
        raise UsageError(
            f"given level {level}; expected one of {', '.join(map(str, LEVELS))}; choose an existing level"
        )
    return found
