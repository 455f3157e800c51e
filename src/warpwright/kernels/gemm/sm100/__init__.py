"""GEMM for datacentre Blackwell: the ladder, tcgen05, tensor memory."""

from __future__ import annotations

from warpwright.kernels.gemm.sm100.configs import IMPROVED, LEVELS, SMALLER, Config, config_for, config_of
from warpwright.kernels.gemm.sm100.kernel import gemm_roles
from warpwright.kernels.gemm.sm100.ladder import gemm_level1, gemm_level2, gemm_ring, kernel_of
from warpwright.kernels.gemm.sm100.plan import Plan, plan_gemm

__all__ = [
    "IMPROVED", "LEVELS", "SMALLER", "Config", "Plan", "config_for", "config_of", "gemm_level1", "gemm_level2",
    "gemm_ring", "gemm_roles", "kernel_of", "plan_gemm",
]  # fmt: skip
