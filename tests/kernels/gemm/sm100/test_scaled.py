"""The block-scaled Blackwell GEMM: every level and tiling against float64 and clean, odd sizes, extreme scales."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.scaled_matrices import K, expect, scaled, with_scales
from warpwright.cli.matmul_runs import scaled_operands
from warpwright.errors import UsageError
from warpwright.kernels.gemm.formats import FORMATS
from warpwright.kernels.gemm.sm100.scaled import LEVELS, TILINGS, Config, choose, grid_of
from warpwright.kernels.quantization import element_dtype
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

SMEM = 232_448


def b200(sms: int = 4) -> Device:
    """A B200 of few SMs, so that clusters compute several tiles."""
    return Device(replace(DEVICES["b200"], sms=sms))


def multiply(config: int | Config | None, a: ww.Quantized, b: ww.Quantized, **options: Any) -> Any:
    """Returns A·Bᵀ in float32; the result was NaN before."""
    out = np.full((a.shape[0], b.shape[0]), np.nan, np.float32)
    return ww.matmul(a, b.T, level=config, device=b200(), out=out, **options)


CASES = [(config, "mxfp8" if level % 2 else "nvfp4") for level, config in LEVELS.items() if level < 7]
CASES += [(TILINGS[name], "nvfp4") for name in TILINGS if name != "128x256 pair"]
CASES += [(LEVELS[5], "mxfp4"), (LEVELS[5], "nvfp4")]


@pytest.mark.parametrize(("config", "name"), CASES)
def test_every_configuration_is_right_and_clean_on_ragged_sizes(config: Config, name: str) -> None:
    """Four tiles for one cluster, rows and columns that end inside tiles."""
    m, n = (extent + extra for extent, extra in zip(config.area, (40, 45), strict=True))
    (a, left), (b, right) = scaled(0, m, K[name], name), scaled(1, n, K[name], name)
    out = np.full((m, n), np.nan, np.float32)
    call = ww.launches(ww.matmul, a, b.T, device=b200(config.ctas), level=config, out=out)
    for launch in call:
        verdict = ww.check(launch.kernel, launch.grid, args=launch.args, device=call.device, update=True)
        assert verdict.kind == "clean", str(verdict)
    expect(out, left, right)


@pytest.mark.parametrize("shape", [(1, 1, 32), (129, 65, 64), (5, 300, 1056)])
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_small_and_odd_sizes(name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    (a, left), (b, right) = scaled(2, m, k, name), scaled(3, n, k, name)
    expect(multiply(None, a, b), left, right)


def test_e4m3_by_e5m2() -> None:
    (a, left), (b, right) = scaled(4, 40, 96, "mxfp8"), scaled(5, 70, 96, "mxfp8_e5m2")
    expect(multiply(None, a, b), left, right)


def test_scale_factors_of_extreme_exponents() -> None:
    """Products of 2^-120 and 2^120 are exact although one factor alone would leave float32's normal numbers."""
    (a, left), (b, right) = scaled(6, 40, 128, "mxfp8", (110, 120)), scaled(7, 50, 128, "mxfp8", (-120, -110))
    expect(multiply(5, a, b), left, right)


def test_a_scale_factor_of_nan_and_blocks_of_zero_concern_their_rows_alone() -> None:
    random = np.random.default_rng(8)
    for name, zero, nan in (("mxfp8", 2.0**-127, np.nan), ("nvfp4", 0.0, np.nan)):
        format = FORMATS[name]
        values = random.standard_normal((140, K[name])).astype(element_dtype(format))
        scales = np.ones((140, K[name] // format.block))
        scales[3], scales[133, 5] = zero, nan
        a, left = with_scales(values, scales.astype(format.scale.dtype), name)
        b, right = scaled(9, 70, K[name], name)
        d = multiply(5, a, b)
        assert np.isnan(d[133]).all()
        rest = np.arange(140) != 133
        expect(d[rest], left[rest], right)


def test_the_chosen_configuration_fits_and_suits_the_size() -> None:
    for config in (*LEVELS.values(), *TILINGS.values()):
        for format in FORMATS.values():
            kernel_stages = config.stages_for(format)
            assert kernel_stages >= 1
            assert 1024 + kernel_stages * config.stage_bytes(format) + 128 * 128 * config.boxes <= SMEM
    nvfp4 = FORMATS["nvfp4"]
    assert choose(8192, 8192, 4096, nvfp4, 148) is TILINGS["128x256 pair"]
    assert choose(100, 64 * 148, 4096, nvfp4, 148) is TILINGS["128x64"]
    assert grid_of(TILINGS["128x256 pair"], 8192, 8192, 148) == 2 * 74
    assert grid_of(LEVELS[6], 8192, 8192, 148) == 2 * 1024


def test_an_unknown_level_is_refused() -> None:
    (a, _), (b, _) = scaled(0, 8, 32, "mxfp8"), scaled(1, 8, 32, "mxfp8")
    with pytest.raises(UsageError) as raised:
        multiply(8, a, b)
    assert str(raised.value) == "given level 8; expected one of 1, 2, 3, 4, 5, 6, 7; choose an existing level"


def test_outputs_of_16_bits_are_rounded_once() -> None:
    (a, left), (b, right) = scaled(10, 60, 128, "mxfp8"), scaled(11, 72, 128, "mxfp8")
    exact = left @ right.T
    for dtype in (ml_dtypes.bfloat16, np.float16):
        d = ww.matmul(a, b.T, device="b200", out_dtype=dtype)
        bound = float(ml_dtypes.finfo(dtype).eps) * 0.51 * np.abs(exact) + 128 * 2.0**-24 * (abs(left) @ abs(right).T)
        assert (np.abs(d.astype(np.float64) - exact) <= bound).all()


PUBLISHED = [
    ("mxfp8", (8192, 8192, 4096), ml_dtypes.bfloat16, 3201),  # CUTLASS, flashinfer pull request 2464
    ("mxfp4", (8192, 8192, 8192), np.float32, 5702),  # DeepGEMM pull request 348
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "shape", "dtype", "published"), PUBLISHED)
def test_the_prediction_is_near_published_gemms(
    name: str, shape: tuple[int, int, int], dtype: Any, published: float
) -> None:
    """Energy of 8-bit and 4-bit flops lowers the clock, which limits these sizes. The fastest kernel of each source."""
    a, b = scaled_operands(shape, name, None)
    call = ww.launches(ww.matmul, a, b.T, device="b200", level=5, out_dtype=dtype)
    (launch,) = call
    profile = ww.profile(launch.kernel, launch.grid, args=launch.args, device="b200", fast=True, warm=True)
    assert abs(2e-6 * math.prod(shape) / profile.time_us / published - 1) < 0.03
