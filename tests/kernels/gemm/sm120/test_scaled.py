"""The mma.sync GEMM with block scales: every configuration against float64 and clean, odd sizes, extreme scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.scaled_matrices import K, expect, scaled, with_scales
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.gemm import Epilogue
from warpwright.kernels.gemm.formats import FORMATS
from warpwright.kernels.gemm.sm120.scaled import LEVELS, TILINGS, Config, choose, grid_of, kernel_of, stages_for
from warpwright.kernels.quantization import element_dtype
from warpwright.lang import bf16
from warpwright.ptx.ptxas import assemble
from warpwright.targets import ARCHS, DEVICES
from warpwright.vgpu import Device

BOARD = Device(replace(DEVICES["rtx5090"], sms=2))
CONSUMER = ARCHS["sm_120a"]


def multiply(a: ww.Quantized, b: ww.Quantized, config: int | Config | None = None, **options: Any) -> Any:
    """Returns A·Bᵀ in float32; the result was NaN before."""
    out = np.full((a.shape[0], b.shape[0]), np.nan, np.float32)
    return ww.matmul(a, b.T, level=config, device=BOARD, out=out, **options)


FORMAT_OF_TILING = "nvfp4", "mxfp4", "mxfp8", "nvfp4", "mxfp8"
CASES = [(TILINGS[name], format) for name, format in zip(TILINGS, FORMAT_OF_TILING, strict=True)]
CASES += [(LEVELS[1], "mxfp8_e5m2"), (LEVELS[4], "nvfp4")]


@sampled(("config", "name"), CASES, every=2)
def test_every_configuration_is_right_and_clean_on_ragged_sizes(config: Config, name: str) -> None:
    """Four tiles or more, rows and columns that end inside tiles."""
    m, n = config.tile[0] + 5, config.tile[1] + 13
    (a, left), (b, right) = scaled(0, m, K[name], name), scaled(1, n, K[name], name)
    out = np.full((m, n), np.nan, np.float32)
    call = ww.launches(ww.matmul, a, b.T, device=BOARD, level=config, out=out)
    for launch in call:
        verdict = ww.check(launch.kernel, launch.grid, args=launch.args, device=call.device, update=True)
        assert verdict.kind == "clean", str(verdict)
    expect(out, left, right)


@pytest.mark.parametrize("shape", [(1, 1, 32), (129, 65, 64), (200, 140, 1056)])
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_small_and_odd_sizes(name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    (a, left), (b, right) = scaled(2, m, k, name), scaled(3, n, k, name)
    expect(multiply(a, b), left, right)


def test_e4m3_by_e5m2_with_the_epilogue() -> None:
    (a, left), (b, right) = scaled(4, 40, 96, "mxfp8"), scaled(5, 70, 96, "mxfp8_e5m2")
    bias = np.linspace(-2, 2, 70, dtype=np.float32)
    d = multiply(a, b, bias=bias, scale_a=0.5, activation="relu")
    exact, size = np.maximum(0.5 * left @ right.T + bias, 0), 0.5 * np.abs(left) @ np.abs(right).T + np.abs(bias)
    assert (np.abs(d - exact) <= 96 * 2.0**-23 * size).all()


def test_extreme_scale_factors_and_nan_concern_their_rows_alone() -> None:
    """Products of 2^-120 and 2^120 are exact although one factor alone would leave float32's normal numbers."""
    (a, left), (b, right) = scaled(6, 40, 128, "mxfp8", (110, 120)), scaled(7, 50, 128, "mxfp8", (-120, -110))
    expect(multiply(a, b), left, right)
    values = np.random.default_rng(8).standard_normal((140, 832)).astype(element_dtype(FORMATS["nvfp4"]))
    scales = np.ones((140, 52))
    scales[3], scales[133, 5] = 0.0, np.nan
    a, left = with_scales(values, scales.astype(ml_dtypes.float8_e4m3fn), "nvfp4")
    b, right = scaled(9, 70, 832, "nvfp4")
    d, rest = multiply(a, b), np.arange(140) != 133
    assert np.isnan(d[133]).all()
    expect(d[rest], left[rest], right)


@sampled(("config", "name"), [(config, name) for config in TILINGS.values() for name in FORMATS], every=4)
def test_no_spills_and_the_launch_fits(config: Config, name: str) -> None:
    traced = kernel_of(config).trace(formats=(FORMATS[name],) * 2, epilogue=Epilogue(True, bf16, "gelu"))
    result = assemble(traced.ptx, "sm_120a", "-v")
    assert result.errors == {}
    assert "0 bytes spill stores, 0 bytes spill loads" in result.log
    smem = traced.smem_bytes + CONSUMER.smem_reserved_per_block
    assert config.ctas <= CONSUMER.fitting_ctas(config.threads, smem)
    assert stages_for(config, FORMATS[name]) >= 2


def test_the_chosen_configuration_suits_the_size() -> None:
    assert choose(4096, 4096, 2048, FORMATS["nvfp4"], 170) is TILINGS["128x128"]
    assert choose(16, 8192, 2048, FORMATS["nvfp4"], 170).tile[0] <= 32
    assert grid_of(TILINGS["128x128"], 4096, 4096, 170) == 147
    assert grid_of(LEVELS[2], 4096, 4096, 170) == 1024


def test_an_unknown_level_is_refused() -> None:
    (a, _), (b, _) = scaled(0, 8, 32, "mxfp8"), scaled(1, 8, 32, "mxfp8")
    with pytest.raises(UsageError) as raised:
        multiply(a, b, 6)
    assert str(raised.value) == "given level 6; expected one of 1, 2, 3, 4, 5; choose an existing level"


@pytest.mark.parametrize(("name", "rate"), [("mxfp8", 4.0), ("nvfp4", 8.0)])
def test_rates_of_block_scaled_types(name: str, rate: float) -> None:
    """MXFP8 has twice the rate of FP8, with float32 sums, and half that of FP4."""
    (a, _), (b, _) = scaled(0, 16, 256, name), scaled(1, 16, 256, name)
    (launch,) = ww.launches(ww.matmul, a, b.T, device="rtx5090")
    assert ww.profile(launch.kernel, launch.grid, args=launch.args, device="rtx5090").rate == rate
