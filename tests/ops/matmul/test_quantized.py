"""`ww.quantize`, `ww.Quantized` and `ww.matmul` of them: rules of the formats, layouts, epilogue, errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright import layout
from warpwright.errors import UsageError
from warpwright.kernels.gemm import sm100
from warpwright.kernels.gemm.formats import FORMATS
from warpwright.kernels.gemm.sm100 import scaled
from warpwright.kernels.quantization import element_dtype

EMAX = {"mxfp8": 8, "mxfp8_e5m2": 15, "mxfp4": 2}
LARGEST = {"mxfp8": 448.0, "mxfp8_e5m2": 57344.0, "mxfp4": 6.0, "nvfp4": 6.0}


def matrix(rows: int, k: int, seed: int = 0) -> Any:
    """Rows of very different magnitudes."""
    random = np.random.default_rng(seed)
    return random.standard_normal((rows, k)) * np.exp2(random.integers(-20, 20, (rows, 1)))


def scales_of(x: ww.Quantized) -> Any:
    """The scale factors as a matrix in float64."""
    rows, k = x.shape
    return x.scales.reshape(-1)[layout.scale_offsets(rows, k // FORMATS[x.format].block)].astype(np.float64)


def nearest(values: Any, name: str) -> Any:
    """The distance of each of ``values`` to the nearest number of the element type, which saturates."""
    codes = np.arange(16 if name.endswith("fp4") else 256, dtype=np.uint8)
    grid = codes.view(element_dtype(FORMATS[name])).astype(np.float64)
    grid = np.unique(grid[np.isfinite(grid)])
    at = np.clip(np.searchsorted(grid, values), 1, len(grid) - 1)
    return np.minimum(np.abs(values - grid[at - 1]), np.abs(values - grid[at]))


@pytest.mark.parametrize("name", EMAX)
def test_mx_scale_factors_are_powers_of_two_by_the_largest_element(name: str) -> None:
    x = matrix(40, 96)
    x[3, :32] = 0
    found = ww.quantize(x, name)
    amax = np.abs(x).reshape(40, -1, 32).max(axis=2)
    with np.errstate(divide="ignore"):
        wanted = np.where(amax > 0, np.exp2(np.floor(np.log2(amax)) - EMAX[name]), 2.0**-127)
    np.testing.assert_array_equal(scales_of(found), wanted)
    assert (found.scales.dtype, found.global_scale) == (ml_dtypes.float8_e8m0fnu, 1.0)


def test_nvfp4_has_two_levels_of_scale_factors() -> None:
    x = np.random.default_rng(1).standard_normal((40, 96))
    x[3, 16:32] = 0
    found = ww.quantize(x, "nvfp4")
    assert found.global_scale == np.float32(np.abs(x).max() / (448 * 6))
    ideal = np.abs(x).reshape(40, -1, 16).max(axis=2) / 6 / found.global_scale
    assert (np.abs(scales_of(found) - ideal) <= np.maximum(2.0**-4 * ideal, 2.0**-10)).all()
    assert scales_of(found).max() == 448 and scales_of(found)[3, 1] == 0
    assert (found.dequantize()[3, 16:32] == 0).all()


@pytest.mark.parametrize("name", FORMATS)
def test_elements_are_rounded_to_nearest_and_saturate(name: str) -> None:
    x = np.random.default_rng(2).standard_normal((40, 96))
    found = ww.quantize(x, name)
    factors = (scales_of(found) * found.global_scale).repeat(FORMATS[name].block, axis=1)
    error = np.abs(found.dequantize() - x) / factors
    clipped = np.clip(x / factors, -LARGEST[name], LARGEST[name])
    beyond = np.abs(x / factors - clipped)
    assert (np.abs(error - beyond - nearest(clipped, name)) <= 1e-5 * LARGEST[name]).all()


def test_elements_beyond_the_largest_number_saturate() -> None:
    """Floor leaves amax up to twice the largest power of two: 1.9 · 2^k of e4m3 is 486 and becomes 448."""
    found = ww.quantize(np.full((1, 32), 1.9), "mxfp8")
    assert (found.dequantize() == 448 * 2.0**-8).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_block_without_a_largest_number_is_nan_and_no_other(name: str, value: float) -> None:
    x = np.random.default_rng(3).standard_normal((4, 96))
    x[2, 40] = value
    found, block = ww.quantize(x, name).dequantize(), FORMATS[name].block
    bad = np.zeros((4, 96), bool)
    bad[2, 40 // block * block : 40 // block * block + block] = True
    assert np.isnan(found[bad]).all() and np.isfinite(found[~bad]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_and_the_smallest_numbers_stay_finite(name: str) -> None:
    assert (ww.quantize(np.zeros((3, 64)), name).dequantize() == 0).all()
    assert np.isfinite(ww.quantize(np.full((3, 64), 5e-324), name).dequantize()).all()
    huge = ww.quantize(np.full((3, 64), float(np.finfo(np.float32).max)), name).dequantize()
    assert (huge > 0.5 * np.finfo(np.float32).max).all()


def test_scale_factors_lie_as_torch_takes_them() -> None:
    """Row 37 and block 6: tile 1 of the first row of tiles, row 37 - 32 of its second quarter."""
    x = np.ones((200, 256), np.float32)
    x[37, 6 * 32 : 7 * 32] = 4.0
    found = ww.quantize(x, "mxfp8")
    codes = found.scales.view(np.uint8)
    assert codes.shape == (2, 2, 32, 4, 4)
    assert codes[0, 1, 5, 1, 2] == codes[0, 0, 0, 0, 0] + 2
    assert (codes[1, :, :, 3] == 0).all()  # rows from 224 on are padding


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_matmul_with_the_whole_epilogue(name: str) -> None:
    """Odd N: D and bias are staged; the scales multiply those of the operands."""
    random = np.random.default_rng(4)
    x, w, bias = random.standard_normal((70, 160)), random.standard_normal((91, 160)), random.standard_normal(91)
    a, b, bias = ww.quantize(x, name), ww.quantize(w, name), bias.astype(np.float32)
    options = {"bias": bias, "activation": "relu", "scale_a": 0.5, "scale_b": np.full(1, 3.0, np.float32)}
    out = np.full((70, 91), np.nan, np.float32)
    d = ww.matmul(a, b.T, out=out, device="b200", **options)
    left, right = (each.dequantize().astype(np.float64) for each in (a, b))
    exact = np.maximum(1.5 * left @ right.T + bias, 0)
    bound = 160 * 2.0**-23 * (1.5 * np.abs(left) @ np.abs(right).T + np.abs(bias))
    assert d is out and (np.abs(d - exact) <= bound).all()
    assert ww.matmul(a, b.T, device="b300").dtype == ml_dtypes.bfloat16


def test_a_product_of_quantized_matrices_is_near_the_product() -> None:
    random = np.random.default_rng(5)
    x, w = random.standard_normal((64, 256)), random.standard_normal((72, 256))
    errors = {}
    for name in ("mxfp8", "mxfp4", "nvfp4"):
        d = ww.matmul(ww.quantize(x, name), ww.quantize(w, name).T, device="b200", out_dtype=np.float32)
        errors[name] = float(np.linalg.norm(d - x @ w.T) / np.linalg.norm(x @ w.T))
    assert errors["mxfp8"] < 0.05 < errors["nvfp4"] < errors["mxfp4"] < 0.25


A, B = ww.quantize(np.ones((8, 64)), "nvfp4"), ww.quantize(np.ones((16, 64)), "nvfp4")
SCALES = "(1, 1, 32, 4, 4)"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: ww.quantize(np.ones((4, 40)), "mxfp8"),
            "quantize: x is 4 × 40; expected at least one row, and columns in multiples of 32: pad K with zeros",
        ),
        (
            lambda: ww.quantize(np.ones((4, 32), np.int32)),
            "quantize: x is int32 of shape (4, 32); expected a matrix of bfloat16, float16, float32 or float64 on the "
            "host",
        ),
        (
            lambda: ww.quantize([1.0]),
            "quantize: x is a list; expected a matrix of bfloat16, float16, float32 or float64 on the host",
        ),
        (
            lambda: ww.quantize(np.ones((4, 32)), "fp4"),
            "given format 'fp4'; expected one of 'mxfp8', 'mxfp8_e5m2', 'mxfp4', 'nvfp4'",
        ),
        (
            lambda: ww.Quantized(np.ones((4, 32)), A.scales, "nvfp4"),
            "Quantized: data is float64 of shape (4, 32); expected a matrix of uint8 for nvfp4",
        ),
        (
            lambda: ww.Quantized(np.ones((4, 24), np.uint8), A.scales, "nvfp4"),
            "Quantized: data has K=48; expected a multiple of 32: pad K with zeros",
        ),
        (
            lambda: ww.Quantized(A.data, A.scales.reshape(-1), "nvfp4"),
            f"Quantized: scales are float8_e4m3fn of shape (512,); expected float8_e4m3fn of shape {SCALES}: "
            "warpwright.layout.scale_tiles(scales)",
        ),
        (
            lambda: ww.matmul(A, np.ones((64, 16), np.float32), device="b200"),
            "matmul: b is a ndarray and the other operand Quantized(nvfp4, 8 × 64); expected both quantized: "
            "ww.quantize(x, 'nvfp4') and ww.quantize(w, 'nvfp4').T of w (N, K)",
        ),
        (
            lambda: ww.matmul(A, B, device="b200"),
            "matmul: a is 8 × 64 with blocks along the columns and b is 16 × 64 with blocks along the columns; "
            "expected blocks along K in both: ww.quantize(x) of x (M, K) and ww.quantize(w).T of w (N, K)",
        ),
        (
            lambda: ww.matmul(A, ww.quantize(np.ones((16, 96)), "nvfp4").T, device="b200"),
            "matmul: a is 8 × 64 with blocks along the columns and b is 96 × 16 with blocks along the rows; expected "
            "the columns of a to be the rows of b",
        ),
        (
            lambda: ww.matmul(A, ww.quantize(np.ones((16, 64)), "mxfp4").T, device="b200"),
            "matmul: a is nvfp4 and b is mxfp4; expected one format, or mxfp8 and mxfp8_e5m2",
        ),
        (
            lambda: ww.matmul(A, B.T, device="h200"),
            "matmul: a and b are nvfp4, which no kernel for h200 (sm_90a) multiplies; expected device='b200', 'b300' "
            "or 'rtx5090', or the operands as a.dequantize() and b.dequantize()",
        ),
        (
            lambda: ww.matmul(A, B.T, device="b200", level=sm100.LEVELS[3]),
            "matmul: given a Config of another GEMM as level=; expected a level, or a Config of "
            "warpwright.kernels.gemm.sm100.scaled for scaled matrices",
        ),
        (
            lambda: ww.matmul(A, B.T, device="rtx5090", level=scaled.LEVELS[1]),
            "matmul: given a Config of another GEMM as level=; expected a level, or a Config of "
            "warpwright.kernels.gemm.sm120.scaled for scaled matrices",
        ),
        (
            lambda: ww.matmul(np.ones((8, 64)), np.ones((64, 8)), device="b200", level=scaled.LEVELS[1]),
            "matmul: given a Config of kernels.gemm.sm100.scaled as level= for arrays; expected operands "
            "of ww.quantize",
        ),
        (
            lambda: ww.matmul(A, B.T, device="b200", out_dtype=np.float64),
            "matmul: out_dtype=<class 'numpy.float64'>; expected ml_dtypes.bfloat16, np.float16 or np.float32",
        ),
    ],
)
def test_misuse_is_named(call: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        call()
    assert str(raised.value) == sentence


def test_global_scales_that_float32_does_not_hold_are_refused() -> None:
    tiny = ww.quantize(np.full((8, 64), 1e-30), "nvfp4")
    with pytest.raises(UsageError) as raised:
        ww.matmul(tiny, tiny.T, device="b200")
    assert str(raised.value).startswith("matmul: the scales and the global scales of a and b are 1.38")
    assert str(raised.value).endswith(
        " together; expected a normal number of float32: scale an operand before it is quantized"
    )
