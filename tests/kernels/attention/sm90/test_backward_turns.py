"""The ordered Hopper attention backward: numbers against float64, the same bits under any schedule, verdicts, ptxas,
and which CTAs wait for which."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16
from tests.kernels.attention.backward_helpers import (
    B200,
    H200,
    NAMES,
    SMALL,
    arrays,
    differentiate,
    launches,
    random,
    resident,
    verify,
)
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.mods import NO_MODS
from warpwright.kernels.attention.sm90.backward import kernels_of
from warpwright.kernels.attention.sm90.backward_plan import CONFIGS, BackwardConfig, in_order, plan, plan_varlen
from warpwright.kernels.attention.sm90.backward_steps import QueryMask
from warpwright.kernels.attention.sm90.backward_turns import BlockOfKeys
from warpwright.lang import Global, If, bf16, ctaid, kernel, nctaid, s32, tid, u32
from warpwright.ops.attention.backward import describe, gradients
from warpwright.ptx.ptxas import assemble

CAUSAL = replace(SMALL, batch=2, heads=4, kv_heads=2, q_len=300, kv_len=500, causal=True)
FOUR_BLOCKS = Problem(1, 2, 1, 200, 500, 64, BF16)
PATIENCE = 1 << 28  # block jumps of a warp that waits for its turn under another schedule


@sampled(
    ("problem", "ctas"),
    [
        (CAUSAL, 12),
        (replace(SMALL, head_dim=128, heads=4, kv_heads=4, q_len=260, kv_len=400), 8),
        (replace(SMALL, head_dim=96, heads=4, kv_heads=2, causal=True, q_len=260, kv_len=400), 1),
        (replace(SMALL, window=(200, 30), q_len=300, kv_len=500), 1),
        (replace(SMALL, window=(60, None), q_len=300, kv_len=500), 1),
        (replace(SMALL, causal=True, q_len=500, kv_len=130), 1),
        (replace(SMALL, causal=True, q_len=1, kv_len=300), 1),
    ],
    every=2,
)
def test_numbers(problem: Problem, ctas: int) -> None:
    given = random(problem)
    with resident(ctas):
        verify(problem, given, differentiate(problem, given, in_order(problem)))


def gradients_under(seed: int, problem: Problem, config: BackwardConfig) -> dict[str, bytes]:
    """Returns the bytes of the sums of dQ and of dK and dV of one run of `gradients`."""
    values = arrays(problem, random(problem), config)
    (first, grid, args), (kernel, *rest), _ = launches(problem, values, config)
    ww.launch(first, grid, args=args, device="h200")
    verdict = ww.check(kernel, *rest[:1], args=rest[1], device="h200", update=True, seed=seed, limit=PATIENCE)
    assert not verdict.findings and "did not end" not in str(verdict), verdict
    return {name: values[name].tobytes() for name in ("sums", "dk", "dv")}


@pytest.mark.parametrize("causal", [False, True])
def test_any_schedule_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """CTAs start in the order of their numbers, as on a GPU, and take turns at random."""
    monkeypatch.setattr("warpwright.vgpu.machine.launch.shuffled", lambda count, seed: range(count))
    problem, seeds = replace(FOUR_BLOCKS, causal=causal), (0, 3, 5, 7)
    config = in_order(problem)
    expected = gradients_under(seeds[0], problem, config)
    assert all(gradients_under(seed, problem, config) == expected for seed in seeds[1:])
    other = plan(problem).config
    assert len({gradients_under(seed, problem, other)["sums"] for seed in seeds}) > 1


@pytest.mark.parametrize(("causal", "ctas", "expected"), [(False, 2, [2, 4, 8]), (True, 1, [1, 1, 2])])
def test_the_verdict_is_clean(causal: bool, ctas: int, expected: list[int]) -> None:
    """Eleven heads of K, two or one at a time, of which the last ones reuse the memory of sums that other CTAs
    converted."""
    problem = replace(CAUSAL, batch=1, heads=22, kv_heads=11, q_len=150, kv_len=200, causal=causal)
    given = random(problem)
    with resident(ctas):
        config = in_order(problem)
        scalars = plan(problem, config=config).scalars
        assert [scalars[name] for name in ("width", "lag", "slots")] == expected
        values = arrays(problem, given, config)
        values["dlse"] = np.zeros_like(values["lse"])
        for each, grid, args in launches(problem, values, config):
            verdict = ww.check(each, grid, args=args, device=H200, update=True)
            assert verdict.kind == "clean", verdict
    verify(problem, given, tuple(values[name] for name in NAMES))


@sampled("bounds", [(False, False), (False, True), (True, True)], keep=[(True, True)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_no_spills_and_no_serialised_wgmma(head_dim: int, packed: bool, bounds: tuple[bool, bool]) -> None:
    config = replace(CONFIGS[head_dim, bounds[1]], rotated=False, ordered=True, ascending=bounds[1])
    traced = kernels_of(config, bounds, NO_MODS, packed)[1].trace(dtype=bf16)
    assert traced.smem_bytes <= config.smem_bytes
    result = assemble(traced.ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search(r"C75\d\d|warning", result.log)


@kernel("sm_90a", threads=32)
def blocks_of_ctas(found: Global[u32], width: u32) -> None:
    """Stores the number, the head and the batch of this CTA's block of keys at its number among all CTAs."""
    block, number = BlockOfKeys.interleaved(width), (ctaid.z * nctaid.y + ctaid.y) * nctaid.x + ctaid.x
    with If(tid.x == 0):
        for index, value in enumerate((block.number, block.head, block.batch)):
            found[number * 3 + index] = value


@kernel("sm_90a", threads=32)
def blocks_of_descending_ctas(found: Global[u32]) -> None:
    """Stores the number and the head of this CTA's block of keys at its number among all CTAs."""
    block, number = BlockOfKeys.descending(), (ctaid.z * nctaid.y + ctaid.y) * nctaid.x + ctaid.x
    with If(tid.x == 0):
        for index, value in enumerate((block.number, block.batch * nctaid.y + block.head)):
            found[number * 2 + index] = value


def order_of(heads: int, width: int, blocks: int) -> list[tuple[int, int]]:
    """Returns the block and the head of K of each CTA, in the order of their numbers."""
    firsts = range(0, heads, width)
    return [(j, head) for at in firsts for j in range(blocks) for head in range(at, min(at + width, heads))]


@pytest.mark.parametrize("width", [1, 2, 4, 6])
def test_heads_take_turns(width: int) -> None:
    blocks, heads, batch = 3, 2, 3
    found = np.full((blocks * heads * batch, 3), -1, np.int32)
    ww.launch(blocks_of_ctas, (blocks, heads, batch), args=[found, width], device=H200)
    assert [(j, b * heads + h) for j, h, b in found.tolist()] == order_of(heads * batch, width, blocks)


def test_the_last_block_of_a_head_is_that_of_the_first_cta() -> None:
    found = np.full((12, 2), -1, np.int32)
    ww.launch(blocks_of_descending_ctas, (3, 2, 2), args=[found], device=H200)
    assert [(j, head) for j, head in found.tolist()] == [(j, head) for head in range(4) for j in (2, 1, 0)]


PLANS = [
    plan(problem, config=in_order(problem))
    for causal in (False, True)
    for length in (100, 512, 1024, 4096, 16384)
    for problem in (
        Problem(16384 // length, 16, 16, length, length, 128, causal=causal),
        Problem(2, 32, 4, length, length, 64, causal=causal),
    )
] + [plan_varlen(each, 9000, 9000, config=in_order(each)) for each in [Problem(12, 16, 16, 750, 750, 128)]]


@pytest.mark.parametrize("found", PLANS)
def test_ctas_wait_for_ctas_of_smaller_numbers(found: Any) -> None:
    """For the neighbouring block, for all blocks of the head ``lag`` before, and for those who convert the sums of the
    head ``slots`` before."""
    blocks, kv_heads, batch = found.grids[1]
    heads, (width, lag, slots) = kv_heads * batch, (found.scalars[name] for name in ("width", "lag", "slots"))
    walk = range(blocks)[:: -1 if found.config.ascending else 1]
    order = {(walk[j], head): number for number, (j, head) in enumerate(order_of(heads, width, blocks))}
    assert len(order) == heads * blocks
    first, last = ([order[block, head] for head in range(heads)] for block in (walk[0], walk[-1]))
    assert all(order[one, head] < order[next_one, head] for head in range(heads) for one, next_one in pairwise(walk))
    for apart in {lag, slots - lag} if slots < heads else {lag}:
        assert all(after > before for before, after in zip(last, first[apart:], strict=False))


@kernel("sm_90a", threads=32)
def tiles_of_blocks(
    found: Global[u32],
    blocks: u32,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    *,
    bounds: tuple[bool, bool] = (False, False),
) -> None:
    """Stores the first tile of queries and the number of tiles of each block of 128 keys."""
    mask = QueryMask(q_len, kv_len, begin if bounds[0] else None, end if bounds[1] else None, (64, 128))
    with If(tid.x < blocks):
        for index, value in enumerate(mask.tiles(tid.x * 128)):
            found[tid.x * 2 + index] = value


@pytest.mark.parametrize("bounds", [(None, None), (None, 0), (40, 7), (300, None), (1000, 1000)])
@pytest.mark.parametrize("extents", [(500, 700), (700, 300), (64, 64), (1, 1000)])
def test_blocks_that_see_a_tile_are_consecutive(
    bounds: tuple[int | None, int | None], extents: tuple[int, int]
) -> None:
    """What `backward_turns` rests on: the first and the last tile of a block do not fall with its number."""
    (q_len, kv_len), (left, right) = extents, bounds
    begin, end = kv_len - q_len - (left or 0), kv_len - q_len + (right or 0) + 1
    found = np.full((-(-kv_len // 128), 2), -1, np.int32)
    device_code = tiles_of_blocks.configure(bounds=(left is not None, right is not None))
    ww.launch(device_code, 1, args=[found, len(found), q_len, kv_len, begin, end], device=H200)
    spans = [(first, first + count - 1) for first, count in found.tolist()]
    assert all(first <= last <= (q_len - 1) // 64 for first, last in spans)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(spans))


def test_the_option_takes_the_ordered_kernel_or_is_refused() -> None:
    q, k, v, do = random(SMALL)
    given = q, k, v, q, np.zeros(q.shape[:3], np.float32), do
    plain: dict[str, Any] = {"dlse": None, "causal": True, "scale": None, "window": None, "layout": "bhsd"}
    for deterministic in (False, True):
        call = describe(*given, **plain, device=H200, deterministic=deterministic)
        ((chosen, _),) = call.steps
        assert chosen.config.ordered is deterministic
    with pytest.raises(UsageError) as caught:
        gradients(*given, device=B200, deterministic=True)
    assert str(caught.value) == (
        "attention: given deterministic=True on b200, whose kernel sums the gradient by q in any order; expected "
        "deterministic=False, or a GPU of sm_90a, sm_120a"
    )
    with pytest.raises(UsageError) as caught:
        gradients(*given, mask_mod=lambda batch, head, q, k: q >= k, device=H200, deterministic=True)
    assert str(caught.value) == (
        "attention: given deterministic=True and mask_mod, with which the gradient by q is summed in any order; "
        "expected deterministic=False, or causal=True or window=(left, right) instead of mask_mod"
    )
    wide = [np.zeros((1, 1, 8, 136), BF16)] * 4
    with pytest.raises(UsageError) as caught:
        gradients(*wide, np.zeros((1, 1, 8), np.float32), wide[0], device=H200, deterministic=True)
    assert str(caught.value) == (
        "attention: given deterministic=True and head dimension 136, whose kernel sums the gradient by q in any order; "
        "expected deterministic=False, or a head dimension of at most 128"
    )


def test_caps_sinks_and_functions_of_the_score() -> None:
    problem = replace(CAUSAL, batch=1, q_len=150, kv_len=200)
    q, k, v, do = random(problem)
    options: dict[str, Any] = {"causal": True, "softcap": 4.0, "sinks": np.ones(4, np.float32), "device": "h200"}
    options["score_mod"] = lambda score, batch, head, q, k: score * 0.5
    o, lse = ww.attention(q, k, v, **options, return_lse=True)
    with resident(6):
        any_order, found = (gradients(q, k, v, o, lse, do, **options, deterministic=each) for each in (False, True))
    for name, one, other in zip((*NAMES, "dsinks"), any_order, found, strict=True):
        np.testing.assert_allclose(np.float32(other), np.float32(one), rtol=2**-6, atol=2**-8, err_msg=name)
