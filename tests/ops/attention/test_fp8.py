"""`ww.attention` of float8: results, repeated calls on a GPU, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import SENTINEL
from tests.kernels.attention.fp8_helpers import (
    BAR,
    E4M3,
    random_inputs,
    relative_error,
    rounded_attention,
    scaled,
    verify,
)
from tests.ops.attention.test_bound_mods import both, device_of
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem, reference

PROBLEM = Problem(2, 4, 2, 70, 250, 96, dtype=E4M3, causal=True)
NAMES = ("scale_q", "scale_k", "scale_v")


def test_rows_before_heads_and_scales() -> None:
    given, scales = random_inputs(PROBLEM)
    rows = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in given]
    keywords: dict[str, Any] = dict(zip(NAMES, scales, strict=True))
    out, lse, ran = ww.attention(
        *rows, causal=True, layout="bshd", device="h200", return_lse=True, explain=True, **keywords
    )
    assert out.dtype == ml_dtypes.bfloat16
    assert (ran.kernel, ran.tma, ran.why) == ("sm90.attention_fp8", True, "q, k and v are float8_e4m3fn")
    alone, wide = ww.attention(*rows, causal=True, layout="bshd", device="h200", **keywords), scaled(given, scales)
    exact = reference.attention(PROBLEM, *wide)[0]
    bar = BAR * relative_error(rounded_attention(PROBLEM, *wide), exact)
    for found, found_lse in ((out, lse), (alone, np.full_like(lse, SENTINEL))):
        verify(PROBLEM, given, scales, (found.swapaxes(1, 2), found_lse))
        assert relative_error(found.swapaxes(1, 2), exact) <= bar


def test_one_scale_without_a_batch_and_float16() -> None:
    problem = replace(PROBLEM, batch=1)
    given, scales = random_inputs(problem)
    out = np.full(given[0].shape[1:], np.nan, np.float16)
    q, k, v = (x[0] for x in given)
    assert ww.attention(q, k, v, causal=True, device="h200", scale_k=scales[1][0], out=out) is out
    used = np.ones_like(scales[0]), scales[1], np.ones_like(scales[2])
    exact = reference.attention(problem, *scaled(given, used))[0]
    assert relative_error(out[None], exact) < 0.03


def test_columns_that_are_not_dense_are_copied() -> None:
    problem = Problem(1, 1, 1, 20, 40, 64, dtype=E4M3)
    given, _ = random_inputs(problem)
    strided = [np.asfortranarray(x) for x in given]
    assert np.array_equal(ww.attention(*strided, device="h200"), ww.attention(*given, device="h200"))


def test_a_call_again_allocates_the_transposed_values_for_its_launches(monkeypatch) -> None:
    def run(q: Any, k: Any, v: Any, *scales: Any) -> Any:
        keywords: dict[str, Any] = dict(zip(NAMES, scales, strict=True))
        return ww.attention(q, k, v, causal=True, return_lse=True, device=device_of(q), **keywords)

    inputs = [[*given, *scales] for given, scales in (random_inputs(PROBLEM, seed) for seed in range(2))]
    assert both(monkeypatch, run, inputs) == 1


def zeros(*shape: int, dtype: Any = E4M3) -> np.ndarray:
    return np.zeros(shape, dtype)


Q, K, SCALE = zeros(1, 2, 5, 64), zeros(1, 2, 7, 64), np.ones((1, 2), np.float32)
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (
        (Q, K, K),
        {"device": "b200"},
        "attention: q is float8_e4m3fn and the device sm_100a; expected sm_90a, the only one with a kernel for it: "
        "device='h200', or q, k and v of bfloat16",
    ),
    (
        (Q.astype(np.float16), K.astype(np.float16), K.astype(np.float16)),
        {"scale_k": SCALE},
        "attention: given scale_k and q of float16; expected float8_e4m3fn, or scale_k= left out",
    ),
    (
        (Q, K.astype(np.float16), K),
        {},
        "attention: q is float8_e4m3fn and k is float16; expected one dtype for q, k and v",
    ),
    (
        (Q, K, K),
        {"softcap": 2.0},
        "attention: q is float8_e4m3fn and softcap is given; expected q, k and v of bfloat16 with softcap=",
    ),
    (
        (Q, K, K),
        {"out": zeros(1, 2, 5, 64, dtype=np.float32)},
        "attention: out is float32; expected bfloat16 or float16: leave out= out",
    ),
    (
        (Q, K, K),
        {"out": np.zeros((1, 2, 5, 32), ml_dtypes.bfloat16)},
        "attention: out is 1 × 2 × 5 × 32 of bfloat16; expected the shape of q, 1 × 2 × 5 × 64 of bfloat16",
    ),
    (
        (Q, K, K),
        {"out": Q.copy()},
        "attention: out is float8_e4m3fn; expected bfloat16 or float16: leave out= out",
    ),
    (
        (zeros(1, 2, 5, 256), zeros(1, 2, 7, 256), zeros(1, 2, 7, 256)),
        {},
        "attention: q is float8_e4m3fn with head dimension 256; expected a multiple of 16 up to 128: q, k and v of "
        "bfloat16",
    ),
    (
        (zeros(1, 2, 5, 40), zeros(1, 2, 7, 40), zeros(1, 2, 7, 40)),
        {},
        "attention: q is float8_e4m3fn with head dimension 40; expected a multiple of 16 up to 128: q, k and v of "
        "bfloat16",
    ),
    (
        (zeros(1, 2, 5, 64), zeros(1, 2, 7, 64), zeros(1, 2, 7, 32)),
        {},
        "attention: q is float8_e4m3fn of 64 columns and v of 32; expected as many columns, or q, k and v of bfloat16",
    ),
    (
        (Q, K, K),
        {"scale_v": SCALE[:, :1]},
        "attention: scale_v is float32 (1, 1) on the host; expected float32 (1, 2) on the host, a positive number for "
        "each head of v",
    ),
    (
        (Q, K, K),
        {"scale_q": 0.5},
        "attention: scale_q is float; expected float32 (1, 2) on the host, a positive number for each head of q",
    ),
]


@pytest.mark.parametrize(("given", "options", "message"), REFUSED)
def test_refused(given: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        ww.attention(*given, **{"device": "h200", **options})
    assert str(error.value) == message


def test_refused_without_tma(monkeypatch) -> None:
    monkeypatch.setenv("WARPWRIGHT_ATTENTION_TMA", "0")
    with pytest.raises(UsageError) as error:
        ww.attention(Q, K, K, device="h200")
    assert str(error.value) == (
        "attention: q is float8_e4m3fn and WARPWRIGHT_ATTENTION_TMA=0; expected 1 or -1, for its kernel copies by TMA: "
        "unset it"
    )
