"""Attention forward on a real Hopper GPU against its peers: ``python bench/attention.py``.

16384 tokens and 2048 columns of heads in all: head dimensions 64, 128 and 256, from 512 to 16384 tokens a sequence,
causal or not, random normal bfloat16. All read the same arrays (batch, heads, tokens, head_dim); the peers are torch's
``scaled_dot_product_attention`` by cuDNN and by FlashAttention under `sdpa_kernel`, which fails instead of taking
another backend, and flash-attn-4 if it is installed. CUDA events time each launch after 256 MB have been written to L2;
every round runs each kernel once in random order, and the medians are compared. TFLOPS count two GEMMs over the visible
pairs of query and key; the ratio is ours over the fastest peer.

First the first and the last head of each result are compared with float64: a row has the maximum and the mean error of
ours and of cuDNN, for one draw; ``bench/attention_errors.py`` compares the errors of many draws. ``--configs all`` runs
every configuration for the head dimension, not only the chosen one; a row names it. ``--sustained`` repeats each
kernel alone for half a second and more, so that the power limit acts.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import peers
import torch

from warpwright import cuda
from warpwright.arrays.device import device_array
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.direct import kernel_of
from warpwright.kernels.attention.sm90.plan import CONFIGS, choose, plan
from warpwright.lang import bf16
from warpwright.ops.attention.plan import Choice, plan_of
from warpwright.ops.attention.trials import run_of

TOKENS, COLUMNS = 16384, 2048
HEAD_DIMS, LENGTHS = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)
TOLERANCE = 1.01  # of cuDNN's mean error; both round P and O to bfloat16
Run = Callable[[], Any]
Tensors = list[torch.Tensor]


def problems(head_dims: list[int], lengths: list[int]) -> Iterator[Problem]:
    for head_dim in head_dims:
        for length in lengths:
            batch, heads = TOKENS // length, COLUMNS // head_dim
            for causal in (False, True):
                yield Problem(batch, heads, heads, length, length, head_dim, causal=causal)


def bind_kernel(problem: Problem, name: str, tensors: Tensors, counter: torch.Tensor) -> Run:
    """Returns a call that starts our kernel with a named configuration."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    found = plan(problem, sms=sms, config=CONFIGS[name])
    traced = kernel_of(found.config).trace(dtype=bf16, bounds=found.bounds)
    choice = Choice("sm90.attention", True, name)
    launches = plan_of(problem, choice, traced, found.grid, found.config, found.scalars, int(found.uneven))
    views = [view for view in map(device_array, tensors) if view is not None]
    stream = torch.cuda.current_stream().cuda_stream
    return run_of(launches, views, cuda.device("cuda:0"), workspace=counter.data_ptr(), stream=stream)


def exact(problem: Problem, tensors: Tensors, batch: int, head: int) -> torch.Tensor:
    """Returns attention of one head in float64."""
    q, k, v = (tensor[batch, head].double() for tensor in tensors)
    scores = q @ k.T * problem.factor
    if problem.causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(scores, -1) @ v


def errors(problem: Problem, tensors: Tensors, results: dict[str, torch.Tensor]) -> dict[str, tuple[float, float]]:
    """Returns the maximum and the mean error of each result in the first and the last head. NaN propagates."""
    corners = [(0, 0), (problem.batch - 1, problem.heads - 1)]
    wanted = torch.stack([exact(problem, tensors, *corner) for corner in corners])
    off = {
        name: (torch.stack([result[corner] for corner in corners]).double() - wanted).abs()
        for name, result in results.items()
    }
    return {name: (float(each.max()), float(each.mean())) for name, each in off.items()}


def measure(problem: Problem, names: list[str], rounds: int, seconds: float) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    shape = problem.batch, problem.heads, problem.q_len, problem.head_dim
    given = [torch.randn(shape, device="cuda").bfloat16() for _ in range(3)]
    outs = {name: torch.full_like(given[0], math.nan) for name in names}
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    runs: dict[str, Run] = {name: bind_kernel(problem, name, [*given, outs[name]], counter) for name in names}
    runs |= {name: partial(peers.attention, name, problem, given) for name in peers.NAMES}
    for name in names:
        runs[name]()
    off = errors(problem, given, outs | {name: runs[name]() for name in peers.NAMES})
    written = {name: bool(torch.isfinite(out).all()) for name, out in outs.items()}
    times = cuda.medians(runs, rounds=rounds)
    long = {
        name: cuda.sustained_seconds(run, seconds=seconds, estimate=times[name])
        for name, run in runs.items()
        if seconds
    }
    tera, rows = problem.flops * 1e-12, []
    for name in names:
        row = {"d": problem.head_dim, "tokens": problem.q_len, "causal": problem.causal, "kernel": f"sm90 {name}"}
        row |= {
            who: round(tera / times[key], 1) for who, key in [("ours", name), *((each, each) for each in peers.NAMES)]
        }
        row |= {"ratio": peers.over_the_fastest(times, name), "us": round(times[name] * 1e6, 1)}
        if long:
            row |= {"sustained": round(tera / long[name], 1), "its ratio": peers.over_the_fastest(long, name)}
        for who, key in (("ours", name), ("cudnn", "cudnn")):
            row |= {f"{who} max": float(f"{off[key][0]:.2e}"), f"{who} mean": float(f"{off[key][1]:.3e}")}
        row["chosen"] = name == choose(problem)
        row["verified"] = written[name] and off[name][1] <= TOLERANCE * off["cudnn"][1]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as aligned columns with a header."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def config_names(problem: Problem, which: str) -> list[str]:
    """Returns names of configurations: the chosen one, or every one for the head dimension."""
    best = choose(problem)
    return [best] if which == "chosen" else [name for name in CONFIGS if name.split(":")[0] == best.split(":")[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", default=",".join(map(str, HEAD_DIMS)))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--configs", choices=("chosen", "all"), default="chosen", help="the chosen one, or every one")
    parser.add_argument("--rounds", type=int, default=30, help="launches of each kernel")
    parser.add_argument(
        "--sustained", type=float, nargs="?", const=0.5, default=0.0, help="also back to back for this many seconds"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    head_dims, lengths = ([int(word) for word in text.split(",")] for text in (options.head_dims, options.lengths))
    rows = [
        row
        for problem in problems(head_dims, lengths)
        for row in measure(problem, config_names(problem, options.configs), options.rounds, options.sustained)
    ]
    ratios = [row["ratio"] for row in rows if row["chosen"]]
    mean, least = math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios)
    if options.json:
        print(json.dumps({"rows": rows, "geometric mean": mean, "least": least}, indent=1))
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOPS, medians of {options.rounds}\n")
        print(f"{table(rows)}\n\nours / the fastest peer: geometric mean {mean:.3f}, least {least:.3f}")
    unverified = [f"{row['kernel']} at {row['tokens']} tokens" for row in rows if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {', '.join(unverified)}")


if __name__ == "__main__":
    main()
