"""Attention in windows on a real Hopper GPU: ``python bench/attention_windows.py [--windows 1024]``.

Causal attention of 2 × 16 heads of 8192 tokens in a window, head dimension 128: the kernel that `ww.attention` takes,
the one for any mask, with learnable sinks, and flash-attn-4 where it is installed; beside the causal mask alone. Random
normal bfloat16, CUDA events, cold L2, random order in one process (`warpwright.cuda.medians`), the causal mask among
the kernels of each window. TFLOPS count the visible pairs. Each result is compared with float64 in two heads. The exit
status is 1 if a result is not verified.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import peers
import torch

import warpwright as ww
from warpwright import cuda
from warpwright.arrays.device import device_array
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.direct import kernel_of
from warpwright.kernels.attention.sm90.plan import CONFIGS, plan
from warpwright.lang import bf16
from warpwright.ops.attention.plan import Choice, plan_of
from warpwright.ops.attention.trials import run_of

WINDOWS = (256, 512, 1024, 2048, 4096)
TOLERANCE = 0.0005  # mean error of a result whose numbers are about 0.03
GENERAL = "128: 128x128"
Run = Callable[[], Any]


def problem_of(window: int | None, tokens: int = 8192) -> Problem:
    return Problem(2, 16, 16, tokens, tokens, 128, causal=True, window=(window - 1, None) if window else None)


def general(problem: Problem, tensors: list[torch.Tensor], counter: torch.Tensor) -> Run:
    """Returns a call of the kernel for any mask."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    found = plan(problem, sms=sms, config=CONFIGS[GENERAL])
    traced = kernel_of(found.config).trace(dtype=bf16, bounds=found.bounds)
    launches = plan_of(
        problem, Choice("sm90.attention", True, GENERAL), traced, found.grid, found.config, found.scalars, 1
    )
    views = [view for view in map(device_array, tensors) if view is not None]
    stream = torch.cuda.current_stream().cuda_stream
    return run_of(launches, views, cuda.device("cuda:0"), workspace=counter.data_ptr(), stream=stream)


def error(problem: Problem, tensors: list[torch.Tensor], found: torch.Tensor, sinks: torch.Tensor | None) -> float:
    """Returns the mean error of the first and the last head against float64."""
    offs = []
    for batch, head in ((0, 0), (problem.batch - 1, problem.heads - 1)):
        q, k, v = (tensor[batch, head].double() for tensor in tensors)
        scores = q @ k.T * problem.factor
        hidden = torch.ones_like(scores, dtype=torch.bool)
        scores.masked_fill_(
            hidden.triu(1) | hidden.tril(-problem.kv_len if problem.left is None else -problem.left - 1), -math.inf
        )
        if sinks is not None:
            scores = torch.cat([scores, sinks[head].double().expand(len(scores), 1)], 1)
        exact = torch.softmax(scores, -1)[:, : problem.kv_len] @ v
        offs.append((found[batch, head].double() - exact).abs().mean())
    return float(torch.stack(offs).max())


def measure(window: int, rounds: int) -> tuple[dict[str, float], bool]:
    """Prints a line for each kernel; returns the TFLOPS by name, and whether all results are verified."""
    torch.manual_seed(0)
    problem = problem_of(window)
    shape = problem.batch, problem.heads, problem.q_len, problem.head_dim
    given = [torch.randn(shape, device="cuda").bfloat16() for _ in range(3)]
    sinks = torch.randn(problem.heads, device="cuda")
    outs = [torch.full_like(given[0], math.nan) for _ in range(4)]
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    ours = partial(ww.attention, *given, causal=True)
    runs: dict[str, Run] = {
        "ours": partial(ours, window=(window - 1, None), out=outs[0]),
        "any mask": general(problem, [*given, outs[1]], counter),
        "sinks": partial(ours, window=(window - 1, None), sinks=sinks, out=outs[2]),
        "causal": partial(ours, out=outs[3]),
    }
    if peers.NEWEST in peers.NAMES:
        runs[peers.NEWEST] = partial(peers.window_attention, given, problem)
    problems = {name: problem_of(None) if name == "causal" else problem for name in runs}
    results = {name: run() for name, run in runs.items()} | dict(zip(runs, outs, strict=False))
    off = {n: error(problems[n], given, out, sinks if n == "sinks" else None) for n, out in results.items()}
    medians = cuda.medians(runs, rounds=rounds)
    tera = {name: problems[name].flops / each * 1e-12 for name, each in medians.items()}
    for name, rate in tera.items():
        print(f"{window:>7} {name:9} {rate:6.1f} TFLOPS, mean error {off[name]:.3e}")
    return tera, all(each <= TOLERANCE for each in off.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", default=",".join(map(str, WINDOWS)))
    parser.add_argument("--rounds", type=int, default=30, help="launches of each kernel")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; medians of {options.rounds}\n")
    verified = True
    for window in map(int, options.windows.split(",")):
        tera, right = measure(window, options.rounds)
        verified &= right
        share, sunk, gain = (tera["ours"] / tera[other] for other in ("causal", "sinks", "any mask"))
        print(f"{window:>7} {share:.3f} of the causal mask's, sinks cost {sunk - 1:.1%}, {gain:.3f} of any mask's\n")
    if not verified:
        sys.exit("not verified")


if __name__ == "__main__":
    main()
