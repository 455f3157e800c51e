"""Inputs of FP8 attention, its two launches, and comparison with float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from tests.kernels.attention.attention_helpers import LSE_ERROR, SENTINEL
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm90 import fp8, fp8_plan, fp8_values
from warpwright.kernels.attention.sm90.fp8_plan import Fp8Config
from warpwright.kernels.reference import ulp
from warpwright.types import of_dtype

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
BF16 = np.dtype(ml_dtypes.bfloat16)
UNIT = 256.0  # the reference rounds weights to e4m3 in units of 1 / 256 of the largest one
BAR = 1.1  # of the error of the reference
HALF_STEP, SMALLEST = 2.0**-4, 2.0**-10  # relative rounding error of e4m3, and that of its subnormal numbers
LEAST_UNIT = 2.0**6  # the kernel's weight at the row max
POWER = 0.011  # relative error of an exponential by the FMA units

Arrays = tuple[np.ndarray, ...]


def random_inputs(problem: Problem, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Returns Q, K and V of normally distributed numbers, and a scale for each head of each of them."""
    random = np.random.default_rng(seed)
    batch, heads = problem.batch, (problem.heads, problem.kv_heads, problem.kv_heads)
    rows = problem.q_len, problem.kv_len, problem.kv_len
    given = [random.standard_normal((batch, h, n, problem.head_dim)) for h, n in zip(heads, rows, strict=True)]
    scales = [np.exp(0.3 * random.standard_normal((batch, h))).astype(np.float32) for h in heads]
    return tuple(x.astype(E4M3) for x in given), tuple(scales)


def launches(
    problem: Problem,
    config: Fp8Config,
    given: Arrays,
    scales: Any,
    *,
    sms: int = 2,
    out: Any = BF16,
    wants_lse: bool = True,
) -> tuple[list[tuple[Any, Any, list[Any]]], Arrays]:
    """Returns kernel, grid and arguments of both launches; and O, the log-sum-exp and the counter."""
    (q, k, v), found = given, fp8_plan.plan(problem, sms=sms, config=config)
    values = np.full(found.values_shape, 0x7F, np.uint8)  # NaN
    o, lse = np.full(q.shape, SENTINEL, out), np.full(q.shape[:3], SENTINEL, np.float32)
    counter, slabs = np.zeros(1, np.uint32), found.values_shape[1]
    transpose = fp8_values.kernel_of(config.head_dim).trace()
    kernel = fp8.kernel_of(config).trace(out=of_dtype(out), bounds=found.main.bounds, wants_lse=wants_lse)
    first = [v, values, slabs]
    second = [q, k, values, o, lse, counter, *scales, *found.main.scalars, slabs]
    return [(transpose, found.values_grid, first), (kernel, found.main.grid, second)], (o, lse, counter)


def run_attention(
    problem: Problem, config: Fp8Config, given: Arrays, scales: Any, *, device: Any = "h200", **how: Any
) -> Arrays:
    """Run both launches; returns output and log-sum-exp."""
    numerics = {"numerics": how.pop("numerics")} if "numerics" in how else {}
    both, (o, lse, counter) = launches(problem, config, given, scales, **how)
    for kernel, grid, args in both:
        ww.launch(kernel, grid, args=args, device=device, **numerics)
    assert counter[0] == 0
    return o, lse


def scaled(given: Arrays, scales: Arrays) -> Arrays:
    """Returns Q, K and V in float64."""
    return tuple(x.astype(np.float64) * scale[..., None, None] for x, scale in zip(given, scales, strict=True))


def rounded_attention(problem: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Returns attention in float64 whose weights alone are rounded to e4m3."""
    keys, values = (np.repeat(x, problem.group, axis=1) for x in (k, v))
    first, stop = problem.visible()
    seen = (first[:, None] <= np.arange(problem.kv_len)) & (np.arange(problem.kv_len) < stop[:, None])
    scores = np.where(seen, q @ keys.swapaxes(2, 3) * problem.factor, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = weights.sum(-1, keepdims=True)
    narrow = (UNIT * weights).astype(np.float32).astype(E4M3).astype(np.float64) / UNIT
    return np.asarray(narrow @ values / np.where(total == 0, 1.0, total))


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the relative RMS error."""
    return float(np.sqrt(np.square(found.astype(np.float64) - wanted).mean() / np.square(wanted).mean()))


def verify(problem: Problem, given: Arrays, scales: Arrays, found: Arrays) -> None:
    """Assert that output and log-sum-exp equal those in float64, up to the errors of exponentials and the rounding of
    weights and output; of the log-sum-exp, if it was wanted."""
    q, k, v = scaled(given, scales)
    (exact, exact_lse), (o, lse) = reference.attention(problem, q, k, v), found
    weights, _ = reference.attention(problem, q, k, np.ones_like(v))
    size, _ = reference.attention(problem, q, k, np.abs(v))
    most = np.abs(v).sum(2, keepdims=True).repeat(problem.group, axis=1) * weights
    wanted = (lse != SENTINEL).any()
    step = HALF_STEP if wanted else HALF_STEP + POWER * (1 + HALF_STEP)
    bound = step * size + SMALLEST / LEAST_UNIT * most + ulp(np.where(exact == 0, 2.0**-24, exact), o.dtype)
    assert (np.abs(o.astype(np.float64) - exact) <= bound).all()
    empty = np.isneginf(exact_lse)
    if not wanted:
        return
    assert np.array_equal(np.isneginf(lse), empty)
    np.testing.assert_allclose(lse[~empty], exact_lse[~empty], rtol=LSE_ERROR, atol=LSE_ERROR)
