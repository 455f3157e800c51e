"""The ladder of the block-scaled Blackwell GEMM as data: one configuration a level, and the configuration of a problem.

`warpwright.kernels.gemm.sm100.scaled.kernel_of` returns the kernel of a configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from warpwright.errors import UsageError
from warpwright.kernels.gemm.formats import Format
from warpwright.kernels.gemm.sm100.configs import CONTROL_BYTES, LANES
from warpwright.kernels.gemm.sm100.tilings import MMA_LEAST, STORE_BYTES
from warpwright.targets import arch

__all__ = ["LEVELS", "TILINGS", "Config", "choose", "config_of", "grid_of"]

ROW_BYTES = 128  # of K in a stage
SCALE_BYTES = 512  # of a tile of scale factors
STAGE_ALIGNMENT = 1024
OUT_BYTES = 2  # of an element of D


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of the block-scaled GEMM.

    kernel       name of the kernel: "loop" or "roles"
    tile         rows of A in one CTA, always 128, and rows of B of all ``ctas``
    ctas         CTAs that multiply together: a pair shares the rows of B, each CTA has rows of A of its own
    stages       stages of the ring of A, B and their scale factors at most; `stages_for` has those that fit
    accumulators accumulators in tensor memory
    pitch        columns from one accumulator to the next; fewer than a tile has: two accumulators share columns
    boxes        blocks of the epilogue in each warp
    group        rows of tiles in a group of the rasterization of persistent clusters; 0: a cluster for each tile
    scheduler    "static": cluster i takes tiles i, i + clusters, …; "clc", cluster launch control
    quantizes    the epilogue quantizes D: scale factors of its blocks, elements and scale factors stored
    """

    summary: str = ""
    kernel: str = "roles"
    tile: tuple[int, int] = (128, 256)
    ctas: int = 2
    stages: int = 5
    accumulators: int = 1
    pitch: int = 0
    boxes: int = 2
    group: int = 0
    scheduler: str = "static"
    quantizes: bool = False

    @property
    def cluster(self) -> int:
        """CTAs in a cluster."""
        return self.ctas

    @property
    def threads(self) -> int:
        """Threads of a CTA: with roles, four warps for loads, MMAs and scheduling, and four for the epilogue."""
        return LANES if self.kernel == "loop" else 2 * LANES

    @property
    def shared(self) -> bool:
        """Whether two accumulators share columns of tensor memory."""
        return 0 < self.pitch < self.tile[1]

    @property
    def area(self) -> tuple[int, int]:
        """Rows and columns of a cluster's tile of D."""
        return self.tile[0] * self.ctas, self.tile[1]

    @property
    def scale_rows(self) -> int:
        """Tiles of 128 rows of scale factors that a tile's rows of B touch at most."""
        return -(-(LANES - gcd(LANES, self.tile[1]) + self.tile[1]) // LANES)

    def stage_bytes(self, format: Format) -> int:
        """Shared memory of one stage in one CTA, bytes."""
        operands = (self.tile[0] + self.tile[1] // self.ctas) * ROW_BYTES
        scales = (1 + self.scale_rows) * format.count * SCALE_BYTES
        return -(-(operands + scales) // STAGE_ALIGNMENT) * STAGE_ALIGNMENT

    def stages_for(self, format: Format) -> int:
        """Stages that fit into shared memory beside the mbarriers and the epilogue's blocks."""
        room = arch("sm_100a").smem_per_block - CONTROL_BYTES - LANES * self.boxes * ROW_BYTES
        return min(self.stages, room // self.stage_bytes(format))


_LOOP = Config(
    "correct baseline: one CTA, one stage; load, copy scale factors, multiply, wait",
    kernel="loop",
    tile=(128, 128),
    ctas=1,
    stages=1,
    boxes=1,
)
_RING = replace(
    _LOOP,
    kernel="roles",
    stages=6,
    boxes=2,
    summary="a warp that loads, a thread that multiplies, a ring of stages between",
)
_PAIR = replace(_RING, tile=(128, 256), ctas=2, summary="pairs of CTAs: 256 × 256 tiles, half of B in each CTA")
_PERSISTENT = replace(_PAIR, group=8, summary="persistent clusters: the next tile is loaded while one is stored")
_OVERLAP = replace(
    _PERSISTENT,
    accumulators=2,
    pitch=192,
    summary="two accumulators share 64 columns: a tile is stored while the next is computed",
)
LEVELS = {
    1: _LOOP,
    2: _RING,
    3: _PAIR,
    4: _PERSISTENT,
    5: _OVERLAP,
    6: replace(
        _OVERLAP, scheduler="clc", summary="cluster launch control: a cluster takes over the next that has not started"
    ),
    7: replace(
        _OVERLAP, quantizes=True, summary="quantizing epilogue: D with its scale factors, ready for the next product"
    ),
}

TILINGS = {
    "128x256 pair": LEVELS[5],
    "128x192 pair": replace(_OVERLAP, tile=(128, 192)),
    "128x128 pair": replace(_OVERLAP, tile=(128, 128), pitch=128, stages=8),
    "128x128": replace(_OVERLAP, tile=(128, 128), ctas=1, pitch=128),
    "128x64": replace(_OVERLAP, tile=(128, 64), ctas=1, pitch=64, stages=8),
}


def config_of(level: int | Config) -> Config:
    """Returns the configuration of ``level``, or ``level`` itself if it is a configuration.

    Raises UsageError for an unknown level.
    """
    found = level if isinstance(level, Config) else LEVELS.get(level)
    if found is None:
        known = ", ".join(map(str, LEVELS))
        raise UsageError(f"given level {level}; expected one of {known}; choose an existing level")
    return found


def clusters_of(config: Config, m: int, n: int) -> tuple[int, int]:
    """Returns the tiles of clusters along M and N."""
    rows, columns = config.area
    return -(-m // rows), -(-n // columns)


def grid_of(config: Config, m: int, n: int, sms: int) -> int:
    """Returns the CTAs: of persistent clusters the fewest with the least rounds, else a cluster for each tile."""
    down, across = clusters_of(config, m, n)
    clusters = down * across
    if config.group == 0 or config.scheduler == "clc":
        return clusters * config.ctas
    rounds = -(-clusters // max(1, sms // config.ctas))
    return -(-clusters // rounds) * config.ctas


def choose(m: int, n: int, k_bytes: int, format: Format, sms: int) -> Config:
    """Returns the configuration of `TILINGS` with the fewest estimated cycles for D (m, n) and rows of ``k_bytes``."""

    def cycles(config: Config) -> float:
        down, across = clusters_of(config, m, n)
        rounds = -(-down * across // max(1, sms // config.ctas))
        (rows, columns), blocks = config.tile, -(-k_bytes // ROW_BYTES)
        shared = 2 * config.stage_bytes(format) / ROW_BYTES  # written by TMA, read by MMAs and copies
        return rounds * blocks * max(4 * max(MMA_LEAST, columns / 2), shared) + rows * columns * OUT_BYTES / STORE_BYTES

    return min(TILINGS.values(), key=cycles)
