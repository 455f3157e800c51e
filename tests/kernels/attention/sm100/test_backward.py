"""The tcgen05 attention backward on the virtual B200: numbers against float64, verdicts, ptxas, plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16
from tests.kernels.attention.backward_helpers import (
    B200,
    CHANGES,
    SMALL,
    arrays,
    differentiate,
    launches,
    random,
    verify,
)
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm100.backward import kernels_of
from warpwright.kernels.attention.sm100.backward_plan import CONFIGS, plan
from warpwright.lang import bf16
from warpwright.ops.attention.backward import gradients
from warpwright.ptx.ptxas import assemble

EDGES = [(1, 65), (127, 129), (129, 127), (128, 256), (300, 200), (260, 390)]


@sampled(("q_len", "kv_len"), EDGES, every=3)
@sampled("head_dim", [64, 128], keep=[64])
def test_lengths_around_tiles(q_len: int, kv_len: int, head_dim: int) -> None:
    problem = Problem(1, 2, 1, q_len, kv_len, head_dim, BF16, causal=True)
    given = random(problem)
    verify(problem, given, differentiate(problem, given, device=B200))


@sampled("changes", CHANGES, every=3)
def test_heads_windows_types_and_head_dimensions(changes: dict[str, Any]) -> None:
    problem = replace(SMALL, **changes)
    given = random(problem)
    verify(problem, given, differentiate(problem, given, device=B200))


def test_every_order_of_blocks_and_of_queries() -> None:
    """A head alone and two together, whose CTAs begin at other queries."""
    problem = replace(SMALL, heads=3, kv_heads=3, q_len=200, kv_len=260)
    given, config = random(problem), replace(CONFIGS[64, True], rotated=True, together=2)
    verify(problem, given, differentiate(problem, given, config, device=B200))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_large_scores(head_dim: int) -> None:
    problem = replace(SMALL, q_len=60, kv_len=60, head_dim=head_dim)
    q, k, v, do = random(problem)
    given = (q * 20).astype(BF16), (k * 8).astype(BF16), v, do
    verify(problem, given, differentiate(problem, given, device=B200))


def test_queries_without_keys_add_nothing() -> None:
    problem = replace(SMALL, q_len=200, kv_len=60, causal=True)
    given = random(problem)
    given[3][:, :, :140] *= np.float32(2e30)  # queries that see no key
    dq, dk, dv = differentiate(problem, given, device=B200)
    assert not dq[:, :, :140].any() and np.isfinite(dk.astype(np.float32)).all() and np.abs(dv).max() < 100


def test_the_operator_takes_any_order_and_a_gradient_of_the_log_sum_exp() -> None:
    """The gradient by the log-sum-exp, here of one, adds scale · P·K to dQ: as much as a dO that is orthogonal to O."""
    given = random(SMALL)
    exact_o, exact_lse = reference.attention(SMALL, *given[:3])
    o, lse = exact_o.astype(BF16), exact_lse.astype(np.float32)
    *four, do = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (*given[:3], o, given[3]))
    found = gradients(*four, lse, do, layout="bshd", device=B200)
    assert found[0].strides == do.strides
    verify(SMALL, given, tuple(x.swapaxes(1, 2) for x in found))
    zero, ones = np.zeros_like(o), np.ones_like(lse)
    by_lse = gradients(*given[:3], o, lse, zero, dlse=ones, device=B200)
    keys = np.repeat(given[1].astype(np.float64), 2, axis=1)
    scores = given[0].astype(np.float64) @ keys.swapaxes(-1, -2) * SMALL.factor
    exact = np.exp(scores - lse[..., None]) @ keys * SMALL.factor
    assert np.abs(by_lse[0].astype(np.float64) - exact).max() < 0.02 * np.abs(exact).max()
    assert not by_lse[2].any()


@sampled("problem", [replace(SMALL, q_len=400), Problem(1, 2, 1, 300, 250, 128, BF16, causal=True)], every=2)
def test_the_verdict_is_clean(problem: Problem) -> None:
    given = random(problem)
    values = arrays(problem, given, arch="sm_100a")
    values["dlse"] = np.zeros_like(values["lse"])
    for kernel, grid, args in launches(problem, values, arch="sm_100a"):
        verdict = ww.check(kernel, grid, args=args, device=B200, update=True)
        assert verdict.kind == "clean", verdict
    verify(problem, given, (values["dq"], values["dk"], values["dv"]))


@sampled("bounds", [(False, False), (False, True), (True, True)], keep=[(True, True)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_no_spills(head_dim: int, bounds: tuple[bool, bool]) -> None:
    config = CONFIGS[head_dim, bounds[1]]
    traced = [each.trace("sm_100a", dtype=bf16) for each in kernels_of(config, bounds)]
    assert traced[1].smem_bytes <= config.smem_bytes
    for each in traced:
        result = assemble(each.ptx, "sm_100a", "-v")
        assert result.errors == {}
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log


def test_refused_gradients() -> None:
    with pytest.raises(UsageError) as caught:
        plan(replace(SMALL, head_dim=136))
    assert str(caught.value) == (
        "attention: given gradients of head dimension 136; expected at most 128: torch's own "
        "scaled_dot_product_attention has the others"
    )
