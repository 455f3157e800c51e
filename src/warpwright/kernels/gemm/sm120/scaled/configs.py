"""Configurations of the mma.sync GEMM with block scales as data: the ladder's levels, and the one of a problem.

They are configurations of `warpwright.kernels.gemm.sm120` whose tiles lie within 128 rows of scale factors.
"""

from __future__ import annotations

from dataclasses import replace

from warpwright.errors import UsageError
from warpwright.kernels.gemm.formats import Format
from warpwright.kernels.gemm.sm90.estimate import Problem
from warpwright.kernels.gemm.sm120.configs import ATOM_BYTES, CONFIGS, Config
from warpwright.kernels.gemm.sm120.configs import LEVELS as PLAIN_LEVELS
from warpwright.kernels.gemm.sm120.plan import estimate_us
from warpwright.targets import arch

__all__ = ["LEVELS", "SCALE_BYTES", "TILINGS", "choose", "clusters_of", "config_of", "grid_of", "stages_for"]

SCALE_BYTES = 512  # of a tile of 128 rows and 4 blocks
FIRST_LEVEL = 3  # of the ladder without scales: a warp of its own loads

LEVELS = {level - FIRST_LEVEL + 1: PLAIN_LEVELS[level] for level in range(FIRST_LEVEL, 8)}
TILINGS = {
    "128x128": LEVELS[5],
    "64x128": CONFIGS["64x128"],
    "64x64": CONFIGS["64x64"],
    "32x64": replace(CONFIGS["32x64"], stages=4),
    "16x128": replace(CONFIGS["16x128"], ctas=1, stages=4),
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


def stages_for(config: Config, format: Format) -> int:
    """Returns the stages that fit into shared memory beside the mbarriers and the epilogue's blocks."""
    target, operands = arch("sm_120a"), sum(config.tile) * ATOM_BYTES
    room = min(target.smem_per_block, target.smem_per_sm // config.ctas - target.smem_reserved_per_block)
    rest = config.smem_bytes - config.stages * operands
    return min(config.stages, (room - rest) // (operands + 2 * format.count * SCALE_BYTES))


def clusters_of(config: Config, m: int, n: int) -> tuple[int, int]:
    """Returns the tiles along M and N."""
    return -(-m // config.tile[0]), -(-n // config.tile[1])


def grid_of(config: Config, m: int, n: int, sms: int) -> int:
    """Returns the CTAs: if persistent the fewest with the least rounds, else a CTA for each tile."""
    down, across = clusters_of(config, m, n)
    rounds = -(-down * across // (sms * config.ctas)) if config.persistent else 1
    return -(-down * across // rounds)


def choose(m: int, n: int, k_bytes: int, format: Format, sms: int) -> Config:
    """Returns the configuration of `TILINGS` with the least estimated time for D (m, n) and rows of ``k_bytes``."""
    problem = Problem(m, n, k_bytes, 1, 1, ("k", "k"))
    fitting = [config for config in TILINGS.values() if stages_for(config, format) > 1]
    return min(fitting, key=lambda config: estimate_us(config, problem, sms=sms))
