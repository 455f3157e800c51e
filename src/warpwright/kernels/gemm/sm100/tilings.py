"""Configurations of the default Blackwell GEMM as data, and the configuration for a problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

from warpwright.kernels.gemm.sm90.plan import NEAR, Known

__all__ = [
    "L2_PROMOTION", "TILINGS", "Problem", "Tiling", "candidates", "choose", "grid_of", "has_whole_panels", "least_k",
    "whole_tiles",
]  # fmt: skip

LANES = 128  # of tensor memory: rows of A in one CTA's mma
WARPS = 4  # of the epilogue
CLUSTER_WARPS = 8  # of the epilogue of a kernel whose clusters add slices of K
BLOCKS = 2  # of the epilogue in each warp
SWAPPED_MOST = 512  # rows of A for which threads store partial sums of Dᵀ
SWAPPED_ROWS = 32  # of D in a block, if swapped
ROW_BYTES = 128
FIRST = 128  # with `multicast`: columns of a tile whose sums are complete before the others
CONTROL_BYTES = 1024  # mbarriers, and room to align the stages
SUM_BYTES = 4
L2_PROMOTION = 256
# Of the estimate, by the constants of `targets.clocks`: cycles of an mma at least; bytes a cycle from L2 to an SM, of
# shared memory, and of the stores of an SM by TMA and by threads
MMA_LEAST, SM_BYTES, SMEM_BYTES, STORE_BYTES, DIRECT_BYTES = 44.0, 60.0, 128.0, 32.0, 62.0
MULTICAST = 1.2  # bytes of L2's bandwidth that a byte for two CTAs takes
# Likewise, if `clustered` or with `multicast`: bytes a cycle from L2 to all SMs and to one; cycles from the last mma
# until a word of another CTA is in registers, without the time of the bytes: mma 60, commit 45, remote arrival 224,
# load from L2 305
L2_BYTES, PORT_BYTES, EXCHANGE = 13300.0, 123.0, 634.0
MHZ, HBM_BYTES = 1850.0, 6.5e6  # a microsecond
COMMON = 1.3  # device memory reads what several SMs need at once this much slower
L2_SIZE = 1.265e8  # bytes
DIRTY = 5.7e7  # bytes of L2 that are written back when other data is read
OVERLAP = 4.0  # norm of the times of an SM and of device memory, which run at once
PAIR_US = 0.2  # cluster barriers
GPC_SMS = 18  # of most GPCs of a B200
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
    stagger       tiles of 256 rows: so many k-blocks the first 128 rows are ahead of the others; ``clustered``: so many
                  k-blocks half of the columns is complete before the other
    group         rows of tiles in a group of the rasterization
    slices        slices of K that one launch multiplies, each to a matrix of its own, and a second one adds up
    clustered     the slices of a tile are a cluster, whose CTAs exchange partial sums: no second launch
    multicast     two CTAs of a cluster, one below the other, multiply alone and load their rows of B once; one round
    halves        tiles left after whole rounds, if at most half a round, are computed as halves of their columns
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
    clustered: bool = False
    multicast: bool = False
    halves: bool = False

    @property
    def threads(self) -> int:
        """Threads of a CTA: warps of the roles, and of the epilogue."""
        return 32 * (WARPS + (CLUSTER_WARPS if self.clustered else WARPS))

    @property
    def kernel(self) -> str:
        """Name of the kernel in `ladder.KERNELS`."""
        kinds = {"cluster": self.clustered, "multicast": self.multicast, "halves": self.halves, "gemm": True}
        return next(name for name, is_kind in kinds.items() if is_kind)

    @property
    def paired(self) -> int:
        """CTAs, one below the other, with the same rows of B."""
        return 2 if self.multicast else self.ctas

    @property
    def cluster(self) -> int:
        """CTAs in a cluster."""
        return self.paired * (self.slices if self.clustered else 1)

    @property
    def matrices(self) -> int:
        """Matrices of partial sums in device memory, which a second launch adds; 1: D itself."""
        return 1 if self.clustered else self.slices

    @property
    def piece(self) -> int:
        """``clustered``: columns of tensor memory that a warp stores for another CTA, or adds, at once."""
        return 32 if self.slices == 2 and self.tile[1] >= LANES else 16

    @property
    def pieces(self) -> int:
        """``clustered``: pieces of a tile."""
        return self.tile[1] // self.piece

    @property
    def waves(self) -> int:
        """Parts of a CTA's tile with an accumulator of their own."""
        return self.tile[0] // LANES

    @property
    def area(self) -> tuple[int, int]:
        """Rows of A and of B of a cluster's tile."""
        rows, columns = self.tile[0] * self.paired, self.tile[1]
        return (columns, rows) if self.swapped else (rows, columns)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage in one CTA, bytes."""
        return (self.tile[0] + self.tile[1] // self.ctas) * ROW_BYTES * self.depth

    @property
    def direct(self) -> bool:
        """Whether threads store D: partial sums of slices, of which a warp stores whole lines."""
        return self.swapped and self.matrices > 1

    @property
    def block_rows(self) -> int:
        """Rows of D in the epilogue's blocks of a warp, if swapped: two blocks of 32 rows, or all of a smaller tile."""
        return min(self.tile[1], BLOCKS * SWAPPED_ROWS)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of one CTA at most, bytes: mbarriers and bias, stages, blocks of the epilogue; if
        ``clustered`` or with ``multicast`` the blocks are in the memory of the stages."""
        blocks = LANES * (self.block_rows * SUM_BYTES if self.swapped else BLOCKS * ROW_BYTES)
        blocks = 0 if self.clustered or self.multicast else blocks
        return CONTROL_BYTES + self.stages * self.stage_bytes + blocks


_PAIR = Tiling((128, 256), stages=6, accumulators=2, stagger=0)
_ALONE = Tiling((128, 128), ctas=1, depth=2, stages=3, accumulators=2, stagger=0)
_SWAPPED = replace(_ALONE, swapped=True)
_MULTICAST = Tiling((128, 224), ctas=1, stages=5, stagger=4, multicast=True)
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
TILINGS |= {
    "128x256 pair, halves": replace(_PAIR, halves=True),
    "128x224 pair": replace(_PAIR, tile=(128, 224)),
    "128x192 multicast": replace(_MULTICAST, tile=(128, 192)),
    "128x224 multicast": _MULTICAST,
}
TILINGS |= {
    f"swapped 128x{columns}, cluster of {count} slices": replace(
        _SWAPPED,
        tile=(128, columns),
        depth=1,
        stages=stages,
        slices=count,
        clustered=True,
        stagger=3 if columns == 256 else 2,
    )
    for columns, stages in ((64, 9), (128, 6), (256, 4))
    for count in (2, 3, 4)
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


def resident(config: Tiling, sms: int) -> int:
    """Returns the clusters that run at once. A cluster lies in one GPC, so larger ones leave some SMs idle."""
    if config.cluster <= 2:
        return max(1, sms // config.cluster)
    return max(1, sms // GPC_SMS * (GPC_SMS // config.cluster))


def whole_tiles(config: Tiling, problem: Problem, sms: int) -> int:
    """Returns the number of tiles that are computed whole: without ``config.halves`` all of them."""
    down, across = clusters_of(config, problem)
    tiles, places = down * across * problem.batches * config.matrices, resident(config, sms)
    rest = tiles % places
    return tiles - rest if config.halves and 2 * rest <= places else tiles


def takes_halves(config: Tiling, problem: Problem, sms: int) -> bool:
    """Returns whether tiles are left for halves, and L2 has the operands: pairs without a half are out of step with the
    others, and would read theirs from device memory again."""
    down, across = clusters_of(config, problem)
    operands = (problem.m + problem.n) * problem.k * problem.size * problem.batches
    return whole_tiles(config, problem, sms) < down * across * problem.batches and operands <= L2_SIZE


def grid_of(config: Tiling, problem: Problem, sms: int) -> int:
    """Returns the CTAs: no more than fit at once, and the fewest with the same number of rounds."""
    down, across = clusters_of(config, problem)
    clusters = down * across * problem.batches * config.matrices
    if config.clustered or config.multicast:
        return clusters * config.cluster
    whole = whole_tiles(config, problem, sms)
    if whole < clusters:
        return (resident(config, sms) if whole else 2 * clusters) * config.ctas
    rounds = -(-clusters // resident(config, sms))
    return -(-clusters // rounds) * config.ctas


def has_whole_panels(config: Tiling, problem: Problem) -> bool:
    """Returns whether each part of an operand whose rows run along M or N, of one CTA's mma, is whole panels of 128
    bytes."""
    halves = 2 if config.clustered or config.halves else 1  # of B
    own = config.tile[1] - FIRST if config.multicast else config.tile[1] // config.ctas // halves
    parts = (config.tile[0], own)
    majors = problem.majors[::-1] if config.swapped else problem.majors
    return all(major == "k" or part * problem.size % PANEL == 0 for part, major in zip(parts, majors, strict=True))


def least_k(config: Tiling, problem: Problem) -> int:
    """Returns the least K for which no slice is empty; a ``clustered`` one has two blocks, of two accumulators."""
    blocks = config.slices * (2 if config.clustered else 1) - 1
    return blocks * PANEL * config.depth // problem.size + 1


def fits(config: Tiling, problem: Problem) -> bool:
    """Returns whether a configuration computes a problem."""
    return has_whole_panels(config, problem) and problem.k >= least_k(config, problem)


def candidates(problem: Problem, *, sms: int, slices: bool = True) -> Iterator[tuple[str, Tiling]]:
    """Yields the configurations that fit a problem, by name; with slices of K those of a few rounds of few tiles."""
    for name, config in TILINGS.items():
        down, across = clusters_of(config, problem)
        most = resident(config, sms) if config.clustered else 2 * sms // config.slices
        few = config.slices == 1 or (slices and problem.batches == 1 and down * across <= most)
        swappable = config.clustered or problem.m <= (SWAPPED_MOST if config.slices > 1 else LANES)
        if config.clustered and problem.m <= config.tile[1] // 2:
            continue  # half of the tile is empty
        if config.multicast and down * across * problem.batches > resident(config, sms):
            continue  # a CTA computes one tile
        if config.halves and not takes_halves(config, problem, sms):
            continue
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
    tiles, places = down * across * problem.batches * config.matrices, resident(config, sms)
    rest = tiles - whole_tiles(config, problem, sms)
    rounds = -(-(tiles - rest) // places)
    blocks = -(-problem.k * problem.size // (PANEL * config.slices))
    (rows, columns), running = config.tile, min(tiles, places) * config.cluster
    last = columns // 2 if rest else columns
    stored = rows * last * (SUM_BYTES if config.matrices > 1 else problem.size)
    once = stored / (DIRECT_BYTES if config.direct else STORE_BYTES)
    if config.clustered:
        once /= config.slices
    busy_cycles = rounds * block_cycles(config, columns, running) + (block_cycles(config, last, sms) if rest else 0)
    cycles = blocks * busy_cycles + once * (rounds if config.accumulators == 1 == config.waves else 1)
    often = problem.m * (COMMON if across > 1 else 1.0) + problem.n * (COMMON if down > 1 else 1.0)
    read = often * problem.k * problem.size * problem.batches
    busy = cycles / MHZ + PAIR_US * (config.paired > 1)
    warm = busy if config.matrices == 1 else busy + SUM_US + problem.m * problem.n / SUM_ELEMENTS_US
    if config.clustered:
        warm += exchange_cycles(config) / MHZ
    parts = config.slices * problem.m * problem.n * SUM_BYTES if config.matrices > 1 else 0
    memory = (read + min(read, DIRTY)) / HBM_BYTES
    read_us = float((busy**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP))
    cold = warm - busy + read_us + parts / SUM_BYTES_US
    return (2 * cold + warm) / 3


def block_cycles(config: Tiling, columns: int, running: int) -> float:
    """Returns the cycles of 128 bytes of K of a tile of ``columns`` while ``running`` CTAs run."""
    rows, own_columns = config.tile[0], columns / config.ctas
    alone = config.clustered or config.multicast
    sent = (rows + own_columns) * PANEL / (min(PORT_BYTES, L2_BYTES / running) if alone else SM_BYTES)
    if config.multicast:
        from_l2 = rows + own_columns / config.paired * MULTICAST
        sent = max(rows + own_columns, from_l2 * running * PORT_BYTES / L2_BYTES) * PANEL / PORT_BYTES
    written = 0 if alone else rows + own_columns
    moved = (written + rows + config.waves * own_columns) * PANEL / SMEM_BYTES
    return max(multiply_cycles(config, columns), sent, moved)


def multiply_cycles(config: Tiling, columns: int) -> float:
    """Returns the cycles of the mma of 128 bytes of K of a tile of ``columns``."""
    return 4 * config.waves * max(MMA_LEAST, columns / 2)


def exchange_cycles(config: Tiling) -> float:
    """Returns the cycles from the last mma of a ``clustered`` tile until a CTA has its columns of the other slices.

    Each CTA stores the columns of the others and loads as many; sums of half a tile are stored meanwhile the last
    k-blocks are multiplied with the other half.
    """
    (rows, columns), slices = config.tile, config.slices
    nbytes = rows * columns * SUM_BYTES * (slices - 1) / slices
    return (
        nbytes / DIRECT_BYTES + nbytes / PORT_BYTES - config.stagger * multiply_cycles(config, columns) / 2 + EXCHANGE
    )
