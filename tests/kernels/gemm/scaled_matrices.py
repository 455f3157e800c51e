"""Random matrices with block scales and their exact values, for the tests of the block-scaled GEMMs."""

from __future__ import annotations

from typing import Any

import numpy as np

import warpwright as ww
from warpwright import layout
from warpwright.kernels.gemm.formats import FORMATS
from warpwright.kernels.quantization import element_dtype

K = {"mxfp8": 416, "mxfp8_e5m2": 416, "mxfp4": 832, "nvfp4": 832}  # three k-blocks and a quarter
Exact = tuple[ww.Quantized, np.ndarray]


def scaled(seed: int, rows: int, k: int, name: str, exponents: tuple[int, int] = (-3, 4)) -> Exact:
    """A random matrix with random scale factors, and its values in float64."""
    format, random = FORMATS[name], np.random.default_rng(seed)
    values = random.standard_normal((rows, k)).astype(element_dtype(format))
    factors = np.exp2(random.integers(*exponents, (rows, k // format.block)))
    if name == "nvfp4":
        factors *= random.uniform(1, 2, factors.shape)
    return with_scales(values, factors.astype(format.scale.dtype), name)


def with_scales(values: Any, scales: Any, name: str) -> Exact:
    """A matrix with these elements and scale factors, and its values in float64."""
    block = FORMATS[name].block
    exact = values.astype(np.float64) * scales.astype(np.float64).repeat(block, axis=1)
    data = layout.pack_e2m1(values) if FORMATS[name].packed == 2 else values
    return ww.Quantized(data, layout.scale_tiles(scales), name), exact


def expect(d: Any, a: Any, b: Any) -> None:
    """Float32 sums of K products lose at most K units of 2^-24 of the sum of magnitudes."""
    bound = a.shape[1] * 2.0**-24 * (np.abs(a) @ np.abs(b).T)
    assert (np.abs(d - a @ b.T) <= bound).all()
