"""Context-parallel attention on several GPUs: ``torchrun --nproc-per-node 2 bench/context_parallel.py --json OUT``.

Causal attention of 64k and 128k tokens, d 128, 32 heads of queries and 8 of keys, bf16, forward and backward. On every
rank the contenders run in turn, in one random order:

- ``one GPU``: `warpwright.attention` of the whole sequence, on every GPU at once
- ``ours``: `warpwright.distributed.context_parallel_attention`, each rank with its chunks in zigzag
- ``torch``: ``torch.distributed.tensor.experimental.context_parallel`` with torch's flash attention, in zigzag too

The L2 is filled with other data before each call, and a collective lets all ranks begin together. A time is the longest
of all ranks by CUDA events, the median of the rounds. Results and gradients of every contender are compared with those
of one GPU before the rounds and after; shared memory was NaN before. A contender that fails is named and left out, and
the exit status is 1. ``--groups`` is the largest number of groups of heads; ``--trace`` writes a trace of torch's
profiler of a step of ``ours`` on each rank.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("WARPWRIGHT_TIME_LIMIT", "20")

import torch
import torch.distributed as dist
from distributed import AHEAD_CYCLES, FLUSH_BYTES, WATCHDOG, longest, poison, say
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

from warpwright.distributed import context_parallel_attention, context_problem, shard_sequence
from warpwright.interop.torch import attention

TOKENS = (65536, 131072)
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
BOUND = 3 * 2.0**-8  # of the largest value: roundings of one GPU, of results, of the parts of gradients of keys
RESULTS = ("o", "dq", "dk", "dv")
REFERENCE, OURS = "one GPU", "ours"
PASSES = ("forward", "backward")
Results = tuple[Tensor, ...]
Events = tuple[Any, Any]


class Contender(NamedTuple):
    """``inputs``: q, k, v and the gradient of o, of the whole sequence or of this rank; ``around`` a step."""

    forward: Callable[[Tensor, Tensor, Tensor], Tensor]
    inputs: list[Tensor]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


def one_gpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = attention(q, k, v, causal=True)[0]
    return out


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out


def contenders(tokens: int) -> dict[str, Contender]:
    """Returns the contenders, all with the same sequence."""
    from torch.distributed.tensor.experimental import context_parallel

    torch.manual_seed(tokens)
    shapes = [(1, heads, tokens, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    whole = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    own, torchs = ([shard_sequence(each) for each in whole] for _ in range(2))
    for each in (whole, own, torchs):
        for tensor in each[:3]:
            tensor.requires_grad_()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))

    def around() -> ExitStack:
        stack, positions = ExitStack(), torch.arange(tokens, device="cuda")
        stack.enter_context(sdpa_kernel(SDPBackend.FLASH_ATTENTION))
        options = {"buffers": [positions], "buffer_seq_dims": [0], "no_restore_buffers": {positions}}
        stack.enter_context(context_parallel(mesh, **options))
        return stack

    return {
        REFERENCE: Contender(one_gpu, whole),
        OURS: Contender(lambda q, k, v: context_parallel_attention(q, k, v), own),
        "torch": Contender(by_torch, torchs, around),
    }


def step(contender: Contender, flush: Tensor | None = None) -> tuple[Results, list[Events]]:
    """Returns o and the gradients by q, k and v, and the events around each pass, before which ``flush`` is filled."""
    *given, do = contender.inputs
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in PASSES]
    with contender.around():
        begin(events[0][0], flush)
        out = contender.forward(*given)
        events[0][1].record()
        begin(events[1][0], flush)
        gradients = torch.autograd.grad(out, given, do)
        events[1][1].record()
    return (out.detach(), *gradients), [(start, end) for start, end in events]


def begin(event: Any, flush: Tensor | None) -> None:
    """Record an event once all ranks are here, with the host ahead of the GPU."""
    if flush is not None:
        flush.zero_()
        torch.cuda._sleep(AHEAD_CYCLES)
        dist.all_reduce(torch.ones(1, device="cuda"))
    event.record()


def wrong(name: str, found: Results, expected: Results) -> str:
    """Returns what differs from one GPU's results on any rank, or ""."""
    for each, result, other in zip(RESULTS, found, expected, strict=True):
        right = other if result.shape == other.shape else shard_sequence(other)
        error = (result.float() - right.float()).abs().max() / right.float().abs().max()
        largest = torch.nan_to_num(error, nan=math.inf)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        if float(largest) > BOUND:
            return f"{name}: {each} has an error of {float(largest):.2e} of the largest value; the bound is {BOUND:.2e}"
    return ""


def verified(runs: dict[str, Contender], expected: Results, failures: list[str], what: str) -> dict[str, Contender]:
    """Returns the contenders that are right, and appends the others to ``failures``."""
    right = {}
    for name, contender in runs.items():
        WATCHDOG.expect(f"{what}, {name}, verification")
        poison(expected[0])
        try:
            text = wrong(name, step(contender)[0], expected)
        except Exception as error:
            text = f"{name}: {type(error).__name__}: {str(error)[:500]}"
        if text:
            failures.append(f"{what}, {text}")
            say(f"FAILED {failures[-1]}")
        else:
            right[name] = contender
    return right


def measure(runs: dict[str, Contender], rounds: int, what: str) -> dict[str, dict[str, float]]:
    """Returns the median milliseconds of each pass of each contender."""
    flush, order = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"), random.Random(0)
    events: dict[str, list[list[Events]]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name in order.sample(list(runs), len(runs)):
            WATCHDOG.expect(f"{what}, {name}, times")
            events[name].append(step(runs[name], flush)[1])
        torch.cuda.synchronize()
    return {
        name: {each: 1e3 * longest([pair[i] for pair in found[1:]]) for i, each in enumerate(PASSES)}
        for name, found in events.items()
    }


def report(tokens: int, times: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Prints a line for each pass; returns the times."""
    for each in PASSES:
        parts = []
        for name, of_passes in times.items():
            over = "" if name == REFERENCE else f" ({times[REFERENCE][each] / of_passes[each]:.3f})"
            parts.append(f"{name} {of_passes[each]:.2f}{over}")
        say(f"{tokens:>7} {each:<9} {'  '.join(parts)}")
    return {"tokens": tokens, "milliseconds": times}


def trace(contender: Contender, path: Path) -> None:
    """Write a trace of a step."""
    with torch.profiler.profile() as profile:
        step(contender, torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(path / f"context_parallel_{dist.get_rank()}.json"))


def run_case(tokens: int, options: argparse.Namespace, failures: list[str]) -> dict[str, Any]:
    what = f"{tokens} tokens"
    WATCHDOG.expect(f"{what}, data")
    runs = contenders(tokens)
    expected = step(runs[REFERENCE])[0]
    runs = verified(runs, expected, failures, what)
    found = report(tokens, measure(runs, options.rounds, what))
    verified(runs, expected, failures, f"{what}, after the rounds")
    if options.trace and OURS in runs:
        trace(runs[OURS], options.trace)
    return found


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--trace", type=Path, help="write a trace of each rank to this folder")
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS)
    parser.add_argument("--groups", type=int, default=context_problem.GROUPS)
    parser.add_argument("--rounds", type=int, default=11)
    return parser.parse_args(given)


def main() -> int:
    options = arguments()
    context_problem.GROUPS = options.groups
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    WATCHDOG.start()
    failures = list[str]()
    ranks = dist.get_world_size()
    say(f"{ranks} × {torch.cuda.get_device_name()}, torch {torch.__version__}; ms, and times one GPU")
    rows = [run_case(tokens, options, failures) for tokens in options.tokens]
    if options.json and dist.get_rank() == 0:
        content = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": rows}
        content |= {"command": " ".join(sys.argv), "ranks": ranks, "failures": failures}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    WATCHDOG.expect("the end")
    dist.destroy_process_group()
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
