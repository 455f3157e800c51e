"""The Hopper attention forward: ptxas on every configuration, plans, and numbers on the virtual H200."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16, SENTINEL, normal_qkv, output_arguments, verify
from tests.kernels.helpers import without
from tests.samples import sampled
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm90.direct import kernel_of
from warpwright.kernels.attention.sm90.plan import CONFIGS, NARROW_VALUES, Config, Plan, choose, plan
from warpwright.kernels.reference import ulp
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx.ptxas import assemble
from warpwright.run.launch import load_ptx
from warpwright.types import of_dtype
from warpwright.vgpu import Device

SMEM_LIMIT = 232_448
BOUNDS = [(False, False), (False, True), (True, True)]
SMALL = {
    "one warpgroup": Config(64, (64, 64)),
    "in turn": Config(64, (192, 32), in_turn=True),
    "panels of 32": Config(96, (128, 48), in_turn=True),
    "wide": Config(128, (128, 64)),
    "one slot of Q": Config(256, (128, 32), q_stages=1, branches=False),
    "narrow values": Config(128, (128, 48), value_dim=64),
    "PV in parts": Config(64, (128, 64), splits=True),
    "direct": Config(256, (128, 32), q_stages=1, branches=False, direct=True),
}
ONE, TURN, NARROW, WIDE, ONE_Q, LESS, PARTS, DIRECT = SMALL.values()
SHIPPED = {**CONFIGS, "192, 128: 128x96": NARROW_VALUES}
SHAPES = [
    (ONE, Problem(1, 1, 1, 1, 1, 64)),
    (ONE, Problem(1, 2, 1, 63, 65, 40, causal=True)),
    (TURN, Problem(2, 4, 2, 129, 127, 64, causal=True)),
    (TURN, Problem(1, 2, 2, 200, 1000, 64)),
    (NARROW, Problem(1, 2, 1, 127, 64, 96, window=(30, 10))),
    (NARROW, Problem(1, 1, 1, 65, 300, 80, dtype=np.float16, window=(100, None), causal=True)),
    (NARROW, Problem(1, 1, 1, 70, 90, 96, window=(2**40, 2**40))),
    (WIDE, Problem(2, 3, 3, 300, 200, 128, causal=True)),
    (WIDE, Problem(1, 6, 2, 64, 129, 128, dtype=np.float16)),
    (ONE_Q, Problem(1, 2, 1, 129, 65, 192, causal=True, scale=0.3)),
    (ONE_Q, Problem(1, 2, 2, 130, 100, 256)),
    (LESS, Problem(1, 4, 2, 200, 130, 128, causal=True, value_dim=64)),
    (LESS, Problem(2, 2, 1, 70, 100, 64, dtype=np.float16, window=(30, 10), value_dim=40)),
    (NARROW_VALUES, Problem(1, 2, 1, 129, 200, 192, value_dim=128)),
    (PARTS, Problem(1, 2, 1, 129, 300, 64)),
    (PARTS, Problem(2, 4, 2, 129, 127, 64, dtype=np.float16, causal=True)),
    (DIRECT, Problem(1, 2, 1, 129, 65, 200, causal=True, scale=0.3)),
    (DIRECT, Problem(2, 4, 2, 257, 100, 256, window=(30, 10))),
    (DIRECT, Problem(1, 2, 2, 300, 20, 256, dtype=np.float16)),
]


def prepare_launch(
    problem: Problem, config: Config, given: Any, sms: int = 3
) -> tuple[Plan, Any, list[Any], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns plan, kernel, arguments and results: O, the log-sum-exp, and the counter."""
    found = plan(problem, sms=sms, config=config)
    q, k, v = given
    o, lse = np.full((*q.shape[:3], v.shape[3]), SENTINEL, q.dtype), np.full(q.shape[:3], SENTINEL, np.float32)
    counter = np.zeros(1, np.uint32)
    kernel = kernel_of(config).configure(dtype=of_dtype(problem.dtype), bounds=found.bounds)
    return found, kernel, [q, k, v, *output_arguments(config, o), lse, counter, *found.scalars], (o, lse, counter)


def run_attention(
    problem: Problem, config: Config, given: Any, sms: int = 3, *, counted: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    found, kernel, args, (o, lse, counter) = prepare_launch(problem, config, given, sms)
    args[-len(found.scalars) - 1] = counter if counted else 0
    ww.launch(kernel, found.grid, args=args, device="h200")
    assert counter[0] == 0
    return o, lse


@sampled(("name", "bounds"), [*product(SHIPPED, BOUNDS[:2]), *product(list(SHIPPED)[::3], BOUNDS[2:])], every=4)
def test_no_spills_and_no_serialised_wgmma_in_any_shipped_configuration(name: str, bounds: tuple[bool, bool]) -> None:
    config = SHIPPED[name]
    traced = kernel_of(config).trace(bounds=bounds)
    result = assemble(traced.ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search(r"C75\d\d|warning", result.log)
    assert traced.smem_bytes <= min(config.smem_bytes, SMEM_LIMIT)
    assert traced.threads == (config.threads, 1, 1)


@sampled(("config", "problem"), SHAPES, every=3)
def test_agrees_with_float64(config: Config, problem: Problem) -> None:
    given = normal_qkv(problem)
    verify(problem, given, run_attention(problem, config, given))


@pytest.mark.parametrize("columns", [64, 200])
def test_arrays_of_any_strides_are_read_and_written_in_place(columns: int) -> None:
    problem = Problem(2, 3, 3, 100, 90, columns, causal=True)
    given = normal_qkv(problem)
    transposed = [np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2) for array in given]
    memory = np.full((2, 101, 4, columns + 8), SENTINEL, problem.dtype)
    o = memory[:, :100, :3, :columns].swapaxes(1, 2)
    few = Device(replace(ww.device("h200").spec, sms=2))
    _, lse, ran = ww.attention(*transposed, causal=True, out=o, device=few, return_lse=True, explain=True)
    assert (ran.kernel, ran.config.direct) == ("sm90.attention", columns == 200)
    verify(problem, given, (o, lse))
    memory[:, :100, :3, :columns] = SENTINEL
    assert (memory == SENTINEL).all()


def test_each_query_gets_the_value_of_the_key_that_it_points_at() -> None:
    """Keys are unit vectors, so a wrong row, column, head or batch shows as another value."""
    problem = Problem(2, 2, 2, 128, 128, 128, scale=1.0)
    random = np.random.default_rng(0)
    order = np.stack([random.permutation(128) for _ in range(4)]).reshape(2, 2, 128)
    k = np.tile(np.eye(128), (2, 2, 1, 1)).astype(problem.dtype)
    q = (200 * np.eye(128)[order]).astype(problem.dtype)
    v = random.integers(-128, 128, (2, 2, 128, 128)).astype(problem.dtype)
    o, lse = run_attention(problem, WIDE, (q, k, v))
    assert np.array_equal(o, np.take_along_axis(v, order[..., None], axis=2))
    assert np.array_equal(lse, np.full_like(lse, 200.0))


def test_large_logits_and_growing_ones() -> None:
    """Scores of thousands, the largest in the last block to be computed, so that every sum is rescaled."""
    problem = Problem(1, 1, 1, 64, 256, 64, scale=1.0)
    q, k, v = normal_qkv(problem)
    k = (k.astype(np.float32) * np.linspace(60, 1, 256)[:, None]).astype(problem.dtype)
    given = (q * 8).astype(problem.dtype), k, v
    verify(problem, given, run_attention(problem, ONE, given))


@pytest.mark.parametrize("config", [ONE, ONE_Q])
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)])
def test_the_largest_weight_of_each_block_is_not_rounded(config: Config, dtype: np.dtype) -> None:
    """A query sees one key in each of two blocks, with any weight below 1 in the second, so O is only rounded once.

    In the first and in the last eight rows of each warp one score exceeds the row max, and the shifts of all eight rows
    change with it.
    """
    keys = config.tile[1]
    problem = Problem(1, 1, 1, config.tile[0], 2 * keys, config.head_dim, dtype=dtype, scale=1.0)
    q, k, v = normal_qkv(problem)
    q[..., :3], k[...] = 1.0, 0.0
    q[0, 0, :, 1] = np.where(np.arange(problem.q_len) % 8 == 3, 1.0, -np.random.default_rng(1).random(problem.q_len))
    k[..., 2] = -100.0
    k[0, 0, keys, :3], k[0, 0, 0, :3] = (0.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    exact, _ = reference.attention(problem, q, k, v)
    o, _ = run_attention(problem, config, (q, k, v))
    assert (np.abs(o.astype(np.float64) - exact) <= 0.5 * ulp(exact, dtype) + 2.0**-20).all()


@pytest.mark.parametrize("config", [ONE, PARTS])
@pytest.mark.parametrize(("growth", "moves"), [(0.5, False), (1.5, True)])
def test_a_row_max_may_grow_by_the_room(config: Config, growth: float, moves: bool) -> None:
    """A query sees two keys. The weight of the second is 2^growth rounded, and O is 0, unless the shift moves."""
    keys = config.tile[1]
    problem = Problem(1, 1, 1, 64, 2 * keys, config.head_dim, dtype=BF16, scale=math.log(2.0))
    q, k, v = (np.zeros_like(each) for each in normal_qkv(problem))
    q[..., 0], k[..., 0] = 1.0, -200.0
    k[0, 0, keys, 0], k[0, 0, 0, 0] = 0.0, growth
    v[0, 0, keys], v[0, 0, 0] = -np.float32(2.0**growth).astype(BF16), 1.0
    o, lse = run_attention(problem, config, (q, k, v))
    assert np.allclose(lse, math.log(1 + 2.0**growth), rtol=1e-6)
    assert ((o != 0) == moves).all()


@pytest.mark.parametrize("config", [ONE, PARTS, ONE_Q])
def test_negative_scores_alone(config: Config) -> None:
    """Row maxima are negative and grow from block to block: the maximum of their bits would be the least score, and
    weights relative to that would be infinite."""
    problem = Problem(1, 1, 1, 128, 4 * config.tile[1], config.head_dim, scale=1.0)
    q, k, v = normal_qkv(problem)
    q, k = (
        (-8 * np.abs(q)).astype(problem.dtype),
        np.abs(k) * np.linspace(1, 5, problem.kv_len)[:, None].astype(problem.dtype),
    )
    given = q, k.astype(problem.dtype), v
    verify(problem, given, run_attention(problem, config, given))


@pytest.mark.parametrize("config", [ONE, PARTS, ONE_Q])
def test_scores_that_fall_in_some_rows_and_grow_in_others(config: Config) -> None:
    """By hundreds a block. The shift of a row whose scores fall must not follow, or its sums would be infinite."""
    problem = Problem(1, 1, 1, config.tile[0], 5 * config.tile[1], config.head_dim, scale=1.0)
    q, k, v = normal_qkv(problem)
    q[0, 0, :, 0] = np.where(np.arange(problem.q_len) % 3, 30.0, -30.0)
    k[0, 0, :, 0] = np.linspace(0, 50, problem.kv_len)
    given = q, k, v
    verify(problem, given, run_attention(problem, config, given))


def test_rows_that_see_nothing_are_zero() -> None:
    problem = Problem(1, 1, 1, 192, 40, 64, causal=True)
    given = normal_qkv(problem)
    o, lse = run_attention(problem, TURN, given)
    assert not o[0, 0, :152].any() and np.isneginf(lse[0, 0, :152]).all()
    verify(problem, given, (o, lse))


def test_scores_of_minus_infinity_and_nan() -> None:
    """A query whose scores are all -inf gets 0; NaN in Q makes its row NaN, NaN in a key every row that sees it."""
    problem = Problem(1, 3, 3, 64, 64, 64)
    q, k, v = normal_qkv(problem)
    k[0, 0, :, 0], q[0, 0, :, 0] = 1.0, 1.0
    q[0, 0, 5, 0] = -np.inf
    q[0, 1, 9, 3] = np.nan
    k[0, 2, 17, 30] = np.nan
    o, lse = run_attention(problem, ONE, (q, k, v))
    assert not o[0, 0, 5].any() and np.isneginf(lse[0, 0, 5])
    bad = np.isnan(o.astype(np.float32)).all(-1)
    assert bad[0, 1, 9] and bad[0, 1].sum() == 1 and not bad[0, 0].any() and bad[0, 2].all()
    assert np.array_equal(np.isnan(lse), bad)


def test_the_tile_counter_does_not_change_numbers() -> None:
    problem = Problem(1, 4, 4, 300, 300, 128, causal=True)
    given = normal_qkv(problem)
    counted, strided = (run_attention(problem, WIDE, given, sms=5, counted=counted) for counted in (True, False))
    assert all(np.array_equal(*pair) for pair in zip(counted, strided, strict=True))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (TURN, Problem(1, 3, 3, 400, 100, 64)),
        (WIDE, Problem(1, 4, 2, 300, 330, 128, causal=True)),
        (ONE_Q, Problem(1, 2, 2, 300, 130, 256, causal=True)),
        (LESS, Problem(1, 4, 2, 200, 130, 128, causal=True, value_dim=64)),
    ],
)
def test_the_verdict_is_clean(config: Config, problem: Problem) -> None:
    found, kernel, args, _ = prepare_launch(problem, config, normal_qkv(problem), sms=2)
    verdict = ww.check(kernel, found.grid, args=args, device="h200")
    assert verdict.kind == "clean", verdict


@pytest.mark.parametrize(
    "change",
    [
        without(r"wgmma\.wait_group\.sync\.aligned 1", 2),
        without(r"fence\.proxy\.async\.shared::cta", 2),
        without(r"cp\.async\.bulk\.wait_group\.read 0"),
        without(r"bar\.sync 0"),
    ],
)
def test_missing_synchronisation_is_found(change: Any) -> None:
    problem = Problem(1, 3, 3, 256, 130, 64)
    found, kernel, args, _ = prepare_launch(problem, Config(64, (128, 64)), normal_qkv(problem), sms=1)
    traced = kernel.trace()
    entry = load_ptx(change(traced.ptx))[traced.entry]
    uses = [traced.maps[name] for name in "qkvo"]
    maps = [TensorMap(array, use.box, swizzle=use.swizzle) for array, use in zip(args, uses, strict=False)]
    verdict = ww.check(entry, found.grid, smem=traced.smem_bytes, args=[*maps, *args[4:]], device="h200")
    assert verdict.kind == "findings"


def test_plans() -> None:
    problem = Problem(2, 8, 2, 1000, 3000, 128, causal=True, scale=0.5)
    found = plan(problem, sms=132)
    assert found.config == CONFIGS["128: 128x128"] and found.uneven
    assert found.bounds == (False, True) and found.grid == (128, 1, 1)
    assert found.scalars[:9] == (1000, 3000, 2000, 2001, 8, 4, 8, 128, 16)
    assert found.scalars[9] == pytest.approx(0.5 * 1.4426950408889634)
    assert plan(replace(problem, causal=False, window=(7, None)), sms=4).scalars[2:4] == (1993, 2001)
    assert plan(problem, sms=4).grid == (4, 1, 1)


@pytest.mark.parametrize(
    ("keys", "window", "heads"),
    [(100, None, 12), (9000, None, 6), (10**6, None, 1), (10**6, (1023, None), 12), (10**6, (7000, None), 6)],
)
def test_heads_of_a_section_fit_into_l2(keys: int, window: tuple[int, None] | None, heads: int) -> None:
    problem = Problem(1, 12, 12, 64, keys, 128, causal=True, window=window)
    assert plan(problem, sms=132, config=CONFIGS["128: 128x128"]).scalars[8] == heads


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Problem(1, 8, 8, 4096, 4096, 64), "64: 192x128"),
        (Problem(1, 8, 8, 1024, 1024, 64, causal=True), "64: 128x128"),
        (Problem(1, 8, 8, 4096, 4096, 64, causal=True), "64: 192x128"),
        (Problem(1, 8, 8, 100, 4096, 64), "64: 128x128"),
        (Problem(1, 8, 8, 4096, 4096, 72), "96: 128x128"),
        (Problem(1, 8, 8, 1024, 1024, 128), "128: 128x128"),
        (Problem(1, 8, 8, 4096, 4096, 128), "128: 192x80"),
        (Problem(1, 8, 8, 4096, 4096, 128, causal=True), "128: 128x128"),
        (Problem(1, 8, 8, 16384, 16384, 128, causal=True), "128: 192x80"),
        (Problem(1, 8, 8, 16384, 16384, 128, window=(1023, 0)), "128: 128x128"),
        (Problem(1, 8, 8, 4096, 4096, 136), "192: 128x80"),
        (Problem(1, 8, 8, 512, 512, 256), "256: 128x64"),
        (Problem(1, 8, 8, 1024, 1024, 256), "256: 128x80"),
        (Problem(1, 8, 8, 1024, 1024, 256, causal=True), "256: 128x64"),
    ],
)
def test_the_configuration_follows_from_the_problem(problem: Problem, name: str) -> None:
    assert choose(problem) == name


def test_few_sms_take_all_tiles() -> None:
    """More tiles than CTAs, on a device where a single CTA computes all of them."""
    problem = Problem(2, 3, 1, 190, 70, 64, causal=True)
    given = normal_qkv(problem, seed=3)
    found, kernel, args, (o, lse, _) = prepare_launch(problem, ONE, given, sms=1)
    ww.launch(kernel, found.grid, args=args, device=Device(replace(ww.device("h200").spec, sms=1)))
    verify(problem, given, (o, lse))
