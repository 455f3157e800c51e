"""`ww.matmul` with 8-bit operands, scales, a bias and an activation: values, shapes, layouts, errors."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.reference import finished
from warpwright.ops.matmul import call

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


def normal(*shape: int, dtype: Any = BF16, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def expect(d: np.ndarray, a: Any, b: Any, scale: float = 1.0, bias: Any = None, activation: str = "") -> None:
    """Assert that D is within half an ulp of the float64 result, plus the error of float32 sums."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    expected = finished(left @ right, scale, bias, activation)
    info: Any = ml_dtypes.finfo(d.dtype)
    slack = 1.2 * abs(scale) * (np.abs(left) @ np.abs(right)) * 2.0**-20
    half = np.maximum(np.abs(expected), float(info.tiny)) * float(info.eps) / 2
    error = np.abs(d.astype(np.float64) - expected)
    assert d.shape == expected.shape
    assert (error <= half * 1.01 + np.abs(expected) * 2.0**-16 + slack + 2.0**-22).all()


@sampled("layout", ["NN", "NT", "TN", "TT"], keep=["TN"])
@pytest.mark.parametrize("types", [(E4M3, E4M3), (E5M2, E4M3)])
@pytest.mark.parametrize("device", ["h200", "b200"])
def test_8_bits_in_every_layout(device: str, layout: str, types: tuple[Any, Any]) -> None:
    a, b = normal(72, 144, dtype=types[0]), normal(144, 40, dtype=types[1])
    left, right = (
        np.asfortranarray(x) if letter == "T" else np.ascontiguousarray(x)
        for letter, x in zip(layout, (a, b), strict=True)
    )
    d = ww.matmul(left, right, device=device, scale_a=0.5, scale_b=np.float32(0.25))
    assert d.dtype == BF16
    expect(d, a, b, 0.125)


@pytest.mark.parametrize("device", ["h200", "b200", "rtx5090"])
def test_a_batch_of_8_bits_of_two_types(device: str) -> None:
    a, b = normal(3, 40, 144, dtype=E4M3), normal(3, 144, 264, dtype=E5M2)
    expect(ww.matmul(a, b, device=device), a, b)


def test_8_bits_along_k_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_copy_operand", None)
    a, w = normal(24, 32, dtype=E4M3), normal(40, 32, dtype=E4M3)
    expect(ww.matmul(a, w.T, device="h200", out_dtype=np.float32), a, w.T)


@sampled("shape", [(1, 1, 1), (5, 3, 17), (65, 63, 100), (130, 257, 15)], keep=[(5, 3, 17), (130, 257, 15)])
@pytest.mark.parametrize("dtype", [E4M3, BF16])
@pytest.mark.parametrize("device", ["h200", "b200"])
def test_any_extent(device: str, shape: tuple[int, int, int], dtype: Any) -> None:
    m, n, k = shape
    a, b, bias = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype), normal(n, dtype=np.float32)
    expect(ww.matmul(a, b, bias=bias, activation="silu", device=device), a, b, 1.0, bias, "silu")


@pytest.mark.parametrize("device", ["h200", "b200"])
@sampled("activation", [None, "relu", "gelu", "silu"], keep=["gelu"])
def test_every_device_with_numpy_arrays(device: str, activation: str | None) -> None:
    a, b, bias = normal(40, 72), normal(72, 33), normal(33)
    given = {"bias": bias, "activation": activation, "scale_a": np.full((), 0.5, np.float32), "scale_b": 3}
    expect(ww.matmul(a, b, device=device, **given), a, b, 1.5, bias, activation or "")
    expect(ww.matmul(a, b, device=device, activation="relu"), a, b, 1.0, None, "relu")
    expect(ww.matmul(a, b, device=device, scale_b=-0.5, out_dtype=np.float32), a, b, -0.5)


@pytest.mark.parametrize("device", ["h200", "b200"])
@sampled("activation", [None, "gelu"], keep=["gelu"])
@sampled("bias_dtype", [BF16, np.float32], keep=[BF16])
@pytest.mark.parametrize("n", [70, 33])
def test_the_epilogue_follows_the_sums_of_slices_of_k(
    device: str, n: int, bias_dtype: Any, activation: str | None
) -> None:
    a, b, bias = normal(20, 8192), normal(8192, n), normal(n, dtype=bias_dtype)
    d = ww.matmul(a, b, bias=bias, activation=activation, scale_a=0.5, device=device, out_dtype=np.float32)
    expect(d, a, b, 0.5, bias, activation or "")
    made = ww.launches(ww.matmul, a, b, bias=bias, activation=activation, scale_a=0.5, device=device)
    assert [launch.kernel.entry for launch in made] == ["gemm", "add_slices"]


@pytest.mark.parametrize("device", ["h200", "b200"])
@pytest.mark.parametrize(("left", "right"), [((3, 40, 24), (24, 33)), ((2, 1, 8, 24), (3, 24, 34))])
def test_a_bias_is_added_to_every_product_of_a_batch(device: str, left: Any, right: Any) -> None:
    a, b, bias = normal(*left), normal(*right), normal(right[-1], dtype=FLOAT16)
    expect(ww.matmul(a, b, bias=bias, activation="gelu", device=device), a, b, 1.0, bias, "gelu")


@pytest.mark.parametrize("device", ["h200", "b200"])
@pytest.mark.parametrize("first", [0, 3, 8])
def test_out_is_written_where_it_lies(device: str, first: int) -> None:
    a, b, whole = normal(33, 72), normal(72, 40), np.full((33, 64), 7, BF16)
    bias = normal(80)[::2]
    out = whole[:, first : first + 40]
    assert ww.matmul(a, b, bias=bias, out=out, device=device) is out
    expect(out, a, b, 1.0, bias)
    assert (np.delete(whole, range(first, first + 40), axis=1) == 7).all()


@pytest.mark.parametrize("device", ["h200", "b200"])
@pytest.mark.parametrize("leading", [(), (2,)])
def test_a_sum_over_nothing_is_the_bias(device: str, leading: tuple[int, ...]) -> None:
    bias = normal(6, dtype=np.float32)
    for dtype in (BF16, np.float32):
        a, b = np.zeros((*leading, 3, 0), dtype), np.zeros((*leading, 0, 6), dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ww.errors.PrecisionWarning)
            d = ww.matmul(a, b, bias=bias, activation="relu", device=device)
        assert d.dtype == dtype
        assert np.array_equal(d, np.broadcast_to(np.maximum(bias, 0).astype(dtype), (*leading, 3, 6)))


@pytest.mark.parametrize("shape", [(0, 5, 8), (5, 0, 8)])
def test_an_empty_product_is_empty(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    d = ww.matmul(normal(m, k), normal(k, n), bias=normal(n), scale_a=2.0, device="h200")
    assert (d.shape, d.dtype) == ((m, n), BF16)


@pytest.mark.parametrize("device", ["h200", "b200"])
def test_nan_and_infinity_propagate(device: str) -> None:
    a, b = normal(8, 16), normal(16, 24)
    a[1, 2], a[3, 4], bias = np.nan, np.inf, normal(24)
    bias[5] = np.nan
    d = ww.matmul(a, b, bias=bias, activation="relu", device=device).astype(np.float32)
    assert np.isnan(d[1]).all() and np.isnan(d[:, 5]).all()
    assert set(np.delete(d[3], 5).tolist()) == {0.0, np.inf}


def test_bits_of_a_scale_and_a_bias_are_those_of_float32() -> None:
    """One rounding of scale · sum + bias to float32 (fma), then one to bfloat16."""
    a, b = np.full((1, 16), 1, BF16), np.full((16, 8), 1, BF16)
    bias = np.float32([1e-6, -1e-6, 3, -3, 0.1, 16, -16, 1e9])
    d = ww.matmul(a, b, scale_a=0.1, bias=bias, device="h200", out_dtype=np.float32)
    exact = 16 * np.float64(np.float32(0.1)) + bias.astype(np.float64)
    assert np.array_equal(d[0], exact.astype(np.float32))


ANY = np.zeros((4, 4), BF16)
EIGHT = np.zeros((4, 4), E4M3)


@pytest.mark.parametrize(
    ("a", "b", "keywords", "expected"),
    [
        (
            ANY,
            ANY,
            {"activation": "tanh"},
            "matmul: activation='tanh'; expected one of 'relu', 'gelu', 'silu', or None",
        ),
        (
            ANY,
            ANY,
            {"bias": [1.0]},
            "matmul: bias is a list; expected an array of NumPy, torch, CuPy or JAX: np.asarray(bias)",
        ),
        (
            ANY,
            ANY,
            {"bias": ANY[0, :3]},
            "matmul: bias has shape (3,); expected (4,), an element for each column of the result",
        ),
        (
            ANY,
            ANY,
            {"bias": ANY},
            "matmul: bias has shape (4, 4); expected (4,), an element for each column of the result",
        ),
        (
            ANY,
            ANY,
            {"bias": np.zeros(4)},
            "matmul: bias is float64; expected bfloat16, float16 or float32: bias.astype(ml_dtypes.bfloat16)",
        ),
        (
            ANY,
            ANY,
            {"scale_a": "2"},
            "matmul: scale_a is a str; expected a number, or an array of one float32 element",
        ),
        (
            ANY,
            ANY,
            {"scale_b": True},
            "matmul: scale_b is a bool; expected a number, or an array of one float32 element",
        ),
        (
            ANY,
            ANY,
            {"scale_b": np.ones((4, 1), np.float32)},
            "matmul: scale_b is 4 × 1 of float32; expected a number, or an array of one float32 element",
        ),
        (
            ANY,
            ANY,
            {"scale_a": np.ones((), BF16)},
            "matmul: scale_a is one element of bfloat16; expected a number, or an array of one float32 element",
        ),
        (
            ANY,
            ANY,
            {"scale_a": 2.0**100, "scale_b": 2.0**28},
            "matmul: scale_a and scale_b are 3.402823669209385e+38 together; expected a number that float32 holds",
        ),
        (
            EIGHT,
            ANY,
            {},
            "matmul: a is float8_e4m3fn and b is bfloat16; expected one dtype: b.astype(a.dtype)",
        ),
        (
            EIGHT,
            EIGHT,
            {"device": "b200", "level": 10},
            "matmul: a is float8_e4m3fn, which the kernels for b200 (sm_100a) do not multiply; "
            "expected bfloat16, float16 or float32, or device='h200'",
        ),
        (
            EIGHT,
            EIGHT,
            {"device": "h200", "level": 8},
            "matmul: level=8 for float8_e4m3fn; the ladder is one of 16-bit types: leave level= out",
        ),
        (
            EIGHT,
            EIGHT,
            {"device": "h200", "out_dtype": E4M3},
            "matmul: out_dtype=dtype(float8_e4m3fn); expected ml_dtypes.bfloat16, np.float16 or np.float32",
        ),
    ],
)
def test_what_it_does_not_take_is_one_clear_error(a: Any, b: Any, keywords: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        ww.matmul(a, b, **keywords)
    assert str(caught.value) == expected


def test_a_bias_that_out_overlaps_is_refused() -> None:
    whole = np.zeros((5, 4), BF16)
    with pytest.raises(UsageError) as caught:
        ww.matmul(ANY, ANY, bias=whole[3], out=whole[:4])
    assert str(caught.value) == "matmul: out overlaps bias; expected memory of its own: leave out= out"
