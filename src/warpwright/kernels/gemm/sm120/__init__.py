"""GEMM for consumer Blackwell, and for any target with TMA: mma.sync."""

from __future__ import annotations

from functools import cache

from warpwright.kernels.gemm.sm120.configs import CONFIGS, L2_PROMOTION, LEVELS, Config, config_of
from warpwright.kernels.gemm.sm120.kernel import gemm
from warpwright.kernels.gemm.sm120.ladder import gemm_one_loop
from warpwright.kernels.gemm.sm120.plan import choose, worthwhile
from warpwright.lang import Kernel, kernel

__all__ = ["CONFIGS", "L2_PROMOTION", "LEVELS", "Config", "choose", "config_of", "kernel_of", "worthwhile"]


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of ``config``; configure ``majors``, ``dtype`` and ``b_dtype``, ``out``, ``epilogue``."""
    own = gemm if config.specialised else gemm_one_loop
    several = config.ctas if config.ctas > 1 else None
    return kernel("sm_120a", threads=config.threads, ctas_per_sm=several)(own.function).configure(config=config)
