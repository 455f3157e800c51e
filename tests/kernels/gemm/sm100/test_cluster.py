"""The Blackwell GEMM whose clusters add slices of K: numbers against float64, layouts, the checks, what is refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.sm100.test_gemm import BF16, E4M3, E5M2, SMEM, expect, multiply, normal
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.gemm.sm100 import TILINGS, Problem, Tiling, candidates, choose, grid_of, kernel_of, tilings
from warpwright.kernels.gemm.sm100.pieces import Pieces
from warpwright.targets import DEVICES, timing_of

CLUSTERED = [name for name, config in TILINGS.items() if config.clustered]
NARROW = "swapped 128x64, cluster of 4 slices"
WIDE = "swapped 128x256, cluster of 2 slices"
TYPES = (BF16, BF16), (E4M3, E5M2)
SMS = 16
NOWHERE: Any = None  # of partial sums


@sampled(("name", "k"), [(name, k) for name in CLUSTERED for k in (584, 2100)], keep=[(n, 584) for n in CLUSTERED])
def test_every_configuration(name: str, k: int) -> None:
    """A tile of fewer rows than it has, two tiles of more; slices of unlike length; scale, bias and activation."""
    config = TILINGS[name]
    for m, whole in ((config.tile[1] - 5, True), (config.tile[1] + 3, False)):
        a, b, bias = normal(m, k - k % 8), normal(k - k % 8, 264, columns=True), normal(264, dtype=np.float32)
        options = {"bias": bias, "activation": "relu", "scale_a": 0.5} if whole else {}
        expect(multiply(config, a, b, SMS, **options), a, b, *((0.5, bias, "relu") if whole else ()))


@pytest.mark.parametrize("dtypes", TYPES, ids=["bf16", "fp8"])
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_layouts_without_a_copy(layout: str, dtypes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpwright.ops.matmul.call._copy_operand", None)
    columns = [letter == "t" for letter in layout]
    a, b = (
        normal(272, 1168, dtype=dtypes[0], columns=columns[0]),
        normal(1168, 272, dtype=dtypes[1], columns=columns[1]),
    )
    expect(multiply(TILINGS["swapped 128x256, cluster of 3 slices"], a, b, SMS), a, b)


@pytest.mark.parametrize("out", [ml_dtypes.bfloat16, np.float32], ids=["bf16", "f32"])
def test_relu_keeps_nan(out: Any) -> None:
    """The rounding to 16 bits applies it, so no other instruction does."""
    a, b = normal(40, 520), normal(520, 200, columns=True)
    a[3, 5] = np.nan
    d = ww.matmul(a, b, level=TILINGS[NARROW], activation="relu", out=np.empty((40, 200), out), device="b200")
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0)
    np.testing.assert_allclose(d.astype(np.float64), exact, rtol=2**-7, atol=2**-8)
    assert np.isnan(d[3].astype(np.float32)).all()
    (launched,) = ww.launches(ww.matmul, a, b, level=TILINGS[NARROW], activation="relu", out=d, device="b200")
    assert ("max." in launched.kernel.ptx) == (out == np.float32)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_results_of_16_bits(dtype: Any) -> None:
    a, b, bias = normal(40, 520, dtype=dtype), normal(520, 200, dtype=dtype), normal(200, dtype=dtype)
    d = ww.matmul(a, b, level=TILINGS[NARROW], bias=bias, activation="silu", device="b200")
    exact = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
    assert d.dtype == dtype
    np.testing.assert_allclose(d.astype(np.float64), exact / (1 + np.exp(-exact)), rtol=2**-8, atol=1e-3)


def test_a_batch_is_one_launch() -> None:
    a, b = normal(3, 40, 520), normal(3, 520, 136)
    made = ww.launches(ww.matmul, a, b, level=TILINGS[NARROW], device="b200", out_dtype=np.float32)
    assert [each.kernel.entry for each in made] == ["gemm_cluster"]
    d = ww.matmul(a, b, level=TILINGS[NARROW], device="b200", out_dtype=np.float32)
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "m"), [(NARROW, 60), ("swapped 128x128, cluster of 3 slices", 120), (WIDE, 250)], ids=["64", "128", "256"]
)
def test_checks_find_nothing(name: str, m: int) -> None:
    a, b, bias = normal(m, 1160), normal(1160, 200), normal(200)
    for launch in ww.launches(ww.matmul, a, b, level=TILINGS[name], bias=bias, activation="relu", device="b200"):
        found = ww.check(launch.kernel, launch.grid, args=launch.args, device="b200")
        assert not found.findings, str(found)


@pytest.mark.parametrize("name", CLUSTERED)
def test_shared_memory_suffices(name: str) -> None:
    config = TILINGS[name]
    assert kernel_of(config).trace().smem_bytes <= config.smem_bytes <= SMEM


@pytest.mark.parametrize(
    ("name", "columns", "dtype"), [(NARROW, 64, BF16), ("swapped 128x128, cluster of 2 slices", 128, E4M3)]
)
def test_halves_of_a_dense_axis_that_are_no_panels_are_refused(name: str, columns: int, dtype: Any) -> None:
    a, b = normal(64, 1024, dtype=dtype, columns=True), normal(1024, 256, dtype=dtype, columns=True)
    message = re.escape(f"tiles of {columns} × 128 of D") + ".* A that is dense along M; expected wider tiles"
    with pytest.raises(UsageError, match=message):
        ww.matmul(a, b, level=TILINGS[name], device="b200")


@pytest.mark.parametrize(
    ("name", "least"), [(NARROW, 449), (WIDE, 193), ("128x128 pair, 3 slices", 129)], ids=["narrow", "wide", "pair"]
)
def test_slices_without_k_blocks_are_refused(name: str, least: int) -> None:
    def launches(k: int) -> Any:
        return ww.launches(ww.matmul, normal(40, k), normal(k, 136), level=TILINGS[name], device="b200")

    assert list(launches(least + 7))
    short = least // 8 * 8
    with pytest.raises(UsageError, match=f"for K {short}; expected K of at least {least}: leave level= out"):
        launches(short)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Problem(64, 7168, 4096), "swapped 128x64, cluster of 2 slices"),
        (Problem(1024, 1024, 1024), "swapped 128x128, cluster of 2 slices"),
        (Problem(128, 6144, 4096), "swapped 128x128, cluster of 3 slices"),
        (Problem(256, 4096, 4096), "swapped 128x256, cluster of 4 slices"),
        (Problem(512, 4096, 4096), WIDE),
    ],
)
def test_few_rows_of_one_round_of_clusters_take_a_cluster(problem: Problem, name: str) -> None:
    assert choose(problem, sms=148) == TILINGS[name]
    assert not choose(problem, sms=148, slices=False).clustered
    assert 108 <= grid_of(TILINGS[name], problem, 148) <= 148


def test_a_tile_that_is_half_empty_is_no_candidate() -> None:
    for rows in (32, 33):
        names = dict(candidates(Problem(rows, 4096, 4096), sms=148))
        assert (NARROW in names) == (rows > 32)


def test_the_estimate_takes_the_facts_of_the_clock() -> None:
    timing = timing_of("b200")
    latency = timing.mma_latency + timing.commit + timing.dsmem_latency + timing.ld_l2
    assert (latency, timing.l2_bytes, timing.sm_bytes) == (tilings.EXCHANGE, tilings.L2_BYTES, tilings.PORT_BYTES)
    assert DEVICES["b200"].l2_bytes == tilings.L2_SIZE


def test_a_slice_owns_columns_and_all_columns_are_owned() -> None:
    def owned(config: Tiling, number: int) -> range:
        return range(*Pieces(NOWHERE, number, config).owned(number))

    for name in CLUSTERED:
        config = TILINGS[name]
        pieces = [piece for number in range(config.slices) for piece in owned(config, number)]
        assert pieces == list(range(config.pieces))
        assert all(Pieces(NOWHERE, 0, config).owner(p)[0] == n for n in range(config.slices) for p in owned(config, n))
