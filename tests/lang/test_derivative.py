"""Derivatives of traced functions against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import KernelError
from warpwright.lang import (
    Global,
    bf16,
    cos,
    ex2,
    f32,
    fma,
    kernel,
    lg2,
    max,
    min,
    rcp,
    rsqrt,
    s32,
    select,
    sin,
    sqrt,
    tanh,
    tid,
    var,
)
from warpwright.lang.derivative import value_and_slope

POINTS = np.array([-3.0, -0.7, 0.3, 1.25, 2.5], np.float32)
LN2 = np.log(2.0)

# Functions of the language, their derivatives in float64, and where they exist.
RULES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum and product": (lambda x: (x + 2.0) * (x - 1.0) - x, lambda x: 2 * x + 0),
    "quotient": (lambda x: (x + 1.0) / (x * x + 1.0), lambda x: (1 - 2 * x - x * x) / (x * x + 1) ** 2),
    "fused product": (lambda x: fma(x, x, x), lambda x: 2 * x + 1),
    "opposite and absolute value": (lambda x: abs(-x) * x, lambda x: 2 * np.abs(x)),
    "greatest": (lambda x: max(x, x * x, 0.0), lambda x: np.where((x > 1) | (x < 0), 2 * x, 1.0)),
    "least": (lambda x: min(1.0, x), lambda x: (x < 1.0) * 1.0),
    "choice": (lambda x: select(x > 1.0, x * 3.0, 4.0), lambda x: np.where(x > 1, 3.0, 0.0)),
    "constant": (lambda x: select(x.to(s32) > 1, x * 0.0 + 2.0, 4.0), lambda x: 0 * x),
    "power of two": (lambda x: ex2(x * 2.0), lambda x: 2 * LN2 * 4.0**x),
    "logarithm": (lambda x: lg2(x * x + 1.0), lambda x: 2 * x / (x * x + 1) / LN2),
    "reciprocal": (lambda x: rcp(x), lambda x: -1 / x**2),
    "root": (lambda x: sqrt(x * x + 1.0), lambda x: x / np.sqrt(x * x + 1)),
    "reciprocal root": (lambda x: rsqrt(x * x + 1.0), lambda x: -x * (x * x + 1) ** -1.5),
    "sine": (lambda x: sin(x * 2.0), lambda x: 2 * np.cos(2 * x)),
    "cosine": (lambda x: cos(x), lambda x: -np.sin(x)),
    "hyperbolic tangent": (lambda x: tanh(x), lambda x: 1 - np.tanh(x) ** 2),
    "itself": (lambda x: x, lambda x: 1 + 0 * x),
    "variable": (lambda x: var(f32, x) * 3.0, lambda x: 3 + 0 * x),
}


@kernel("sm_90a", threads=32)
def slopes(x: Global[f32], out: Global[f32], *, function: Any = None) -> None:
    _, slope = value_and_slope(function, x[tid.x] * 1.5)
    out[tid.x] = slope


@pytest.mark.parametrize("name", RULES)
def test_slopes(name: str) -> None:
    function, derivative = RULES[name]
    given, found = np.resize(POINTS / np.float32(1.5), 32), np.full(32, np.nan, np.float32)
    ww.launch(slopes.configure(function=function), 1, args=[given, found], device="h200")
    expected = derivative((given * np.float32(1.5)).astype(np.float64))
    assert np.abs(found - expected).max() <= 2.0**-9 * (1 + np.abs(expected).max())


def test_a_slope_that_is_the_same_everywhere_takes_no_instruction() -> None:
    text = slopes.ptx(function=lambda x: x + 2.0)
    assert "add.rn.f32" not in text and "0f3F800000" in text


def test_an_instruction_without_a_rule_is_refused() -> None:
    with pytest.raises(KernelError) as caught:
        slopes.ptx(function=lambda x: x.to(bf16).to(f32))
    assert str(caught.value).endswith(
        "given cvt.rn.bf16.f32 of the score, which has no rule for its derivative; expected f32 and +, -, *, /, abs, "
        "cos, ex2, fma, lg2, max, min, rcp, rsqrt, sin, sqrt, tanh or select"
    )
