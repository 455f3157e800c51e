"""The Hopper attention for few queries: ptxas, plans, and numbers on the virtual H200."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import SENTINEL, normal_qkv, verify
from tests.kernels.attention.decode_helpers import launches, run_decode
from tests.kernels.helpers import replaced, without
from tests.samples import sampled
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.decode import combine_of, kernel_of
from warpwright.kernels.attention.sm90.decode_plan import (
    AT_ONCE,
    CONFIGS,
    MANY,
    PAIRS,
    DecodeConfig,
    choose,
    plan,
    suits,
)
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx.ptxas import assemble
from warpwright.run.launch import load_ptx
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

SHAPES = [
    (Problem(1, 1, 1, 1, 1, 64), 3),
    (Problem(2, 8, 2, 1, 63, 64), 3),
    (Problem(1, 70, 1, 1, 200, 40), 5),
    (Problem(2, 8, 2, 1, 4097, 128, causal=True), 7),
    (Problem(1, 16, 2, 4, 300, 64, causal=True), 7),
    (Problem(1, 12, 2, 3, 1000, 64, causal=True, window=(200, 0)), 5),
    (Problem(1, 3, 1, 3, 65, 64, causal=True, window=(13, None)), 2),
    (Problem(1, 2, 2, 100, 500, 64, causal=True), 11),
    (Problem(1, 6, 2, 9, 300, 96, dtype=np.float16, window=(None, 3), scale=0.3), 6),
    (Problem(3, 5, 1, 1, 130, 256), 4),
]
ONE = Problem(1, 6, 3, 1, 1000, 64)  # three tiles of eight blocks


@sampled("config", [*PAIRS.values(), *CONFIGS.values()], every=2)
def test_no_spills_and_no_serialised_wgmma_in_any_configuration(config: DecodeConfig) -> None:
    """With every option that adds code."""
    config = replace(config, places=4)
    traced = kernel_of(config).trace(bounds=(True, True))
    result = assemble(traced.ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search(r"C75\d\d|warning", result.log)
    assert traced.smem_bytes <= config.smem_bytes


@pytest.mark.parametrize("at_once", [AT_ONCE, MANY])
def test_no_spills_in_the_second_launch(at_once: int) -> None:
    device_code = combine_of(replace(CONFIGS[128], places=4, at_once=at_once))
    result = assemble(device_code.trace(bounds=(True, True)).ptx, "sm_90a", "-v")
    assert result.errors == {} and " 0 bytes spill stores" in result.log


@sampled(("problem", "sms"), SHAPES, every=5)
def test_agrees_with_float64(problem: Problem, sms: int) -> None:
    given = normal_qkv(problem)
    verify(problem, given, run_decode(problem, given, sms))


def test_two_ctas_share_an_sm() -> None:
    """If they have equally many whole tiles, and by registers and shared memory."""
    problem, device = Problem(3, 8, 2, 1, 200, 128), Device(replace(DEVICES["h200"], sms=3))
    given = normal_qkv(problem)
    verify(problem, given, run_decode(problem, given, 3, device))
    found, [(kernel, grid, args)], _ = launches(problem, given, 3)
    assert (found.config, grid) == (PAIRS[128], (6, 1, 1))
    assert ww.profile(kernel, grid, args=args, device=device).ctas_per_sm == 2
    assert plan(problem, sms=4).config == CONFIGS[128]  # two SMs would have one CTA each


def test_a_second_launch_combines_parts() -> None:
    """The same numbers in the same order."""
    problem, sms = SHAPES[2]
    given, config = normal_qkv(problem), choose(problem)
    found, apart = (run_decode(problem, given, sms, config=replace(config, last=last)) for last in (True, False))
    assert all(np.array_equal(*pair) for pair in zip(found, apart, strict=True))


@pytest.mark.parametrize("ctas", [2, 24, 40])
def test_many_parts_are_read_at_a_time(ctas: int) -> None:
    problem = replace(ONE, heads=2, kv_heads=1, kv_len=ctas * 200)  # one tile
    given, config = normal_qkv(problem), replace(choose(problem), last=False, at_once=MANY)
    verify(problem, given, run_decode(problem, given, 40, config=config, ctas=ctas))


@sampled("ctas", [1, 2, 3, 4, 5, 7, 11, 16, 23, 24], every=3)
def test_any_number_of_ctas(ctas: int) -> None:
    """Whole tiles and parts of one block and more; shares that begin or end with less than a block."""
    given = normal_qkv(ONE)
    verify(ONE, given, run_decode(ONE, given, 24, ctas=ctas))


def test_each_query_gets_the_value_of_the_key_that_it_points_at() -> None:
    """Keys are unit vectors, so a wrong row, column, head or part shows as another value."""
    problem = Problem(2, 16, 2, 4, 300, 64, scale=1.0, causal=True)
    random = np.random.default_rng(0)
    order = random.integers(0, 64, (2, 16, 4))
    k = np.zeros((2, 2, 300, 64), problem.dtype)
    k[:, :, 100 + 3 * np.arange(64), np.arange(64)] = 1
    q = (200 * np.eye(64)[order]).astype(problem.dtype)
    v = random.integers(-128, 128, (2, 2, 300, 64)).astype(problem.dtype)
    o, lse = run_decode(problem, (q, k, v), sms=7)
    rows = np.repeat(v, 8, axis=1)
    assert np.array_equal(o, np.take_along_axis(rows, 100 + 3 * order[..., None], axis=2))
    assert np.array_equal(lse, np.full_like(lse, 200.0))


def test_arrays_of_any_strides_are_read_and_written_in_place() -> None:
    problem = Problem(2, 6, 2, 3, 200, 64, causal=True)
    given = normal_qkv(problem)
    transposed = [np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2) for array in given]
    memory = np.full((2, 5, 7, 72), SENTINEL, problem.dtype)
    o = memory[:, :3, :6, :64].swapaxes(1, 2)
    found, lse = ww.attention(*transposed, causal=True, out=o, return_lse=True, device="h200")
    assert found is o
    verify(problem, given, (o, lse))
    memory[:, :3, :6, :64] = SENTINEL
    assert (memory == SENTINEL).all()


def test_large_logits_and_growing_ones() -> None:
    """Scores of thousands, the largest in the first part."""
    problem = replace(ONE, scale=1.0)
    q, k, v = normal_qkv(problem)
    k = (k.astype(np.float32) * np.linspace(60, 1, 1000)[:, None]).astype(problem.dtype)
    given = (q * 8).astype(problem.dtype), k, v
    verify(problem, given, run_decode(problem, given, sms=7))


def test_parts_without_any_weight() -> None:
    """Keys of score -inf fill parts of all tiles, and one whole tile, which has output 0. One key is NaN."""
    q, k, v = normal_qkv(ONE)
    q[..., 0] = 1
    k[0, 0, 200:800, 0] = -np.inf
    k[0, 1, :, 0] = -np.inf
    k[0, 2, 900, 30] = np.nan
    o, lse = run_decode(ONE, (q, k, v), sms=9)
    rest = k.astype(np.float64)[0, 0], v.astype(np.float64)[0, 0]
    keys, values = (np.delete(each, np.s_[200:800], axis=0) for each in rest)
    weights = np.exp(q[0, :2, 0].astype(np.float64) @ keys.T / 8)
    assert np.abs(o[0, :2, 0] - (weights / weights.sum(-1, keepdims=True)) @ values).max() < 0.01
    assert not o[0, 2:4].any() and np.isneginf(lse[0, 2:4]).all()
    assert np.isnan(o[0, 4:].astype(np.float32)).all() and np.isnan(lse[0, 4:]).all()


def test_a_value_of_infinity() -> None:
    """Fewer parts than are read at a time: the missing parts add nothing, not even 0 times infinity."""
    q, k, v = normal_qkv(ONE)
    v[0, 0, 900, 5] = np.inf
    o, _ = run_decode(ONE, (q, k, v), sms=9)
    expected = np.zeros(o.shape, np.bool_)
    expected[0, :2, 0, 5] = True
    assert np.array_equal(np.isposinf(o), expected) and not np.isnan(o.astype(np.float32)).any()


def test_rows_that_see_nothing_are_zero() -> None:
    problem = Problem(1, 4, 2, 4, 3, 64, causal=True)
    given = normal_qkv(problem)
    o, lse = run_decode(problem, given)
    assert not o[:, :, 0].any() and np.isneginf(lse[:, :, 0]).all()
    verify(problem, given, (o, lse))


# CTAs have a whole tile and parts of others; more than one warp has rows; a block is masked for some queries only.
WHOLE = Problem(1, 72, 3, 1, 500, 64)
CUT = Problem(1, 24, 4, 4, 1282, 64, causal=True, window=(900, None))


@sampled(("problem", "ctas", "last"), [(WHOLE, 2, True), (WHOLE, 2, False), (CUT, 3, True)], every=2)
def test_the_verdict_is_clean(problem: Problem, ctas: int, last: bool) -> None:
    """Includes data that one CTA hands to another, and one launch to the next."""
    _, planned, _ = launches(problem, normal_qkv(problem), ctas, replace(choose(problem), last=last))
    assert len(planned) == 2 - last
    for number, (kernel, grid, args) in enumerate(planned):
        awaited = [args[6]] if number else []
        verdict = ww.check(kernel, grid, args=args, device="h200", depends_on=awaited)
        assert verdict.kind == "clean", verdict
        ww.launch(kernel, grid, args=args, device="h200")


@pytest.mark.parametrize(
    ("last", "change"),
    [
        (True, replaced(r"atom\.acq_rel\.gpu", "atom.relaxed.gpu")),
        (True, without(r"bar\.sync 1, 128", 2)),
        (False, without(r"griddepcontrol\.wait")),
    ],
)
def test_missing_synchronisation_is_found(last: bool, change: Any) -> None:
    problem = Problem(1, 8, 2, 1, 500, 64)
    _, planned, _ = launches(problem, normal_qkv(problem), 5, replace(choose(problem), last=last))
    kernel, grid, args = planned[-1]
    traced = kernel.trace()
    maps = [
        TensorMap(array, use.box, swizzle=use.swizzle)
        for array, use in zip(args, (traced.maps[name] for name in "qkv" if name in traced.maps), strict=False)
    ]
    args = [*maps, *args[len(maps) :]]
    entry, awaited = load_ptx(change(traced.ptx))[traced.entry], [] if last else [args[6]]
    verdict = ww.check(entry, grid, smem=traced.smem_bytes, args=args, device="h200", depends_on=awaited)
    assert verdict.kind == "findings"


def test_plans() -> None:
    problem = Problem(8, 32, 8, 1, 4096, 128, causal=True, scale=0.5)
    found = plan(problem, sms=132)
    assert found.config == DecodeConfig(128, 64, 3, 1, last=True) and found.bounds == (False, False)
    assert (found.tiles, found.grid, found.combine_grid) == (64, (128, 1, 1), None)
    assert found.scalars[:11] == (1, 4096, 4095, 4096, 8, 4, 1, 64, 4, 128, 528)
    assert found.scalars[11] == pytest.approx(0.5 * 1.4426950408889634)
    assert found.words == 528 + 2 * 128 * 4 * 130
    few = plan(replace(problem, q_len=3, window=(99, 7)), sms=132)
    assert few.config.places == 4 and few.bounds == (True, True) and few.scalars[2:4] == (3994, 4094)
    assert plan(replace(problem, window=(4095, 7)), sms=132).bounds == (False, False)
    long = plan(Problem(1, 64, 1, 1, 65536, 128), sms=132)
    assert (long.config.last, long.grid, long.combine_grid) == (False, (64, 1, 1), (63, 16, 1))
    assert long.config.at_once == MANY
    two = plan(Problem(8, 32, 8, 16, 16384, 128), sms=132).config  # parts of a tile
    assert not two.last and two.at_once == AT_ONCE
    assert plan(Problem(2, 2, 1, 200, 70, 64, causal=True), sms=132).tiles == 16


@pytest.mark.parametrize(
    ("problem", "ctas"),
    [
        (Problem(64, 64, 8, 1, 4096, 64), 128),  # four tiles each
        (Problem(64, 64, 8, 1, 4096, 128), 256),  # two tiles each, two CTAs an SM
        (Problem(12, 64, 8, 1, 4096, 128), 132),  # 96 tiles would leave SMs idle
        (Problem(5, 8, 8, 1, 4096, 128), 120),  # three parts of each
        (Problem(1, 8, 8, 1, 1024, 128), 64),  # more parts would not pay off
        (Problem(1, 8, 8, 1, 64, 128), 8),
        (Problem(1, 1, 1, 1, 1, 64), 1),
    ],
)
def test_number_of_ctas(problem: Problem, ctas: int) -> None:
    assert plan(problem, sms=132).grid == (ctas, 1, 1)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Problem(64, 64, 8, 1, 512, 128), True),
        (Problem(64, 64, 8, 8, 512, 128), True),
        (Problem(64, 64, 8, 9, 512, 128), False),
        (Problem(1, 64, 8, 128, 512, 128), True),
        (Problem(1, 64, 8, 256, 512, 128), False),
        (Problem(2**20, 64, 64, 1, 65, 64), False),  # tiles times CTAs would exceed 32 bits
    ],
)
def test_suits(problem: Problem, expected: bool) -> None:
    assert suits(problem, sms=132) == expected
