"""The Hopper GEMM whose last round has narrower tiles: their width, ptxas, and results on the virtual H200."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.sm90.test_kernel import ALL, assert_clean, lines_of, report
from tests.kernels.helpers import normal
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90 import (
    CONFIGS,
    Config,
    choose,
    fit_last,
    kernel_of,
    plan_gemm,
    store,
    takes_two_widths,
    worthwhile,
)
from warpwright.kernels.gemm.sm90.estimate import Problem, estimate_us
from warpwright.kernels.reference import finished
from warpwright.lang import bf16, e4m3, f16, f32, tma
from warpwright.ops.matmul.plan import plan_sm90
from warpwright.report.verdict import judge
from warpwright.run.launch import launch
from warpwright.types import of_dtype

WIDE, FP8 = CONFIGS["128x256 two widths"], CONFIGS["fp8 192x128 two widths"]
PAIR = CONFIGS["128x256 pair two widths"]
BF16, FLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def tiles_of(config: Config, m: int, n: int, sms: int) -> tuple[int, int, int]:
    """The columns of narrow tiles, the rows of wide tiles, and the narrow tiles in a row."""
    config = fit_last(config, m, n, sms=sms)
    return config.last, *plan_gemm(config, m, n, 64, sms=sms).widths


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4096, 4096), (232, 24, 18)),  # 384 and 144 tiles: 396 in three rounds, 528 in four
        ((6144, 6144), (192, 44, 32)),
        ((8192, 4096), (208, 57, 20)),
        ((4096, 7168), (208, 28, 35)),
        ((8192, 8192), (160, 61, 52)),
        ((16384, 8192), (64, 127, 128)),  # 42 columns would do
    ],
)
def test_the_narrow_tiles_are_as_many_as_the_last_round_has_room_for(
    shape: tuple[int, int], expected: tuple[int, int, int]
) -> None:
    (m, n), (last, wide_m, narrow_n) = shape, tiles_of(WIDE, *shape, 132)
    assert (last, wide_m, narrow_n) == expected
    wide, narrow, rounds = wide_m * -(-n // 256), (m // 128 - wide_m) * narrow_n, -(-m * n // (128 * 256 * 132))
    assert 132 <= wide <= (rounds - 1) * 132 and wide + narrow <= rounds * 132
    assert narrow_n * last >= n > (narrow_n - 1) * last


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((2048, 2048, 132), {}),  # one round
        ((4224, 4096, 132), {}),  # four whole rounds
        ((2048, 4096, 132), {}),  # 128 wide tiles would leave four CTAs without one
        ((4096, 4096, 132), {"batches": 2}),
        ((4096, 4096, 132), {"major": "mn"}),  # 228 columns are four panels of 64, the whole tile
    ],
)
def test_no_narrow_tiles_where_they_are_no_gain(shape: tuple[int, int, int], more: dict[str, Any]) -> None:
    m, n, sms = shape
    assert fit_last(WIDE, m, n, sms=sms, **more) == replace(WIDE, last=0)
    assert more or not worthwhile(WIDE, m, n, sms=sms)


def test_narrow_tiles_of_a_b_that_is_dense_along_n_are_whole_panels() -> None:
    assert fit_last(WIDE, 8192, 8192, sms=132, major="mn").last == 192
    assert fit_last(WIDE, 8192, 8192, sms=132).last == 160
    assert fit_last(PAIR, 16384, 8192, sms=132, major="mn").last == 128  # of which each CTA loads a half
    assert not fit_last(PAIR, 8192, 8192, sms=132, major="mn").last


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4096, 4096), (240, 24, 18)),  # 227.6 columns would do; a half of 232 is no multiple of 8
        ((6144, 6144), (192, 44, 32)),
        ((8192, 4096), (208, 56, 20)),
    ],
)
def test_the_narrow_tiles_of_pairs(shape: tuple[int, int], expected: tuple[int, int, int]) -> None:
    """They are those of single CTAs where wide rows are even, and whole where each half has rows of eight."""
    config = fit_last(PAIR, *shape, sms=132)
    plan = plan_gemm(config, *shape, 64, sms=132)
    assert (config.last, *plan.widths) == expected and plan.grid == (132, 1, 1)
    assert plan_gemm(config, *shape, 64, sms=133).grid == (132, 1, 1)


@pytest.mark.parametrize(
    "config", [CONFIGS["128x256 alone"], CONFIGS["128x192"], CONFIGS["64x128"], CONFIGS["fp8 128x256"]]
)
def test_other_configurations_have_no_tiles_of_two_widths(config: Config) -> None:
    a = np.zeros((256, 64), BF16)
    with pytest.raises(UsageError) as caught:
        ww.matmul(a, a.T, device="h200", level=replace(config, last=72))
    assert str(caught.value) == (
        "matmul: given level= with last=72, tiles of two widths; expected persistent CTAs, single or in pairs that "
        "share B, with an early ring, two or three consumers, and tiles of a multiple of 128 columns, in FP8 "
        "`promoted` columns: take last=0"
    )
    assert all(takes_two_widths(each) for each in CONFIGS.values() if each.last)


def test_a_fitted_configuration_stays_as_it_is() -> None:
    fitted = fit_last(WIDE, 4096, 4096, sms=132)
    assert fit_last(fitted, 4096, 4096, sms=132) == fitted
    assert fit_last(CONFIGS["128x256"], 4096, 4096, sms=132) is CONFIGS["128x256"]


def test_the_estimate_counts_a_shorter_last_round() -> None:
    problem = Problem(9088, 768, 1600, 2, 1, ("k", "k"))
    wide, narrow = (estimate_us(each, problem, sms=132) for each in (replace(WIDE, last=0), WIDE))
    assert choose(9088, 768, 1600) is PAIR and 0.8 * wide < narrow < 0.95 * wide
    assert not choose(9088, 768, 1600, batches=2).last
    assert not fit_last(FP8, 3675, 4224, sms=132).last and choose(3675, 4224, 1792, 1) is CONFIGS["fp8 128x256"]


@sampled("last", [8, 64, 104, 128, 192, 232, 248], every=3)
@pytest.mark.parametrize("how", [{}, {"out": f32}, {"out": f16}, {"epilogue": ALL}, {"majors": ("mn", "k")}])
def test_no_spills_and_no_serialised_wgmma(last: int, how: dict[str, Any]) -> None:
    assert_clean(report(replace(WIDE, last=last), **how))
    assert_clean(report(replace(PAIR, last=-(-last // 16) * 16), **how))


@pytest.mark.parametrize("how", [{}, {"out": f32}, {"epilogue": ALL}])
def test_no_spills_in_fp8(how: dict[str, Any]) -> None:
    assert_clean(report(replace(FP8, last=104), dtype=e4m3, **how))


def test_narrow_tiles_have_their_own_boxes_of_b_and_d() -> None:
    traced = kernel_of(replace(WIDE, last=232)).trace()
    boxes = {name: (use.box, use.swizzle) for name, use in traced.maps.items()}
    assert (boxes["b"], boxes["narrow_b"]) == (((256, 64), 128), ((232, 64), 128))
    assert (boxes["d"], boxes["narrow_d"]) == (((16, 64), 128), ((16, 40), 0))
    assert traced.maps["narrow_d"] == tma.MapUse((16, 40), 0, bf16)
    lines = lines_of(replace(WIDE, last=232))
    wgmmas = [line for line in lines if line.startswith("wgmma.mma_async")]
    assert [re.findall(r"\.m64n(\d+)k16", line) for line in wgmmas] == [["256"]] * 4 + [["232"]] * 4
    sizes = [line.rsplit(" ", 1)[1] for line in lines if "expect_tx" in line]
    assert sizes == ["49152", "49152", str((128 + 232) * 128)]  # the first fill, wide and narrow tiles
    assert "narrow_d" not in kernel_of(replace(WIDE, last=192)).trace().maps  # three whole blocks of D


def gemm(
    config: Config,
    a: np.ndarray,
    b: np.ndarray,
    sms: int,
    out: np.dtype[Any] = BF16,
    epilogue: Epilogue = PLAIN,
    numerics: str = "exact",
    **more: Any,
) -> np.ndarray:
    """D of a launch with as many CTAs as SMs, filled with NaN before; a row below it must stay NaN."""
    (m, k), n = a.shape, b.shape[0]
    assert config.last
    plan = plan_gemm(config, m, n, k, sms=sms, in_bytes=a.itemsize, out_bytes=out.itemsize)
    assert plan.grid == (sms // config.cluster * config.cluster, 1, 1)
    d = np.full((m + 1, plan.pitch), np.nan, out)
    types = {"dtype": of_dtype(a.dtype), "b_dtype": of_dtype(b.dtype), "out": of_dtype(out)}
    args = [a, b, d[:-1], *plan.arguments(**more), b, d[:-1], *plan.widths]
    traced = kernel_of(config).trace(epilogue=epilogue, **types)
    launch(traced, plan.grid, args=args, device="h200", numerics=numerics)
    assert np.isnan(d[-1].astype(np.float32)).all()
    return np.ascontiguousarray(d[:-1, :n])


CASES = [
    ((520, 700, 200), 6, 120),
    ((1160, 520, 72), 7, 72),  # one CTA has two narrow tiles, the others one
    ((1160, 520, 328), 4, 104),
    ((700, 1000, 136), 5, 200),
    ((300, 1024, 64), 5, 152),  # one k-block
    ((257, 1032, 456), 5, 208),
]


PAIRS = [
    ((520, 700, 200), 6, 240),  # five rows of tiles: the last pair has rows of D for one CTA alone
    ((1160, 520, 72), 7, 176),  # an SM without a pair
    ((900, 1032, 904), 4, 208),  # k-blocks for the stores of all blocks of a tile
    ((300, 1024, 64), 6, 208),
]


@pytest.mark.parametrize(
    ("config", "shape", "sms", "last"), [*((WIDE, *case) for case in CASES), *((PAIR, *case) for case in PAIRS)]
)
@pytest.mark.parametrize("delayed", [True, False])
def test_every_tile_is_computed_once(
    config: Config, shape: tuple[int, int, int], sms: int, last: int, delayed: bool
) -> None:
    m, n, k = shape
    config = fit_last(replace(config, delayed=delayed), m, n, sms=sms)
    assert config.last == last
    a, b = normal(1, m, k), normal(2, n, k)
    assert judge(gemm(config, a, b, sms), a, b.T).verified


def test_the_stores_of_a_tile_do_not_hold_up_the_wgmmas_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a tile at once take longer than the wgmmas in flight."""
    m, n, k, sms = 1024, 2048, 512, 6
    operands = np.zeros((m, k), BF16), np.zeros((n, k), BF16), np.zeros((m, n), BF16)

    def predicted_us(summary: str) -> float:
        config = fit_last(replace(WIDE, summary=summary), m, n, sms=sms)
        plan = plan_gemm(config, m, n, k, sms=sms)
        args = [*operands, *plan.scalars, operands[1], operands[2], *plan.widths]
        return ww.profile(kernel_of(config).trace(), plan.grid, args=args, device="h200").time_us

    spread = predicted_us("spread")
    monkeypatch.setattr(store, "PACE", 0)
    assert spread < 0.99 * predicted_us("at once")


@sampled(("out", "activation"), [*product([BF16, FLOAT16, FLOAT32], ["", "relu", "gelu"])], every=4)
def test_the_bits_are_those_of_tiles_of_one_width(out: np.dtype[Any], activation: str) -> None:
    (m, n, k), sms = (700, 1000, 136), 5
    a, b = normal(3, m, k), normal(4, n, k)
    bias = np.random.default_rng(5).standard_normal(n).astype(BF16)
    epilogue, given = Epilogue(True, bf16, activation), {"columns": n, "bias": bias, "alpha": 0.5}
    found = gemm(fit_last(WIDE, m, n, sms=sms), a, b, sms, out, epilogue, "hardware", **given)
    expected = np.full((m, n), np.nan, out)
    config, types = replace(WIDE, last=0), {"out": of_dtype(out), "epilogue": epilogue}
    plan = plan_gemm(config, m, n, k, sms=sms, out_bytes=out.itemsize)
    args = [a, b, expected, *plan.arguments(**given)]
    launch(kernel_of(config).trace(**types), plan.grid, args=args, device="h200", numerics="hardware")
    assert np.isfinite(found.astype(np.float32)).all() and np.array_equal(found, expected)


@pytest.mark.parametrize(("shape", "sms"), [((700, 500, 400), 5), ((1100, 300, 144), 4)])
def test_fp8_with_scales(shape: tuple[int, int, int], sms: int) -> None:
    (m, n, k), random = shape, np.random.default_rng(6)
    a, b = (random.standard_normal((rows, k)).astype(E4M3) for rows in (m, n))
    config = fit_last(FP8, m, n, sms=sms)
    given = {"scale_a": np.array([0.25], np.float32), "alpha": 3.0}
    found = gemm(config, a, b, sms, FLOAT32, Epilogue(scaled=True), **given)
    left, right = a.astype(np.float64), b.astype(np.float64)
    slack = np.abs(left) @ np.abs(right).T * 0.75 * 2.0**-20
    assert (np.abs(found - finished(left @ right.T, 0.75, None, "")) <= slack).all()


@pytest.mark.parametrize("majors", [("mn", "k"), ("k", "mn"), ("mn", "mn")])
@pytest.mark.parametrize(
    ("config", "shape", "columns"), [(WIDE, (520, 704, 200), (120, 128)), (PAIR, (776, 264, 200), (96, 128))]
)
def test_operands_that_are_dense_along_m_and_n(
    config: Config, shape: tuple[int, int, int], columns: tuple[int, int], majors: tuple[str, str]
) -> None:
    (m, n, k), sms = shape, 6
    a, b = normal(7, m, k), normal(8, n, k)
    stored = [x if major == "k" else np.ascontiguousarray(x.T) for x, major in zip((a, b), majors, strict=True)]
    d = np.full((m, n), np.nan, BF16)
    layouts = [(x.shape, x.strides, x.dtype) for x in (*stored, d)]
    plan = plan_sm90(config, *layouts, majors, sms)
    assert plan.config.last == columns[majors[1] == "mn"]
    values = {"a": stored[0], "b": stored[1], "d": d, "bias": 0, "scale_a": 0, "scale_b": 0, "alpha": 1.0}
    (found,) = plan.on(values)
    launch(found.kernel, found.grid, args=found.args, device="h200")
    assert judge(d, a, b.T).verified
