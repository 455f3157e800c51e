"""`ww.matmul`: values against float64, every shape, and one clear error for what it does not take."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.samples import sampled
from warpwright.errors import PrecisionWarning, UsageError
from warpwright.kernels.gemm import sm90, sm100, sm120
from warpwright.report.verdict import judge
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)


def operands(m: int, n: int, k: int, dtype: Any = BFLOAT16) -> tuple[Any, Any]:
    random = np.random.default_rng((m, n, k))
    return random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 1, 8), (129, 257, 72), (200, 136, 1000), (256, 256, 256), (128, 128, 64)])
def test_every_level_is_right_for_every_shape(level: int, shape: tuple[int, int, int]) -> None:
    a, b = operands(*shape)
    assert judge(ww.matmul(a, b, level=level), a, b).verified


@pytest.mark.parametrize(
    ("device", "family"), [("b200", sm100), ("h200", sm90), ("rtx5090", sm120), ("h200", sm120), ("b200", sm120)]
)
def test_a_configuration_is_a_level_of_its_own(device: str, family: Any) -> None:
    a, b = operands(200, 136, 320)
    config = replace(family.LEVELS[3], stages=1 if family is sm120 else 3)
    call = ww.launches(ww.matmul, a, b, device=device, level=config)
    assert call.steps[0][0].config == config
    assert judge(ww.matmul(a, b, device=device, level=config), a, b).verified


@pytest.mark.parametrize(
    ("device", "given", "expected"), [("b200", sm90, "sm100"), ("h200", sm100, "sm90"), ("rtx5090", sm90, "sm120")]
)
def test_a_configuration_for_another_target_is_refused(device: str, given: Any, expected: str) -> None:
    a, b = operands(64, 64, 64)
    with pytest.raises(UsageError) as error:
        ww.matmul(a, b, device=device, level=given.LEVELS[3])
    assert str(error.value) == (
        f"matmul: given a Config of kernels.gemm.{given.__name__.rpartition('.')[2]} as level=; expected a level, or a "
        f"Config of warpwright.kernels.gemm.{expected} for this device"
    )


@pytest.mark.parametrize(("rows", "major"), [(17, "K"), (16, "M")])
def test_a_configuration_of_16_rows_takes_no_more_rows_and_no_other_layout(rows: int, major: str) -> None:
    a, b = operands(rows, 64, 72)
    config = sm90.CONFIGS["64x64 stream rotated, 16 rows"]
    with pytest.raises(UsageError) as error:
        ww.matmul(a if major == "K" else np.asfortranarray(a), b, device="h200", level=config)
    assert str(error.value) == (
        f"matmul: given level= with 16 rows of A in a stage for an A of {rows} rows that is dense along {major}; "
        "expected at most 16 rows, dense along K: leave level= out"
    )
    assert judge(ww.matmul(a[:16], b, device="h200", level=config), a[:16], b).verified


@pytest.mark.parametrize("k", [1, 7, 9, 65])
def test_an_inner_extent_that_is_no_multiple_of_eight_is_padded(k: int) -> None:
    a, b = operands(33, 47, k)
    assert judge(ww.matmul(a, b), a, b).verified


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
@sampled("out_dtype", [None, BFLOAT16, FLOAT16, np.float32], keep=[None, np.float32])
def test_types_in_and_out(dtype: Any, out_dtype: Any) -> None:
    a, b = operands(130, 24, 96, dtype)
    d = ww.matmul(a, b, out_dtype=out_dtype)
    assert d.dtype == (dtype if out_dtype is None else out_dtype)
    assert judge(d, a, b).verified


def test_views_are_multiplied_as_they_look() -> None:
    a, b = operands(64, 40, 128)
    expected = ww.matmul(a, b)
    backing = np.zeros((128, 256), BFLOAT16)
    backing[::2, ::2] = a
    for left, right in [(a, np.asfortranarray(b)), (backing[::2, ::2], b), (a[::-1][::-1], b.T.copy().T)]:
        assert np.array_equal(ww.matmul(left, right), expected)


def test_float32_is_rounded_and_says_so() -> None:
    a, b = operands(64, 32, 48, np.float32)
    with pytest.warns(PrecisionWarning) as caught:
        d = ww.matmul(a, b)
    assert str(caught[0].message) == (
        "matmul rounds float32 inputs to bfloat16 (8 significant bits); "
        "pass .astype(ml_dtypes.bfloat16) to say so yourself"
    )
    assert caught[0].filename == __file__
    assert d.dtype == np.float32
    assert judge(d, a.astype(BFLOAT16), b.astype(BFLOAT16)).verified


def test_bfloat16_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ww.matmul(*operands(8, 8, 8))


def test_nan_and_infinity_propagate() -> None:
    a, b = operands(40, 48, 72)
    a[3, 70], a[17, 0], b[5, 9] = np.nan, np.inf, -np.inf
    d = ww.matmul(a, b)
    assert judge(d, a, b).verified
    assert np.isnan(d[3].astype(np.float32)).all()


@pytest.mark.parametrize("shape", [(0, 5, 8), (5, 0, 8), (0, 0, 0)])
def test_an_empty_product_is_empty(shape: tuple[int, int, int]) -> None:
    d = ww.matmul(*operands(*shape))
    assert (d.shape, d.dtype) == (shape[:2], BFLOAT16)


def test_a_sum_over_nothing_is_zero() -> None:
    assert ww.matmul(*operands(3, 4, 0)).astype(np.float32).tolist() == [[0.0] * 4] * 3


ANY = np.zeros((4, 4), BFLOAT16)
TALL = np.asfortranarray(np.zeros((16, 8), BFLOAT16))
WITHOUT_KERNELS = Device(replace(DEVICES["rtx5090"], arch="sm_120"))


@pytest.mark.parametrize(
    ("a", "b", "keywords", "expected"),
    [
        ([[1.0]], ANY, {}, "matmul: a is a list; expected an array of NumPy, torch, CuPy or JAX: np.asarray(a)"),
        (ANY[0], ANY, {}, "matmul: a has shape (4,); expected a matrix, two dimensions or more"),
        (
            np.zeros((2, 4, 4), BFLOAT16),
            np.zeros((3, 4, 4), BFLOAT16),
            {},
            "matmul: a is 2 × 4 × 4 and b is 3 × 4 × 4; expected leading dimensions that are equal, 1 or absent",
        ),
        (
            ANY.astype(np.float64),
            ANY,
            {},
            "matmul: a is float64; expected bfloat16, float16, float32 or float8: a.astype(ml_dtypes.bfloat16)",
        ),
        (ANY, ANY.astype(FLOAT16), {}, "matmul: a is bfloat16 and b is float16; expected one dtype: b.astype(a.dtype)"),
        (
            ANY,
            np.zeros((5, 6), BFLOAT16),
            {},
            "matmul: a is 4 × 4 and b is 5 × 6; expected the columns of a to be the rows of b "
            "(for weights stored as N × K pass w.T)",
        ),
        (
            ANY,
            ANY,
            {"level": 11},
            "given level 11; expected one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10; choose an existing level",
        ),
        (
            ANY,
            ANY,
            {"device": WITHOUT_KERNELS},
            "matmul has no kernel for rtx5090 (sm_120); expected device='b200', 'gb200', 'h200', 'rtx5090' or 'cuda'",
        ),
        (
            TALL,
            TALL.T,
            {"device": "rtx5090", "level": 8},
            "matmul: given level= with tiles of 160 × 128 for a matrix A that is dense along M; expected a multiple of "
            "64 along M: leave level= out, or pass a copy that is dense along K",
        ),
        (
            ANY,
            ANY,
            {"device": "h200", "level": sm90.CONFIGS["128x200 pingpong"]},
            "matmul: given level= with tiles of 128 × 200 for a matrix B that is dense along N; expected a multiple of "
            "64 along N: leave level= out, or pass a copy that is dense along K",
        ),
        (
            ANY,
            ANY,
            {"device": "h200", "level": sm90.CONFIGS["128x192"]},
            "matmul: given level= with tiles of 128 × 192 for a matrix B that is dense along N; expected a multiple of "
            "128 along N: leave level= out, or pass a copy that is dense along K",
        ),
        (ANY, ANY, {"device": "b1"}, f"given device 'b1'; expected one of {', '.join(DEVICES)}, cuda"),
        (
            ANY,
            ANY,
            {"out_dtype": np.int8},
            "matmul: out_dtype=<class 'numpy.int8'>; expected ml_dtypes.bfloat16, np.float16 or np.float32",
        ),
    ],
)
def test_what_it_does_not_take_is_one_clear_error(a: Any, b: Any, keywords: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        ww.matmul(a, b, **keywords)
    assert str(caught.value) == expected


@sampled("level", [None, 1, 2, 3, 4, 5, 6, 7, 8], keep=[None, 1, 5, 8])
def test_every_level_of_the_hopper_ladder_is_right(level: int | None) -> None:
    a, b = operands(200, 321, 136)
    assert judge(ww.matmul(a, b, device="h200", level=level), a, b).verified


@pytest.mark.parametrize("out_dtype", [BFLOAT16, FLOAT16, np.float32])
@sampled("layout", ["NN", "NT", "TN", "TT"], keep=["TN"])
def test_hopper_takes_operands_as_they_lie(layout: str, out_dtype: Any) -> None:
    a, b = operands(136, 264, 200, FLOAT16)
    left, right = (
        np.asfortranarray(x) if letter == "T" else np.ascontiguousarray(x)
        for letter, x in zip(layout, (a, b), strict=True)
    )
    d = ww.matmul(left, right, device="h200", out_dtype=out_dtype)
    assert d.dtype == out_dtype and judge(d, a, b).verified


@pytest.mark.parametrize("shape", [(1, 1, 1), (16, 520, 264), (65, 63, 7), (129, 257, 72), (300, 1, 64)])
def test_hopper_takes_any_extent(shape: tuple[int, int, int]) -> None:
    a, b = operands(*shape)
    assert judge(ww.matmul(a, b, device="h200"), a, b).verified


def test_float32_is_rounded_on_hopper_too() -> None:
    a, b = operands(64, 32, 48, np.float32)
    with pytest.warns(PrecisionWarning):
        d = ww.matmul(a, b, device="h200")
    assert judge(d, a.astype(BFLOAT16), b.astype(BFLOAT16)).verified
