"""The Blackwell GEMM whose CTAs multiply alone and share B by multicast: numbers, layouts, checks, the choice."""

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
from warpwright.kernels.gemm.sm100 import TILINGS, Problem, candidates, choose, grid_of, multicast, tilings
from warpwright.targets import timing_of

WIDE, NARROW = (TILINGS[f"128x{columns} multicast"] for columns in (224, 192))
CONFIGS = pytest.mark.parametrize("config", [WIDE, NARROW], ids=["224", "192"])


@CONFIGS
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize(("m", "n", "k"), [(530, 456, 1096), (300, 680, 200), (129, 8, 640)], ids=["many", "few", "1"])
def test_results_of_16_bits(config: Any, m: int, n: int, k: int, dtype: Any) -> None:
    """The first 16 k-blocks in the order of a GPC and one after them; fewer than the ring has; tiles over two edges."""
    a, b, bias = normal(m, k, dtype=dtype), normal(k, n, columns=True, dtype=dtype), normal(n, dtype=dtype)
    out = np.full((m, n), np.nan, dtype)
    d = ww.matmul(a, b, level=config, bias=bias, activation="relu", out=out, device="b200")
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64), 0)
    np.testing.assert_allclose(d.astype(np.float64), exact, rtol=2**-7, atol=2**-8)


@CONFIGS
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 6, 11, 33])
def test_every_number_of_k_blocks_fills_both_accumulators(config: Any, blocks: int) -> None:
    a, b = normal(200, 64 * blocks - 8), normal(64 * blocks - 8, 240, columns=True)
    expect(multiply(config, a, b), a, b)


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_layouts_without_a_copy(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpwright.ops.matmul.call._copy_operand", None)
    columns = [letter == "t" for letter in layout]
    a, b = normal(304, 208, columns=columns[0]), normal(208, 496, columns=columns[1])
    expect(multiply(NARROW, a, b), a, b)


@CONFIGS
def test_a_batch(config: Any) -> None:
    a, b = normal(3, 40, 144), normal(144, 264, columns=True)
    d = ww.matmul(a, b, level=config, device="b200", out_dtype=np.float32)
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-4)


@CONFIGS
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_8_bit_floats(config: Any, columns: bool) -> None:
    a, b = normal(304, 272, dtype=E4M3, columns=columns), normal(272, 496, dtype=E5M2, columns=True)
    expect(multiply(config, a, b, scale_a=0.5), a, b, 0.5)


@pytest.mark.parametrize(("config", "dtype"), [(WIDE, BF16), (NARROW, E4M3)], ids=["224", "192 of 8 bits"])
def test_columns_of_a_dense_axis_that_are_no_panels_are_refused(config: Any, dtype: Any) -> None:
    a, b = normal(64, 256, dtype=dtype), normal(256, 512, dtype=dtype)
    with pytest.raises(UsageError, match=re.escape(f"tiles of 256 × {config.tile[1]}") + ".* B that is dense along N"):
        ww.matmul(a, b, level=config, device="b200")


@CONFIGS
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float32)], ids=["bf16", "float32"])
def test_checks_find_nothing(config: Any, dtype: Any) -> None:
    a, b, bias = normal(300, 584), normal(584, 500, columns=True), normal(500)
    how = {"bias": bias, "activation": "relu", "out_dtype": dtype, "device": "b200"}
    (launch,) = ww.launches(ww.matmul, a, b, level=config, **how)
    found = ww.check(launch.kernel, launch.grid, args=launch.args, device="b200")
    assert launch.kernel.entry == "gemm_multicast" and not found.findings, str(found)


@pytest.mark.parametrize(
    ("problem", "config"), [(Problem(512, 8192, 8192), WIDE), (Problem(512, 6144, 4096), NARROW)], ids=["8192", "6144"]
)
def test_one_round_of_few_rows_takes_multicast(problem: Problem, config: Any) -> None:
    assert choose(problem, sms=148) == config
    assert 128 <= grid_of(config, problem, 148) <= 148
    two = problem._replace(m=1024)
    assert not any(each.multicast for _, each in candidates(two, sms=148))
    assert not choose(problem._replace(batches=2), sms=148).multicast


def test_a_cluster_in_time_has_no_pairs() -> None:
    """The launch is shorter than that of pairs of CTAs, of which each has half of the rows of B."""
    a, b = (np.zeros((rows, 4096), BF16) for rows in (512, 4096))

    def microseconds(config: Any) -> float:
        (launch,) = ww.launches(ww.matmul, a, b.T, level=config, device="b200")
        return ww.profile(launch.kernel, launch.grid, args=launch.args, device="b200", fast=True, warm=True).time_us

    assert microseconds(WIDE) < 0.96 * microseconds(TILINGS["128x224 pair"])


def test_the_facts_of_the_estimate() -> None:
    assert timing_of("b200").multicast_cost == tilings.MULTICAST
    assert len(timing_of("b200").gpcs) == multicast.GPCS
    assert WIDE.smem_bytes > replace(WIDE, stages=4).smem_bytes and WIDE.stages - WIDE.stagger == 1
