"""Inputs of attention, launches of the mma.sync kernels, and comparison with float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm120.kernel import kernel_of
from warpwright.kernels.attention.sm120.plan import Config, plan
from warpwright.kernels.reference import ulp
from warpwright.types import of_dtype

BF16 = np.dtype(ml_dtypes.bfloat16)
SENTINEL = 7.0
LSE_ERROR = 4e-6  # relative, of float32 logarithms and of scores near 100


def normal_qkv(problem: Problem, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns Q, K and V of normally distributed numbers."""
    random = np.random.default_rng(seed)
    q = random.standard_normal((problem.batch, problem.heads, problem.q_len, problem.head_dim))
    k, v = (
        random.standard_normal((problem.batch, problem.kv_heads, problem.kv_len, columns))
        for columns in (problem.head_dim, problem.columns)
    )
    return q.astype(problem.dtype), k.astype(problem.dtype), v.astype(problem.dtype)


def arguments(
    problem: Problem, config: Config, arrays: Any, arch: str = "sm_120a"
) -> tuple[Any, tuple[int, int, int], list[Any]]:
    """Returns kernel, grid and arguments of a launch; ``arrays`` are q, k, v, o and the log-sum-exp."""
    found = plan(problem, config=config)
    *four, lse = arrays
    strides = [step // a.itemsize for a in four for step in a.strides[:3]] + [problem.head_dim]
    middle = strides if config.kernel == "cp.async" else []
    kernel = kernel_of(config).trace(arch=arch, dtype=of_dtype(problem.dtype))
    return kernel, found.grid, [*four, *middle, lse, *found.scalars]


def run_attention(
    problem: Problem, config: Config, q: Any, k: Any, v: Any, *, arch: str = "sm_120a", device: Any = "rtx5090"
) -> tuple[np.ndarray, np.ndarray]:
    """Run the kernel of ``config``; returns output and log-sum-exp."""
    o, lse = np.full(q.shape, SENTINEL, q.dtype), np.full(q.shape[:3], SENTINEL, np.float32)
    kernel, grid, args = arguments(problem, config, (q, k, v, o, lse), arch)
    ww.launch(kernel, grid, args=args, device=device)
    return o, lse


def output_arguments(config: Any, o: np.ndarray) -> list[Any]:
    """Returns the arguments of a kernel that stand for O: the array, or for a kernel without a map of it also the
    strides of batch, head and row in elements, and the columns."""
    direct = getattr(config, "direct", False)
    return [o, *(step // o.itemsize for step in o.strides[:3]), o.shape[3]] if direct else [o]


def verify(problem: Problem, given: Any, found: Any) -> None:
    """Assert that output and log-sum-exp equal those in float64 up to the rounding of their types."""
    exact, exact_lse = reference.attention(problem, *given)
    (o, lse), empty = found, np.isneginf(exact_lse)
    bound = reference.slack(problem, *given) + 0.5 * ulp(np.where(exact == 0, 2.0**-24, exact), problem.dtype)
    assert (np.abs(o.astype(np.float64) - exact) <= bound).all()
    assert np.array_equal(np.isneginf(lse), empty)
    np.testing.assert_allclose(lse[~empty], exact_lse[~empty], rtol=LSE_ERROR, atol=LSE_ERROR)
