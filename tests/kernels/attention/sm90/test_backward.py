"""The Hopper attention backward: numbers against float64, verdicts, ptxas, plans."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16
from tests.kernels.attention.backward_helpers import (
    CHANGES,
    H200,
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
from warpwright.kernels.attention.sm90.backward import kernels_of
from warpwright.kernels.attention.sm90.backward_plan import (
    CONFIGS,
    LONG,
    BackwardConfig,
    in_order,
    plan,
    plan_varlen,
)
from warpwright.lang import bf16
from warpwright.layout.tensor_map import TensorMap
from warpwright.ops.attention.backward import choose, gradients
from warpwright.ptx.ptxas import assemble

WIDE: list[dict[str, Any]] = [
    {"head_dim": 256, "heads": 4, "kv_heads": 2, "q_len": 200},
    {"head_dim": 136, "window": (20, 7), "dtype": np.dtype(np.float16)},
    {"head_dim": 248, "scale": 0.3},
    {"head_dim": 192, "batch": 2, "window": (None, 90), "q_len": 280},
]
LONGER: list[dict[str, Any]] = [
    {"heads": 4, "kv_heads": 2, "q_len": 333, "kv_len": 200},
    {"batch": 2, "q_len": 79, "kv_len": 300, "head_dim": 104, "scale": 0.3},
    {"q_len": 161, "kv_len": 400, "dtype": np.dtype(np.float16)},
    {"q_len": 1, "kv_len": 129},
]
WITH_96: list[dict[str, Any]] = [
    {"head_dim": 96, "batch": 2, "heads": 4, "kv_heads": 2, "window": (30, 40), "q_len": 310, "scale": 0.3},
    {"head_dim": 72, "dtype": np.dtype(np.float16), "causal": True},
    {"head_dim": 88, "q_len": 200, "kv_len": 300},
]
EDGES = [(1, 65), (63, 1), (64, 63), (65, 127), (127, 129), (129, 64), (300, 200)]


@sampled(("q_len", "kv_len"), EDGES, every=3)
@sampled("head_dim", [64, 96, 128, 192, 256], keep=[64, 96, 256])
def test_lengths_around_tiles(q_len: int, kv_len: int, head_dim: int) -> None:
    problem = Problem(1, 2, 1, q_len, kv_len, head_dim, BF16, causal=True)
    given = random(problem)
    verify(problem, given, differentiate(problem, given))


@sampled("changes", [*CHANGES, *WIDE, *WITH_96], every=3, keep=WITH_96[:1])
def test_heads_windows_types_and_head_dimensions(changes: dict[str, Any]) -> None:
    problem = replace(SMALL, **changes)
    given = random(problem)
    verify(problem, given, differentiate(problem, given))


def test_a_head_dimension_has_the_least_width() -> None:
    widths = {each: plan(replace(SMALL, head_dim=each)).config.head_dim for each in (8, 64, 72, 96, 104, 136, 256)}
    assert widths == {8: 64, 64: 64, 72: 96, 96: 96, 104: 128, 136: 192, 256: 256}


@pytest.mark.parametrize("head_dim", [64, 256])
def test_any_first_tile_of_queries(head_dim: int) -> None:
    problem = replace(SMALL, q_len=400, kv_len=300, head_dim=head_dim)
    given, config = random(problem), plan(problem).config
    verify(problem, given, differentiate(problem, given, replace(config, rotated=not config.rotated)))
    assert config.rotated


@sampled("changes", LONGER, every=2)
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_80_queries(changes: dict[str, Any], causal: bool) -> None:
    problem = replace(SMALL, causal=causal, **{"head_dim": 128} | changes)
    given = random(problem)
    verify(problem, given, differentiate(problem, given, LONG[causal]))


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_80_queries_in_a_fixed_order(causal: bool) -> None:
    problem = replace(SMALL, heads=4, kv_heads=2, q_len=300, kv_len=400, head_dim=128, causal=causal)
    config = replace(LONG[causal], rotated=False, ordered=True, ascending=causal)
    given = random(problem)
    values = arrays(problem, given, config)
    values["dlse"] = np.zeros_like(values["lse"])
    for kernel, grid, args in launches(problem, values, config):
        verdict = ww.check(kernel, grid, args=args, device=H200, update=True)
        assert verdict.kind == "clean", verdict
    verify(problem, given, (values["dq"], values["dk"], values["dv"]))


def test_long_sequences_have_tiles_of_80_queries() -> None:
    def tile(q_len: int, **changes: Any) -> tuple[BackwardConfig, int]:
        problem = replace(Problem(1, 1, 1, q_len, 16384, 128, BF16), **changes)
        return plan(problem).config, in_order(problem).tile[0]

    assert tile(8192) == tile(16384) == (LONG[False], 80)
    assert tile(16384, causal=True) == (LONG[True], 80)
    assert tile(4096) == (CONFIGS[128, False], 64)
    assert tile(8192, causal=True) == tile(16384, window=(1000, 0)) == (CONFIGS[128, True], 64)
    assert tile(16384, window=(1000, None)) == (CONFIGS[128, False], 64)
    assert tile(16384, head_dim=96) == (CONFIGS[96, False], 80)
    every = Problem(1, 1, 1, 16384, 16384, 128, BF16)
    assert plan(every, modified=True).config == plan_varlen(every, 16384, 16384).config == CONFIGS[128, False]


def one_hot(problem: Problem) -> Any:
    """Returns inputs whose score is large for one key of each query."""
    q, k, v, do = random(problem)
    q, k = (np.eye(problem.head_dim, dtype=problem.dtype)[: x.shape[2]] * np.ones_like(x) * 24 for x in (q, k))
    return q, k, v, do


def large(problem: Problem) -> Any:
    """Returns inputs whose scores are hundreds."""
    q, k, v, do = random(problem)
    return (q * 20).astype(problem.dtype), (k * 8).astype(problem.dtype), v, do


@pytest.mark.parametrize("make", [one_hot, large])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_weights_of_a_single_key(make: Any, head_dim: int) -> None:
    problem = replace(SMALL, q_len=60, kv_len=60, head_dim=head_dim)
    given = make(problem)
    verify(problem, given, differentiate(problem, given))


@pytest.mark.parametrize("head_dim", [64, 96, 256])
def test_queries_without_keys_add_nothing(head_dim: int) -> None:
    problem = replace(SMALL, q_len=200, kv_len=60, head_dim=head_dim, causal=True)
    given = random(problem)
    given[3][:, :, :140] *= np.float32(2e30)  # queries that see no key
    dq, dk, dv = differentiate(problem, given)
    assert not dq[:, :, :140].any() and np.isfinite(dk.astype(np.float32)).all() and np.abs(dv).max() < 100


def test_the_bounds_tell_neighbours_apart() -> None:
    given = random(SMALL)
    dq, dk, dv = differentiate(SMALL, given)
    for wrong in ((np.roll(dq, 1, 2), dk, dv), (dq, np.roll(dk, 1, 3), dv), (dq, dk, np.roll(dv, 8, 2))):
        with pytest.raises(AssertionError, match="expected"):
            verify(SMALL, given, wrong)


@sampled(
    "problem",
    [
        Problem(2, 4, 2, 300, 150, 64, BF16),
        Problem(1, 4, 4, 200, 150, 128, BF16, causal=True),
        Problem(2, 4, 2, 200, 150, 96, BF16, causal=True),
    ],
    every=2,
)
def test_the_verdict_is_clean(problem: Problem) -> None:
    """Four heads of K, of which the last two reuse the memory of sums that other CTAs have converted."""
    given = random(problem)
    with resident(1):
        values = arrays(problem, given)
        assert values["sums"].size < values["q"].size  # of two heads of K
        values["dlse"] = np.zeros_like(values["lse"])
        for kernel, grid, args in launches(problem, values):
            verdict = ww.check(kernel, grid, args=args, device=H200, update=True)
            assert verdict.kind == "clean", verdict
    verify(problem, given, (values["dq"], values["dk"], values["dv"]))


@sampled(
    "problem", [Problem(1, 4, 2, 300, 150, 256, BF16), Problem(1, 2, 2, 200, 150, 192, BF16, causal=True)], every=2
)
def test_the_verdict_of_wide_heads_is_clean(problem: Problem) -> None:
    """Clusters with and without keys in their second CTA."""
    given = random(problem)
    values = arrays(problem, given)
    values["dlse"] = np.zeros_like(values["lse"])
    for kernel, grid, args in launches(problem, values):
        verdict = ww.check(kernel, grid, args=args, device=H200, update=True)
        assert verdict.kind == "clean", verdict
    verify(problem, given, (values["dq"], values["dk"], values["dv"]))


@sampled("bounds", [(False, False), (False, True), (True, False), (True, True)], keep=[(True, True)])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_no_spills_and_no_serialised_wgmma(head_dim: int, bounds: tuple[bool, bool]) -> None:
    require_registers(CONFIGS[head_dim, bounds[1]], bounds)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_no_spills_of_tiles_of_80_queries(causal: bool, ordered: bool) -> None:
    order = {"rotated": False, "ordered": True, "ascending": causal} if ordered else {}
    require_registers(replace(LONG[causal], **order), (False, causal))


def require_registers(config: BackwardConfig, bounds: tuple[bool, bool]) -> None:
    """Require that the assembler spills no register and serialises no wgmma."""
    traced = [each.trace(dtype=bf16) for each in kernels_of(config, bounds)]
    assert traced[1].smem_bytes <= config.smem_bytes
    for each in traced:
        result = assemble(each.ptx, "sm_90a", "-v")
        assert result.errors == {}
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
        assert not re.search(r"C75\d\d|warning", result.log)


def test_arrays_of_any_order_and_the_same_gradients() -> None:
    given = random(SMALL)
    o, lse = ww.attention(*given[:3], device="h200", return_lse=True)
    transposed = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (*given[:3], o, given[3])]
    *four, do = transposed
    found = gradients(*four, lse, do, layout="bshd", device=H200)
    assert found[0].strides == transposed[0].strides
    verify(SMALL, given, tuple(x.swapaxes(1, 2) for x in found))
    wide = np.zeros((*given[3].shape, 2), BF16)
    wide[..., 0] = given[3]
    verify(SMALL, given, gradients(*given[:3], o, lse, wide[..., 0], device=H200))


def message(**changes: Any) -> str:
    q, k, v, do = random(SMALL)
    values = {"q": q, "k": k, "v": v, "o": q, "lse": np.zeros(q.shape[:3], np.float32), "do": do} | changes
    with pytest.raises(UsageError) as caught:
        gradients(**values)
    return str(caught.value)


def test_refused_gradients() -> None:
    assert message(do=np.zeros((1, 2, 99, 64), BF16)) == (
        "attention: do is 1 × 2 × 99 × 64 of bfloat16; expected the shape and dtype of q, 1 × 2 × 100 × 64 of bfloat16"
    )
    assert message(lse=np.zeros((1, 100, 2), np.float32)) == (
        "attention: lse is 1 × 100 × 2 of float32; expected batch × heads × rows of q, 1 × 2 × 100 of float32"
    )


def test_a_fast_profile_runs_the_ctas_that_others_wait_for() -> None:
    """Four waves of an H200: CTAs of the one in the middle wait for heads that a fast profile may leave out."""
    problem = replace(SMALL, batch=16, heads=16, kv_heads=16, q_len=20)
    with resident(4):
        values = arrays(problem, random(problem))
        values["progress"][...] = 0.0  # as `prepare` leaves them
        _, (kernel, grid, args), _ = launches(problem, values)
        assert ww.profile(kernel, grid, args=args, device="h200", limit=1 << 20).time_us > 0


def test_a_tensor_map_that_no_copy_reads_is_one() -> None:
    """CTAs of 80 queries convert no dQ, so `gradients` has a parameter for nothing."""
    long = replace(SMALL, head_dim=128)
    values = arrays(long, random(long), LONG[False])
    _, (traced, _, args), _ = launches(long, values, LONG[False])
    assert "dq" not in traced.maps
    given = dict(zip((name for name, _ in traced.params), args, strict=True))
    assert isinstance(given["dq"], TensorMap) and given["dq"].box == (8, 1, 1, 1)
    assert "dq" not in choose(long, "sm_90a", LONG[False]).unmapped()
