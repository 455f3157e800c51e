"""Quantization to block-scaled formats in NumPy, by the rules of their specifications, in float64.

MXFP8 and MXFP4 (OCP Microscaling Formats v1.0, section 6.3): the scale factor of a block is 2 to the power of
floor(log2(amax)) less the exponent of the element type's largest number, from 2^-127 to 2^127. NVFP4 (NVIDIA's recipe,
Transformer Engine): the global scale is amax / (448 · 6) of the matrix, a float32 number; a block's scale factor is
amax / 6 over the global scale, rounded to e4m3. In all of them an element is divided by its scales, rounded to nearest
even and saturated. A block with NaN or infinity gets a scale factor of NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright.kernels.gemm.formats import Format
from warpwright.types import ue8m0

__all__ = ["Blocks", "dequantize", "element_dtype", "quantize"]

Array = NDArray[Any]

E4M3_MAX = 448.0
EXPONENT_BIAS = 127
NAN_EXPONENT = 255  # the code of NaN in ue8m0


class Blocks(NamedTuple):
    """A matrix (rows, K) as ``values``, ``scales`` (rows, blocks of K) and a ``global_scale``."""

    values: Array
    scales: Array
    global_scale: float


def element_dtype(format: Format) -> np.dtype[Any]:
    """Returns the dtype of unpacked elements."""
    return np.dtype(ml_dtypes.float4_e2m1fn) if format.packed == 2 else np.dtype(format.dtype.dtype)


def quantize(x: Array, format: Format) -> Blocks:
    """Returns ``x`` (rows, K) in ``format``; K is whole blocks."""
    blocks = x.astype(np.float64).reshape(len(x), -1, format.block)
    with np.errstate(all="ignore"):
        amax = np.abs(blocks).max(axis=2)
        rule = _power_of_two if format.scale is ue8m0 else _two_levels
        scales, global_scale = rule(amax, format)
        factors = scales.astype(np.float64) * global_scale
        scaled = np.where(factors[..., None] > 0, blocks / factors[..., None], 0.0)
    limit = _largest(format)
    values = np.clip(scaled, -limit, limit).astype(element_dtype(format))
    return Blocks(values.reshape(x.shape), scales, global_scale)


def dequantize(blocks: Blocks, format: Format) -> Array:
    """Returns the matrix in float64."""
    factors = blocks.scales.astype(np.float64) * blocks.global_scale
    exact: Array = blocks.values.astype(np.float64) * factors.repeat(format.block, axis=1)
    return exact


def _largest(format: Format) -> float:
    """Returns the largest number of the element type."""
    return float(ml_dtypes.finfo(element_dtype(format)).max)  # type: ignore[no-untyped-call]


def _power_of_two(amax: Array, format: Format) -> tuple[Array, float]:
    """Returns scale factors of type ue8m0 for the largest magnitudes of blocks, and a global scale of 1."""
    emax = np.frexp(_largest(format))[1]
    exponent = np.where(amax > 0, np.frexp(amax)[1] - emax, -EXPONENT_BIAS)
    codes = np.clip(exponent, -EXPONENT_BIAS, EXPONENT_BIAS) + EXPONENT_BIAS
    finite = np.where(np.isfinite(amax), codes, NAN_EXPONENT)
    return finite.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu), 1.0


def _two_levels(amax: Array, format: Format) -> tuple[Array, float]:
    """Returns scale factors of type e4m3 for the largest magnitudes of blocks, and the global scale."""
    finite, limit = np.isfinite(amax), _largest(format)
    whole = float(np.float32(amax.max(where=finite, initial=0.0) / (E4M3_MAX * limit)))
    global_scale = whole if whole > 0 else 1.0
    scales = np.minimum(amax / limit / global_scale, E4M3_MAX)
    return np.where(finite, scales, np.nan).astype(ml_dtypes.float8_e4m3fn), global_scale
