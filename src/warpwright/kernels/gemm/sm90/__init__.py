"""GEMM for Hopper: wgmma, TMA, clusters."""

from __future__ import annotations

from functools import cache

from warpwright.kernels.gemm.sm90.configs import CONFIGS, L2_PROMOTION, LEVELS, Config, config_of
from warpwright.kernels.gemm.sm90.facts import FACTS, FP8_FACTS
from warpwright.kernels.gemm.sm90.kernel import gemm
from warpwright.kernels.gemm.sm90.ladder import gemm_one_loop
from warpwright.kernels.gemm.sm90.pingpong import gemm_pingpong
from warpwright.kernels.gemm.sm90.plan import (
    Plan,
    choose,
    fit_slices,
    has_all_rows,
    plan_gemm,
    with_registers,
    worthwhile,
)
from warpwright.kernels.gemm.sm90.rounds import fit_last, takes_two_widths
from warpwright.kernels.gemm.sm90.split import gemm_split
from warpwright.kernels.gemm.sm90.two_widths import gemm_two_widths
from warpwright.lang import Kernel, kernel

__all__ = [
    "CONFIGS", "FACTS", "FP8_FACTS", "KERNELS", "L2_PROMOTION", "LEVELS", "Config", "Plan", "choose",
    "config_of", "fit_last", "fit_slices", "has_all_rows", "kernel_of", "plan_gemm", "takes_two_widths",
    "with_registers", "worthwhile",
]  # fmt: skip

KERNELS = {
    "ring": gemm,
    "loop": gemm_one_loop,
    "split": gemm_split,
    "two widths": gemm_two_widths,
    "pingpong": gemm_pingpong,
}


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of ``config``; configure ``majors``, ``dtype`` and ``b_dtype``, ``out``, ``epilogue``."""
    shape = kernel("sm_90a", cluster=config.cluster, threads=config.threads)
    return shape(KERNELS[config.kernel].function).configure(config=config)
