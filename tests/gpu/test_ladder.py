"""The Hopper ladder computes the same bits on the GPU and on the virtual H200."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright.kernels.gemm import sm120
from warpwright.kernels.gemm.sm90 import LEVELS, config_of, kernel_of, plan_gemm
from warpwright.report.verdict import judge
from warpwright.types import of_dtype

DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}


def operand(seed: int, shape: tuple[int, int], dtype: np.dtype[Any], small: bool) -> np.ndarray:
    """Random normal numbers, or integers whose products sum up exactly."""
    random = np.random.default_rng(seed)
    values = random.integers(-3, 4, shape) if small else random.standard_normal(shape)
    return values.astype(dtype)


def product(level: int, a: np.ndarray, b: np.ndarray, majors: tuple[str, str], device: Any) -> np.ndarray:
    """D of float32, so that no rounding of the result hides a difference. A and B: (rows, K)."""
    (m, k), n = a.shape, b.shape[0]
    config, dtype = config_of(level), of_dtype(a.dtype)
    plan = plan_gemm(config, m, n, k, sms=132, majors=majors, out_bytes=4)
    kernel = kernel_of(config).configure(majors=majors, dtype=dtype, out=ww.types.f32)
    d = np.full((m, plan.pitch), -1, np.float32)
    stored = [np.ascontiguousarray(x if major == "k" else x.T) for x, major in zip((a, b), majors, strict=True)]
    ww.launch(kernel, plan.grid, args=[*stored, d, *plan.scalars], device=device)
    return d[:, :n].view(np.uint32)


def agree(level: int, shape: tuple[int, int, int], dtype: str, small: bool, majors: tuple[str, str]) -> None:
    m, n, k = shape
    a, b = operand(1, (m, k), DTYPES[dtype], small), operand(2, (n, k), DTYPES[dtype], small)
    virtual = ww.device("h200", numerics="exact" if small else "hardware")
    np.testing.assert_array_equal(product(level, a, b, majors, "cuda"), product(level, a, b, majors, virtual))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("small", [False, True], ids=["normal", "integers"])
def test_a_level_gives_the_same_bits(level: int, dtype: str, small: bool) -> None:
    agree(level, (512, 512, 1024), dtype, small, ("k", "k"))


@pytest.mark.parametrize("level", LEVELS)
def test_ragged_shapes(level: int) -> None:
    agree(level, (200, 300, 136), "bf16", False, ("k", "k"))


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k"), ("mn", "mn")])
@pytest.mark.parametrize("level", [1, 8])
def test_layouts(level: int, majors: tuple[str, str]) -> None:
    agree(level, (264, 328, 200), "f16", False, majors)


@pytest.mark.parametrize("level", sm120.LEVELS)
def test_a_level_of_mma_sync_gives_the_same_bits(level: int) -> None:
    """The ladder of consumer Blackwell as PTX for sm_90a, where A and B of integers sum up exactly."""
    a, b = operand(1, (500, 264), DTYPES["bf16"], True), operand(2, (264, 328), DTYPES["bf16"], True)
    real, virtual = (ww.matmul(a, b, level=sm120.LEVELS[level], device=device) for device in ("cuda", "h200"))
    np.testing.assert_array_equal(real.view(np.uint16), virtual.view(np.uint16))


@pytest.mark.parametrize("majors", ["kk", "km", "mk", "mm"])
@pytest.mark.parametrize("name", [name for name, config in sm120.CONFIGS.items() if config.tile[0] % 64 == 0])
def test_a_configuration_of_mma_sync_is_right_in_every_layout(name: str, majors: str) -> None:
    a, b = operand(1, (500, 1032), DTYPES["f16"], False), operand(2, (1032, 328), DTYPES["f16"], False)
    stored = [np.asfortranarray(x) if dense else x for x, dense in ((a, majors[0] == "m"), (b, majors[1] == "k"))]
    assert judge(ww.matmul(*stored, level=sm120.CONFIGS[name], device="cuda"), a, b).verified
