"""Attention, softmax(scale · Q·Kᵀ)·V: problems, references, configurations and kernels."""

from __future__ import annotations

from warpwright.kernels.attention.problem import Problem

__all__ = ["Problem"]
