"""The reference of attention against loops over single numbers and against differences of its own output."""

from __future__ import annotations

import math

import numpy as np
import pytest

from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.reference import attention, gradients

MASKS = [{}, {"causal": True}, {"window": (2, 1)}, {"causal": True, "window": (1, None)}]


def arrays(problem, seed=0):
    random = np.random.default_rng(seed)
    q = random.standard_normal((problem.batch, problem.heads, problem.q_len, problem.head_dim))
    k, v = random.standard_normal((2, problem.batch, problem.kv_heads, problem.kv_len, problem.head_dim))
    return q, k, v


def row_by_row(problem, q, k, v):
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys, place = h // problem.group, i + problem.kv_len - problem.q_len
        low = 0 if problem.left is None else place - problem.left
        high = problem.kv_len if problem.right is None else place + problem.right + 1
        seen = [j for j in range(problem.kv_len) if low <= j < high]
        weights = [math.exp(problem.factor * float(q[b, h, i] @ k[b, keys, j])) for j in seen]
        if seen:
            out[b, h, i] = sum(w * v[b, keys, j] for w, j in zip(weights, seen, strict=True)) / sum(weights)
            lse[b, h, i] = math.log(sum(weights))
    return out, lse


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 5), (3, 6), (6, 3)])
def test_forward_is_the_definition(mask, q_len, kv_len) -> None:
    problem = Problem(2, 4, 2, q_len, kv_len, 8, scale=0.7, **mask)
    given = arrays(problem)
    for got, expected in zip(attention(problem, *given), row_by_row(problem, *given), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_gradients_are_differences_of_the_output(mask) -> None:
    problem = Problem(1, 4, 2, 6, 5, 8, **mask)
    given = list(arrays(problem, 1))
    grad = np.random.default_rng(2).standard_normal(given[0].shape)
    step = 1e-6
    for position, gradient in enumerate(gradients(problem, *given, grad)):
        random = np.random.default_rng(3)
        for _ in range(8):
            place = tuple(random.integers(0, extent) for extent in given[position].shape)
            moved = []
            for sign in (1, -1):
                changed = [x.copy() for x in given]
                changed[position][place] += sign * step
                moved.append((attention(problem, *changed)[0] * grad).sum())
            assert gradient[place] == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-5, abs=1e-8)


def test_scores_that_are_not_finite() -> None:
    problem = Problem(1, 1, 1, 4, 3, 8, causal=True)
    q, k, v = arrays(problem)
    out, lse = attention(problem, q, k, v)
    assert (out[0, 0, 0] == 0).all() and lse[0, 0, 0] == -np.inf  # four queries, three keys: the first sees none
    q, k = np.ones_like(q), np.ones_like(k)
    k[..., 0, :] = -np.inf
    out, lse = attention(problem, q, k, v)
    assert (out[0, 0, 1] == 0).all() and lse[0, 0, 1] == -np.inf
    np.testing.assert_allclose(out[0, 0, 2], v[0, 0, 1])
    k[..., 2, :] = np.nan
    out, _ = attention(problem, q, k, v)
    assert np.isfinite(out[0, 0, :3]).all() and np.isnan(out[0, 0, 3]).all()


def test_a_masked_value_adds_nothing_and_a_visible_one_counts_at_weight_zero() -> None:
    problem = Problem(1, 1, 1, 2, 2, 8, causal=True)
    q, k, v = arrays(problem)
    q, k[..., 0, :], k[..., 1, :] = np.full_like(q, 100.0), 100.0, -100.0
    v[..., 1, 3] = np.inf
    out, _ = attention(problem, q, k, v)
    np.testing.assert_allclose(out[0, 0, 0], v[0, 0, 0])
    assert np.isnan(out[0, 0, 1, 3])  # a weight of exactly 0 times infinity
