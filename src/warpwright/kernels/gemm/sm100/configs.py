"""The Blackwell GEMM ladder as data: one configuration a level, each a small change to the one before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpwright.errors import UsageError

__all__ = ["IMPROVED", "LEVELS", "PAIR", "SMALLER", "SM_FLOPS", "Config", "config_for", "config_of"]

PAIR = 2
LANES = 128
WARPS = 4
CONTROL_BYTES = 1024
ELEMENT_BYTES = 2
SM_FLOPS = 8192  # a cycle, 16-bit operands
SM_BYTES = 128  # a cycle of shared memory


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of the Blackwell GEMM on pairs of CTAs; `ladder.kernel_of` returns its kernel.

    kernel        name of the kernel in `ladder.KERNELS`
    stages        stages of the ring of A and B: tile_m × tile_k of A and tile_n/2 × tile_k of B in each CTA
    writers       CTAs of a pair that store
    tile          (M, N, K) of one CTA's tile of D and of a k-block
    staged        the tile leaves through the memory of the stages, in whole rows
    group         rows of areas (see `area`) in a group of the rasterization of persistent clusters; 0: a cluster for
                  each tile
    dual          each CTA of a pair has a tile of its own; False: both compute the same tile
    published     as published. Levels 1 to 3: a CTA keeps its permit to allocate tensor memory, so an SM runs one CTA
                  at a time, and stores D element by element; False: CTAs share an SM, a store has 16 bytes. Levels 4
                  and 5: rows reach shared memory 8 bytes at a time; False: 16. Level 5: the mbarriers are initialised
                  for each tile; False: their phases continue

    The rest is for the kernel "roles":

    accumulators  tiles in tensor memory: one is stored while the next is computed
    stagger       the two waves of a tile take that part: the first is so many k-blocks ahead at a tile's begin and end
    box           rows and bytes a row of a TMA store; a box of 32 rows belongs to one warp
    boxes         TMA stores in flight
    swizzle       swizzle of the boxes in shared memory
    early         tensor memory is released once it is read; False: once the tile is stored
    columns       columns of tensor memory in one load
    l2_promotion  bytes that a TMA load brings to L2

    Switches:

    merge         k-blocks that share a stage, its mbarrier and its bytes
    share         pairs of a cluster along M (they share B by multicast) and along N (they share A)
    throttle      percent of the time that the tensor cores may work
    scheduler     "static": cluster i takes tiles i, i + clusters, …; "clc", cluster launch control: a cluster takes
                  over the next cluster that has not started
    """

    level: int
    summary: str
    kernel: str = "ring"
    stages: int = 8
    writers: int = 1
    tile: tuple[int, int, int] = (128, 128, 64)
    threads: int = 128
    staged: bool = False
    group: int = 0
    dual: bool = False
    published: bool = False
    accumulators: int = 1
    stagger: int = 0
    box: tuple[int, int] = (0, 0)
    boxes: int = 0
    swizzle: int = 0
    early: bool = False
    columns: int = 32
    l2_promotion: int = 0
    merge: int = 1
    share: tuple[int, int] = (1, 1)
    throttle: int = 100
    scheduler: str = "static"

    @property
    def cluster(self) -> int:
        """CTAs in a cluster."""
        return PAIR * self.share[0] * self.share[1]

    @property
    def area(self) -> tuple[int, int]:
        """Rows and columns of D that a cluster computes at a time."""
        rows = self.tile[0] * (PAIR if self.dual else 1)
        return rows * self.share[0], self.tile[1] * self.share[1]

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage in one CTA, bytes."""
        m, n, k = self.tile
        return (m + n // PAIR) * k * ELEMENT_BYTES

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of one CTA, bytes: 1024 for the mbarriers, the stages, the boxes of the epilogue."""
        return CONTROL_BYTES + self.stages * self.stage_bytes + self.boxes * LANES * self.box[1]

    @property
    def cycles(self) -> float:
        """Cycles of an SM for a k-block: of its tensor core, or of its shared memory (written and read) if more."""
        m, n, k = self.tile
        read = (m + m // LANES * n // PAIR) * k * ELEMENT_BYTES
        return max(2 * m * n * k / SM_FLOPS, (self.stage_bytes + read) / SM_BYTES)

    @property
    def tmem_columns(self) -> int:
        """Columns of tensor memory allocated in each CTA."""
        return self.accumulators * self.tile[0] // LANES * self.tile[1]


_RING = Config(3, "separate load and mma roles, an eight-stage ring", published=True)
_STAGED = replace(_RING, level=4, staged=True, summary="the tile leaves through shared memory, in whole rows")
_ROLES = Config(
    6,
    "three roles: a tile is stored while the next is computed; TMA stores",
    kernel="roles",
    threads=256,
    group=8,
    accumulators=2,
    box=(128, 256),
    boxes=1,
    columns=8,
)
_DUAL = replace(
    _ROLES,
    level=7,
    summary="the CTAs of a pair compute different tiles, of 256 rows each",
    tile=(256, 128, 64),
    stages=4,
    group=4,  # eight tiles: a pair has two
    dual=True,
    writers=2,
)
_SWIZZLED = replace(
    _DUAL,
    level=8,
    summary="swizzled store boxes, two on their way; tensor memory is released early",
    tile=(128, 128, 64),
    stages=8,
    box=(128, 128),
    boxes=2,
    swizzle=128,
    early=True,
    columns=32,
)
_LARGE = replace(
    _SWIZZLED,
    level=9,
    summary="tiles of 256 × 256 in each CTA, wider loads from memory, groups of 16",
    tile=(256, 256, 64),
    stages=4,
    accumulators=1,
    group=8,
    l2_promotion=256,
)
_OURS = replace(
    _LARGE,
    level=10,
    summary="waves of a tile staggered: none waits for the epilogue; each warp stores on its own",
    stagger=3,
    box=(32, 128),
)

LEVELS = {
    level.level: level
    for level in (
        Config(
            1,
            "correct baseline: cta_group::2, a cluster sync in every k-block",
            kernel="level1",
            stages=1,
            writers=2,
            published=True,
        ),
        Config(2, "full and empty barriers in one loop; the leader stores", kernel="level2", stages=2, published=True),
        _RING,
        _STAGED,
        replace(
            _STAGED,
            level=5,
            group=8,
            summary="persistent clusters walk the tiles in groups of eight rows",
        ),
        _ROLES,
        _DUAL,
        _SWIZZLED,
        _LARGE,
        _OURS,
    )
}

IMPROVED = {number: replace(level, published=False) for number, level in LEVELS.items() if level.published}
"""Levels 1 to 5 with a cluster barrier before the pair allocates and stores of 16 bytes; levels 1 to 3 with CTAs that
share an SM, level 5 without barriers between tiles."""

SMALLER = (
    replace(_OURS, tile=(128, 256, 64), stages=6, stagger=0, accumulators=2),
    replace(_OURS, tile=(128, 128, 64), stages=8, stagger=0, accumulators=2),
    replace(_OURS, tile=(128, 64, 64), stages=10, stagger=0, accumulators=2, boxes=1),
)


def config_for(level: int | Config, m: int, n: int, sms: int) -> Config:
    """Returns the configuration of ``level`` for D (m, n) on ``sms`` SMs. Raises UsageError for an unknown level.

    Level 10 has tiles of several sizes: the tile with the fewest cycles over all rounds is chosen, the largest of
    equals.
    """
    config = config_of(level)
    tiles = [config, *SMALLER] if config is _OURS else [config]

    def cycles(each: Config) -> float:
        areas = -(-m // each.area[0]) * -(-n // each.area[1])
        return -(-areas // max(1, sms // each.cluster)) * each.cycles

    return min(tiles, key=cycles)


def config_of(level: int | Config) -> Config:
    """Returns the configuration of ``level``, or ``level`` itself if it is a configuration.

    Raises UsageError for an unknown level.
    """
    found = level if isinstance(level, Config) else LEVELS.get(level)
    if found is None:
        raise UsageError(
            f"given level {level}; expected one of {', '.join(map(str, LEVELS))}; choose an existing level"
        )
    return found
