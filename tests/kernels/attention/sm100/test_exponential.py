"""Powers of two by polynomials on the virtual B200, against float64."""

from __future__ import annotations

import numpy as np

import warpwright as ww
from warpwright.kernels.attention.sm100.exponential import weights_of
from warpwright.lang import Global, cvt, f32, kernel, tid, unpack

ERROR = 2.6e-6 + 4 * 2.0**-24  # of the polynomial, relative, and of four roundings


@kernel("sm_100a", threads=1024)
def powers(x: Global[f32], out: Global[f32]) -> None:
    at = 2 * tid.x
    (pair,) = weights_of([x[at], x[at + 1]], 1.0, cvt(0.0, f32), polynomials=1)
    out[at], out[at + 1] = unpack(pair, f32)


def test_a_polynomial_agrees_with_float64() -> None:
    x = np.linspace(-126.4, 8.0, 2048).astype(np.float32)
    x[:4] = -np.inf, np.nan, -200.0, 0.0
    out = np.full(2048, np.nan, np.float32)
    ww.launch(powers, (1,), args=[x, out], device="b200")
    assert out[0] == out[2] == 0 and np.isnan(out[1])
    exact = np.exp2(x[3:].astype(np.float64))
    assert (np.abs(out[3:] - exact) <= ERROR * exact).all()
