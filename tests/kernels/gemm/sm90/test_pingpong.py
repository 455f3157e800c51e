"""The Hopper GEMM whose warpgroups multiply in turn: its choice, ptxas, its turns, and results on the virtual H200."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.sm90.test_kernel import assert_clean, lines_of, report
from tests.kernels.helpers import normal
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.gemm import Epilogue
from warpwright.kernels.gemm.epilogue import PLAIN
from warpwright.kernels.gemm.sm90 import CONFIGS, Config, choose, kernel_of, plan_gemm, with_registers, worthwhile
from warpwright.kernels.reference import finished
from warpwright.lang import bf16, f16, f32
from warpwright.ops.launches import launches
from warpwright.ops.matmul.plan import plan_sm90
from warpwright.report.verdict import judge
from warpwright.run.launch import launch

PINGPONG = {name: config for name, config in CONFIGS.items() if config.pingpong}
WIDE, NARROW, PAIR = (CONFIGS[f"128x{which} pingpong"] for which in ("200", "168", "176 pair"))
BF16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


def gemm(
    config: Config,
    shape: tuple[int, int, int],
    sms: int,
    out: np.dtype[Any] = BF16,
    epilogue: Epilogue = PLAIN,
    numerics: str = "exact",
    majors: tuple[str, str] = ("k", "k"),
    **more: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """D, filled with NaN before, of the launch for ``sms`` SMs; A and Bᵀ."""
    m, n, k = shape
    a, b, d = normal(1, m, k), normal(2, n, k), np.full((m, n), np.nan, out)
    stored = [x if major == "k" else np.ascontiguousarray(x.T) for x, major in zip((a, b), majors, strict=True)]
    layouts = [(x.shape, x.strides, x.dtype) for x in (*stored, d)]
    plan = plan_sm90(config, *layouts, majors, sms, epilogue, n)
    values = {"a": stored[0], "b": stored[1], "d": d, "bias": 0, "scale_a": 0, "scale_b": 0, "alpha": 1.0, **more}
    (found,) = plan.on(values)
    launch(found.kernel, found.grid, args=found.args, device="h200", numerics=numerics)
    return d, a, b.T


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((16384, 8192, 1024), "128x200 pingpong"),
        ((4096, 24576, 1536), "128x176 pair pingpong"),
        ((12288, 12288, 12288), "128x192 pingpong"),
        ((4096, 4096, 4096), "128x256 two widths"),  # of pingpong's widths none fits four whole rounds
        ((9000, 9000, 1024), "128x192 pingpong"),  # by the estimate
    ],
)
def test_the_choice(shape: tuple[int, int, int], name: str) -> None:
    assert choose(*shape) is CONFIGS[name]


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((2048, 2048, 2048), {}),  # two tiles for a CTA
        ((9000, 9000, 256), {}),  # the stores of a tile take as long as its multiplications
        ((4096, 4104, 1024), {"batches": 4}),
        ((9000, 9000, 1024), {"in_bytes": 1}),
    ],
)
def test_the_estimate_takes_no_turns_where_they_are_no_gain(shape: tuple[int, int, int], more: dict[str, int]) -> None:
    assert not choose(*shape, **more).pingpong


def test_what_tuning_measures() -> None:
    assert worthwhile(WIDE, 4096, 7168, sms=132) and not worthwhile(WIDE, 2048, 2048, sms=132)


def test_columns_of_b_in_memory_are_whole_panels() -> None:
    chosen = choose(16384, 8192, 1024, majors=("k", "mn"))
    assert chosen is CONFIGS["128x192 pingpong"] or not chosen.pingpong


def test_an_epilogue_has_registers() -> None:
    """With 168 columns the sums leave them; ww.matmul takes such a tile for a call with a bias."""
    assert with_registers(WIDE) is NARROW and with_registers(CONFIGS["128x256"]) is CONFIGS["128x256"]
    a, b, bias = (np.zeros(shape, BF16) for shape in ((16384, 1024), (8192, 1024), (8192,)))
    plain, biased = (launches(ww.matmul, a, b.T, device="h200", **how).steps[0][0] for how in ({}, {"bias": bias}))
    assert (plain.config.tile, biased.config.tile) == ((128, 200), (128, 168))


@sampled("name", PINGPONG, every=2)
@pytest.mark.parametrize("how", [{}, {"out": f32}, {"out": f16}])
def test_no_spills_and_no_serialised_wgmma(name: str, how: dict[str, Any]) -> None:
    assert_clean(report(replace(PINGPONG[name], last=112), **how))


@sampled("activation", ["", "relu", "gelu", "silu"], every=2)
@pytest.mark.parametrize("out", [bf16, f32])
def test_no_spills_with_an_epilogue(activation: str, out: Any) -> None:
    assert_clean(report(replace(NARROW, last=104), out=out, epilogue=Epilogue(True, bf16, activation)))
    assert_clean(report(replace(NARROW, last=0), out=out, epilogue=Epilogue(True, f32, activation)))


@pytest.mark.parametrize("majors", [("mn", "k"), ("k", "mn"), ("mn", "mn")])
def test_no_spills_in_the_other_layouts(majors: tuple[str, str]) -> None:
    assert_clean(report(replace(CONFIGS["128x192 pingpong"], last=128), majors=majors))


def test_a_warpgroup_passes_its_turn_before_it_waits_for_its_last_wgmmas() -> None:
    lines = lines_of(replace(WIDE, last=0))
    turns = [at for at, line in enumerate(lines) if re.match(r"bar(rier)?\.(cta\.)?arrive", line)]
    last = max(at for at, line in enumerate(lines) if line.startswith("wgmma.mma_async"))
    wait = max(at for at, line in enumerate(lines) if line.startswith("wgmma.wait_group") and line.endswith(" 0"))
    assert len(turns) == 2  # before the first tile, and after each
    assert last < turns[1] < wait


def test_the_boxes_of_d() -> None:
    traced = kernel_of(replace(WIDE, last=104)).trace()
    boxes = {name: (use.box, use.swizzle) for name, use in traced.maps.items()}
    assert (boxes["b"], boxes["narrow_b"]) == (((200, 64), 128), ((104, 64), 128))
    assert (boxes["d"], boxes["rest_d"], boxes["narrow_d"]) == (((16, 64), 128), ((16, 8), 0), ((16, 40), 0))
    whole = kernel_of(replace(CONFIGS["128x192 pingpong"], last=128)).trace().maps
    assert "rest_d" not in whole and "narrow_d" not in whole


CASES = [
    ("128x200 pingpong", (1160, 1304, 200), 6),
    ("128x176 pingpong", (1160, 520, 72), 4),  # a ring with room for the k-blocks of two tiles
    ("128x168 pingpong", (700, 1000, 328), 5),  # more k-blocks than stages
    ("128x192 pingpong", (300, 1544, 64), 3),
    ("128x176 pair pingpong", (1160, 1304, 200), 6),  # the last pair of CTAs has rows of D for one of them alone
    ("128x176 pair pingpong", (700, 1000, 328), 9),  # an SM without a pair; more k-blocks than stages
    ("128x176 pair pingpong", (257, 1048, 456), 4),  # three rows of tiles, and none of narrow ones
    ("128x200 pingpong", (120, 184, 136), 2),  # one tile: a warpgroup has none
]


@pytest.mark.parametrize(("name", "shape", "sms"), CASES)
def test_every_tile_is_computed_once(name: str, shape: tuple[int, int, int], sms: int) -> None:
    assert judge(*gemm(PINGPONG[name], shape, sms)).verified


@pytest.mark.parametrize("last", [0, 64])
@pytest.mark.parametrize(("config", "counts"), [(WIDE, (2, 3, 5, 7)), (PAIR, (4, 6, 10))])
def test_ctas_with_an_odd_and_an_even_number_of_tiles(config: Config, counts: tuple[int, ...], last: int) -> None:
    """The warpgroup that has a CTA's first narrow tile depends on the number of its wide tiles."""
    for sms in counts:
        assert judge(*gemm(replace(config, last=last), (900, 1000, 136), sms)).verified


def test_a_pair_shares_b() -> None:
    """Each CTA loads a half of B for both, wide and narrow; before they have synchronised, both halves for itself."""
    traced = kernel_of(replace(PAIR, last=112)).trace()
    boxes = {name: use.box for name, use in traced.maps.items()}
    assert (boxes["a"], boxes["b"], boxes["narrow_b"]) == ((128, 64), (88, 64), (56, 64))
    loads = [line for line in lines_of(replace(PAIR, last=112)) if line.startswith("cp.async.bulk.tensor.2d.shared")]
    assert ["multicast" in line for line in loads] == [False] * 3 + [False, True] * 2


@pytest.mark.parametrize("majors", [("mn", "k"), ("k", "mn"), ("mn", "mn")])
def test_operands_that_are_dense_along_m_and_n(majors: tuple[str, str]) -> None:
    assert judge(*gemm(CONFIGS["128x192 pingpong"], (520, 704, 200), 5, majors=majors)).verified


@sampled("out", [BF16, np.dtype(np.float16), FLOAT32], every=2)
@sampled("activation", ["", "relu", "gelu", "silu"], every=2)
def test_the_bits_are_those_of_the_ring_without_turns(out: np.dtype[Any], activation: str) -> None:
    shape, bias = (700, 1000, 136), np.random.default_rng(5).standard_normal(1000).astype(BF16)
    how = {"out": out, "epilogue": Epilogue(True, bf16, activation), "numerics": "hardware", "bias": bias, "alpha": 0.5}
    found, a, b = gemm(NARROW, shape, 5, **how)
    expected, *_ = gemm(CONFIGS["128x256 alone"], shape, 5, **how)
    assert np.isfinite(found.astype(np.float32)).all() and np.array_equal(found, expected)
    exact = finished(a.astype(np.float64) @ b.astype(np.float64), 0.5, bias, activation)
    assert np.abs(found.astype(np.float64) - exact).max() <= 2.0**-7 * np.abs(exact).max()


def test_no_batches() -> None:
    a = np.zeros((3, 256, 64), BF16)
    with pytest.raises(UsageError) as caught:
        ww.matmul(a, a.swapaxes(1, 2), device="h200", level=WIDE)
    assert str(caught.value) == (
        "matmul: given level= with pingpong=True for a batch of 3 matrices; expected one matrix: leave level= out"
    )


@pytest.mark.parametrize(
    "changes",
    [{"share": (2, 1)}, {"share": (4, 1), "tile": (128, 192)}, {"consumers": 3}, {"early": False}, {"delayed": True}],
)
def test_configurations_that_take_no_turns(changes: dict[str, Any]) -> None:
    a = np.zeros((256, 64), BF16)
    with pytest.raises(UsageError) as caught:
        ww.matmul(a, a.T, device="h200", level=replace(WIDE, **changes))
    assert str(caught.value) == (
        "matmul: given level= with pingpong=True; expected two consumers in persistent CTAs, single or in pairs "
        "that share B, with tiles of a multiple of 8 columns, in pairs of 16, an early ring, 16-bit operands and tiles "
        "stored at once: take CONFIGS['128x200 pingpong']"
    )


def test_a_plan_without_narrow_tiles_has_wide_ones_alone() -> None:
    plan = plan_gemm(replace(WIDE, last=0), 900, 1000, 64, sms=6)
    assert (plan.grid, plan.maps, plan.widths) == ((6, 1, 1), ("b", "d", "d"), (8, 0))
