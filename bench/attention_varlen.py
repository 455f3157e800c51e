"""Attention of packed sequences on a real Hopper GPU: ``python bench/attention_varlen.py``.

16384 tokens and 2048 columns of heads in all, head dimensions 64, 128 and 256, causal or not, random normal bfloat16.
Sequences have equal lengths, and then the dense kernel on the same arrays shows the cost of packing; or random lengths,
from 0 to twice the mean. The peer is PyTorch's FlashAttention for packed sequences, which
``torch.nn.attention.varlen`` calls. CUDA events time each launch after 256 MB have been written to L2; every round runs
each once in random order, and the medians are compared. TFLOPS count two GEMMs over the visible pairs of query and key.
First all rows are compared with the peer's, and the first sequence with tokens is compared with float64.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from warpwright import cuda
from warpwright.arrays.device import DeviceArray, device_array
from warpwright.kernels.attention import Problem
from warpwright.ops.attention import varlen
from warpwright.ops.attention.plan import choose
from warpwright.ops.attention.trials import run_of
from warpwright.ops.binding import Plan, bind, layouts_of, start, values_of

TOKENS, COLUMNS = 16384, 2048
HEAD_DIMS, LENGTHS = (64, 128, 256), (512, 1024, 2048, 4096, 8192)
TOLERANCE = 0.02  # of a result near 1, in bfloat16
Run = Callable[[], Any]
Tensors = list[torch.Tensor]


def cases(head_dims: list[int], lengths: list[int]) -> Iterator[tuple[Problem, list[int], bool]]:
    """Yields a problem with the mean length, the lengths, and whether they are equal."""
    for head_dim in head_dims:
        for length in lengths:
            batch, heads = TOKENS // length, COLUMNS // head_dim
            for causal in (False, True):
                problem = Problem(batch, heads, heads, length, length, head_dim, causal=causal)
                yield problem, [length] * batch, True
                yield problem, mixed_lengths(length, batch), False


def mixed_lengths(mean: int, count: int) -> list[int]:
    """Returns random lengths from 0 to twice the mean, with this mean."""
    ends = np.random.default_rng(mean).uniform(0, 2 * mean, count)
    cuts = np.round(np.cumsum(ends) * (mean * count / ends.sum())).astype(int).tolist()
    return [b - a for a, b in pairwise([0, *cuts])]


def views(tensors: Tensors, first: int, second: int) -> list[DeviceArray]:
    """Returns the arrays with two axes exchanged, as the kernels take them."""
    return [view.swapaxes(first, second) for view in map(device_array, tensors) if view is not None]


def plan_for(problem: Problem) -> Plan:
    """Returns our plan for packed sequences."""
    return varlen.choose(problem, TOKENS, TOKENS, "sm_90a", torch.cuda.get_device_properties(0).multi_processor_count)


def bind_packed(plan: Plan, tensors: Tensors, starts: torch.Tensor, counter: torch.Tensor) -> Run:
    """Returns a call that starts our kernel for packed sequences."""
    values: dict[str, Any] = dict(zip("qkvo", map(device_array, tensors), strict=True))
    values |= {"lse": 0, "workspace": counter.data_ptr(), "cu_seqlens_q": device_array(starts)}
    values["cu_seqlens_k"] = values["cu_seqlens_q"]
    bound, stream = bind(plan, layouts_of(values), cuda.device("cuda:0")), torch.cuda.current_stream().cuda_stream
    return partial(start, bound(values_of(values), stream))


def bind_dense(problem: Problem, tensors: Tensors, counter: torch.Tensor) -> Run:
    """Returns a call that starts our dense kernel, for sequences of equal lengths."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    plan = choose(problem, "sm_90a", sms, True)
    apart = [tensor.view(problem.batch, problem.q_len, problem.heads, problem.head_dim) for tensor in tensors]
    stream = torch.cuda.current_stream().cuda_stream
    return run_of(plan, views(apart, 1, 2), cuda.device("cuda:0"), workspace=counter.data_ptr(), stream=stream)


def peer(problem: Problem, tensors: Tensors, starts: torch.Tensor, longest: int) -> torch.Tensor:
    return torch.ops.aten._flash_attention_forward(
        *tensors[:3], starts, starts, longest, longest, 0.0, problem.causal, False
    )[0]


def exact(problem: Problem, tensors: Tensors, rows: slice) -> torch.Tensor:
    """Returns attention of one sequence in float64."""
    q, k, v = (tensor[rows, :2].double().transpose(0, 1) for tensor in tensors[:3])
    scores = q @ k.mT * problem.factor
    if problem.causal:
        scores.masked_fill_(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -math.inf)
    return (torch.softmax(scores, -1) @ v).transpose(0, 1)


def measure(problem: Problem, lengths: list[int], equal: bool, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    given = [torch.randn(TOKENS, problem.heads, problem.head_dim, device="cuda").bfloat16() for _ in range(3)]
    out, beside = (torch.full_like(given[0], math.nan) for _ in range(2))
    ends, plan = [0, *accumulate(lengths)], plan_for(problem)
    starts, counter = (torch.tensor(each, dtype=torch.int32, device="cuda") for each in (ends, [0]))
    runs: dict[str, Run] = {
        "packed": bind_packed(plan, [*given, out], starts, counter),
        "flash": partial(peer, problem, given, starts, max(lengths)),
    }
    if equal:
        runs["dense"] = bind_dense(problem, [*given, beside], counter)
    runs["packed"]()
    rows = next(slice(a, b) for a, b in pairwise(ends) if b > a)
    off = float((out[rows, :2].double() - exact(problem, given, rows)).abs().max())
    apart = float((out - runs["flash"]()).abs().max())
    times = cuda.medians(runs, rounds=rounds)
    tera = sum(replace(problem, batch=1, q_len=n, kv_len=n).flops for n in lengths if n) * 1e-12
    row: dict[str, Any] = {"d": problem.head_dim, "mean": problem.q_len, "lengths": "equal" if equal else "mixed"}
    row |= {"causal": problem.causal, "kernel": f"{plan.kernel} {'x'.join(map(str, plan.config.tile))}"}
    row |= {name: round(tera / time, 1) for name, time in times.items()}
    row.setdefault("dense", "")
    row |= {"/ dense": round(times["dense"] / times["packed"], 3) if equal else ""}
    row |= {"/ flash": round(times["flash"] / times["packed"], 3), "us": round(times["packed"] * 1e6, 1)}
    return row | {"off": float(f"{off:.1e}"), "verified": bool(max(off, apart) < TOLERANCE)}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as aligned columns with a header."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def mean(ratios: list[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", default=",".join(map(str, HEAD_DIMS)))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="mean lengths of the sequences")
    parser.add_argument("--rounds", type=int, default=30, help="launches of each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    head_dims, lengths = ([int(word) for word in text.split(",")] for text in (options.head_dims, options.lengths))
    rows = [measure(*case, options.rounds) for case in cases(head_dims, lengths)]
    ratios = {name: [row[name] for row in rows if row[name] != ""] for name in ("/ dense", "/ flash")}
    if options.json:
        print(json.dumps({"rows": rows, "means": {name: mean(each) for name, each in ratios.items()}}, indent=1))
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOPS, medians of {options.rounds}\n")
        words = (f"{name}: geometric mean {mean(each):.3f}, least {min(each):.3f}" for name, each in ratios.items())
        print(f"{table(rows)}\n\npacked {'; '.join(words)}")
    unverified = [row for row in rows if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {unverified}")


if __name__ == "__main__":
    main()
