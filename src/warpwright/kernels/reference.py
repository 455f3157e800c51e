"""Reference results in NumPy float64, and the largest error that a kernel's result may have.

Rounding the exact value to the output type costs at most half a unit in the last place (ulp). A tensor core that
accumulates K products in float32, 16 at a time, adds ``K/16`` roundings of partial sums, and every partial sum of row i
and column j is bounded by the product of their Euclidean norms (Cauchy-Schwarz): that product times ``2**-23`` a step
is the slack. The virtual GPU's float32 sums round K times by ``2**-24``. These errors have either sign, so they add up
to about the square root of K of them, far less than the same slack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["ACTIVATIONS", "Array", "accumulation_slack", "compare", "finished", "gemm", "ulp"]

Array = NDArray[Any]

MMA_K = 16
FLOAT32_STEP = 2.0**-23
FLOAT8_STEP = 2.0**-13  # a tensor core sums up 8-bit types in 14 bits, the kernels 128 products at a time


def gemm(a: Array, b: Array) -> Array:
    """Returns A·Bᵀ of ``a`` (M, K) and ``b`` (N, K), shape (M, N), in float64."""
    result: Array = a.astype(np.float64) @ b.astype(np.float64).T
    return result


def gelu(x: Array) -> Array:
    """x·Φ(x), without cancellation: Φ(x) = erfc(-x/√2) / 2."""
    tail: Array = np.asarray(ERFC(x / -math.sqrt(2.0)), np.float64)
    return np.asarray(np.where(tail == 0, 0.0, 0.5 * x * tail))


def silu(x: Array) -> Array:
    """x / (1 + e^-x)."""
    return np.asarray(x / (1.0 + np.exp(-x)))


ERFC = np.frompyfunc(math.erfc, 1, 1)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "relu": lambda x: np.asarray(np.maximum(x, 0.0)),
    "gelu": gelu,
    "silu": silu,
}


def finished(sums: Array, scale: float = 1.0, bias: Array | None = None, activation: str = "") -> Array:
    """Returns activation(``scale`` · ``sums`` + ``bias``) in float64, for sums (M, N) and a bias (N,)."""
    values = sums.astype(np.float64) * scale
    if bias is not None:
        values = values + bias.astype(np.float64)
    with np.errstate(all="ignore"):
        return ACTIVATIONS[activation](values)


def ulp(values: Array, dtype: Any) -> Array:
    """Returns the distance between neighbouring numbers of ``dtype`` at each of ``values``, in float64."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    magnitude = np.maximum(np.abs(values.astype(np.float64)), float(info.tiny))
    exponent = np.floor(np.log2(magnitude))
    spacing: Array = np.ldexp(1.0, (exponent - info.nmant).astype(np.int64))
    return spacing


def accumulation_slack(a: Array, b: Array) -> Array:
    """Returns the largest errors (M, N) of accumulating A·Bᵀ in float32, before the final rounding."""
    norms_a = np.linalg.norm(a.astype(np.float64), axis=1)
    norms_b = np.linalg.norm(b.astype(np.float64), axis=1)
    steps = (-(-a.shape[1] // MMA_K) + 1) * FLOAT32_STEP if a.dtype.itemsize > 1 else FLOAT8_STEP
    slack: Array = np.outer(norms_a, norms_b) * steps
    return slack


def compare(result: Array, exact: Array) -> dict[str, float]:
    """Returns ``max_err``, ``mean_err``, ``cos_sim`` and ``max_ulp`` of ``result`` against the float64 ``exact``.

    ``max_ulp`` counts units in the last place of ``result.dtype`` against ``exact`` rounded to it, so a correctly
    rounded result has 0. Empty arrays give zero errors and a cosine of 1.
    """
    if result.size == 0:
        return {"max_err": 0.0, "mean_err": 0.0, "cos_sim": 1.0, "max_ulp": 0.0}
    got = result.astype(np.float64)
    rounded = exact.astype(result.dtype).astype(np.float64)
    error = np.abs(got - exact)
    scale = float(np.linalg.norm(got) * np.linalg.norm(exact))
    return {
        "max_err": float(error.max()),
        "mean_err": float(error.mean()),
        "cos_sim": float(np.vdot(got, exact)) / scale if scale else 1.0,
        "max_ulp": float((np.abs(got - rounded) / ulp(rounded, result.dtype)).max()),
    }
