"""Configurations of the default Blackwell GEMM as data, and the configuration for a problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

from warpwright.kernels.gemm.sm90.plan import NEAR, Known

__all__ = ["L2_PROMOTION", "TILINGS", "Problem", "Tiling", "candidates", "choose", "grid_of"]

LANES = 128  # of tensor memory: rows of A in one CTA's mma
WARPS = 4  # of the epilogue
BLOCKS = 2  # of the epilogue in each warp
SWAPPED_MOST = 512  # rows of A for which threads store partial sums of Dᵀ
SWAPPED_ROWS = 32  # of D in a block, if swapped
ROW_BYTES = 128
CONTROL_BYTES = 1024  # mbarriers, and room to align the stages
SUM_BYTES = 4
L2_PROMOTION = 256
# Of the estimate, by the constants of `targets.clocks`: cycles of an mma at least; bytes a cycle from L2 to an SM, of
# shared memory, and of the stores of an SM by TMA and by threads
MMA_LEAST, SM_BYTES, SMEM_BYTES, STORE_BYTES, DIRECT_BYTES = 44.0, 60.0, 128.0, 32.0, 62.0
MHZ, HBM_BYTES = 1850.0, 6.5e6  # a microsecond
COMMON = 1.3  # device memory reads what several SMs need at once this much slower
DIRTY = 5.7e7  # bytes of L2 that are written back when other data is read
OVERLAP = 4.0  # norm of the times of an SM and of device memory, which run at once
PAIR_US = 0.2  # cluster barriers
# Of the second launch of slices of K, as predicted: its start, elements of D a microsecond, and bytes of partial sums a
# microsecond if L2 does not keep them
SUM_US, SUM_ELEMENTS_US, SUM_BYTES_US = 0.65, 1.4e6, 4.8e6
PANEL = 128


@dataclass(frozen=True, slots=True)
class Tiling:
    """One configuration of the default Blackwell GEMM; `warpwright.kernels.gemm.sm100.kernel_of` returns its kernel.

    tile          rows of A in one CTA, 128 or 256, and rows of B of all ``ctas``; if ``swapped``, of B and of A
    ctas          CTAs that multiply together: a pair shares the rows of B, each CTA has rows of A of its own
    swapped       the kernel computes Dᵀ = B·Aᵀ, so that a few rows of A are the N of an mma
    depth         atoms of 128 bytes of K in a stage
    stages        stages of the ring of A and B
    accumulators  tiles in tensor memory: one is stored while the next is computed
    stagger       tiles of 256 rows: so many k-blocks the first 128 rows are ahead of the others
    group         rows of tiles in a group of the rasterization
    slices        slices of K that one launch multiplies, each to a matrix of its own, and a second one adds up
    """

    tile: tuple[int, int] = (256, 256)
    ctas: int = 2
    swapped: bool = False
    depth: int = 1
    stages: int = 4
    accumulators: int = 1
    stagger: int = 3
    group: int = 8
    slices: int = 1

    kernel = "gemm"
    threads = 256

    @property
    def cluster(self) -> int:
        """CTAs in a cluster."""
        return self.ctas

    @property
    def waves(self) -> int:
        """Parts of a CTA's tile with an accumulator of their own."""
        return self.tile[0] // LANES

    @property
    def area(self) -> tuple[int, int]:
        """Rows of A and of B of a cluster's tile."""
        rows, columns = self.tile[0] * self.ctas, self.tile[1]
        return (columns, rows) if self.swapped else (rows, columns)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage in one CTA, bytes."""
        return (self.tile[0] + self.tile[1] // self.ctas) * ROW_BYTES * self.depth

    @property
    def direct(self) -> bool:
        """Whether threads store D: partial sums of slices, of which a warp stores whole lines."""
        return self.swapped and self.slices > 1

    @property
    def block_rows(self) -> int:
        """Rows of D in the epilogue's blocks of a warp, if swapped: two blocks of 32 rows, or all of a smaller tile."""
        return min(self.tile[1], BLOCKS * SWAPPED_ROWS)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of one CTA at most, bytes: mbarriers and bias, stages, blocks of the epilogue."""
        blocks = LANES * (self.block_rows * SUM_BYTES if self.swapped else BLOCKS * ROW_BYTES)
        return CONTROL_BYTES + self.stages * self.stage_bytes + blocks


_PAIR = Tiling((128, 256), stages=6, accumulators=2, stagger=0)
_ALONE = Tiling((128, 128), ctas=1, depth=2, stages=3, accumulators=2, stagger=0)
_SWAPPED = replace(_ALONE, swapped=True)
_SWAPPED_PAIR = replace(_PAIR, tile=(128, 128), stages=8, swapped=True)

TILINGS = {
    "256x256 pair": Tiling(),
    "128x256 pair": _PAIR,
    "128x192 pair": replace(_PAIR, tile=(128, 192), stages=6),
    "128x128 pair": replace(_PAIR, tile=(128, 128), stages=8),
    "128x64 pair": replace(_PAIR, tile=(128, 64), stages=8),
    "128x256": replace(_ALONE, tile=(128, 256), depth=1, stages=4),
    "128x128": _ALONE,
    "128x64": replace(_ALONE, tile=(128, 64), stages=4),
    "swapped 128x16": replace(_SWAPPED, tile=(128, 16), stages=5),
    "swapped 128x32": replace(_SWAPPED, tile=(128, 32), stages=5),
    "swapped 128x64": replace(_SWAPPED, tile=(128, 64), stages=4),
    "swapped 128x128": _SWAPPED,
    "swapped 128x64 pair": replace(_SWAPPED_PAIR, tile=(128, 64), stages=9),
    "swapped 128x128 pair": _SWAPPED_PAIR,
    "swapped 128x256 pair": replace(_SWAPPED_PAIR, tile=(128, 256), stages=6),
}
TILINGS |= {
    f"{name}, {count} slices": replace(each, slices=count)
    for name, each in TILINGS.items()
    if each.waves == 1 and (each.ctas > 1 or each.tile[1] <= LANES)
    for count in (2, 3, 4, 6, 8, 16, 32)
}


class Problem(NamedTuple):
    """``batches`` of D (m, n) = A (m, k) · B (n, k)ᵀ, ``size`` bytes an element, and the dense axes of A and of B."""

    m: int
    n: int
    k: int
    size: int = 2
    batches: int = 1
    majors: tuple[str, str] = ("k", "k")


def clusters_of(config: Tiling, problem: Problem) -> tuple[int, int]:
    """Returns the tiles of clusters along M and N."""
    (rows, columns), (m, n, *_) = config.area, problem
    return -(-m // rows), -(-n // columns)


def grid_of(config: Tiling, problem: Problem, sms: int) -> int:
    """Returns the CTAs: no more than fit at once, and the fewest with the same number of rounds."""
    down, across = clusters_of(config, problem)
    clusters = down * across * problem.batches * config.slices
    rounds = -(-clusters // max(1, sms // config.ctas))
    return -(-clusters // rounds) * config.ctas


def fits(config: Tiling, problem: Problem) -> bool:
    """Returns whether each CTA's part of an operand whose rows run along M or N is whole panels of 128 bytes, and no
    slice of K is empty."""
    parts = (config.tile[0], config.tile[1] // config.ctas)
    majors = problem.majors[::-1] if config.swapped else problem.majors
    panels = all(major == "k" or part * problem.size % PANEL == 0 for part, major in zip(parts, majors, strict=True))
    return panels and config.slices <= -(-problem.k * problem.size // (PANEL * config.depth))


def candidates(problem: Problem, *, sms: int, slices: bool = True) -> Iterator[tuple[str, Tiling]]:
    """Yields the configurations that fit a problem, by name; with slices of K those of a few rounds of few tiles."""
    for name, config in TILINGS.items():
        down, across = clusters_of(config, problem)
        few = config.slices == 1 or (slices and problem.batches == 1 and down * across * config.slices <= 2 * sms)
        swappable = problem.m <= (SWAPPED_MOST if config.direct else LANES)
        if few and fits(config, problem) and (swappable or not config.swapped):
            yield name, config


def choose(problem: Problem, *, sms: int, slices: bool = True, tuned: Sequence[Known] = ()) -> Tiling:
    """Returns the configuration with the least estimated time; ``slices``: also of those with slices of K.

    The configuration of a problem that was measured, of ``tuned``, is taken where it is `NEAR`.
    """
    usable = dict(candidates(problem, sms=sms, slices=slices))

    def distance(fact: Known) -> float:
        ratios = problem.m / fact.m, problem.n / fact.n, problem.k / fact.k, problem.batches
        return sum(log2(ratio) ** 2 for ratio in ratios)

    near = [fact for fact in tuned if fact.config in usable and distance(fact) <= NEAR]
    if near:
        return usable[min(near, key=distance).config]
    return min(usable.values(), key=lambda each: (estimate_us(each, problem, sms=sms), not each.swapped))


def estimate_us(config: Tiling, problem: Problem, *, sms: int) -> float:
    """Returns the microseconds of a problem on a device of ``sms`` SMs: two thirds of those with operands in
    device memory and one third of those with operands in L2, as of a launch in a loop."""
    down, across = clusters_of(config, problem)
    rounds = -(-down * across * problem.batches * config.slices // max(1, sms // config.ctas))
    blocks = -(-problem.k * problem.size // (PANEL * config.slices))
    rows, columns = config.tile
    multiplied = 4 * config.waves * max(MMA_LEAST, columns / 2)
    moved = config.stage_bytes / config.depth + (rows + config.waves * columns / config.ctas) * PANEL
    sent = (rows + columns / config.ctas) * PANEL / SM_BYTES
    stored = rows * columns * (SUM_BYTES if config.slices > 1 else problem.size)
    once = stored / (DIRECT_BYTES if config.direct else STORE_BYTES)
    cycles = rounds * blocks * max(multiplied, sent, moved / SMEM_BYTES) + once * (
        rounds if config.accumulators == 1 == config.waves else 1
    )
    often = problem.m * (COMMON if across > 1 else 1.0) + problem.n * (COMMON if down > 1 else 1.0)
    read = often * problem.k * problem.size * problem.batches
    busy = cycles / MHZ + PAIR_US * (config.ctas > 1)
    warm = busy if config.slices == 1 else busy + SUM_US + problem.m * problem.n / SUM_ELEMENTS_US
    parts = config.slices * problem.m * problem.n * SUM_BYTES if config.slices > 1 else 0
    memory = (read + min(read, DIRTY)) / HBM_BYTES
    read_us = float((busy**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP))
    cold = warm - busy + read_us + parts / SUM_BYTES_US
    return (2 * cold + warm) / 3
