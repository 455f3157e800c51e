"""Host time of one call on a GPU: ``python bench/host_time.py [--size 256] [--calls 1000] [--json]``.

The time until an asynchronous call returns, with all arguments on the GPU.

- `ww.matmul`: plain, with ``out``, with a bias and scales, with results kept alive (each has its own address), a batch
  of four, K split into slices (two launches), and ``torch.ops.warpwright.matmul`` for some of these
- `ww.attention` of eight heads: plain, with ``out``, with results kept alive, its operator, the replacement of torch's
  function, also with recorded gradients, and the gradients, alone and by autograd
- `ww.attention_varlen` of four packed sequences, and its operator
- peers: ``torch.matmul``, ``torch.addmm``, ``torch.mm`` with ``out``, torch's ``scaled_dot_product_attention`` and its
  gradients, and torch's function for packed sequences

Medians of ``--calls`` calls each, in groups of ten calls; the GPU is idle at the start of each group.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch

import warpwright as ww
from warpwright.interop.torch import scaled_dot_product_attention
from warpwright.ops.attention.backward import gradients

TURN = 10


def gemm_calls(size: int) -> dict[str, Callable[[], Any]]:
    """Returns GEMMs of the same matrices; first all results are compared, to 1 in 200."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    d, a4, b4 = torch.empty_like(a), torch.stack([a] * 4), torch.stack([b] * 4)
    long, wide = (torch.randn(512, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    tall = wide.T
    bias, one = torch.zeros(size, device="cuda", dtype=torch.bfloat16), torch.ones((), device="cuda")
    more = {"bias": bias, "scale_a": one, "scale_b": one}
    operator = torch.ops.warpwright.matmul
    runs: dict[str, Callable[[], Any]] = {
        "ww.matmul": lambda: ww.matmul(a, b),
        "ww.matmul, out": lambda: ww.matmul(a, b, out=d),
        "ww.matmul, bias and scales": lambda: ww.matmul(a, b, **more),
        "ww.matmul, all and out": lambda: ww.matmul(a, b, out=d, **more),
        "ww.matmul, results kept": keep_results(lambda: ww.matmul(a, b)),
        "torch.ops.warpwright.matmul": lambda: operator(a, b),
        "the same, bias and scales": lambda: operator(a, b, **more),
        "torch.addmm": lambda: torch.addmm(bias, a, b),
        "torch.matmul": lambda: torch.matmul(a, b),
        "torch.mm, out": lambda: torch.mm(a, b, out=d),
        "ww.matmul, batch of 4": lambda: ww.matmul(a4, b4),
        "torch.matmul, batch of 4": lambda: torch.matmul(a4, b4),
    }
    slices: dict[str, Callable[[], Any]] = {
        "ww.matmul, K in slices": lambda: ww.matmul(long, tall),
        "the operator, K in slices": lambda: operator(long, tall),
        "torch.matmul of the same": lambda: torch.matmul(long, tall),
    }
    expected = a.double() @ b.double()
    for name, run in runs.items():
        found = run().view(-1, size, size)[-1]
        error = (found.double() - expected).norm() / expected.norm()
        assert error < 5e-3, f"{name} is off by {error:.2e} of the norm"
    *ours, theirs = (run().double() for run in slices.values())
    assert all((each - theirs).norm() < 5e-3 * theirs.norm() for each in ours)
    return runs | slices


def keep_results(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Returns ``run`` with its results kept alive, so that each has its own address."""
    results = deque[torch.Tensor](maxlen=4096)

    def call_and_keep() -> torch.Tensor:
        results.append(run())
        return results[-1]

    return call_and_keep


def attention_calls(size: int) -> dict[str, Callable[[], Any]]:
    """Returns attention of eight heads of 64, ``size`` queries and keys."""
    q, k, v = (torch.randn(1, 8, size, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    operator, out = torch.ops.warpwright.attention, torch.empty_like(q)
    runs: dict[str, Callable[[], Any]] = {
        "ww.attention": lambda: ww.attention(q, k, v),
        "ww.attention, out": lambda: ww.attention(q, k, v, out=out),
        "ww.attention, results kept": keep_results(lambda: ww.attention(q, k, v)),
        "torch.ops.warpwright.attention": lambda: operator(q, k, v)[0],
        "the stand-in for torch's": lambda: scaled_dot_product_attention(q, k, v),
        "torch's attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    }
    *ours, theirs = (run().double() for run in runs.values())
    assert all((each - theirs).norm() < 1e-2 * theirs.norm() for each in ours)
    return runs


def varlen_calls(size: int) -> dict[str, Callable[[], Any]]:
    """Returns causal attention of four packed sequences, eight heads of 64, ``size`` queries and keys in all."""
    q, k, v = (torch.randn(size, 8, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    lengths = [size // 2, size // 4, size // 8, size - size // 2 - size // 4 - size // 8]
    starts = torch.tensor([0, *accumulate(lengths)], device="cuda", dtype=torch.int32)
    given, operator, out = (q, k, v, starts, starts), torch.ops.warpwright.attention_varlen, torch.empty_like(q)
    flash, most = torch.ops.aten._flash_attention_forward, lengths[0]
    runs: dict[str, Callable[[], Any]] = {
        "ww.attention_varlen": lambda: ww.attention_varlen(*given, causal=True),
        "ww.attention_varlen, out": lambda: ww.attention_varlen(*given, causal=True, out=out),
        "the same, results kept": keep_results(lambda: ww.attention_varlen(*given, causal=True)),
        "its operator": lambda: operator(*given, True)[0],
        "torch's of packed sequences": lambda: flash(q, k, v, starts, starts, most, most, 0.0, True, False)[0],
    }
    *ours, theirs = (run().double() for run in runs.values())
    assert all((each - theirs).norm() < 1e-2 * theirs.norm() for each in ours)
    return runs


def autograd_calls(size: int) -> dict[str, Callable[[], Any]]:
    """Returns the same attention, causal, of tensors that require gradients."""
    q, k, v = (torch.randn(1, 8, size, 64, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    operator, theirs = torch.ops.warpwright.attention, torch.nn.functional.scaled_dot_product_attention
    runs: dict[str, Callable[[], Any]] = {
        "the operator, recorded": lambda: operator(q, k, v, True)[0],
        "the stand-in, recorded": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        "torch's attention, recorded": lambda: theirs(q, k, v, is_causal=True),
    }
    *ours, expected = (run().double() for run in runs.values())
    assert all(each.requires_grad and (each - expected).norm() < 1e-2 * expected.norm() for each in ours)
    return runs


def gradient_calls(size: int) -> dict[str, Callable[[], Any]]:
    """Returns the gradients of the same attention, causal, after its forward pass."""
    q, k, v, do = (torch.randn(1, 8, size, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    o, lse = ww.attention(q, k, v, causal=True, return_lse=True)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    ours = torch.ops.warpwright.attention(*leaves, True)[0]
    theirs = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    runs: dict[str, Callable[[], Any]] = {
        "gradients of attention": lambda: gradients(q, k, v, o, lse, do, causal=True),
        "the same, by autograd": lambda: torch.autograd.grad(ours, leaves, do, retain_graph=True),
        "torch's gradients": lambda: torch.autograd.grad(theirs, leaves, do, retain_graph=True),
    }
    for *found, expected in zip(*(run() for run in runs.values()), strict=True):
        assert all((each.double() - expected.double()).norm() < 1e-2 * expected.double().norm() for each in found)
    return runs


def time_turn(run: Callable[[], Any]) -> list[int]:
    """Returns the nanoseconds of each of ten calls."""
    torch.cuda.synchronize()
    times = []
    for _ in range(TURN):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return times


def host_times(size: int, calls: int) -> dict[str, float]:
    """Returns the median microseconds of a call, by name."""
    parts = (gemm_calls, attention_calls, varlen_calls, autograd_calls, gradient_calls)
    runs = {name: run for part in parts for name, run in part(size).items()}
    times: dict[str, list[int]] = {name: [] for name in runs}
    for _ in range(-(-calls // TURN) + 1):
        for name, run in runs.items():
            times[name] += time_turn(run)
    return {name: statistics.median(found[TURN:]) / 1e3 for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = host_times(chosen.size, chosen.calls)
    if chosen.json:
        print(json.dumps({"size": chosen.size, "host_us": found}))
        return
    for name, microseconds in found.items():
        print(f"{name:32} {microseconds:6.2f} µs")


if __name__ == "__main__":
    main()
