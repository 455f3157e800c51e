"""The configuration of the mma.sync GEMM for a problem: the user's measurements, else an estimate of each one's time.

The constants follow from the rates of the virtual RTX 5090; no such board was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, log2

from warpwright.kernels.gemm.sm90.estimate import Problem, has_whole_panels
from warpwright.kernels.gemm.sm90.plan import NEAR, Known
from warpwright.kernels.gemm.sm120.configs import ATOM_BYTES, CONFIGS, Config

__all__ = ["choose", "estimate_us", "worthwhile"]

LAUNCH_US = 3.5
BLOCK_US = 1.04e-4  # of the tensor cores of an SM, for each element of a tile and 128 bytes of K
WAIT_US = 0.45  # of a k-block from L2 to registers, which a ring of several stages hides
STORE_US = 1.0e-4  # of the epilogue, for each element of a tile
SM_BYTES, HBM_BYTES = 6.0e4, 1.6e6  # a microsecond: from L2 to an SM, from memory
SUM_US, SUM_BYTES = 2.5, 1.3e6  # of the second launch of slices of K: its start, its bytes a microsecond


def choose(
    m: int,
    n: int,
    k: int,
    in_bytes: int = 2,
    *,
    batches: int = 1,
    majors: tuple[str, str] = ("k", "k"),
    sms: int = 170,
    tuned: Sequence[Known] = (),
    slices: bool = True,
) -> Config:
    """Returns the fastest known configuration for ``batches`` D (m, n) = A (m, k) · B (n, k)ᵀ on ``sms`` SMs.

    The nearest of ``tuned``, the user's measurements, decides if its extents differ by a tenth at most; else the
    estimate. ``in_bytes`` is the size of an element of A and B. Without ``slices`` the configuration needs no scratch
    memory.
    """
    problem = Problem(m, n, k, in_bytes, batches, majors)
    usable = {
        name: config
        for name, config in CONFIGS.items()
        if has_whole_panels(config, problem) and (config.slices == 1 or (slices and worthwhile(config, m, n, sms=sms)))
    }
    near = [(_distance(each, problem), each.config) for each in tuned if each.config in usable]
    if batches == 1 and near and min(near)[0] <= NEAR:
        return usable[min(near)[1]]
    fitting = [each for each in usable.values() if each.slices <= _pieces(k * in_bytes, ATOM_BYTES)]
    return min(fitting, key=lambda each: estimate_us(each, problem, sms=sms))


def worthwhile(config: Config, m: int, n: int, *, sms: int) -> bool:
    """Returns whether ``config`` can be the fastest for D (m, n): slices of K are for few tiles."""
    tiles = _pieces(m, config.tile[0]) * _pieces(n, config.tile[1])
    return config.slices == 1 or tiles * config.slices <= 2 * sms * config.ctas


def estimate_us(config: Config, problem: Problem, *, sms: int) -> float:
    """Returns the microseconds of a problem on a device of ``sms`` SMs."""
    m, n, k, size, batches, _ = problem
    rows, columns = config.tile
    parts = batches * config.slices
    tiles = parts * _pieces(m, rows) * _pieces(n, columns)
    rounds = _pieces(tiles, sms * config.ctas)
    sharing = min(config.ctas, _pieces(tiles, sms))
    blocks = _pieces(_pieces(k * size, ATOM_BYTES), config.slices)
    multiplied = rows * columns * BLOCK_US / 64 * sharing
    sent = (rows + columns) * ATOM_BYTES / SM_BYTES * sharing
    waited = WAIT_US / config.stages
    round_us = blocks * max(multiplied, sent, waited) + WAIT_US + rows * columns * STORE_US / 64
    moved = parts * m * n * (4 if config.slices > 1 else 2) + batches * (m + n) * k * size
    added = SUM_US + parts * m * n * 4 / SUM_BYTES if config.slices > 1 else 0.0
    return LAUNCH_US + hypot(rounds * round_us, moved / HBM_BYTES) + added


def _distance(fact: Known, problem: Problem) -> float:
    ratios = problem.m / fact.m, problem.n / fact.n, problem.k / fact.k
    return sum(log2(ratio) ** 2 for ratio in ratios)


def _pieces(extent: int, piece: int) -> int:
    return -(-extent // piece)
