"""GEMM, D = A·Bᵀ: configurations, launch plans and kernels."""

from __future__ import annotations

from warpwright.kernels.gemm.configs import LEVELS, GemmConfig, config_of
from warpwright.kernels.gemm.host import Plan, plan
from warpwright.kernels.gemm.sm100 import gemm_level1, gemm_level2, gemm_level3, kernel_of

__all__ = [
    "LEVELS",
    "GemmConfig",
    "Plan",
    "config_of",
    "gemm_level1",
    "gemm_level2",
    "gemm_level3",
    "kernel_of",
    "plan",
]
