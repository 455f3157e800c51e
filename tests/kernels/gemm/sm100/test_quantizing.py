"""The quantizing epilogue of the block-scaled Blackwell GEMM: the bits of `quantize` of the product, clean, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.gemm.sm100.scaled import LEVELS, TILINGS, Config
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

BOARD = Device(replace(DEVICES["b200"], sms=4))


def expect_same_bits(x: ww.Quantized, y: ww.Quantized) -> None:
    assert (x.format, x.shape) == (y.format, y.shape)
    np.testing.assert_array_equal(x.data.view(np.uint8), y.data.view(np.uint8))
    np.testing.assert_array_equal(x.scales.view(np.uint8), y.scales.view(np.uint8))


def operands(m: int, n: int, k: int) -> tuple[ww.Quantized, ww.Quantized]:
    """Rows of very different magnitudes, one of NaN, one of infinity, one of zeros."""
    random = np.random.default_rng(m)
    x, w = random.standard_normal((m, k)) * np.exp2(random.integers(-100, 100, (m, 1))), random.standard_normal((n, k))
    x[3, 5], x[4, 40], x[5] = np.nan, np.inf, 0
    return ww.quantize(x), ww.quantize(w)


CASES = [(TILINGS["128x64"], "mxfp8"), (LEVELS[1], "mxfp4"), (LEVELS[5], "mxfp4"), (TILINGS["128x192 pair"], "mxfp8")]


@sampled(("config", "format"), CASES, every=2)
def test_the_result_has_the_bits_of_quantize(config: Config, format: str) -> None:
    """Rows and columns end inside tiles; beyond them scale factors are 0 although the bias is not."""
    (rows, columns), bias = config.area, np.linspace(-2, 2, config.area[1] + 32, dtype=np.float32)
    a, b = operands(rows + 40, columns + 32, 160)
    options: dict[str, Any] = {"bias": bias, "device": BOARD, "level": config}
    plain = ww.matmul(a, b.T, out_dtype=np.float32, **options)
    expect_same_bits(ww.matmul(a, b.T, out_format=format, **options), ww.quantize(plain, format))


def test_level_7_is_clean_and_its_result_is_the_operand_of_the_next_product() -> None:
    """Two tiles for one pair, whose accumulators share columns; every byte of the result is written."""
    a, b = operands(300, 512, 160)
    call = ww.launches(ww.matmul, a, b.T, device=Device(replace(DEVICES["b200"], sms=2)), level=7)
    call.result.data.view(np.uint8).fill(0xFF)
    for launch in call:
        verdict = ww.check(launch.kernel, launch.grid, args=launch.args, device=call.device, update=True)
        assert verdict.kind == "clean", str(verdict)
    h, plain = call.result, ww.matmul(a, b.T, device=BOARD, level=5, out_dtype=np.float32)
    expect_same_bits(h, ww.quantize(plain))
    next_w = ww.quantize(np.random.default_rng(1).standard_normal((64, 512)))
    y = ww.matmul(h, next_w.T, device=BOARD, out_dtype=np.float32)
    finite = np.isfinite(plain).all(axis=1)
    left, right = h.dequantize().astype(np.float64)[finite], next_w.dequantize().astype(np.float64)
    assert (np.abs(y[finite] - left @ right.T) <= 512 * 2.0**-24 * (np.abs(left) @ np.abs(right).T)).all()
    assert np.isnan(y[~finite]).all() and finite.sum() == 298


def test_e5m2_saturates() -> None:
    """A largest element of 1.9 times a power of two is above the largest number of e5m2, 1.75 times one."""
    a, b = ww.quantize(np.full((4, 32), 1.9)), ww.quantize(np.eye(32))
    h = ww.matmul(a, b.T, device=BOARD, out_format="mxfp8_e5m2")
    plain = ww.matmul(a, b.T, device=BOARD, out_dtype=np.float32)
    expect_same_bits(h, ww.quantize(plain, "mxfp8_e5m2"))
    assert (h.dequantize() == 1.75).all()


X, W = ww.quantize(np.ones((8, 64)), "nvfp4"), ww.quantize(np.ones((16, 64)), "nvfp4")
WIDE = ww.quantize(np.ones((32, 64)), "nvfp4")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: ww.matmul(X, W.T, device="b200", out_format="mxfp8"),
            "matmul: out_format='mxfp8' of 16 columns; expected a multiple of 32: pad w with rows of zeros",
        ),
        (
            lambda: ww.matmul(X, WIDE.T, device="b200", level=7),
            "matmul: out_format='nvfp4' needs the largest element of the whole result first; expected 'mxfp8', "
            "'mxfp8_e5m2' or 'mxfp4', or ww.quantize of the result",
        ),
        (
            lambda: ww.matmul(X, WIDE.T, device="rtx5090", out_format="mxfp8"),
            "matmul: out_format='mxfp8' for sm_120a, whose kernels do not quantize; expected device='b200' or 'b300', "
            "or ww.quantize of the result",
        ),
        (
            lambda: ww.matmul(X, WIDE.T, device="b200", out_format="mxfp8", out_dtype=np.float32),
            "matmul: given out or out_dtype for a quantized result; expected out_format alone",
        ),
        (
            lambda: ww.matmul(np.ones((8, 64)), np.ones((64, 32)), device="b200", out_format="mxfp8"),
            "matmul: out_format='mxfp8' for arrays; expected operands of ww.quantize",
        ),
        (
            lambda: ww.matmul(X, WIDE.T, device="b200", out_format="fp8"),
            "given format 'fp8'; expected one of 'mxfp8', 'mxfp8_e5m2', 'mxfp4', 'nvfp4'",
        ),
    ],
)
def test_misuse_is_named(call: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        call()
    assert str(raised.value) == sentence
