"""The reference of attention in NumPy float64: output, log-sum-exp, and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.kernels.attention.problem import Problem
from warpwright.kernels.reference import FLOAT32_STEP, MMA_K, ulp

__all__ = ["attention", "attention_varlen", "gradients", "sequences", "slack"]

Array = NDArray[Any]

HALF_TINY = 2.0**-24  # the smallest float16


def attention(problem: Problem, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Returns the output (batch, heads, q_len, head_dim) and log-sum-exp (batch, heads, q_len) in float64, not rounded.

    ``q``, ``k`` and ``v`` are (batch, heads or kv_heads, length, head_dim). The log-sum-exp is the natural logarithm of
    the sum of exp(scale · score) over the visible keys. A row whose weights are all 0 has output 0 and log-sum-exp
    -inf. NaN in a row of Q or in a visible key makes the row NaN, as does a score of +inf. A value that is not finite
    counts even at weight 0, as in IEEE arithmetic, unless its key is masked.
    """
    weights, lse = _weights(problem, q, k)
    return _apply_weights(problem, weights, _repeat_heads(problem, v)), lse


def attention_varlen(problem: Problem, q: Array, k: Array, v: Array, cu_q: Array, cu_k: Array) -> tuple[Array, Array]:
    """Returns output (total_q, heads, head_dim) and log-sum-exp (heads, total_q) of packed sequences, in float64.

    ``q`` is (total_q, heads, head_dim), ``k`` and ``v`` are (total_k, kv_heads, head_dim); `sequences` yields the rows
    of each sequence. Rows of no sequence, and of sequences without keys, have output 0 and log-sum-exp -inf.
    """
    out, lse = np.zeros(q.shape), np.full(q.shape[1::-1], -np.inf)
    for each, rows, keys in sequences(problem, cu_q, cu_k):
        found = attention(each, *(x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])))
        out[rows], lse[:, rows] = found[0][0].swapaxes(0, 1), found[1][0]
    return out, lse


def sequences(problem: Problem, cu_q: Array, cu_k: Array) -> Iterator[tuple[Problem, slice, slice]]:
    """Yields each sequence that has queries and keys: its problem, with the heads and the mask of ``problem``, and its
    rows of Q and of K, from one element of ``cu_q`` and ``cu_k`` to the next."""
    for rows, keys in zip(itertools.pairwise(cu_q.tolist()), itertools.pairwise(cu_k.tolist()), strict=True):
        q_len, kv_len = rows[1] - rows[0], keys[1] - keys[0]
        if q_len and kv_len:
            yield replace(problem, batch=1, q_len=q_len, kv_len=kv_len), slice(*rows), slice(*keys)


def gradients(problem: Problem, q: Array, k: Array, v: Array, grad: Array) -> tuple[Array, Array, Array]:
    """Returns the gradients of sum(``grad`` · output) by q, k and v in float64. Inputs must be finite."""
    weights, _ = _weights(problem, q, k)
    keys, values, grad = _repeat_heads(problem, k), _repeat_heads(problem, v), grad.astype(np.float64)
    by_weights = grad @ values.swapaxes(-1, -2)
    mean = (weights * by_weights).sum(-1, keepdims=True)
    by_scores = weights * (by_weights - mean) * problem.factor
    by_k = by_scores.swapaxes(-1, -2) @ q.astype(np.float64)
    by_v = weights.swapaxes(-1, -2) @ grad
    return np.asarray(by_scores @ keys), _sum_groups(problem, by_k), _sum_groups(problem, by_v)


def slack(problem: Problem, q: Array, k: Array, v: Array) -> Array:
    """Returns the largest error, in the output's shape, before a kernel rounds its result. Inputs must be finite.

    Weights are rounded to ``problem.dtype``, by half a unit in the last place (float16 also by half its smallest
    number, where the largest weight is 1). The error of a score is at most its bound |q|·|k| times the steps of its
    float32 sum, which is a relative error of the weight. Both errors are weighted by the mean of |v|.
    """
    weights, _ = _weights(problem, q, k)
    values = np.abs(_repeat_heads(problem, v))
    length = [np.linalg.norm(array.astype(np.float64), axis=-1).max() for array in (q, k)]
    of_scores = length[0] * length[1] * problem.factor * (problem.head_dim // MMA_K + 4) * FLOAT32_STEP
    tiny = 0.5 * HALF_TINY if problem.dtype == np.float16 else 0.0
    half: Array = 0.5 * ulp(np.ones(1), problem.dtype)
    share = np.minimum(weights.max(-1, keepdims=True), 1.0) * tiny
    return np.asarray(weights @ values * (half + 2 * of_scores) + share * values.sum(-2, keepdims=True))


def _weights(problem: Problem, q: Array, k: Array) -> tuple[Array, Array]:
    """Returns the softmax of the scores (batch, heads, q_len, kv_len), 0 where masked, and the log-sum-exp."""
    with np.errstate(all="ignore"):
        scores = q.astype(np.float64) @ _repeat_heads(problem, k).swapaxes(-1, -2) * problem.factor
        scores = np.where(_visible(problem), scores, -np.inf)
        row_max = scores.max(-1, keepdims=True)
        shifted: Array = np.exp(scores - np.where(np.isneginf(row_max), 0.0, row_max))
        total = shifted.sum(-1, keepdims=True)
        lse = np.log(total) + np.where(np.isneginf(row_max), 0.0, row_max)
        return np.asarray(shifted / np.where(total == 0, 1.0, total)), np.asarray(lse[..., 0])


def _apply_weights(problem: Problem, weights: Array, values: Array) -> Array:
    """Returns weights times values; a masked key adds nothing, whatever its value."""
    with np.errstate(all="ignore"):
        if np.isfinite(values).all():
            return np.asarray(weights @ values)
        rows = [
            np.where(seen[:, None], weight[..., :, None] * values, 0.0).sum(-2)
            for seen, weight in zip(_visible(problem), np.moveaxis(weights, -2, 0), strict=True)
        ]
        return np.stack(rows, -2)


def _visible(problem: Problem) -> NDArray[np.bool_]:
    """Returns the mask (q_len, kv_len): which keys each query sees."""
    first, stop = problem.visible()
    keys = np.arange(problem.kv_len)
    return np.asarray((first[:, None] <= keys) & (keys < stop[:, None]))


def _repeat_heads(problem: Problem, array: Array) -> Array:
    """Returns (batch, kv_heads, …) repeated to (batch, heads, …), float64."""
    return np.repeat(array.astype(np.float64), problem.group, axis=1)


def _sum_groups(problem: Problem, array: Array) -> Array:
    """Returns the sum over the query heads that share a head of keys."""
    batch, _, *rest = array.shape
    return np.asarray(array.reshape(batch, problem.kv_heads, problem.group, *rest).sum(2))
