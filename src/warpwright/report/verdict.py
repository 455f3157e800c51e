"""Is a matrix product right? Measured against float64, a block of rows at a time, so that a large one fits in memory.

Two bounds hold for every element of a verified product, with one unit in the last place (ulp) of the output type and
the slack of accumulating in float32 that `kernels.reference.accumulation_slack` states:

- ``|d - exact| <= ulp / 2 + slack``, where ``exact`` is the float64 value: one rounding, plus the accumulation;
- ``|d - rounded| <= max(ulp, slack)``, where ``rounded`` is ``exact`` in the output type. ``max_ulp`` is the largest
  such distance in that unit: an element that cancels to less than the slack cannot be resolved any finer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.kernels.reference import accumulation_slack, ulp

__all__ = ["Verdict", "judge"]

Array = NDArray[Any]

BLOCK_ROWS = 512


@dataclass(frozen=True)
class Verdict:
    """Errors against float64 (``max_ulp`` against float64 rounded to the output type) and whether the bounds hold."""

    max_err: float
    mean_err: float
    cos_sim: float
    max_ulp: float
    verified: bool

    def as_row(self) -> dict[str, float | bool]:
        return asdict(self)


@dataclass
class _Sums:
    """What is carried from one block of rows to the next."""

    max_err: float = 0.0
    total_err: float = 0.0
    max_ulp: float = 0.0
    dot: float = 0.0
    norm_got: float = 0.0
    norm_exact: float = 0.0
    within: bool = True


def judge(result: Array, a: Array, b: Array) -> Verdict:
    """How ``result`` (M, N) differs from ``a @ b`` of ``a`` (M, K) and ``b`` (K, N) as the kernel received them.

    Where the exact value is not finite, or overflows the output type, ``result`` must be the same NaN or infinity.
    """
    sums = _Sums()
    b_exact = b.astype(np.float64)
    for first in range(0, result.shape[0], BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = a[rows].astype(np.float64) @ b_exact
            slack = accumulation_slack(a[rows], b.T)
            _add_block(sums, result[rows], exact, slack)
    scale = (sums.norm_got * sums.norm_exact) ** 0.5
    cosine = sums.dot / scale if scale else 1.0
    mean = sums.total_err / max(result.size, 1)
    return Verdict(sums.max_err, mean, cosine, sums.max_ulp, sums.within)


def _add_block(sums: _Sums, result: Array, exact: Array, slack: Array) -> None:
    rounded = exact.astype(result.dtype).astype(np.float64)
    got = result.astype(np.float64)
    finite = np.isfinite(rounded)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    sums.within &= bool(same[~finite].all()) and bool(np.isfinite(got[finite]).all())
    got, exact, rounded, slack = got[finite], exact[finite], rounded[finite], slack[finite]
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
