"""The mma.sync attention backward: numbers against float64, the same bits, verdicts, ptxas, plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16
from tests.kernels.attention.backward_helpers import (
    CHANGES,
    RTX5090,
    SMALL,
    arrays,
    differentiate,
    launches,
    random,
    verify,
)
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm120.backward import kernels_of
from warpwright.kernels.attention.sm120.backward_plan import CONFIGS, BackwardConfig, plan
from warpwright.ops.attention.backward import gradients
from warpwright.ptx.ptxas import assemble

EDGES = [(1, 65), (63, 1), (64, 63), (127, 129), (129, 64), (300, 200)]


@sampled(("q_len", "kv_len"), EDGES, every=3)
@sampled("head_dim", [64, 128], keep=[64])
def test_lengths_around_tiles(q_len: int, kv_len: int, head_dim: int) -> None:
    problem = Problem(1, 2, 1, q_len, kv_len, head_dim, BF16, causal=True)
    given = random(problem)
    verify(problem, given, differentiate(problem, given, device=RTX5090))


@sampled("changes", CHANGES, every=3)
def test_heads_windows_types_and_head_dimensions(changes: dict[str, Any]) -> None:
    problem = replace(SMALL, **changes)
    given = random(problem)
    verify(problem, given, differentiate(problem, given, device=RTX5090))


def test_any_tiles_and_stages() -> None:
    problem = replace(SMALL, q_len=150, causal=True)
    given = random(problem)
    config = BackwardConfig(64, (64, 64), (32, 16), stages=3)
    verify(problem, given, differentiate(problem, given, config, device=RTX5090))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_large_scores(head_dim: int) -> None:
    problem = replace(SMALL, q_len=60, kv_len=60, head_dim=head_dim)
    q, k, v, do = random(problem)
    given = (q * 20).astype(BF16), (k * 8).astype(BF16), v, do
    verify(problem, given, differentiate(problem, given, device=RTX5090))


def test_queries_without_keys_add_nothing() -> None:
    problem = replace(SMALL, q_len=200, kv_len=60, causal=True)
    given = random(problem)
    given[3][:, :, :140] *= np.float32(2e30)  # queries that see no key
    dq, dk, dv = differentiate(problem, given, device=RTX5090)
    assert not dq[:, :, :140].any() and np.isfinite(dk.astype(np.float32)).all() and np.abs(dv).max() < 100


def test_the_same_bits_each_time() -> None:
    given = random(SMALL)
    runs = [differentiate(SMALL, given, device=RTX5090) for _ in range(2)]
    assert all(np.array_equal(one.view(np.uint16), other.view(np.uint16)) for one, other in zip(*runs, strict=True))


def test_the_operator_takes_any_order_and_a_gradient_of_the_log_sum_exp() -> None:
    """The gradient by the log-sum-exp, here of one, adds scale · P·K to dQ: as much as a dO that is orthogonal to O."""
    given = random(SMALL)
    o, lse = ww.attention(*given[:3], device="rtx5090", return_lse=True)
    *four, do = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (*given[:3], o, given[3]))
    found = gradients(*four, lse, do, layout="bshd", device=RTX5090)
    assert found[0].strides == do.strides
    verify(SMALL, given, tuple(x.swapaxes(1, 2) for x in found))
    zero, ones = np.zeros_like(o), np.ones_like(lse)
    by_lse = gradients(*given[:3], o, lse, zero, dlse=ones, device=RTX5090)
    keys = np.repeat(given[1].astype(np.float64), 2, axis=1)
    scores = given[0].astype(np.float64) @ keys.swapaxes(-1, -2) * SMALL.factor
    exact = np.exp(scores - lse[..., None]) @ keys * SMALL.factor
    assert np.abs(by_lse[0].astype(np.float64) - exact).max() < 0.02 * np.abs(exact).max()
    assert not by_lse[2].any()


@sampled("problem", [replace(SMALL, q_len=300), Problem(1, 2, 1, 200, 150, 128, BF16, causal=True)], every=2)
def test_the_verdict_is_clean(problem: Problem) -> None:
    given = random(problem)
    values = arrays(problem, given, arch="sm_120a")
    values["dlse"] = np.zeros_like(values["lse"])
    for kernel, grid, args in launches(problem, values, arch="sm_120a"):
        verdict = ww.check(kernel, grid, args=args, device=RTX5090, update=True)
        assert verdict.kind == "clean", verdict
    verify(problem, given, (values["dq"], values["dk"], values["dv"]))


@pytest.mark.parametrize("arch", ["sm_120a", "sm_90"])
@sampled("head_dim", CONFIGS, every=2)
def test_no_spills(head_dim: int, arch: str) -> None:
    config = CONFIGS[head_dim]
    for each, tile in zip(kernels_of(config, (False, False)), (config.by_query, config.by_key), strict=True):
        traced = each.trace(arch)
        assert traced.smem_bytes <= config.smem_bytes(tile)
        result = assemble(traced.ptx, arch, "-v")
        assert result.errors == {}
        assert "0 bytes spill stores, 0 bytes spill loads" in result.log


def test_refused_gradients() -> None:
    with pytest.raises(UsageError) as caught:
        plan(replace(SMALL, head_dim=136))
    assert str(caught.value) == (
        "attention: given gradients of head dimension 136; expected at most 128: torch's own "
        "scaled_dot_product_attention has the others"
    )
    with pytest.raises(UsageError, match="expected at most 65535 each; split the batch"):
        plan(replace(SMALL, batch=65536))
