"""The verdict on a GEMM accepts a correctly rounded result and finds every error, however small."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from warpwright.report.verdict import BLOCK_ROWS, judge

BFLOAT16 = ml_dtypes.bfloat16


def operands(m: int, n: int, k: int, dtype: Any = BFLOAT16) -> tuple[Any, Any]:
    random = np.random.default_rng(m + n + k)
    return random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)


def gemm(a: Any, b: Any, dtype: Any = BFLOAT16) -> Any:
    with np.errstate(invalid="ignore"):
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16, np.float32])
def test_a_rounded_gemm_is_verified(dtype: Any) -> None:
    a, b = operands(70, 90, 300)
    verdict = judge(gemm(a, b, dtype), a, b)
    assert verdict.verified and verdict.max_ulp <= 1
    assert verdict.max_err > 0 and verdict.cos_sim > 0.99999


def test_two_units_in_the_last_place_are_found_in_any_block_of_rows() -> None:
    a, b = operands(BLOCK_ROWS + 10, 16, 64)
    d = gemm(a, b)
    row = BLOCK_ROWS + 7
    column = int(np.argmax(np.abs(d[row].astype(np.float32))))
    d.view(np.uint16)[row, column] += 2
    verdict = judge(d, a, b)
    assert not verdict.verified and verdict.max_ulp >= 2


def test_a_swap_of_two_columns_is_found() -> None:
    a, b = operands(32, 32, 64)
    d = gemm(a, b)
    d[:, [3, 4]] = d[:, [4, 3]]
    assert not judge(d, a, b).verified


def test_nan_and_infinity_must_be_where_they_belong() -> None:
    a, b = operands(16, 16, 32)
    a[3, 5], a[4, 0] = np.nan, np.inf
    d = gemm(a, b)
    assert judge(d, a, b).verified
    d[3, 2] = 0
    assert not judge(d, a, b).verified


def test_a_nan_that_does_not_belong_is_found() -> None:
    a, b = operands(16, 16, 32)
    d = gemm(a, b)
    d[2, 2] = np.nan
    assert not judge(d, a, b).verified


def test_a_result_of_nothing_but_nan_is_not_verified() -> None:
    """It agrees with the reference, and shows nothing about the kernel."""
    a, b = operands(16, 16, 32)
    a[:, 0] = np.nan
    d = gemm(a, b)
    assert np.isnan(d.astype(np.float32)).all()
    verdict = judge(d, a, b)
    assert (verdict.verified, verdict.cos_sim) == (False, 0.0)
    d[0] = gemm(np.nan_to_num(a[:1]), b)[0]
    assert not judge(d, a, b).verified


def test_an_empty_gemm_is_verified() -> None:
    a, b = operands(0, 5, 7)
    assert judge(gemm(a, b), a, b).verified
