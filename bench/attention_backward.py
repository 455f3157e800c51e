"""Attention backward on a real Hopper GPU against cuDNN, PyTorch's FlashAttention, and flash-attn-4 if installed.

``python bench/attention_backward.py``: 16384 tokens and 2048 columns of heads in all (2016 at 96, 1920 at 192), head
dimensions 64 and 128, or ``--head-dims 96,192,256``, from 512 to 16384 tokens a sequence, causal or not, random normal
bfloat16. All read the same arrays (batch, heads, tokens, head_dim); the peers are the gradients of torch's
``scaled_dot_product_attention`` under `sdpa_kernel`, without their forward pass. Ours are three launches, all of them
timed. CUDA events time each run after 256 MB have been written to L2; every round runs each once in random order, and
the medians are compared. TFLOPS count five GEMMs over the visible pairs of query and key; the ratio is ours over the
fastest peer.

With ``--deterministic`` there is a second row for sums in a fixed order, with its speed over that in any order, and
whether ten more runs had the same bits.

First the gradients of the first and the last head are compared with float64: a row has the mean error of ours and of
the peers but PyTorch's FlashAttention, and is verified if ours is not larger than cuDNN's.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import peers
import torch

import warpwright as ww
from warpwright import cuda
from warpwright.arrays.device import device_array
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.backward_plan import BackwardConfig, in_order
from warpwright.ops.attention.backward import choose
from warpwright.ops.binding import bind, layouts_of, start, values_of
from warpwright.run.devices import resolve

TOKENS, COLUMNS = 16384, 2048
AGAIN = 10  # runs whose bits are compared
HEAD_DIMS, LENGTHS = (64, 128), (512, 1024, 2048, 4096, 8192, 16384)
TOLERANCE = 1.05  # of cuDNN's mean error; both round P, dS and the result to bfloat16
PRODUCTS = 5 / 2  # GEMMs, over those of the forward pass
Run = Callable[[], Any]
Tensors = list[torch.Tensor]


def problems(head_dims: list[int], lengths: list[int]) -> Iterator[Problem]:
    for head_dim in head_dims:
        for length in lengths:
            batch, heads = TOKENS // length, COLUMNS // head_dim
            for causal in (False, True):
                yield Problem(batch, heads, heads, length, length, head_dim, causal=causal)


def bind_gradients(problem: Problem, given: Mapping[str, torch.Tensor], config: BackwardConfig | None = None) -> Run:
    """Returns a call that starts our kernels; ``given`` are all arrays but those between the launches."""
    plan = choose(problem, "sm_90a", config)
    memory = {name: torch.full(shape, math.nan, device="cuda") for name, shape in plan.scratch.items()}
    values = {name: device_array(tensor) for name, tensor in {**given, **memory}.items()} | {"dlse": None}
    bound = bind(plan, layouts_of(values), resolve("cuda:0"))
    launches = bound(values_of(values), torch.cuda.current_stream().cuda_stream)
    return lambda _kept=memory: start(launches)


def peer(name: str, problem: Problem, given: Mapping[str, torch.Tensor]) -> Run:
    """Returns a call that computes the three gradients."""
    leaves = [given[each].detach().requires_grad_() for each in "qkv"]
    o = peers.attention(name, problem, leaves)
    return partial(torch.autograd.grad, o, leaves, given["do"], retain_graph=True)


def forward(problem: Problem, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Returns the output and its log-sum-exp, inputs of the backward pass."""
    o, lse = ww.attention(*tensors, causal=problem.causal, return_lse=True)
    return {"o": o, "lse": lse}


def exact(problem: Problem, given: Mapping[str, torch.Tensor], batch: int, head: int) -> Tensors:
    """Returns the gradients of one head in float64."""
    leaves = [given[name][batch, head].double().requires_grad_() for name in "qkv"]
    scores = leaves[0] @ leaves[1].T * problem.factor
    if problem.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    o = torch.softmax(scores, -1) @ leaves[2]
    return list(torch.autograd.grad(o, leaves, given["do"][batch, head].double()))


def errors(problem: Problem, given: Mapping[str, torch.Tensor], results: dict[str, Tensors]) -> dict[str, list[float]]:
    """Returns the mean error of each result's gradients in the first and the last head. NaN propagates."""
    off: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in results}
    for corner in ((0, 0), (problem.batch - 1, problem.heads - 1)):
        wanted = exact(problem, given, *corner)
        for name, gradients in results.items():
            for i, (gradient, each) in enumerate(zip(gradients, wanted, strict=True)):
                off[name][i] += float((gradient[corner].double() - each).abs().mean()) / 2
    return off


def same_bits(run: Run, results: Tensors) -> bool:
    """Returns whether more runs write the same bits."""
    first = [each.clone() for each in results]
    for _ in range(AGAIN):
        run()
        if not all(map(torch.equal, results, first)):
            return False
    return True


def measure(problem: Problem, configs: Mapping[str, BackwardConfig | None], rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each configuration, of which the first one is "ours"."""
    torch.manual_seed(0)
    shape = problem.batch, problem.heads, problem.q_len, problem.head_dim
    given = {name: torch.randn(shape, device="cuda").bfloat16() for name in ("q", "k", "v", "do")}
    given |= forward(problem, [given[name] for name in "qkv"])
    outs = {name: [torch.full_like(given["q"], math.nan) for _ in range(3)] for name in configs}
    runs: dict[str, Run] = {
        name: bind_gradients(problem, {**given, **dict(zip(("dq", "dk", "dv"), outs[name], strict=True))}, config)
        for name, config in configs.items()
    }
    runs |= {name: peer(name, problem, given) for name in peers.NAMES}
    for name in configs:
        runs[name]()
    compared = [name for name in peers.NAMES if name != "flash"]
    off = errors(problem, given, outs | {name: list(runs[name]()) for name in compared})
    times = cuda.medians(runs, rounds=rounds)
    tera, rows = PRODUCTS * problem.flops * 1e-12, []
    for name, config in configs.items():
        used = config or choose(problem, "sm_90a").config
        row: dict[str, Any] = {"d": problem.head_dim, "tokens": problem.q_len, "causal": problem.causal}
        row["kernel"] = f"sm90_backward {used.tile[0]}x{used.tile[1]}{' ordered' * used.ordered}"
        row |= {
            who: round(tera / times[key], 1) for who, key in [("ours", name), *((each, each) for each in peers.NAMES)]
        }
        row |= {"ratio": peers.over_the_fastest(times, name), "us": round(times[name] * 1e6, 1)}
        row |= {f"{who} off": max(off[key]) for who, key in [("ours", name), *((each, each) for each in compared)]}
        row["verified"] = all(a <= TOLERANCE * b for a, b in zip(off[name], off["cudnn"], strict=True))
        if len(configs) > 1:
            row |= {"of ours": round(times["ours"] / times[name], 3), "same bits": same_bits(runs[name], outs[name])}
            row["verified"] &= row["same bits"] or not used.ordered
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as aligned columns with a header."""
    texts = [[f"{value:.2e}" if key.endswith("off") else str(value) for key, value in row.items()] for row in rows]
    lines = [list(rows[0]), *texts]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", default=",".join(map(str, HEAD_DIMS)))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--rounds", type=int, default=20, help="runs of each")
    parser.add_argument("--deterministic", action="store_true", help="measure sums in a fixed order too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    head_dims, lengths = ([int(word) for word in text.split(",")] for text in (options.head_dims, options.lengths))
    rows = []
    for problem in problems(head_dims, lengths):
        ordered = {"ordered": in_order(problem)} if options.deterministic else {}
        rows += measure(problem, {"ours": None, **ordered}, options.rounds)
    ratios = [row["ratio"] for row in rows if not row["kernel"].endswith("ordered")]
    mean, least = math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios)
    if options.json:
        print(json.dumps({"rows": rows, "geometric mean over the fastest peer": mean, "least": least}, indent=1))
    else:
        print(table(rows), f"Geometric mean over the fastest peer {mean:.3f}, least {least:.3f}.", sep="\n\n")
    sys.exit(0 if all(row["verified"] for row in rows) else 1)


if __name__ == "__main__":
    main()
