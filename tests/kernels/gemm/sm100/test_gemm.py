"""The default Blackwell GEMM: every configuration against float64, layouts, types, batches, slices, the chooser."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.samples import sampled
from warpwright.kernels.gemm.sm100 import TILINGS, Problem, Tiling, candidates, choose, grid_of, kernel_of
from warpwright.kernels.reference import finished
from warpwright.ops.matmul import measurements
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

BF16, E4M3, E5M2 = (np.dtype(each) for each in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
SMEM = 232_448
WHOLE = [name for name, config in TILINGS.items() if config.slices == 1]
KEPT = [*((name, True) for name in WHOLE), *((name, False) for name in WHOLE[::3])]
TYPES = (BF16, BF16), (E4M3, E5M2)
# The first half: each configuration with each layout, of which each has both pairs of types.
LAYOUTS = [
    (name, layout, TYPES[(at + number + half) % 2])
    for half in range(2)
    for at, name in enumerate(("256x256 pair", "128x128", "swapped 128x128"))
    for number, layout in enumerate(("nn", "nt", "tn", "tt"))
]


def normal(*shape: int, dtype: Any = BF16, columns: bool = False) -> Any:
    """Random numbers; ``columns``: the columns of the matrices are dense."""
    values = np.random.default_rng(shape).standard_normal(shape, np.float32).astype(dtype)
    return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2) if columns else values


def multiply(config: Tiling, a: Any, b: Any, sms: int = 4, **options: Any) -> Any:
    """Returns A·B by ``config`` on few SMs, so that clusters compute several tiles; the result was NaN before."""
    out = np.full((a.shape[-2], b.shape[-1]), np.nan, np.float32)
    device = Device(replace(DEVICES["b200"], sms=sms))
    return ww.matmul(a, b, level=config, device=device, out=out, **options)


def expect(d: Any, a: Any, b: Any, *more: Any) -> None:
    """Assert that D is within the bound of accumulation in float32."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    exact = finished(left @ right, *(more or (1.0,)))
    assert (np.abs(d - exact) <= np.abs(left) @ np.abs(right) * 2.0**-20 + np.abs(exact) * 2.0**-16).all()


@sampled(("name", "whole"), [*product(WHOLE, (True,)), *product(WHOLE, (False,))], keep=KEPT)
@pytest.mark.parametrize("k", [8, 584])
def test_every_configuration(name: str, whole: bool, k: int) -> None:
    """``whole``: with scale, bias and activation, a kernel of its own."""
    config = TILINGS[name]
    m, n = (config.tile[1] - 5, 520) if config.swapped else (530, 2 * config.tile[1] + 8)
    a, b, bias = normal(m, k), normal(k, n, columns=True), normal(n, dtype=np.float32)
    options = {"bias": bias, "activation": "relu", "scale_a": 0.5} if whole else {}
    expect(multiply(config, a, b, **options), a, b, *((0.5, bias, "relu") if whole else ()))


@pytest.mark.parametrize("name", ["256x256 pair", "128x64", "swapped 128x16"])
@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_relu_of_results_of_16_bits(name: str, dtype: Any) -> None:
    """The rounding applies relu; a sum that is NaN stays NaN, and -0 and -∞ become 0."""
    a, b = np.ones((13, 8), dtype), np.zeros((8, 200), dtype)
    bias = normal(200, dtype=np.float32)
    bias[:5] = np.nan, -np.inf, np.inf, -0.0, -1e-30
    out = np.full((13, 200), np.nan, dtype)
    d = ww.matmul(a, b, level=TILINGS[name], bias=bias, activation="relu", out=out, device="b200")
    expected = np.broadcast_to(np.maximum(bias, 0).astype(dtype), d.shape)
    assert np.array_equal(d.astype(np.float32), expected.astype(np.float32), equal_nan=True)


@sampled(("name", "layout", "dtypes"), LAYOUTS, keep=LAYOUTS[: len(LAYOUTS) // 2])
def test_four_layouts_without_a_copy(name: str, layout: str, dtypes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpwright.ops.matmul.call._copy_operand", None)
    columns = [letter == "t" for letter in layout]
    a, b = normal(112, 144, dtype=dtypes[0], columns=columns[0]), normal(144, 272, dtype=dtypes[1], columns=columns[1])
    expect(multiply(TILINGS[name], a, b), a, b)


def test_numbers_of_one_sign_are_summed_in_float32() -> None:
    a = np.full((40, 4096), 1.125, E4M3)
    assert (multiply(TILINGS["swapped 128x64"], a, a.T) == 1.125**2 * 4096).all()


@pytest.mark.parametrize("config", [TILINGS["128x256 pair"], TILINGS["swapped 128x16"]])
@pytest.mark.parametrize("shared", ["", "a", "b"])
def test_a_batch_is_one_launch(config: Tiling, shared: str) -> None:
    a, b = (
        normal(*(() if name == shared else (3,)), *shape)
        for name, shape in zip("ab", ((40, 72), (72, 264)), strict=True)
    )
    if shared == "b":
        a = np.concatenate([a, a], axis=1)[:, ::2]  # its rows do not join those of the next matrix
    made = ww.launches(ww.matmul, a, b, level=config, device="b200", out_dtype=np.float32)
    assert len(list(made)) == 1
    np.testing.assert_allclose(
        ww.matmul(a, b, level=config, device="b200", out_dtype=np.float32),
        a.astype(np.float64) @ b.astype(np.float64),
        rtol=0,
        atol=1e-4,
    )


@pytest.mark.parametrize(
    "name", ["swapped 128x16, 3 slices", "swapped 128x256 pair, 4 slices", "128x128 pair, 2 slices"]
)
def test_slices_of_k_are_added_by_a_second_launch(name: str) -> None:
    a, b, bias = normal(13, 1100), normal(1100, 140), normal(140)
    expect(multiply(TILINGS[name], a, b, bias=bias, activation="silu"), a, b, 1.0, bias, "silu")
    made = ww.launches(ww.matmul, a, b, level=TILINGS[name], device="b200")
    assert [each.kernel.entry for each in made] == ["gemm", "add_slices"]


@pytest.mark.parametrize("name", TILINGS)
def test_shared_memory_suffices(name: str) -> None:
    config = TILINGS[name]
    assert config.smem_bytes <= SMEM
    if config.slices == 1:
        assert kernel_of(config).trace().smem_bytes <= config.smem_bytes


@pytest.mark.parametrize(("name", "group"), [("256x256 pair", 2), ("128x128", 1)])
def test_one_page_is_the_kernel_of_one_cta_and_of_pairs(name: str, group: int) -> None:
    ptx = kernel_of(TILINGS[name]).trace().ptx
    assert set(re.findall(r"cta_group::(\d)", ptx)) == {str(group)}
    assert ("barrier.cluster" in ptx) == (group == 2)


@pytest.mark.parametrize(
    ("problem", "swapped", "ctas"),
    [
        (Problem(8192, 8192, 8192), False, 2),
        (Problem(16, 8192, 8192), True, 1),
        (Problem(64, 7168, 4096), True, 1),
        (Problem(256, 4096, 4096), True, 1),
        (Problem(1024, 4096, 4096), False, 2),
        (Problem(16, 8192, 8192, majors=("mn", "k")), True, 1),
    ],
)
def test_the_chooser(problem: Problem, swapped: bool, ctas: int) -> None:
    config = choose(problem, sms=148)
    assert (config.swapped, config.ctas) == (swapped, ctas)
    assert config in dict(candidates(problem, sms=148)).values()


def test_few_rows_are_cut_into_slices_of_k_until_all_sms_work() -> None:
    for m in (16, 64, 128, 256):
        config, problem = choose(Problem(m, 4096, 4096), sms=148), Problem(m, 4096, 4096)
        assert config.slices > 1 and 120 <= grid_of(config, problem, 148) <= 148


def test_a_board_whose_problems_were_measured_takes_these() -> None:
    fact = measurements.Choice(4096, 4096, 4096, "bfloat16", "128x128 pair", 1.0, "2026-11-24")
    assert choose(Problem(4096, 4000, 4096), sms=148, tuned=[fact]) == TILINGS["128x128 pair"]
    assert choose(Problem(4096, 2048, 4096), sms=148, tuned=[fact]) != TILINGS["128x128 pair"]
    assert choose(Problem(4096, 4096, 4096, batches=8), sms=148, tuned=[fact]) != TILINGS["128x128 pair"]


def test_the_grid_is_the_least_with_the_same_rounds() -> None:
    assert grid_of(TILINGS["256x256 pair"], Problem(4096, 4096, 4096), 148) == 128
    assert grid_of(TILINGS["128x128"], Problem(128, 128, 64), 148) == 1
