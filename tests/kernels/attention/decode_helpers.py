"""Launches of the Hopper attention for few queries."""

from __future__ import annotations

from typing import Any

import numpy as np

import warpwright as ww
from tests.kernels.attention.attention_helpers import SENTINEL
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.decode import combine_of, kernel_of
from warpwright.kernels.attention.sm90.decode_plan import DecodeConfig, DecodePlan, plan
from warpwright.types import of_dtype

Results = tuple[np.ndarray, np.ndarray]
Launches = list[tuple[Any, tuple[int, int, int], list[Any]]]


def launches(
    problem: Problem,
    given: Any,
    sms: int,
    config: DecodeConfig | None = None,
    ctas: int | None = None,
    first: Any = kernel_of,
) -> tuple[DecodePlan, Launches, Results]:
    """Returns the plan, each launch with its grid and arguments, and the results; the workspace is filled with NaN.
    ``first`` is the kernel of a configuration."""
    found = plan(problem, sms=sms, config=config, ctas=ctas)
    q, k, v = given
    o, lse = np.full(q.shape, SENTINEL, q.dtype), np.full(q.shape[:3], SENTINEL, np.float32)
    space = np.full(found.words, np.nan, np.float32)
    space[: 4 * sms] = 0  # counters
    strides = [stride // o.itemsize for stride in o.strides[:3]]
    tail = [o, *strides, problem.head_dim, lse, space, *found.scalars]
    how = {"dtype": of_dtype(problem.dtype), "bounds": found.bounds}
    planned: Launches = [(first(found.config).configure(**how), found.grid, [split_heads(problem, q), k, v, *tail])]
    if found.combine_grid:
        last: Any = combine_of(found.config).configure(**how)
        if first is not kernel_of:
            last = last.trace("sm_100a")
        planned.append((last, found.combine_grid, tail[:-1]))
    return found, planned, (o, lse)


def split_heads(problem: Problem, q: np.ndarray) -> np.ndarray:
    """Returns a view of Q with its heads split by the head of K and V that they share."""
    return q.reshape(problem.batch, problem.kv_heads, problem.group, problem.q_len, problem.head_dim)


def run_decode(problem: Problem, given: Any, sms: int = 3, device: Any = "h200", **how: Any) -> Results:
    _, planned, results = launches(problem, given, sms, **how)
    for kernel, grid, args in planned:
        ww.launch(kernel, grid, args=args, device=device)
    return results
