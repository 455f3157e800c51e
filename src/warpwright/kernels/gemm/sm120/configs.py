"""Configurations of the mma.sync GEMM as data: the ladder's levels, and those that `plan.choose` knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpwright.errors import UsageError

__all__ = ["ATOM_BYTES", "BLOCK_BYTES", "CONFIGS", "L2_PROMOTION", "LEVELS", "STORES", "Config", "config_of"]

ATOM_BYTES = 128
CONTROL_BYTES = 1024
LANES = 32
ROWS, COLUMNS = 16, 32  # of D: an ldmatrix block of A, two of B
STORES = 2  # blocks of the epilogue in each warp, of 16 rows of 64 bytes
BLOCK_BYTES = 64
L2_PROMOTION = 256


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of the mma.sync GEMM; `warpwright.kernels.gemm.sm120.kernel_of` returns its kernel.

    tile         M and N of one CTA's tile of D
    warps        multiplying warps along M and along N; each has every such strip of 16 rows, of 32 columns
    stages       stages of the ring of A and B, each 128 bytes of K
    ctas         CTAs that share an SM if they are persistent; from two on the assembler keeps registers few enough
    group        rows of tiles in a group of the rasterization
    slices       split-K: slices of K that one launch multiplies, each to a matrix of its own, and a second one adds up
    specialised  a warp of its own loads; False: one loop loads and multiplies
    ahead        the fragments of the next 32 bytes of K are loaded before those of this one are multiplied
    persistent   no more CTAs than fit at once; False: a CTA for each tile
    overlap      the stores of a tile overlap with the next tile
    matrices     the epilogue uses stmatrix and swizzled blocks
    """

    tile: tuple[int, int] = (128, 128)
    warps: tuple[int, int] = (2, 4)
    stages: int = 2
    ctas: int = 1
    group: int = 8
    slices: int = 1
    specialised: bool = True
    ahead: bool = True
    persistent: bool = True
    overlap: bool = True
    matrices: bool = True
    summary: str = ""

    depth = 1  # atoms of 128 bytes of K in a stage
    share = (1, 1)
    cluster = 1

    @property
    def consumers(self) -> int:
        """Warps that multiply."""
        return self.warps[0] * self.warps[1]

    @property
    def threads(self) -> int:
        """Threads of a CTA: the multiplying warps and, if specialised, the load warp."""
        return LANES * (self.specialised + self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: barriers, stages, the epilogue's blocks."""
        return CONTROL_BYTES + self.stages * sum(self.tile) * ATOM_BYTES + self.consumers * STORES * ROWS * BLOCK_BYTES


_LOOP = Config(stages=1, group=1, specialised=False, ahead=False, persistent=False, overlap=False, matrices=False)
_ROLES = replace(_LOOP, stages=2, specialised=True)
_AHEAD = replace(_ROLES, ahead=True)
_PERSISTENT = replace(_AHEAD, persistent=True, group=8)

LEVELS = {
    1: replace(_LOOP, summary="one stage, one loop: load, wait, ldmatrix and mma.sync by eight warps"),
    2: replace(_LOOP, stages=2, summary="two stages: the next k-block is loaded while this one is multiplied"),
    3: replace(_ROLES, summary="a warp that loads, eight that multiply, a ring of two stages between them"),
    4: replace(_AHEAD, summary="fragments are loaded 32 bytes of K ahead of mma.sync"),
    5: replace(_PERSISTENT, summary="persistent CTAs walk the tiles in groups of eight rows"),
    6: replace(_PERSISTENT, overlap=True, summary="the stores of a tile overlap with the next tile"),
    7: Config(summary="stmatrix into swizzled blocks on their way to D"),
    8: Config((160, 128), summary="160 rows a tile: fewer idle SMs in the last round at 4096"),
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


_FEW = Config((64, 64), (2, 2), ctas=2)
CONFIGS = {
    "128x128": LEVELS[7],
    "160x128": LEVELS[8],
    "64x128": Config((64, 128), (2, 4), stages=3),
    "64x64": _FEW,
    "32x64": Config((32, 64), (2, 2), stages=3, ctas=2),
    "16x128": Config((16, 128), (1, 4), ctas=2),
}
SLICED = {
    "64x128": (2, 3, 4, 6, 8),
    "64x64": (2, 4, 8, 16, 32),
    "32x64": (2, 4, 8, 16, 32),
    "16x128": (2, 4, 8, 16, 32),
}
CONFIGS |= {
    f"{name}, {count} slices": replace(CONFIGS[name], slices=count)
    for name, counts in SLICED.items()
    for count in counts
}
