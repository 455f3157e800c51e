"""Predicted speed of context-parallel attention over one GPU: ``python bench/predict_context.py``; no GPU is used.

`ww.profile` predicts one tile of queries (forward) and one block of keys (backward) on every SM of an H200, at two
lengths; the line through both is the time of any tile. A model then gives the tiles of each call to 132 SMs in the
order in which CTAs take them, for one GPU and for the rank that ends last: the first group of heads waits for its keys,
the calls of several streams share the SMs, and the gradients of the last group are sent and added at the end. The
link's rate is that of a copy engine on two H200s (docs/log/2026-11.md), the memory's rate that of the profile.
"""

from __future__ import annotations

import argparse
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import torch
from predict_attention import Case, forward_launch, predict

from warpwright.distributed import context_problem
from warpwright.distributed.context_problem import ContextProblem, QueryCall
from warpwright.distributed.workspace import BESIDE
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90 import direct
from warpwright.kernels.attention.sm90 import plan as forward_plan
from warpwright.kernels.attention.sm90.backward_plan import LONG
from warpwright.lang import bf16
from warpwright.ops.attention.backward import choose

HEADS, KV_HEADS, HEAD_DIM, SMS = 32, 8, 128, 132
LINK_BYTES, MEMORY_BYTES = 370e3, 4.0e6  # a µs
LENGTHS = (2560, 5120)  # of the two profiles, multiples of 64, 80 and 128
FORWARD_TILE, BACKWARD_TILE = "128: 192x80", LONG[True]
Tiles = Iterator[float]


def line(case: Callable[[int], Case]) -> Callable[[float], float]:
    """Returns the predicted microseconds of a tile as a function of its length."""
    first, second = (predict(case(length)) for length in LENGTHS)
    slope = (second - first) / (LENGTHS[1] - LENGTHS[0])
    return lambda length: first + slope * (length - LENGTHS[0])


def forward_case(keys: int) -> Case:
    """Returns a launch with one tile of queries on each SM, which sees ``keys`` keys."""
    config = forward_plan.CONFIGS[FORWARD_TILE]
    problem = Problem(1, SMS, SMS, config.tile[0], keys, HEAD_DIM, causal=True)
    found = forward_plan.plan(problem, sms=SMS, config=config)
    traced = direct.kernel_of(found.config).trace(dtype=bf16, bounds=found.bounds)
    return forward_launch("forward", problem, traced, found.grid, *found.scalars, counts=found.uneven)


def backward_case(queries: int) -> Case:
    """Returns a launch with one block of keys on each SM, which ``queries`` queries see."""
    problem = Problem(1, SMS, SMS, queries, BACKWARD_TILE.tile[1], HEAD_DIM)
    found = choose(problem, "sm_90a", BACKWARD_TILE)
    launch = next(each for each in found.launches if each.kernel.entry == "gradients")
    names = [name for name, _ in launch.kernel.params]
    numbers = {name: x for name, x in zip(names, launch.args, strict=True) if not isinstance(x, str)}
    return Case("backward", problem, launch.kernel, launch.grid, {"dlse": 0, **numbers}, found.scratch)


def forward_tiles(call: QueryCall, kv_heads: int, time: Callable[[float], float]) -> Tiles:
    """Yields the times of a call's tiles of queries in their order, the longest first."""
    queries, rows = forward_plan.CONFIGS[FORWARD_TILE].tile[0], call.rows.stop - call.rows.start
    for _ in range(kv_heads):
        for first in range(0, rows, queries):
            yield from HEADS // KV_HEADS * (time(call.end - first),)


def backward_tiles(call: QueryCall, kv_heads: int, time: Callable[[float], float]) -> Tiles:
    """Yields the times of a call's blocks of keys in their order: queries of all heads of a group see a block."""
    rows, keys = call.rows.stop - call.rows.start, BACKWARD_TILE.tile[1]
    for _ in range(kv_heads):
        for first in range(0, call.end, keys):
            yield HEADS // KV_HEADS * time(min(rows, call.end - first))


def makespan(calls: Sequence[Iterable[float]], streams: int, began: float = 0.0) -> float:
    """Returns when the last tile ends; call i is on stream i modulo ``streams``.

    An idle SM takes a tile of the first call that has one and whose predecessor on its stream has ended.
    """
    left, ends, sms = [deque(tiles) for tiles in calls], [began] * len(calls), [began] * SMS
    while any(left):
        starts = [(0.0 if i < streams else ends[i - streams], i) for i in open_calls(left, streams)]
        ready = [i for start, i in starts if start <= sms[0]]
        if not ready:
            heapq.heapreplace(sms, min(starts)[0])
            continue
        end = sms[0] + left[ready[0]].popleft()
        heapq.heapreplace(sms, end)
        ends[ready[0]] = max(ends[ready[0]], end)
    return max(ends)


def open_calls(left: Sequence[deque[float]], streams: int) -> list[int]:
    """Returns the calls with tiles left whose predecessor on its stream has no tile left."""
    return [i for i, tiles in enumerate(left) if tiles and (i < streams or not left[i - streams])]


def predict_step(rows: int, ranks: int, backward: bool, time: Callable[[float], float], streams: int) -> float:
    """Returns the microseconds of the rank that ends last; of one rank, of one GPU."""
    tiles = backward_tiles if backward else forward_tiles
    if ranks == 1:
        return makespan([tiles(QueryCall(slice(0, rows), rows), KV_HEADS, time)], 1)
    shape = (1, HEADS, KV_HEADS, rows // ranks, HEAD_DIM, torch.bfloat16)
    problem = ContextProblem("", ranks, *shape, causal=True, scale=None, zigzag=True)
    nbytes = 2 * KV_HEADS * (rows // ranks) * HEAD_DIM * 2
    sent = (ranks - 1) * nbytes / problem.groups / LINK_BYTES  # of a group of heads
    heads, added = KV_HEADS // problem.groups, 0.0
    if backward:  # the gradients of keys of the second call are added; those of all ranks
        added = (3 * ranks * nbytes + (ranks + 1) * nbytes) / MEMORY_BYTES + sent
    calls = [
        [[*tiles(call, heads, time)] for _ in range(problem.groups) for call in problem.calls(rank)]
        for rank in range(ranks)
    ]
    return max(makespan(of_rank, streams, added + sent) for of_rank in calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="*", default=[context_problem.GROUPS], help="of heads, at most")
    parser.add_argument("--streams", type=int, nargs="*", default=[BESIDE], help="of the calls")
    options = parser.parse_args()
    print(f"h200, {HEADS} heads, {KV_HEADS} of keys, d {HEAD_DIM}, bf16, causal, zigzag; ms, and times one GPU")
    for name, backward, case in (("forward", False, forward_case), ("backward", True, backward_case)):
        time = line(case)
        for rows, groups, streams in product((65536, 131072), options.groups, options.streams):
            context_problem.GROUPS = groups
            times = {ranks: predict_step(rows, ranks, backward, time, streams) for ranks in (1, 2, 4, 8)}
            found = "  ".join(f"{n}: {us / 1e3:.2f} ({times[1] / us:.2f})" for n, us in times.items())
            print(f"{name:<9} {rows:>6}, {groups} groups, {streams} streams  {found}", flush=True)


if __name__ == "__main__":
    main()
