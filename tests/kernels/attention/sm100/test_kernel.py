"""The tcgen05 attention on the virtual B200: numbers against float64, the verdict, ptxas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16, SENTINEL, normal_qkv, verify
from tests.samples import sampled
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm100.kernel import kernel_of
from warpwright.kernels.attention.sm100.plan import CONFIGS, plan
from warpwright.lang import bf16
from warpwright.ptx.ptxas import assemble
from warpwright.types import of_dtype

SMS = 2  # so that a CTA takes several parts


def launch_of(problem: Problem, *arrays: Any) -> tuple[Any, tuple[int, int, int], list[Any]]:
    """Returns kernel, grid and arguments for q, k, v, o and the log-sum-exp."""
    found = plan(problem, sms=SMS)
    kernel = kernel_of(found.config).configure(bounds=found.bounds, dtype=of_dtype(problem.dtype))
    return kernel, found.grid, [*arrays, *found.scalars]


def run_attention(problem: Problem, q: Any, k: Any, v: Any) -> tuple[np.ndarray, np.ndarray]:
    """Run the kernel; returns output and log-sum-exp."""
    o, lse = np.full(q.shape, np.nan, q.dtype), np.full(q.shape[:3], np.nan, np.float32)
    kernel, grid, args = launch_of(problem, q, k, v, o, lse)
    ww.launch(kernel, grid, args=args, device="b200")
    return o, lse


@sampled(
    "problem",
    [
        Problem(2, 4, 2, 300, 500, 64, causal=True),
        Problem(1, 1, 1, 1, 1, 64, causal=True),
        Problem(1, 1, 1, 63, 65, 64, causal=True),
        Problem(1, 1, 1, 65, 1000, 64, causal=True),
        Problem(1, 1, 1, 300, 127, 64, causal=True),
        Problem(1, 2, 1, 260, 129, 40, causal=True, scale=0.3),
        Problem(1, 2, 1, 400, 700, 64, window=(200, 100)),
        Problem(2, 2, 1, 200, 1000, 128, dtype=np.float16),
        Problem(1, 3, 1, 129, 127, 128, dtype=np.float16),
        Problem(1, 2, 1, 300, 400, 256, causal=True),
        Problem(1, 2, 1, 127, 128, 192, causal=True),
        Problem(2, 2, 1, 300, 400, 96, causal=True, dtype=np.float16),
        Problem(1, 2, 1, 130, 260, 88, window=(100, 20)),
        Problem(1, 2, 1, 200, 300, 160, window=(50, None), dtype=np.float16),
    ],
    ids=lambda p: f"{p.head_dim}-{p.q_len}x{p.kv_len}{'-causal' * p.causal}{'-window' * bool(p.window)}",
    every=3,
)
def test_numbers(problem) -> None:
    given = normal_qkv(problem)
    verify(problem, given, run_attention(problem, *given))


@pytest.mark.parametrize("window", [(2**31, 2**31), (2**40, 0), (None, 2**33)])
def test_a_window_wider_than_any_distance_hides_nothing_more(window) -> None:
    problem = Problem(1, 1, 1, 140, 200, 64, window=window)
    given = normal_qkv(problem)
    verify(problem, given, run_attention(problem, *given))


def test_one_hot_keys_show_every_exchange_of_rows_and_columns() -> None:
    """Query i matches key order[i] alone; the values encode row and column."""
    problem = Problem(1, 1, 1, 280, 300, 64, causal=True, scale=1.0)
    order = np.random.default_rng(1).permutation(21)
    q, k, v = np.zeros((280, 64)), np.zeros((300, 64)), np.arange(300)[:, None] % 250 + np.arange(64) / 64
    q[np.arange(280), np.arange(280) % 21], k[order, np.arange(21)] = 16.0, 16.0
    given = [x.astype(BF16)[None, None] for x in (q, k, v)]
    out, lse = run_attention(problem, *given)
    wanted = given[2][0, 0, order[np.arange(280) % 21]]
    assert np.array_equal(out[0, 0], wanted)
    np.testing.assert_allclose(lse, 256.0)


def test_large_scores_infinities_and_nan() -> None:
    """Large scores grow from block to block, so that O is rescaled."""
    problem = Problem(1, 1, 1, 300, 500, 64, causal=True, scale=1.0)
    q, k, v = (x.copy() for x in normal_qkv(problem))
    q *= BF16.type(30)
    verify(problem, (q, k, v), run_attention(problem, q, k, v))
    k[0, 0, :, 0] = np.abs(k[0, 0, :, 0].astype(np.float32)) + 1
    q[0, 0, 3], q[0, 0, 11] = 0.0, 0.0
    q[0, 0, 3, 0], q[0, 0, 11, 0], q[0, 0, 9, 7] = -np.inf, np.inf, np.nan
    out, lse = run_attention(problem, q, k, v)
    exact, exact_lse = reference.attention(problem, q, k, v)
    assert (out[0, 0, 3] == 0).all() and np.isnan(out[0, 0, 9]).all() and np.isnan(out[0, 0, 11]).all()
    assert np.array_equal(np.isnan(out), np.isnan(exact))
    assert np.array_equal(np.isneginf(lse), np.isneginf(exact_lse))


def test_strides_and_neighbouring_memory() -> None:
    """[b, s, h, d] arrays inside larger ones: only the result changes."""
    problem = Problem(2, 2, 1, 150, 170, 64, causal=True)
    q, k, v = (np.swapaxes(np.ascontiguousarray(np.swapaxes(x, 1, 2)), 1, 2) for x in normal_qkv(problem))
    whole, lse = np.full((2, 152, 3, 72), SENTINEL, BF16), np.zeros((2, 2, 150), np.float32)
    o = whole[:, 1:151, :2, :64].swapaxes(1, 2)
    kernel, grid, args = launch_of(problem, q, k, v, o, lse)
    ww.launch(kernel, grid, args=args, device="b200")
    verify(problem, (q, k, v), (o, lse))
    o[...] = SENTINEL
    assert (whole == SENTINEL).all()


def test_the_verdict_is_clean() -> None:
    problem = Problem(1, 3, 1, 300, 700, 64, causal=True, scale=1.0)  # three parts a CTA
    q, k, v = (x * BF16.type(4) for x in normal_qkv(problem))
    o, lse = np.full(q.shape, np.nan, BF16), np.full(q.shape[:3], np.nan, np.float32)
    kernel, grid, args = launch_of(problem, q, k, v, o, lse)
    verdict = ww.check(kernel, grid, args=args, device="b200")
    assert verdict.kind == "clean", str(verdict)


@sampled("head_dim", CONFIGS, every=2)
@sampled("bounds", [(False, False), (False, True), (True, True)], keep=[(True, True)])
def test_ptxas_accepts_it_without_spills(head_dim, bounds) -> None:
    traced = kernel_of(CONFIGS[head_dim]).configure(bounds=bounds, dtype=bf16).trace()
    assert traced.smem_bytes <= CONFIGS[head_dim].smem_bytes
    result = assemble(traced.ptx, "sm_100a", "-v")
    assert result.errors == {}
    assert "0 bytes spill stores, 0 bytes spill loads" in result.log
