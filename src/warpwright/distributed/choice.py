"""The engine of a call: the one that was fastest for the nearest measured problem."""

from __future__ import annotations

import functools
from math import log2

from warpwright.distributed.facts import FACTS, Fact
from warpwright.distributed.problem import Problem, fits_tensor_maps

__all__ = ["IN_TURN", "choose", "takes"]

IN_TURN = "in turn"


@functools.lru_cache(4096)
def choose(problem: Problem, arch: str) -> str:
    """Returns the name of the engine for a problem on GPUs of ``arch``.

    The nearest fact of the operation decides; the distance of two problems is the squared Euclidean distance of the
    logarithms of their extents and ranks. Problems that no kernel of ``arch`` takes run in turn.
    """
    if problem.ranks == 1 or arch != "sm_90a" or not fits_tensor_maps(problem):
        return IN_TURN
    n = sum(problem.columns)

    def distance(fact: Fact) -> float:
        ratios = problem.ranks * problem.rows / fact.m, n / fact.n, problem.k / fact.k, problem.ranks / fact.ranks
        return sum(log2(ratio) ** 2 for ratio in ratios)

    return min(
        (fact for fact in FACTS if fact.operation == problem.operation and takes(fact.engine, problem)), key=distance
    ).engine


def takes(engine: str, problem: Problem) -> bool:
    """Returns whether an engine takes a problem.

    The kernel of reduce-scatter reads weights that are dense along K; so do pairs of CTAs that share a tile of 192
    columns, of which each loads a half.
    """
    along_k = set(problem.majors) == {"k"}
    return along_k or not (engine.startswith("kernel") or engine.endswith("192"))
