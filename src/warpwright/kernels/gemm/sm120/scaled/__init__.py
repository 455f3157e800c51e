"""GEMM with block scales for consumer Blackwell: MXFP8, MXFP4 and NVFP4 by mma.sync.block_scale, as a ladder."""

from __future__ import annotations

from functools import cache

from warpwright.kernels.gemm.sm120.configs import Config
from warpwright.kernels.gemm.sm120.scaled.configs import (
    LEVELS,
    TILINGS,
    choose,
    clusters_of,
    config_of,
    grid_of,
    stages_for,
)
from warpwright.kernels.gemm.sm120.scaled.kernel import scaled_gemm
from warpwright.lang import Kernel, kernel

__all__ = ["LEVELS", "TILINGS", "Config", "choose", "clusters_of", "config_of", "grid_of", "kernel_of", "stages_for"]


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of ``config``; configure ``formats`` of A and B, ``out`` (bf16, f16, f32) and ``epilogue``."""
    return kernel("sm_120a", threads=config.threads)(scaled_gemm.function).configure(config=config)
