"""Configurations of the Hopper GEMM as data: the ladder's levels, and every configuration that `plan.choose` knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpwright.errors import UsageError

__all__ = ["ATOM_BYTES", "CONFIGS", "L2_PROMOTION", "LEVELS", "STORES", "STRIP", "Config", "config_of"]

ATOM_BYTES = 128
SUM_BYTES = 4
CONTROL_BYTES = 1024
WARPGROUP = 128
STRIP = 64  # rows of a wgmma
STRIPS, STRIP_ROWS = 4, 16  # warps of a consumer, rows of a 64-row strip in each warp
STORES = 2  # blocks of the epilogue in each warp where it stores beside the wgmmas of its own tiles
L2_PROMOTION = 256


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of the Hopper GEMM; `warpwright.kernels.gemm.sm90.kernel_of` returns its kernel.

    tile         M and N of one CTA's tile of D
    depth        atoms of 128 bytes of K in a stage
    stages       stages of the ring of A and B
    consumers    warpgroups that multiply
    share        CTAs of a cluster along M (they share B) and along N (they share A)
    group        rows of clusters in a group of the rasterization
    rotate       clusters start at different k-blocks
    once         operands that are read only once: "b" where one row of tiles covers M
    promoted     FP8: columns of D whose sums over 128 of K are added to float32 sums at a time; 0: never
    partials     FP8: sets of registers for such sums
    split        split-K: CTAs of a cluster that share the K of one tile
    slices       split-K: slices of K that one launch multiplies, each to a matrix of its own, and a second one adds up
    specialised  a warp of its own loads; False: one loop loads and multiplies
    persistent   no more clusters than fit at once; False: a CTA for each tile
    overlap      the stores of a tile overlap with the next tile
    matrices     the epilogue uses stmatrix and swizzled blocks
    rows         rows of A in a stage, for an A with no more rows than that; 0: those of the tile
    early        the ring is filled for the first tile before the cluster synchronises; not with rotate, not with slices
    delayed      a tile of 16-bit elements is rounded at its end, and stored while the next one is multiplied
    pingpong     two consumers multiply in turn, each a tile of its own; for one matrix, not for a batch
    last         columns of the tiles of the last round, which `fit_last` widens so that all CTAs have one; 0: those of
                 the tile; only where `takes_two_widths`
    """

    tile: tuple[int, int] = (128, 256)
    depth: int = 1
    stages: int = 4
    consumers: int = 2
    share: tuple[int, int] = (2, 1)
    group: int = 8
    rotate: bool = False
    once: str = ""
    promoted: int = 0
    partials: int = 1
    split: int = 1
    slices: int = 1
    specialised: bool = True
    persistent: bool = True
    overlap: bool = True
    matrices: bool = True
    rows: int = 0
    early: bool = False
    delayed: bool = False
    pingpong: bool = False
    last: int = 0
    summary: str = ""

    @property
    def cluster(self) -> int:
        """CTAs in a cluster."""
        return self.share[0] * self.share[1] * self.split

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumer warpgroups and, if specialised, the warpgroup of the load warp."""
        return WARPGROUP * (self.specialised + self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: barriers, stages, the epilogue's blocks, split-K's partial sums."""
        stage = ((self.rows or self.tile[0]) + self.tile[1]) * ATOM_BYTES * self.depth
        strips = -(-self.consumers * STRIPS // self.split)
        parts = (self.split - 1) * strips * STRIP_ROWS * self.tile[1] * SUM_BYTES
        return CONTROL_BYTES + self.stages * stage + strips * self.stores * STRIP_ROWS * ATOM_BYTES + parts

    @property
    def stores(self) -> int:
        """Blocks of the epilogue in each warp, of 16 rows of 128 bytes."""
        return 1 if self.pingpong else STORES

    @property
    def kernel(self) -> str:
        """Name of the kernel in `sm90.KERNELS`."""
        if self.pingpong:
            return "pingpong"
        if self.last:
            return "two widths"
        return "split" if self.split > 1 else "ring" if self.specialised else "loop"


_LOOP = Config(
    (128, 128), stages=1, consumers=1, share=(1, 1), group=1, specialised=False, persistent=False, matrices=False
)
_ROLES = replace(_LOOP, stages=6, specialised=True, overlap=False)
_WIDE = replace(_ROLES, tile=(128, 256), stages=4, consumers=2)
_PERSISTENT = replace(_WIDE, persistent=True, group=8)

LEVELS = {
    1: replace(_LOOP, summary="one warpgroup, one stage: load, wait, multiply, wait"),
    2: replace(_LOOP, stages=2, share=(2, 1), summary="two stages; a pair of CTAs shares B by multicast"),
    3: replace(_ROLES, summary="a warp that loads and a warpgroup that multiplies, a ring of six stages"),
    4: replace(_WIDE, summary="two warpgroups multiply a tile of 128 × 256; registers move to them"),
    5: replace(_PERSISTENT, summary="persistent CTAs walk the tiles in groups of eight rows"),
    6: replace(_PERSISTENT, overlap=True, summary="the stores of a tile overlap with the next tile"),
    7: replace(_PERSISTENT, overlap=True, share=(2, 1), summary="a pair of CTAs shares B by multicast"),
    8: Config(summary="stmatrix into swizzled blocks on their way to D"),
}


def config_of(level: int | Config) -> Config:
    """Returns the configuration of ``level`` of the ladder, or ``level`` itself if it is a configuration.

    Raises UsageError for an unknown level.
    """
    found = level if isinstance(level, Config) else LEVELS.get(level)
    if found is None:
        known = ", ".join(map(str, LEVELS))
        raise UsageError(f"given level {level}; expected one of {known}; choose an existing level")
    return found


NARROW = Config((64, 128), stages=8, consumers=1, share=(1, 1))
SMALL = Config((64, 64), depth=2, stages=6, consumers=1, share=(1, 1))
SPLIT = replace(SMALL, once="b", persistent=False)
PINGPONG = Config((128, 200), stages=5, share=(1, 1), early=True, pingpong=True, last=64)
FP8_SQUARE = Config((128, 128), depth=2, stages=3, share=(1, 1), promoted=128, partials=2, early=True)
FP8_NARROW = replace(NARROW, depth=2, stages=4, promoted=128, partials=2)
FP8_SMALL = replace(SMALL, promoted=64, partials=2)

CONFIGS = {
    "128x256": Config(early=True, delayed=True),
    "128x256 alone": Config(share=(1, 1)),
    "128x256 alone stream": Config(share=(1, 1), once="b", early=True),
    "128x256 pair two widths": Config(early=True, delayed=True, last=64),
    "128x256 two widths": Config(share=(1, 1), early=True, delayed=True, last=64),
    "128x192": Config((128, 192)),
    "128x192 alone": Config((128, 192), share=(1, 1)),
    "192x128": Config((192, 128), consumers=3, share=(1, 2)),
    "192x128 alone": Config((192, 128), consumers=3, share=(1, 1)),
    "128x128": Config((128, 128), stages=6, early=True),
    "128x128 alone": Config((128, 128), stages=6, share=(1, 1), early=True),
    "128x128 stream": Config((128, 128), stages=6, once="b"),
    "128x64": Config((128, 64), stages=8, share=(1, 1)),
    "64x256": Config((64, 256), stages=5, consumers=1, share=(1, 1)),
    "64x192": Config((64, 192), stages=6, consumers=1, share=(1, 1)),
    "64x128": replace(NARROW, early=True),
    "64x128 pair": replace(NARROW, share=(2, 1)),
    "64x128 stream": replace(NARROW, once="b"),
    "64x128 stream rotated": replace(NARROW, once="b", rotate=True),
    "64x64": SMALL,
    "64x64 stream": replace(SMALL, once="b", early=True),
    "64x64 stream rotated": replace(SMALL, once="b", rotate=True),
    "64x64 stream rotated, 16 rows": replace(SMALL, once="b", rotate=True, rows=16, stages=10),
    "64x64 a CTA a tile": replace(SMALL, depth=1, stages=2, persistent=False),
    "64x64 split 2": replace(SPLIT, stages=5, split=2),
    "64x64 split 4": replace(SPLIT, stages=5, split=4),
    "64x64 split 6": replace(SPLIT, stages=4, split=6),
    "fp8 192x128": Config((192, 128), stages=4, consumers=3, share=(1, 2), promoted=128),
    "fp8 192x128 two widths": Config((192, 128), consumers=3, share=(1, 1), promoted=128, early=True, last=64),
    "fp8 128x256": Config(promoted=128),
    "fp8 128x128": FP8_SQUARE,
    "fp8 128x128 stream": replace(FP8_SQUARE, once="b"),
    "fp8 128x64 stream": Config((128, 64), depth=2, share=(1, 1), once="b", promoted=64, partials=2),
    "fp8 64x128 stream": replace(FP8_NARROW, once="b"),
    "fp8 64x128 stream rotated": replace(FP8_NARROW, once="b", rotate=True),
    "fp8 64x128 stream, 16 rows": replace(FP8_NARROW, once="b", rows=16, stages=5),
    "fp8 64x64": FP8_SMALL,
    "fp8 64x64 stream": replace(FP8_SMALL, once="b"),
    "fp8 64x64 deep stream": replace(FP8_SMALL, depth=4, stages=3, once="b"),
    "fp8 64x64 split 2": replace(FP8_SMALL, once="b", stages=5, split=2, persistent=False),
}
SLICED = {
    "64x64 stream": (2, 3, 4, 6, 8, 16, 32),
    "64x128 stream": (2, 3, 4, 6, 8),
    "64x192": (2, 3, 4),
    "128x128 stream": (2, 3, 4, 6, 8),
    "128x192": (2, 3),
    "128x256": (2, 3),
}
CONFIGS |= {f"128x{columns} pingpong": replace(PINGPONG, tile=(128, columns)) for columns in (168, 176, 192, 200)}
CONFIGS["128x176 pair pingpong"] = replace(PINGPONG, tile=(128, 176), share=(2, 1))
CONFIGS |= {
    f"{name}, {count} slices": replace(CONFIGS[name], slices=count, early=False, delayed=False)
    for name, counts in SLICED.items()
    for count in counts
}
