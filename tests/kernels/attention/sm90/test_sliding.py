"""The Hopper attention forward in a causal window of whole key blocks, on the virtual H200."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16, SENTINEL, normal_qkv, verify
from tests.kernels.attention.sm90.test_forward import SMEM_LIMIT, prepare_launch, run_attention
from tests.kernels.helpers import without
from tests.samples import sampled
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm90.direct import kernel_of
from warpwright.kernels.attention.sm90.plan import CONFIGS, SLIDING, Config, plan, slides
from warpwright.kernels.attention.sm90.sliding import schedule_short_last
from warpwright.kernels.reference import ulp
from warpwright.lang import Global, If, kernel, tid, u32
from warpwright.layout.tensor_map import TensorMap
from warpwright.ptx.ptxas import assemble
from warpwright.run.launch import load_ptx
from warpwright.vgpu import Device

SMALL = replace(SLIDING, head_dim=64)
SHAPES = [
    (SMALL, Problem(1, 2, 1, 640, 640, 64, window=(255, 0))),
    (SMALL, Problem(2, 2, 2, 100, 612, 40, window=(383, None), causal=True)),
    (SMALL, Problem(1, 2, 2, 500, 500, 64, dtype=np.float16, window=(511, 0))),
    (SLIDING, Problem(1, 3, 3, 1000, 1000, 112, dtype=np.float16, window=(255, 0), scale=0.3)),
    (SLIDING, Problem(2, 4, 2, 512, 640, 128, window=(383, 0))),
]


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)])
def test_no_spills_and_no_serialised_wgmma(dtype: np.dtype) -> None:
    traced = kernel_of(SLIDING).trace(dtype=ww.types.of_dtype(dtype), bounds=(True, True))
    result = assemble(traced.ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search(r"C75\d\d|warning", result.log)
    assert traced.smem_bytes <= min(SLIDING.smem_bytes, SMEM_LIMIT)


@sampled(("config", "problem"), SHAPES, every=2)
def test_agrees_with_float64(config: Config, problem: Problem) -> None:
    given = normal_qkv(problem)
    verify(problem, given, run_attention(problem, config, given))


@pytest.mark.parametrize("window", [256, 384, 896, 1024])
def test_each_query_sees_as_many_keys_as_the_window_has(window: int) -> None:
    """All weights are equal, so the log-sum-exp is the logarithm of their number, and O counts the keys of a column."""
    problem = Problem(1, 1, 1, 1024, 1024, 64, window=(window - 1, 0))
    q, k, _ = (np.zeros_like(each) for each in normal_qkv(problem))
    v = np.eye(64)[np.random.default_rng(0).permutation(1024) % 64].astype(BF16)[None, None]
    o, lse = run_attention(problem, SMALL, (q, k, v))
    seen = np.minimum(np.arange(1024) + 1, window)
    np.testing.assert_allclose(lse[0, 0], np.log(seen), rtol=1e-6)
    verify(problem, (q, k, v), (o, lse))


@pytest.mark.parametrize("side", ["oldest", "newest", "middle"])
def test_large_logits_that_grow_to_a_side(side: str) -> None:
    """By hundreds a block: the maximum is in block L, in block D, or in blocks M, so that sums are rescaled or not."""
    problem = Problem(1, 1, 1, 640, 640, 64, window=(383, 0), scale=1.0)
    q, k, v = normal_qkv(problem)
    place = np.arange(640, dtype=np.float32)
    k[0, 0, :, 0] = {"oldest": 640 - place, "newest": place, "middle": 320 - np.abs(place - 320)}[side] / 8
    q[0, 0, :, 0] = 16.0
    verify(problem, (q, k, v), run_attention(problem, SMALL, (q, k, v)))


def test_the_tile_counter_does_not_change_numbers() -> None:
    problem = Problem(1, 4, 4, 640, 640, 64, window=(255, 0))
    given = normal_qkv(problem)
    counted, strided = (run_attention(problem, SMALL, given, sms=5, counted=counted) for counted in (True, False))
    assert all(np.array_equal(*pair) for pair in zip(counted, strided, strict=True))


def test_the_verdict_is_clean() -> None:
    problem = Problem(1, 2, 1, 640, 640, 64, window=(383, 0))
    found, kernel, args, _ = prepare_launch(problem, SMALL, normal_qkv(problem), sms=2)
    verdict = ww.check(kernel, found.grid, args=args, device="h200")
    assert verdict.kind == "clean", verdict


@pytest.mark.parametrize(
    "change",
    [
        without(r"wgmma\.wait_group\.sync\.aligned 0", 5),
        without(r"wgmma\.wait_group\.sync\.aligned 1", 3),
        without(r"fence\.proxy\.async\.shared::cta", 2),
    ],
)
def test_missing_synchronisation_is_found(change: Any) -> None:
    problem = Problem(1, 2, 2, 640, 640, 64, window=(383, 0))
    found, kernel, args, _ = prepare_launch(problem, SMALL, normal_qkv(problem), sms=1)
    traced = kernel.trace()
    entry = load_ptx(change(traced.ptx))[traced.entry]
    uses = [traced.maps[name] for name in "qkvo"]
    maps = [TensorMap(array, use.box, swizzle=use.swizzle) for array, use in zip(args, uses, strict=False)]
    verdict = ww.check(entry, found.grid, smem=traced.smem_bytes, args=[*maps, *args[4:]], device="h200")
    assert verdict.kind == "findings"


@pytest.mark.parametrize(
    ("problem", "sliding"),
    [
        (Problem(2, 16, 16, 8192, 8192, 128, window=(1023, 0)), True),
        (Problem(2, 16, 4, 1024, 1024, 128, window=(255, None), causal=True), True),
        (Problem(1, 8, 8, 1024, 8192, 112, window=(1023, 0)), True),
        (Problem(1, 8, 8, 1024, 1024, 128, window=(383, 0)), False),  # most tiles see the first key
        (Problem(1, 8, 8, 8192, 8192, 128, window=(127, 0)), False),  # no block M
        (Problem(1, 8, 8, 8192, 8192, 128, window=(1024, 0)), False),  # 1025 keys
        (Problem(1, 8, 8, 8192, 8192, 128, window=(1023, 5)), False),
        (Problem(1, 8, 8, 8192, 8192, 128, window=(1023, None)), False),
        (Problem(1, 8, 8, 1000, 8192, 128, window=(1023, 0)), False),  # the diagonal begins inside a key block
        (Problem(1, 8, 8, 8192, 8064, 128, window=(1023, 0)), False),  # queries without keys
        (Problem(1, 8, 8, 8192, 8192, 96, window=(1023, 0)), False),
        (Problem(1, 8, 8, 8192, 8192, 128, window=(1023, 0), value_dim=64), False),
        (Problem(1, 8, 8, 8192, 8192, 128, causal=True), False),
    ],
)
def test_windows_of_whole_blocks_slide(problem: Problem, sliding: bool) -> None:
    assert slides(problem) == sliding
    assert plan(problem, sms=132).config.sliding == sliding
    assert plan(problem, sms=132, config=CONFIGS["128: 128x128"]).config == CONFIGS["128: 128x128"]


@pytest.mark.parametrize(("heads", "group", "side_by_side"), [(32, 1, 2), (3, 1, 1), (32, 4, 8), (12, 4, 4)])
def test_two_heads_of_keys_are_side_by_side(heads: int, group: int, side_by_side: int) -> None:
    problem = Problem(1, heads, heads // group, 8192, 8192, 128, window=(1023, 0))
    assert plan(problem, sms=132).scalars[8] == side_by_side


@kernel("sm_90a", threads=64)
def write_tiles(rows: Global[u32], of_heads: Global[u32], tiles: u32, short: u32, section: u32, heads: u32) -> None:
    with If(tid.x < tiles * heads):
        rows[tid.x], of_heads[tid.x] = schedule_short_last(tid.x, tiles, short, section, heads, 128)


@pytest.mark.parametrize("short", [0, 2, 5])
def test_short_tiles_come_last(short: int) -> None:
    """Five tiles of each of four heads: the long ones of two heads side by side, then the short ones of all heads."""
    rows, heads = np.full(20, 9999, np.uint32), np.full(20, 9999, np.uint32)
    ww.launch(write_tiles, 1, args=(rows, heads, 5, short, 2, 4), device="h200")
    long = [(128 * row, head) for pair in (0, 2) for row in range(4, short - 1, -1) for head in (pair, pair + 1)]
    others = [(128 * row, head) for row in range(short - 1, -1, -1) for head in range(4)]
    assert list(zip(rows.tolist(), heads.tolist(), strict=True)) == long + others


def test_attention_takes_the_kernel() -> None:
    problem = Problem(1, 2, 1, 1024, 1024, 128, window=(255, 0))
    given = normal_qkv(problem)
    o = np.full((1, 2, 1024, 128), SENTINEL, BF16)
    few = Device(replace(ww.device("h200").spec, sms=2))
    _, lse, ran = ww.attention(*given, window=(255, 0), out=o, device=few, return_lse=True, explain=True)
    assert (ran.kernel, ran.config) == ("sm90.attention", SLIDING)
    verify(problem, given, (o, lse))


def test_sinks() -> None:
    """A sink is one more score of each query, whose value is 0."""
    problem = Problem(1, 2, 2, 1024, 1024, 128, window=(255, 0))
    given, sinks = normal_qkv(problem), np.array([-1.0, 7.0], np.float32)
    o = np.full((1, 2, 1024, 128), SENTINEL, BF16)
    few = Device(replace(ww.device("h200").spec, sms=2))
    _, lse, ran = ww.attention(*given, window=(255, 0), sinks=sinks, out=o, device=few, return_lse=True, explain=True)
    assert (ran.kernel, ran.config) == ("sm90.attention", SLIDING)
    exact, exact_lse = reference.attention(problem, *given)
    sunk = np.logaddexp(exact_lse, sinks[:, None])
    np.testing.assert_allclose(lse, sunk, rtol=1e-6, atol=1e-6)
    exact *= np.exp(exact_lse - sunk)[..., None]
    assert (np.abs(o.astype(np.float64) - exact) <= reference.slack(problem, *given) + ulp(exact, BF16)).all()
