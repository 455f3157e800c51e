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
    problem: Problem, given: Any, sms: int, config: DecodeConfig | None = None, ctas: int | None = None
) -> tuple[DecodePlan, Launches, Results]:
    """The plan, each launch with its grid and arguments, and the results; the workspace is poisoned."""
    found = plan(problem, sms=sms, config=config, ctas=ctas)
    q, k, v = given
    o, lse = np.full(q.shape, SENTINEL, q.dtype), np.full(q.shape[:3], SENTINEL, np.float32)
    space = np.full(found.words, np.nan, np.float32)
    space[: 2 * sms] = 0  # counters
    steps = [step // o.itemsize for step in o.strides[:3]]
    tail = [o, *steps, problem.head_dim, lse, space, *found.scalars]
    how = {"dtype": of_dtype(problem.dtype), "bounds": found.bounds}
    made: Launches = [(kernel_of(found.config).configure(**how), found.grid, [grouped(problem, q), k, v, *tail])]
    if found.combine_grid:
        made.append((combine_of(found.config).configure(**how), found.combine_grid, tail[:-1]))
    return found, made, (o, lse)


def grouped(problem: Problem, q: np.ndarray) -> np.ndarray:
    """Q with its heads apart by the head of K and V that they share, without a copy."""
    return q.reshape(problem.batch, problem.kv_heads, problem.group, problem.q_len, problem.head_dim)


def attend(problem: Problem, given: Any, sms: int = 3, device: Any = "h200", **how: Any) -> Results:
    _, made, results = launches(problem, given, sms, **how)
    for kernel, grid, args in made:
        ww.launch(kernel, grid, args=args, device=device)
    return results
