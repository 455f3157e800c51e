"""The time of a configuration of the Hopper GEMM for a problem, to compare configurations by.

Clusters run in rounds. In a round every CTA multiplies the k-blocks of a tile, 128 bytes of K each, as fast as its
tensor core or L2 allows; device memory is read meanwhile. The constants are a least-squares fit to 2,015 launches of 17
configurations on one H200 (116 problems with M above 128, L2 cold); the error of a launch is 12 % (root mean square).
What counts is the order: the fastest configuration by this formula takes 1.026 times as long as the measured fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot
from typing import NamedTuple, Protocol

from warpwright.kernels.gemm.sm90.configs import ATOM_BYTES, CONFIGS, Config
from warpwright.kernels.gemm.sm90.rounds import PINGPONG_K, PINGPONG_TILES, fit_last

__all__ = ["Problem", "candidates", "cut_operand", "estimate_us", "has_whole_panels"]

LAUNCH_US = 4.8
BLOCK_US = 1.82e-5  # of the tensor core, for each element of a tile and k-block
NARROW = 64, 1.6  # columns of a tile whose wgmmas wait for shared memory, and how much longer they take
STORE_US = 6.9e-5  # of the epilogue, for each element of a tile
ROWS = 960.0  # rows of 128 bytes that L2 sends to each SM in a microsecond
SECTOR = 32  # bytes; a row of a k-block that does not begin at a sector touches two lines and five sectors
CROSSING = 1.0, 1.3, 2.2  # L2's work for 128 bytes of a row that begins at a line, at a sector, elsewhere
HBM_BYTES = 4.8e6  # a microsecond
SUM_US, SUM_BYTES = 2.5, 3.0e6  # of the second launch of slices of K: its start, its bytes a microsecond
FEW_ROWS = 4  # rows of tiles: fewer read B so rarely that it is loaded to be evicted first


class Problem(NamedTuple):
    """``batches`` of D (m, n) = A (m, k) · B (n, k)ᵀ. ``majors``: the axis of A and of B that is dense in memory, "k"
    or "mn"; ``size``: bytes of an element of both."""

    m: int
    n: int
    k: int
    size: int
    batches: int
    majors: tuple[str, str]

    @property
    def crossing(self) -> tuple[float, float]:
        """L2's work for 128 bytes of A and of B, as a multiple of the work where rows in memory begin at 128 bytes."""
        extents = zip((self.m, self.n), self.majors, strict=True)
        a, b = (_crossing((self.k if major == "k" else rows) * self.size) for rows, major in extents)
        return a, b

    @property
    def whole_sectors(self) -> bool:
        """Whether all rows in memory begin at sectors of L2."""
        return max(self.crossing) < CROSSING[-1]


class Shared(Protocol):
    """A tile, and how many CTAs share its operands."""

    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def share(self) -> tuple[int, int]: ...


def candidates(problem: Problem, *, slices: bool, sms: int) -> Iterator[Config]:
    """Yields the configurations that can be the fastest for more than 128 rows of A; ``slices``: also with slices of K.

    Of two that differ in cache hints or multicast alone, the alignment of rows and the rows of tiles decide.
    """
    aligned = problem.crossing == (1.0, 1.0)
    for name, config in CONFIGS.items():
        whole = config.slices == config.split == 1 and not config.rotate and not config.rows
        few = aligned and -(-problem.m // config.tile[0]) <= FEW_ROWS
        if bool(config.promoted) != (problem.size == 1) or not (whole or (slices and config.slices > 1)):
            continue
        if whole and name in PAIRED and bool(config.once) != few:
            continue
        if (aligned and name == "64x128 pair") or not has_whole_panels(config, problem):
            continue
        if config.pingpong and not _takes_turns(config, problem, sms):
            continue
        if config.last and not config.pingpong and not _fit(config, problem, sms).last:
            continue
        yield config


def has_whole_panels(config: Shared, problem: Problem) -> bool:
    """Whether each CTA's part of a shared operand is whole panels: of a "mn" operand a panel is 128 bytes of rows."""
    return cut_operand(config, problem) is None


def cut_operand(config: Shared, problem: Problem) -> tuple[int, int] | None:
    """Returns the operand of whose panels a CTA would load a part, 0 for A and 1 for B, and the rows of a tile that are
    whole panels for each CTA; None if there is no such operand."""
    steps = [ATOM_BYTES // problem.size * share for share in reversed(config.share)]
    operands = enumerate(zip(problem.majors, config.tile, steps, strict=True))
    return next(((i, step) for i, (major, rows, step) in operands if major == "mn" and rows % step), None)


PAIRED = {name for name in CONFIGS for plain in CONFIGS if f"{plain} stream" == name or f"{name} stream" == plain}


def estimate_us(config: Config, problem: Problem, *, sms: int) -> float:
    """Returns the microseconds of a problem on a device of ``sms`` SMs."""
    m, n, k, size, batches, _ = problem
    (rows, columns), share, (of_a, of_b) = config.tile, config.share, problem.crossing
    parts = batches * config.slices
    clusters = parts * _pieces(_pieces(m, rows), share[0]) * _pieces(_pieces(n, columns), share[1])
    rounds = _pieces(clusters, max(1, sms // config.cluster))
    blocks = _pieces(_pieces(k * size, ATOM_BYTES), config.slices)
    last = _fit(config, problem, sms).last or columns

    def round_us(columns: int) -> float:
        sent = (rows / share[1] * of_a + columns / share[0] * of_b) / ROWS
        multiplied = rows * columns * BLOCK_US * (NARROW[1] if columns <= NARROW[0] else 1.0)
        return blocks * max(multiplied, sent) + rows * columns * STORE_US

    moved = (m * of_a**0.5 + n * of_b**0.5) * k * size + 2 * m * n
    added = SUM_US + parts * m * n * 4 / SUM_BYTES if config.slices > 1 else 0.0
    return LAUNCH_US + hypot((rounds - 1) * round_us(columns) + round_us(last), batches * moved / HBM_BYTES) + added


def _takes_turns(config: Config, problem: Problem, sms: int) -> bool:
    """Returns whether consumers in turn are faster: for one matrix, where CTAs have tiles enough and K is not short."""
    tiles = _pieces(problem.m, config.tile[0]) * _pieces(problem.n, config.tile[1])
    return problem.batches == 1 and tiles >= PINGPONG_TILES * sms and problem.k >= PINGPONG_K


def _fit(config: Config, problem: Problem, sms: int) -> Config:
    m, n, *_, batches, (_, major) = problem
    return fit_last(config, m, n, sms=sms, batches=batches, major=major)


def _pieces(extent: int, piece: int) -> int:
    return -(-extent // piece)


def _crossing(row_bytes: int) -> float:
    return CROSSING[0 if row_bytes % ATOM_BYTES == 0 else 1 if row_bytes % SECTOR == 0 else 2]
