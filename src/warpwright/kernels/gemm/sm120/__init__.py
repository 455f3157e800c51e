"""GEMM for consumer Blackwell, and for any target with TMA: mma.sync."""

from __future__ import annotations

from functools import cache

from warpwright.kernels.gemm.sm120.configs import CONFIGS, L2_PROMOTION, LEVELS, Config, config_of
from warpwright.kernels.gemm.sm120.kernel import gemm
from warpwright.kernels.gemm.sm120.ladder import gemm_one_loop
from warpwright.kernels.gemm.sm120.plan import choose, worthwhile
from warpwright.lang import Kernel, kernel
from warpwright.targets import ARCHS

__all__ = ["CONFIGS", "L2_PROMOTION", "LEVELS", "Config", "choose", "config_of", "kernel_of", "worthwhile"]


@cache
def kernel_of(config: Config, arch: str = "sm_120a") -> Kernel:
    """Returns the kernel of ``config``; configure ``majors``, ``dtype`` and ``b_dtype``, ``out``, ``epilogue``.

    Where a CTA has one tile, the assembler keeps registers few enough for two CTAs an SM, if shared memory of ``arch``
    lets in two.
    """
    own, limits = gemm if config.specialised else gemm_one_loop, ARCHS[arch]
    fitting = limits.fitting_ctas(config.threads, config.smem_bytes + limits.smem_reserved_per_block)
    ctas = config.ctas if config.persistent else min(2, fitting)
    several = ctas if ctas > 1 else None
    return kernel("sm_120a", threads=config.threads, ctas_per_sm=several)(own.function).configure(config=config)
