"""GEMM, D = A·Bᵀ: configurations, launch plans and kernels."""

from __future__ import annotations

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90 import kernel_of as hopper_kernel
from warpwright.kernels.gemm.sm90.configs import (
    CONFIGS,
    HOPPER_LEVELS,
    L2_PROMOTION,
    HopperConfig,
    hopper_config,
)
from warpwright.kernels.gemm.sm90.facts import FACTS, FP8_FACTS
from warpwright.kernels.gemm.sm90.plan import HopperPlan, choose, hopper_plan, in_one_launch, worthwhile
from warpwright.kernels.gemm.sm90.slices import add_slices, sum_grid
from warpwright.kernels.gemm.sm100.configs import LEVELS, SMALLER, GemmConfig, config_for, config_of
from warpwright.kernels.gemm.sm100.kernel import gemm_roles
from warpwright.kernels.gemm.sm100.ladder import gemm_level1, gemm_level2, gemm_ring, kernel_of
from warpwright.kernels.gemm.sm100.plan import Plan, plan

__all__ = [
    "CONFIGS",
    "FACTS",
    "FP8_FACTS",
    "HOPPER_LEVELS",
    "L2_PROMOTION",
    "LEVELS",
    "PLAIN",
    "SMALLER",
    "Epilogue",
    "GemmConfig",
    "HopperConfig",
    "HopperPlan",
    "Plan",
    "add_slices",
    "choose",
    "config_for",
    "config_of",
    "gemm_level1",
    "gemm_level2",
    "gemm_ring",
    "gemm_roles",
    "hopper_config",
    "hopper_kernel",
    "hopper_plan",
    "in_one_launch",
    "kernel_of",
    "plan",
    "sum_grid",
    "worthwhile",
]
