"""Configurations of the Hopper GEMM as data, and what a launch of one needs, computed from the problem alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from warpwright.errors import UsageError

__all__ = [
    "HOPPER_LEVELS",
    "L2_PROMOTION",
    "HopperConfig",
    "HopperPlan",
    "hopper_config",
    "hopper_plan",
    "worthwhile",
]

ATOM_BYTES = 128
SUM_BYTES = 4
CONTROL_BYTES = 1024
WARPGROUP = 128
STRIPS, STRIP_ROWS = 4, 16  # a warp's part of a consumer's tile
STAGING_BYTES = 2 * 16 * 128  # two blocks of 16 rows of 128 bytes for each strip
ROW_BYTES = 16
L2_PROMOTION = 256


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """One way to run `warpwright.kernels.gemm.sm90.gemm`.

    ``tile`` is (M, N) of one CTA, ``depth`` the atoms of 128 bytes of K in a stage, ``stages`` the stages of the ring,
    ``consumers`` the warpgroups that multiply, ``share`` the CTAs of a cluster along M (they share B) and along N (they
    share A), ``group`` the rows of clusters that are walked together, ``rotate`` whether clusters start at different
    places along K, ``once`` the operands that are read only once ("b" where one row of tiles covers M), ``promoted``
    the columns of D whose sums over 128 of K are added up in float32 at a time (FP8; 0: the tensor core sums up all),
    ``partials`` how many such sums are under way, ``split`` the CTAs of a cluster that share out the K of one tile,
    ``slices`` the parts of K that are multiplied as a batch and added up by a second launch.

    The ladder's lower levels are not ``specialised`` (one loop loads and multiplies), not ``persistent`` (a CTA for
    each tile), store a tile before the next begins (no ``overlap``), and store without ``matrices`` (stmatrix into a
    swizzled block).
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
    summary: str = ""

    @property
    def cluster(self) -> int:
        """CTAs in a cluster."""
        return self.share[0] * self.share[1] * self.split

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers and, if specialised, a warpgroup that loads."""
        return WARPGROUP * (self.specialised + self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes: barriers, stages, and the blocks on their way to D."""
        stage = sum(self.tile) * ATOM_BYTES * self.depth
        strips = -(-self.consumers * STRIPS // self.split)
        parts = (self.split - 1) * strips * STRIP_ROWS * self.tile[1] * SUM_BYTES
        return CONTROL_BYTES + self.stages * stage + strips * STAGING_BYTES + parts

    @property
    def kernel(self) -> str:
        """Which kernel of `sm90` runs it: "ring", "split" or, with a single loop, "loop"."""
        return "split" if self.split > 1 else "ring" if self.specialised else "loop"

    @property
    def keywords(self) -> dict[str, Any]:
        """What ``gemm.configure`` takes."""
        names = "tile depth stages consumers share group rotate once promoted partials split"
        names += " overlap matrices cluster threads"
        return {name: getattr(self, name) for name in names.split()}


_LOOP = HopperConfig(
    (128, 128), stages=1, consumers=1, share=(1, 1), group=1, specialised=False, persistent=False, matrices=False
)
_ROLES = replace(_LOOP, stages=6, specialised=True, overlap=False)
_WIDE = replace(_ROLES, tile=(128, 256), stages=4, consumers=2)
_PERSISTENT = replace(_WIDE, persistent=True, group=8)

HOPPER_LEVELS = {
    1: replace(_LOOP, summary="one warpgroup, one stage: load, wait, multiply, wait"),
    2: replace(_LOOP, stages=2, share=(2, 1), summary="two stages; a pair of CTAs shares B by multicast"),
    3: replace(_ROLES, summary="a warp that loads and a warpgroup that multiplies, a ring of six stages"),
    4: replace(_WIDE, summary="two warpgroups multiply a tile of 128 × 256; registers move to them"),
    5: replace(_PERSISTENT, summary="persistent CTAs walk the tiles in groups of eight rows"),
    6: replace(_PERSISTENT, overlap=True, summary="the stores of a tile overlap with the next tile"),
    7: replace(_PERSISTENT, overlap=True, share=(2, 1), summary="a pair of CTAs shares B by multicast"),
    8: HopperConfig(summary="stmatrix into swizzled blocks on their way to D"),
}


def hopper_config(level: int) -> HopperConfig:
    """The configuration of ``level`` of the ladder. Raises UsageError for a level that does not exist."""
    found = HOPPER_LEVELS.get(level)
    if found is None:
        known = ", ".join(map(str, HOPPER_LEVELS))
        raise UsageError(f"given level {level}; expected one of {known}; choose an existing level")
    return found


def worthwhile(config: HopperConfig, m: int, n: int, *, sms: int) -> bool:
    """Whether ``config`` may be the fastest for D (m, n): slices of K are for tiles that leave half of the SMs idle."""
    tiles = -(-m // config.tile[0]) * -(-n // config.tile[1])
    return config.slices == 1 or tiles * config.slices <= 2 * sms


@dataclass(frozen=True, slots=True)
class HopperPlan:
    """One launch: ``scalars``, or `arguments`, follow the maps of A, B and D in the argument list.

    ``pitch`` is the number of elements between rows of D: n rounded up to whole 16-byte vectors, so D is a buffer of
    shape (m, pitch) whose first n columns are the result.
    """

    grid: tuple[int, int, int]
    pitch: int
    tiles: tuple[int, int, int, int]

    @property
    def scalars(self) -> tuple[int | float, ...]:
        """The arguments behind the maps of a kernel without an epilogue."""
        return self.arguments()

    def arguments(
        self, columns: int = 0, bias: Any = 0, scale_a: Any = 0, scale_b: Any = 0, alpha: float = 1.0
    ) -> tuple[Any, ...]:
        """The arguments behind the maps: ``bias`` of ``columns`` elements, an even number, and factors of the sums.

        ``bias``, ``scale_a`` and ``scale_b`` are arrays or addresses, 0 for none.
        """
        return (*self.tiles, columns, bias, scale_a, scale_b, alpha)


def hopper_plan(
    config: HopperConfig,
    m: int,
    n: int,
    k: int,
    *,
    sms: int,
    majors: tuple[str, str] = ("k", "k"),
    in_bytes: int = 2,
    out_bytes: int = 2,
    batches: int = 1,
) -> HopperPlan:
    """The launch of ``config`` for ``batches`` matrices D (m, n) on a device of ``sms`` SMs.

    Persistent clusters are no more than fit at once, and no more than must be so that all do the same number of tiles.
    ``majors`` says how A and B lie in memory, "k": (rows, k), "mn": (k, rows); ``in_bytes`` and ``out_bytes`` are the
    sizes of an element of A and B, and of D. Raises UsageError for an extent below 1, and for rows in memory that are
    no multiple of 16 bytes.
    """
    if min(m, n, k) < 1:
        raise UsageError(f"given M={m}, N={n}, K={k}; expected each at least 1; an empty product needs no kernel")
    step = ROW_BYTES // in_bytes
    for name, rows, letter, major in (("A", m, "M", majors[0]), ("B", n, "N", majors[1])):
        letter, extent = ("K", k) if major == "k" else (letter, rows)
        if extent % step:
            raise UsageError(
                f"given {letter}={extent} along the rows of {name} in memory; expected a multiple of {step} "
                f"(16 bytes); pad {name} with zeros to {letter}={-(-extent // step) * step}"
            )
    extents = (m, config.tile[0]), (n, config.tile[1]), (k, ATOM_BYTES // in_bytes * config.depth)
    tiles_m, tiles_n, tiles_k = (-(-extent // tile) for extent, tile in extents)
    clusters = batches * -(-tiles_m // config.share[0]) * -(-tiles_n // config.share[1])
    rounds = -(-clusters // max(1, sms // config.cluster)) if config.persistent else 1
    vector = ROW_BYTES // out_bytes
    grid = (-(-clusters // rounds) * config.cluster, 1, 1)
    return HopperPlan(grid, -(-n // vector) * vector, (tiles_m, tiles_n, tiles_k, batches))
