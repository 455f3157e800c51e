"""GEMM with block scales for datacentre Blackwell: MXFP8, MXFP4 and NVFP4 by tcgen05.mma.block_scale, as a ladder."""

from __future__ import annotations

from warpwright.kernels.gemm.sm100.scaled.configs import (
    LEVELS,
    TILINGS,
    Config,
    choose,
    clusters_of,
    config_of,
    grid_of,
)
from warpwright.kernels.gemm.sm100.scaled.kernel import scaled_gemm
from warpwright.kernels.gemm.sm100.scaled.loop import kernel_of, scaled_loop

__all__ = [
    "LEVELS", "TILINGS", "Config", "choose", "clusters_of", "config_of", "grid_of", "kernel_of", "scaled_gemm",
    "scaled_loop",
]  # fmt: skip
