"""GEMM for Hopper: wgmma, TMA, clusters."""

from __future__ import annotations

from functools import cache

from warpwright.kernels.gemm.sm90.configs import HopperConfig
from warpwright.kernels.gemm.sm90.kernel import gemm
from warpwright.kernels.gemm.sm90.ladder import gemm_one_loop
from warpwright.kernels.gemm.sm90.split import gemm_split
from warpwright.lang import Kernel, kernel

__all__ = ["KERNELS", "kernel_of"]

KERNELS = {"ring": gemm, "loop": gemm_one_loop, "split": gemm_split}


@cache
def kernel_of(config: HopperConfig) -> Kernel:
    """Returns the kernel of ``config``; configure ``majors``, ``dtype`` and ``b_dtype``, ``out``, ``epilogue``."""
    shape = kernel("sm_90a", cluster=config.cluster, threads=config.threads)
    return shape(KERNELS[config.kernel].function).configure(config=config)
