"""Sums that `affine` finds in traced functions: their values, and what they leave of the functions' instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.lang import Global, f32, fma, kernel, select, tanh, tid, u32, var
from warpwright.lang.affine import affine

# Functions of x, of y, which varies, and of a, which does not, and how many products their sums have.
SUMS: dict[str, tuple[Callable[..., Any], int]] = {
    "itself": (lambda x, y, a: x, 0),
    "addend": (lambda x, y, a: y + x, 1),
    "differences": (lambda x, y, a: y - (x - a) - 1.0, 3),
    "opposite": (lambda x, y, a: -(x - y), 1),
    "product of both, fused": (lambda x, y, a: fma(a, y, x), 1),
    "product of both": (lambda x, y, a: x + y * a, 1),
    "factor": (lambda x, y, a: (x + y) * a, 1),
    "factor, fused": (lambda x, y, a: fma(2.0, x, fma(x, a, y)), 1),
    "factor of differences": (lambda x, y, a: (x - a * y) * (a + 1.0) * -2.0, 1),
    "twice": (lambda x, y, a: x + x, 0),
    "function of y": (lambda x, y, a: x + tanh(y) * select(y > 0.0, y, a), 1),
}
NO_SUMS: dict[str, Callable[..., Any]] = {
    "a factor that varies": lambda x, y, a: x * y,
    "a factor computed from y": lambda x, y, a: fma(x, y + a, a),
    "product": lambda x, y, a: x * x,
    "fused product": lambda x, y, a: fma(x, x, x),
    "function": lambda x, y, a: tanh(x),
    "choice": lambda x, y, a: select(x > 0.0, x, x),
    "variable": lambda x, y, a: changed(x),
    "no x": lambda x, y, a: y,
    "number": lambda x, y, a: 1.0,
    "nothing left of x": lambda x, y, a: x - x,
}


def changed(x: Any) -> Any:
    found = var(f32, x)
    found += 1.0
    return found


@kernel("sm_90a", threads=32)
def evaluate(
    x: Global[f32], y: Global[f32], a: f32, out: Global[f32], count: Global[u32], *, function: Any = None
) -> None:
    """Stores function(x, y, a), and the number of products of its sum."""
    own = y[tid.x]
    found = affine(lambda each: function(each, own, a), {own.reg})
    if found is None:
        count[0] = 99
        return
    total = x[tid.x] * found.factor
    for first, second in found.products:
        total = fma(first, second, total)
    out[tid.x] = total
    count[0] = len(found.products)


@pytest.mark.parametrize("name", SUMS)
def test_sums(name: str) -> None:
    function, products = SUMS[name]
    x, y = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    found, count = np.full(32, np.nan, np.float32), np.zeros(1, np.uint32)
    ww.launch(evaluate.configure(function=function), 1, args=[x, y, 0.75, found, count], device="h200")
    expected, text = np.full(32, np.nan, np.float32), evaluate.ptx(function=function)
    ww.launch(apply.configure(function=function), 1, args=[x, y, 0.75, expected], device="h200")
    assert np.abs(found - expected).max() <= 2.0**-20
    assert count == products
    assert "sub.rn" not in text and "neg" not in text


@kernel("sm_90a", threads=32)
def apply(x: Global[f32], y: Global[f32], a: f32, out: Global[f32], *, function: Any = None) -> None:
    out[tid.x] = function(x[tid.x], y[tid.x], a)


@pytest.mark.parametrize("name", NO_SUMS)
def test_other_functions(name: str) -> None:
    assert "99" in evaluate.ptx(function=NO_SUMS[name])


def test_the_first_value_of_a_product_does_not_vary() -> None:
    @kernel("sm_90a", threads=32)
    def check(y: Global[f32], a: f32) -> None:
        own, varying = y[tid.x], set[str]()
        varying.add(own.reg)
        for function in (lambda x: fma(own * 2.0, a, x), lambda x: x - a * own, lambda x: x + (own + a)):
            found = affine(function, varying)
            assert found is not None
            first, second = found.products[0]
            assert getattr(first, "reg", "") not in varying and second.reg in varying

    check.ptx()
