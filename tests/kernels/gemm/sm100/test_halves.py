"""The Blackwell GEMM with halves of tiles in its last round, and tiles of 224 columns: numbers, checks, the choice."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.sm100.test_gemm import BF16, E4M3, E5M2, expect, multiply, normal
from warpwright.errors import UsageError
from warpwright.kernels.gemm.sm100 import TILINGS, Problem, candidates, choose, grid_of, whole_tiles
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

HALVES = TILINGS["128x256 pair, halves"]
WIDE = TILINGS["128x224 pair"]
SMS = 6  # three pairs


def device(sms: int = SMS) -> Device:
    return Device(replace(DEVICES["b200"], sms=sms))


@pytest.mark.parametrize(
    ("problem", "whole", "grid"),
    [
        (Problem(4096, 4096, 4096), 222, 148),  # 256 tiles: three rounds, and 34 tiles as 68 halves
        (Problem(512, 4096, 4096), 0, 128),  # 32 tiles, all as halves
        (Problem(2048, 4096, 4096), 128, 128),  # 54 tiles are left, more than half a round
        (Problem(2048, 2368, 64), 74, 148),  # six tiles are left
        (Problem(4096, 4096, 4096, batches=2), 512, 148),
    ],
    ids=["rounds", "one round", "too many left", "few left", "batches"],
)
def test_halves_are_computed_where_at_most_half_a_round_is_left(problem: Problem, whole: int, grid: int) -> None:
    assert (whole_tiles(HALVES, problem, 148), grid_of(HALVES, problem, 148)) == (whole, grid)
    tiles = -(-problem.m // 256) * -(-problem.n // 256) * problem.batches
    assert (HALVES in dict(candidates(problem, sms=148)).values()) == (whole < tiles)
    assert whole_tiles(TILINGS["128x256 pair"], problem, 148) == tiles


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (Problem(4096, 4096, 4096), HALVES),
        (Problem(4096, 4096, 65536), TILINGS["256x256 pair"]),  # L2 does not have the operands
        (Problem(4096, 7168, 2048), WIDE),
        (Problem(6144, 6144, 6144), TILINGS["256x256 pair"]),
    ],
)
def test_the_choice(problem: Problem, config: Any) -> None:
    assert choose(problem, sms=148) == config


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("config", [HALVES, WIDE], ids=["halves", "224"])
@pytest.mark.parametrize(("m", "n", "k"), [(530, 456, 584), (300, 680, 200)], ids=["many", "few"])
def test_results_of_16_bits(config: Any, m: int, n: int, k: int, dtype: Any) -> None:
    """Blocks of the epilogue that are no divisor of the tile would reach into the next tile."""
    a, b, bias = normal(m, k, dtype=dtype), normal(k, n, columns=True, dtype=dtype), normal(n, dtype=dtype)
    out = np.full((m, n), np.nan, dtype)
    d = ww.matmul(a, b, level=config, bias=bias, activation="relu", out=out, device=device(4))
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64), 0)
    np.testing.assert_allclose(d.astype(np.float64), exact, rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_layouts_without_a_copy(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tiles on three pairs: three whole ones, and two halves."""
    monkeypatch.setattr("warpwright.ops.matmul.call._copy_operand", None)
    columns = [letter == "t" for letter in layout]
    a, b = normal(304, 144, columns=columns[0]), normal(144, 496, columns=columns[1])
    assert whole_tiles(HALVES, Problem(304, 496, 144), SMS) == 3
    expect(multiply(HALVES, a, b, SMS), a, b)


def test_a_batch() -> None:
    """Six tiles on four pairs."""
    a, b = normal(3, 40, 144), normal(3, 144, 264)
    assert whole_tiles(HALVES, Problem(40, 264, 144, 2, 3), 8) == 4
    d = ww.matmul(a, b, level=HALVES, device=device(8), out_dtype=np.float32)
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-4)


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_8_bit_floats(columns: bool) -> None:
    a, b = normal(304, 272, dtype=E4M3, columns=columns), normal(272, 496, dtype=E5M2, columns=True)
    expect(multiply(HALVES, a, b, SMS, scale_a=0.5), a, b, 0.5)


def test_halves_of_a_dense_axis_that_are_no_panels_are_refused() -> None:
    a, b = normal(64, 256, dtype=E4M3), normal(256, 512, dtype=E4M3)
    with pytest.raises(UsageError, match=re.escape("tiles of 256 × 256 of D") + ".* B that is dense along N"):
        ww.matmul(a, b, level=HALVES, device="b200")


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float32)], ids=["bf16", "float32"])
def test_checks_find_nothing(dtype: Any) -> None:
    a, b, bias = normal(300, 584), normal(584, 500), normal(500)
    how = {"bias": bias, "activation": "relu", "out_dtype": dtype, "device": device()}
    (launch,) = ww.launches(ww.matmul, a, b, level=HALVES, **how)
    found = ww.check(launch.kernel, launch.grid, args=launch.args, device=device())
    assert launch.kernel.entry == "gemm_halves" and not found.findings, str(found)
