"""The references detect an error of one unit in the last place, and no error in a right result."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpwright.kernels.reference import accumulation_slack, compare, gemm, ulp

BF16 = ml_dtypes.bfloat16


@given(st.floats(min_value=2.0**-120, max_value=2.0**120), st.sampled_from([BF16, np.float32]))
def test_ulp_is_the_distance_to_the_next_number(value, dtype) -> None:
    number = np.asarray(value).astype(dtype)
    bits = np.uint16 if dtype is BF16 else np.uint32
    upper = (number.view(bits) + bits(1)).view(dtype)
    assert ulp(number, dtype) == float(upper) - float(number)


def test_gemm_multiplies_rows_by_rows_in_float64() -> None:
    random = np.random.default_rng(3)
    a, b = random.standard_normal((5, 24)).astype(BF16), random.standard_normal((7, 24)).astype(BF16)
    expected = [[sum(float(x) * float(y) for x, y in zip(row, col, strict=True)) for col in b] for row in a]
    np.testing.assert_allclose(gemm(a, b), expected, rtol=1e-14)


@pytest.mark.parametrize("k", [8, 64, 1000])
def test_slack_bounds_a_float32_sum_in_any_grouping_of_16(k) -> None:
    random = np.random.default_rng(k)
    a, b = (random.standard_normal((33, k)).astype(BF16) for _ in range(2))
    total = np.zeros((33, 33), np.float32)
    for first in range(0, k, 16):
        total += gemm(a[:, first : first + 16], b[:, first : first + 16]).astype(np.float32)
    error = np.abs(total - gemm(a, b))
    assert (error <= accumulation_slack(a, b)).all()
    assert error.max() > 0 or k == 8


def test_compare_detects_one_wrong_bit() -> None:
    random = np.random.default_rng(0)
    exact = random.standard_normal((16, 16))
    result = exact.astype(BF16)
    assert compare(result, exact)["max_ulp"] == 0
    assert compare(result, exact)["cos_sim"] == pytest.approx(1, abs=1e-5)
    result[3, 5] = (result[3, 5].view(np.uint16) + np.uint16(1)).view(BF16)
    worse = compare(result, exact)
    assert worse["max_ulp"] == 1
    assert worse["max_err"] > 0.5 * ulp(np.asarray(exact[3, 5]), BF16)


def test_compare_of_empty_arrays() -> None:
    empty = np.zeros((0, 4))
    assert compare(empty, empty) == {"max_err": 0.0, "mean_err": 0.0, "cos_sim": 1.0, "max_ulp": 0.0}
