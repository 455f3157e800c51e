"""GEMM for datacentre Blackwell: the ladder, tcgen05, tensor memory."""

from __future__ import annotations

from warpwright.kernels.gemm.sm100.cluster import gemm_cluster
from warpwright.kernels.gemm.sm100.configs import IMPROVED, LEVELS, SMALLER, Config, config_for, config_of
from warpwright.kernels.gemm.sm100.gemm import gemm
from warpwright.kernels.gemm.sm100.halves import gemm_halves
from warpwright.kernels.gemm.sm100.kernel import gemm_roles
from warpwright.kernels.gemm.sm100.ladder import gemm_level1, gemm_level2, gemm_ring, kernel_of
from warpwright.kernels.gemm.sm100.multicast import gemm_multicast
from warpwright.kernels.gemm.sm100.plan import Plan, plan_gemm
from warpwright.kernels.gemm.sm100.tilings import (
    L2_PROMOTION,
    TILINGS,
    Problem,
    Tiling,
    candidates,
    choose,
    grid_of,
    has_whole_panels,
    least_k,
    whole_tiles,
)

__all__ = [
    "IMPROVED", "L2_PROMOTION", "LEVELS", "SMALLER", "TILINGS", "Config", "Plan", "Problem", "Tiling", "candidates",
    "choose", "config_for", "config_of", "gemm", "gemm_cluster", "gemm_halves", "gemm_level1", "gemm_level2",
    "gemm_multicast", "gemm_ring", "gemm_roles", "grid_of", "has_whole_panels", "kernel_of", "least_k", "plan_gemm",
    "whole_tiles",
]  # fmt: skip
