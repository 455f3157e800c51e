"""Attention of few queries and many keys on a real Hopper GPU against torch: ``python bench/attention_decode.py``.

One query of each head, bfloat16, random normal: batches of 1 to 64, 8 heads of K and V, groups of 4 and 8 heads of Q,
4k to 64k keys, head dimensions 64, 128 and 256; and a few queries under a causal mask (bottom right). The peers are
torch's ``scaled_dot_product_attention`` under `sdpa_kernel`, which fails instead of falling back to another backend,
with ``enable_gqa``; "-" means that a backend refuses. "copy" is ``torch``'s copy of as many bytes, half read and half
written. CUDA events time each launch after 256 MB have been written to L2; every round runs each once in random order,
and the medians are compared. TB/s count K, V, Q and O once.

A row has the kernel, the number of CTAs over which its keys are split, and whether a second launch combines the parts
("+ 1"). Some heads are compared with float64: a row has the mean error of ours and of the fastest peer.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from warpwright import cuda
from warpwright.arrays.device import device_array
from warpwright.kernels.attention import Problem
from warpwright.ops.attention.plan import choose
from warpwright.ops.attention.trials import run_of
from warpwright.ops.binding import Plan

PEERS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
SIZES = [
    *((batch, 8, group, 1, keys, 128) for batch in (1, 8, 64) for group in (4, 8) for keys in (4096, 16384, 65536)),
    *((8, 8, 8, 1, 16384, head_dim) for head_dim in (64, 256)),
    *((batch, 1, 8, 1, 65536, 128) for batch in (1, 8)),
    *((8, 8, 4, q_len, 16384, 128) for q_len in (4, 16)),
    (1, 8, 4, 128, 65536, 128),
]
MOST_BYTES = 40 << 30  # bytes of K and V
COMPARED = 32  # heads
TOLERANCE = 1.05  # of the best peer's mean error; all round P and O to bfloat16
Run = Callable[[], Any]
Tensors = list[torch.Tensor]


def problems() -> Iterator[Problem]:
    for batch, kv_heads, group, q_len, keys, head_dim in SIZES:
        if 4 * batch * kv_heads * keys * head_dim <= MOST_BYTES:
            yield Problem(batch, kv_heads * group, kv_heads, q_len, keys, head_dim, causal=q_len > 1)


def traffic(problem: Problem) -> int:
    """Returns the bytes of K, V, Q and O."""
    of_q, of_k = problem.heads * problem.q_len, problem.kv_heads * problem.kv_len
    return 4 * problem.batch * problem.head_dim * (of_q + of_k)


def bind_plan(plan: Plan, tensors: Tensors) -> Run:
    """Returns a call that starts our kernel."""
    views = [view for view in map(device_array, tensors) if view is not None]
    stream = torch.cuda.current_stream().cuda_stream
    memory = torch.zeros(max(1, plan.words or 0), dtype=torch.int32, device="cuda")
    launch = run_of(plan, views, cuda.device("cuda:0"), workspace=memory.data_ptr(), stream=stream)

    def run() -> torch.Tensor:
        launch()
        return memory  # which lives as long as this function

    return run


def peer(backend: SDPBackend, causal: bool, tensors: Tensors) -> torch.Tensor:
    q, k, v = tensors
    mask = causal_lower_right(q.shape[2], k.shape[2]) if causal else None
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def peers(problem: Problem, tensors: Tensors) -> dict[str, Run]:
    """Returns the peers that support the problem."""
    found: dict[str, Run] = {}
    for name, backend in PEERS.items():
        run = partial(peer, backend, problem.causal, tensors)
        try:
            run()
        except (RuntimeError, ValueError):
            continue
        found[name] = run
    return found


def exact(problem: Problem, tensors: Tensors, batch: int, head: int) -> torch.Tensor:
    """Returns attention of one head in float64."""
    q, (k, v) = tensors[0][batch, head].double(), (x[batch, head // problem.group].double() for x in tensors[1:])
    scores = q @ k.T * problem.factor
    if problem.causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1 + problem.offset), -math.inf)
    return torch.softmax(scores, -1) @ v


def errors(problem: Problem, tensors: Tensors, results: dict[str, torch.Tensor]) -> dict[str, float]:
    """Returns the mean error of each result, in some heads of all batches. NaN propagates."""
    count = problem.batch * problem.heads
    heads = [divmod(count * i // COMPARED, problem.heads) for i in range(COMPARED)]
    wanted = torch.stack([exact(problem, tensors, *head) for head in heads])
    return {
        name: float((torch.stack([result[head] for head in heads]).double() - wanted).abs().mean())
        for name, result in results.items()
    }


def operands(problem: Problem) -> Tensors:
    torch.manual_seed(0)
    of_k = problem.batch, problem.kv_heads, problem.kv_len, problem.head_dim
    q = torch.randn(problem.batch, problem.heads, problem.q_len, problem.head_dim, device="cuda").bfloat16()
    return [q, *(torch.randn(of_k, device="cuda", dtype=torch.bfloat16) for _ in range(2))]


def measure(problem: Problem, plans: dict[str, Plan], rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each of our plans ``jobs``."""
    given = operands(problem)
    outs = {name: torch.full_like(given[0], math.nan) for name in plans}
    runs = {name: bind_plan(plan, [*given, outs[name]]) for name, plan in plans.items()}
    theirs = peers(problem, given)
    halves = torch.empty(2, traffic(problem) // 2, dtype=torch.uint8, device="cuda")
    for run in runs.values():
        run()
    off = errors(problem, given, outs | {name: run() for name, run in theirs.items()})
    copy = {"copy": lambda: halves[0].copy_(halves[1])}
    times = cuda.medians(runs | theirs | copy, rounds=rounds)
    best = min((name for name in theirs), key=times.__getitem__)
    tera, rows = traffic(problem) * 1e-12, []
    for name, plan in plans.items():
        row: dict[str, Any] = {"q": f"{problem.batch}x{problem.heads}x{problem.q_len}x{problem.head_dim}"}
        row |= {
            "k": f"{problem.kv_heads}x{problem.kv_len}",
            "kernel": plan.kernel,
            "ctas": f"{plan.launches[0].grid[0]}{' + 1' if len(plan.launches) > 1 else ''}",
        }
        row |= {"us": round(times[name] * 1e6, 1)}
        row |= {who: round(times[who] * 1e6, 1) if who in times else "-" for who in PEERS}
        row |= {"ratio": round(times[best] / times[name], 2), "TB/s": round(tera / times[name], 2)}
        row |= {"of copy": round(times["copy"] / times[name], 2)}
        row |= {"err": float(f"{off[name]:.3e}"), "its err": float(f"{off[best]:.3e}")}
        row["verified"] = bool(torch.isfinite(outs[name]).all()) and off[name] <= TOLERANCE * off[best]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as aligned columns with a header."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="launches of each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    rows = [
        row
        for problem in problems()
        for row in measure(problem, {"ours": choose(problem, "sm_90a", sms, None)}, options.rounds)
    ]
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        print(
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}; medians of {options.rounds}\n\n{table(rows)}"
        )
    unverified = [f"{row['q']} by {row['k']}" for row in rows if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {', '.join(unverified)}")


if __name__ == "__main__":
    main()
