"""Attention and its gradients in plain torch, as the calls of context-parallel attention on the host need them.

The last query is at the position of the last key.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["at_the_end", "attend", "attend_packed", "differentiate", "differentiate_packed"]


def attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool, scale: float | None) -> Tensor:
    """Write attention to ``out``; returns the log-sum-exp of the rows."""
    scores = _scores(q, k, causal, scale)
    lse = scores.logsumexp(-1)
    out.copy_(torch.exp(scores - lse.unsqueeze(-1)) @ _for_queries(v, q))
    return lse


def differentiate(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    """Returns the gradients by q, k and v of `attend`, which wrote ``o`` and returned ``lse``."""
    weights = torch.exp(_scores(q, k, causal, scale) - lse.unsqueeze(-1))
    do = do.to(weights.dtype)
    means = (do * o).sum(-1, keepdim=True)
    of_scores = weights * (do @ _for_queries(v, q).mT - means) * _factor(q, scale)
    of_k, of_v = of_scores.mT @ q.to(weights.dtype), weights.mT @ do
    of_q = of_scores @ _for_queries(k, q)
    return of_q.to(q.dtype), *(each.unflatten(1, (k.shape[1], -1)).sum(2).to(k.dtype) for each in (of_k, of_v))


def at_the_end(differentiate: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Callable[[], list[Tensor]]]:
    """Returns ``differentiate`` in two steps, as engines call it: the first call, with ``dq`` after the other tensors,
    only returns a function; that one computes everything, writes ``dq``, and returns the gradients by k and v."""

    def begin(*given: Any) -> Callable[[], list[Tensor]]:
        *tensors, dq, causal, scale = given

        def end() -> list[Tensor]:
            of_q, *sums = differentiate(*tensors, causal, scale)
            dq.copy_(of_q)
            return sums

        return end

    return begin


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, out: Tensor, causal: bool, scale: float | None
) -> Tensor:
    """Write attention of packed sequences, (rows, heads, head_dim), to ``out``; returns the log-sum-exp."""
    parts = []
    for of_q, of_k in _sequences(cu_q, cu_k):
        queries, keys, values = _sequence(q, of_q), _sequence(k, of_k), _sequence(v, of_k)
        parts.append(attend(queries, keys, values, _sequence(out, of_q), causal, scale))
    return torch.cat(parts, 2)[0]


def differentiate_packed(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the gradients by q, k and v of `attend_packed`."""
    results = tuple(torch.empty_like(each) for each in (q, k, v))
    for of_q, of_k in _sequences(cu_q, cu_k):
        queries, outputs, directions = (_sequence(each, of_q) for each in (q, o, do))
        keys, values = (_sequence(each, of_k) for each in (k, v))
        sums = lse[:, of_q].unsqueeze(0)
        found = differentiate(queries, keys, values, outputs, sums, directions, causal, scale)
        for result, part, rows in zip(results, found, (of_q, of_k, of_k), strict=True):
            _sequence(result, rows).copy_(part)
    return results


def _sequences(cu_q: Tensor, cu_k: Tensor) -> list[tuple[slice, slice]]:
    """Returns the rows of each sequence in the queries and in the keys."""
    of_q, of_k = ([slice(a, b) for a, b in pairwise(each.tolist())] for each in (cu_q, cu_k))
    return list(zip(of_q, of_k, strict=True))


def _sequence(x: Tensor, rows: slice) -> Tensor:
    """Returns rows of a tensor (rows, heads, head_dim) as (1, heads, rows, head_dim)."""
    return x[rows].transpose(0, 1).unsqueeze(0)


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float | None) -> Tensor:
    """Returns the scaled scores, in float32 at least; those of keys after a query are -inf."""
    keys = _for_queries(k, q)
    scores = q.to(keys.dtype) @ keys.mT * _factor(q, scale)
    q_len, kv_len = scores.shape[-2:]
    hidden = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).triu(kv_len - q_len + 1)
    return scores.masked_fill(hidden, -torch.inf) if causal else scores


def _for_queries(x: Tensor, q: Tensor) -> Tensor:
    """Returns keys or values of each head of the queries, in float32 at least."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1).to(torch.promote_types(x.dtype, torch.float32))


def _factor(q: Tensor, scale: float | None) -> float:
    found: float = q.shape[-1] ** -0.5 if scale is None else scale
    return found
