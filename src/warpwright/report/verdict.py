"""Verification of results against float64, one block of rows or one head at a time to limit memory.

Two bounds hold for every element of a verified result, with one unit in the last place (ulp) of the output type and a
slack, `kernels.reference.accumulation_slack` for GEMM and `kernels.attention.reference.slack` for attention:

- ``|d - exact| <= ulp / 2 + slack``, where ``exact`` is the float64 value: one rounding, plus the accumulation;
- ``|d - rounded| <= max(ulp, slack)``, where ``rounded`` is ``exact`` in the output type. ``max_ulp`` is the largest
  such distance in units of max(ulp, slack): cancellation below the slack is not resolved.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.reference import attention, slack
from warpwright.kernels.reference import accumulation_slack, ulp

__all__ = ["Verdict", "judge", "judge_attention", "judge_values"]

Array = NDArray[Any]

BLOCK_ROWS = 512
LSE_ERROR = 1e-5  # absolute and relative error of a float32 log-sum-exp


@dataclass(frozen=True)
class Verdict:
    """Errors against float64 (``max_ulp`` against float64 rounded to the output type), and whether the bounds hold."""

    max_err: float
    mean_err: float
    cos_sim: float
    max_ulp: float
    verified: bool

    def as_row(self) -> dict[str, float | bool]:
        return asdict(self)


@dataclass
class _Sums:
    """Error sums over the blocks of rows."""

    max_err: float = 0.0
    total_err: float = 0.0
    max_ulp: float = 0.0
    dot: float = 0.0
    norm_got: float = 0.0
    norm_exact: float = 0.0
    within: bool = True
    compared: int = 0


def judge(result: Array, a: Array, b: Array) -> Verdict:
    """Compare ``result`` (M, N) with ``a @ b`` of ``a`` (M, K) and ``b`` (K, N), the kernel's operands.

    Where the exact value is not finite, or overflows the output type, ``result`` must be the same NaN or infinity. A
    result without a finite element is not verified: the NaN of one operand hides every error of a kernel.
    """
    sums = _Sums()
    b_exact = b.astype(np.float64)
    for first in range(0, result.shape[0], BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = a[rows].astype(np.float64) @ b_exact
            slack = accumulation_slack(a[rows], b.T)
            _add_block(sums, result[rows], exact, slack)
    return _verdict(sums, result.size)


def judge_values(result: Array, exact: Array, slack: Array) -> Verdict:
    """Compare ``result`` with float64 values; ``slack`` is the largest error of each before it is rounded."""
    sums = _Sums()
    _add_block(sums, result, exact, slack)
    return _verdict(sums, result.size)


def judge_attention(problem: Problem, qkv: tuple[Array, Array, Array], result: Array, lse: Array | None) -> Verdict:
    """Compare ``result`` (batch, heads, q_len, head_dim) of finite Q, K and V with float64, head by head.

    ``lse``, the log-sum-exp (batch, heads, q_len), is compared too unless it is None.
    """
    sums, one = _Sums(), replace(problem, batch=1, heads=1, kv_heads=1, scale=problem.factor)
    for batch, head in np.ndindex(problem.batch, problem.heads):
        shared = head // problem.group
        arrays = [x[batch, at][None, None] for x, at in zip(qkv, (head, shared, shared), strict=True)]
        exact, exact_lse = attention(one, *arrays)
        _add_block(sums, result[batch, head], exact[0, 0], slack(one, *arrays)[0, 0])
        if lse is not None:
            close = np.isclose(lse[batch, head], exact_lse[0, 0], rtol=LSE_ERROR, atol=LSE_ERROR)
            sums.within &= bool(close.all())
    return _verdict(sums, result.size)


def _verdict(sums: _Sums, count: int) -> Verdict:
    scale = (sums.norm_got * sums.norm_exact) ** 0.5
    compared = sums.compared > 0 or count == 0
    cosine = sums.dot / scale if scale else float(compared)
    return Verdict(sums.max_err, sums.total_err / max(count, 1), cosine, sums.max_ulp, sums.within and compared)


def _add_block(sums: _Sums, result: Array, exact: Array, slack: Array) -> None:
    rounded = exact.astype(result.dtype).astype(np.float64)
    got = result.astype(np.float64)
    finite = np.isfinite(rounded)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    sums.within &= bool(same[~finite].all()) and bool(np.isfinite(got[finite]).all())
    got, exact, rounded, slack = got[finite], exact[finite], rounded[finite], slack[finite]
    sums.compared += got.size
    if not got.size:
        return
    unit = ulp(rounded, result.dtype)
    error = np.abs(got - exact)
    distance = np.abs(got - rounded) / np.maximum(unit, slack)
    sums.max_err = max(sums.max_err, float(error.max()))
    sums.total_err += float(error.sum())
    sums.max_ulp = max(sums.max_ulp, float(distance.max()))
    sums.dot += float(got @ exact)
    sums.norm_got += float(got @ got)
    sums.norm_exact += float(exact @ exact)
    sums.within &= bool((error <= unit / 2 + slack).all()) and sums.max_ulp <= 1
