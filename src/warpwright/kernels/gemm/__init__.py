"""GEMM, D = A·Bᵀ: `sm90` and `sm100` have the configurations, launch plans and kernels of each architecture."""

from __future__ import annotations

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue

__all__ = ["PLAIN", "Epilogue"]
