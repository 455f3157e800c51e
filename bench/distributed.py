"""Tensor-parallel layers on several GPUs: ``torchrun --nproc-per-node 2 bench/distributed.py --json OUT.json``.

The layers are those of Llama 8B, 70B and Qwen 32B, cut among all ranks, at 1k, 4k and 16k rows: all-gather + GEMM (qkv,
gate-up) and GEMM + reduce-scatter (o, down). On every rank the contenders run in turn, in one random order:

- ``NCCL``: all-gather or reduce-scatter of NCCL and ``torch.matmul``, one after the other
- ``torch``: ``torch.ops.symm_mem.fused_all_gather_matmul``, ``fused_matmul_reduce_scatter``
- ``ours``: `warpwright.distributed`, and with ``--engines`` each of its engines

Communication and GEMM alone tell how much of the communication is exposed in turn: in turn less the longer of both.

Before each call the L2 is filled with other data, and a collective lets all ranks begin together; the host is ahead of
the GPU. A time is the longest of all ranks by CUDA events, the median of the rounds. Every contender is verified
against float32 before and after: with results and shared memory that were NaN before. A contender that fails is named
and left out, and the exit status is 1; a case that takes longer than a minute ends the program.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("WARPWRIGHT_TIME_LIMIT", "20")

import torch
import torch.distributed as dist

from warpwright.distributed import gather, operators, scatter
from warpwright.distributed.choice import choose
from warpwright.distributed.problem import describe_gather, describe_scatter
from warpwright.distributed.workspace import workspace_of

ROWS = (1024, 4096, 16384)
MODELS = {  # hidden, columns of qkv, of gate and up, inputs of down
    "8B": (4096, 6144, 28672, 14336),
    "70B": (8192, 10240, 57344, 28672),
    "32B": (5120, 7168, 55296, 27648),
}
EXTRA = (("8192 × 8192 × 29568", 8192, 8192, 29568), ("4096 × 4096 × 8192", 4096, 4096, 8192))
FLUSH_BYTES = 256 << 20
AHEAD_CYCLES = 1_000_000  # of the GPU, in which the host starts a call
CASE_SECONDS = 60
ROUNDING = 2.0**-7
Run = Callable[[], torch.Tensor]


class Layer(NamedTuple):
    """One GEMM of a rank, and whether its rows are gathered before it or its sums scattered after it."""

    name: str
    gathers: bool
    m: int
    n: int
    k: int


def layers(ranks: int) -> Iterator[Layer]:
    for rows in ROWS:
        for model, (hidden, qkv, gate_up, down) in MODELS.items():
            yield Layer(f"{model} qkv {rows}", True, rows, qkv // ranks, hidden)
            yield Layer(f"{model} o {rows}", False, rows, hidden, hidden // ranks)
            yield Layer(f"{model} gate-up {rows}", True, rows, gate_up // ranks, hidden)
            yield Layer(f"{model} down {rows}", False, rows, hidden, down // ranks)
    for name, m, n, k in EXTRA:
        yield Layer(name, False, m, n, k // ranks)


class Case:
    """The tensors of a layer on this rank, its contenders, and its result in float32."""

    def __init__(self, layer: Layer, seed: int) -> None:
        self.layer, self.ranks, self.group = layer, dist.get_world_size(), dist.group.WORLD
        torch.manual_seed(seed * self.ranks + dist.get_rank())
        rows = layer.m // self.ranks if layer.gathers else layer.m
        self.x = torch.randn(rows, layer.k, device="cuda", dtype=torch.bfloat16)
        self.weight = torch.randn(layer.n, layer.k, device="cuda", dtype=torch.bfloat16).T
        self.expected = self._reference()

    def _reference(self) -> torch.Tensor:
        if self.layer.gathers:
            return self._gathered().float() @ self.weight.float()
        sums = self.x.float() @ self.weight.float()
        own = sums.new_empty(self.layer.m // self.ranks, self.layer.n)
        dist.reduce_scatter_tensor(own, sums)
        return own

    def _gathered(self) -> torch.Tensor:
        gathered = self.x.new_empty(self.layer.m, self.layer.k)
        dist.all_gather_into_tensor(gathered, self.x)
        return gathered

    def in_turn(self) -> torch.Tensor:
        if self.layer.gathers:
            return self._gathered() @ self.weight
        sums = self.x @ self.weight
        own = sums.new_empty(self.layer.m // self.ranks, self.layer.n)
        dist.reduce_scatter_tensor(own, sums)
        return own

    def fused_by_torch(self) -> torch.Tensor:
        name = self.group.group_name
        if self.layer.gathers:
            return torch.ops.symm_mem.fused_all_gather_matmul(self.x, [self.weight], 0, name)[1][0]
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(self.x, self.weight, "sum", 0, name)

    def ours(self, engine: str | None) -> Run:
        if self.layer.gathers:
            return lambda: operators.run_gather(self.x, [self.weight], self.group, engine)[0]
        return lambda: operators.run_scatter(self.x, self.weight, self.group, engine)

    def chosen(self) -> str:
        """Returns the name of the engine that the table chooses."""
        problem = (
            describe_gather(self.x, [self.weight], self.ranks)
            if self.layer.gathers
            else describe_scatter(self.x, self.weight, self.ranks)
        )
        return choose(problem, workspace_of(self.group).gpu.spec.arch)

    def contenders(self, engines: Sequence[str]) -> dict[str, Run]:
        known = gather.ENGINES if self.layer.gathers else scatter.ENGINES
        runs: dict[str, Run] = {"NCCL": self.in_turn, "torch": self.fused_by_torch, "ours": self.ours(None)}
        wanted = [name for name in known if any(name.startswith(each) for each in engines)]
        return runs | {name: self.ours(name) for name in wanted}

    def alone(self) -> dict[str, Run]:
        """Returns the communication of the layer and its GEMM, each alone."""
        if self.layer.gathers:
            gathered = self._gathered()
            return {"communication": self._gathered, "GEMM": lambda: gathered @ self.weight}
        sums = self.x @ self.weight
        own = sums.new_empty(self.layer.m // self.ranks, self.layer.n)

        def scatter_sums() -> torch.Tensor:
            dist.reduce_scatter_tensor(own, sums)
            return own

        return {"communication": scatter_sums, "GEMM": lambda: self.x @ self.weight}

    def error(self, found: torch.Tensor) -> float:
        """Returns the largest error of all ranks, as a multiple of the largest value; infinity for NaN."""
        found = (found.float() - self.expected).abs().max() / self.expected.abs().max()
        largest = torch.nan_to_num(found, nan=math.inf)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return float(largest)

    def verify(self, name: str, run: Run) -> str:
        """Returns what is wrong with a contender, or ""."""
        poison(self.expected)
        found = run()
        torch.cuda.synchronize()
        error = self.error(found)
        return "" if error <= ROUNDING else f"an error of {error:.2e} of the largest value; the bound is {ROUNDING:.2e}"


def poison(like: torch.Tensor) -> None:
    """Fill shared memory and the memory of the next result with NaN, on all ranks before any goes on."""
    torch.full_like(like, math.nan, dtype=torch.bfloat16)
    shared = workspace_of(dist.group.WORLD)
    shared.data.fill_(0xFF)
    torch.cuda.synchronize()
    dist.barrier()


def verified(case: Case, runs: dict[str, Run], failures: list[str]) -> dict[str, Run]:
    """Returns the contenders that are right, and appends the others to ``failures``."""
    right = {}
    for name, run in runs.items():
        WATCHDOG.expect(f"{case.layer.name}, {name}, verification")
        try:
            wrong = case.verify(name, run)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            failures.append(f"{case.layer.name}, {name}: {wrong}")
            say(f"FAILED {failures[-1]}")
        else:
            right[name] = run
    return right


def measure(case: Case, runs: dict[str, Run], rounds: int, flush: torch.Tensor) -> dict[str, tuple[float, float]]:
    """Returns for each contender the median of seconds on the GPUs, and of the host."""
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
    host: dict[str, list[float]] = {name: [] for name in runs}
    one, order, last = torch.ones(1, device="cuda"), random.Random(0), dict[str, torch.Tensor]()
    for _ in range(rounds + 1):
        for name in order.sample(list(runs), len(runs)):
            WATCHDOG.expect(f"{case.layer.name}, {name}, times")
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            flush.zero_()
            torch.cuda._sleep(AHEAD_CYCLES)
            dist.all_reduce(one)
            pair[0].record()
            began = time.perf_counter()
            last[name] = runs[name]()
            host[name].append(time.perf_counter() - began)
            pair[1].record()
            events[name].append((pair[0], pair[1]))
        torch.cuda.synchronize()
    for name, found in last.items():
        if name in ALONE:
            continue
        error = case.error(found)
        assert error <= ROUNDING, f"{case.layer.name}, {name}: an error of {error:.2e} after {rounds} rounds"
    return {name: (longest(events[name][1:]), statistics.median(host[name][1:])) for name in runs}


def longest(events: Sequence[tuple[Any, Any]]) -> float:
    """Returns the median seconds of the slowest rank of each round."""
    times = torch.tensor([start.elapsed_time(end) / 1e3 for start, end in events], device="cuda")
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return statistics.median(times.tolist())


class Watchdog(threading.Thread):
    """Ends the program if what it does takes longer than a minute, and says what that was."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.what, self.since = "start", time.monotonic()

    def run(self) -> None:
        while time.monotonic() - self.since < CASE_SECONDS:
            time.sleep(1)
        print(f"FAILED rank {dist.get_rank()}: {self.what}: no end after {CASE_SECONDS} s", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
        os._exit(3)

    def expect(self, what: str) -> None:
        self.what, self.since = what, time.monotonic()


WATCHDOG = Watchdog()


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def row(case: Case, times: dict[str, tuple[float, float]]) -> dict[str, Any]:
    layer = case.layer
    found: dict[str, Any] = layer._asdict() | {"engine": case.chosen()}
    found["microseconds"] = {name: round(seconds * 1e6, 1) for name, (seconds, _) in times.items()}
    found["host microseconds"] = {name: round(seconds * 1e6, 1) for name, (_, seconds) in times.items()}
    return found


def hidden(times: dict[str, float]) -> float:
    """Returns the share of the time that NCCL in turn takes beyond the longer of communication and GEMM, which ours
    saves."""
    exposed = times["NCCL"] - max(times[name] for name in ALONE)
    return (times["NCCL"] - times["ours"]) / exposed if exposed > 0 else 1.0


def line(found: dict[str, Any]) -> str:
    times = found["microseconds"]
    ratio = f"{times['NCCL'] / times['ours']:6.3f}" if "NCCL" in times and "ours" in times else "     –"
    each = "  ".join(f"{name} {time:.0f}" for name, time in times.items())
    return f"{found['name']:<22}{ratio}  {found['engine']:<16} {each}"


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the geometric means, the least ratios, and the share of the communication that is hidden."""
    for peer in ("NCCL", "torch"):
        ratios = {
            found["name"]: found["microseconds"][peer] / found["microseconds"]["ours"]
            for found in rows
            if {peer, "ours"} <= set(found["microseconds"])
        }
        if ratios:
            least = min(ratios, key=lambda name: ratios[name])
            mean, count = statistics.geometric_mean(ratios.values()), len(ratios)
            yield f"{peer} / ours: geometric mean {mean:.3f} of {count} layers, least {ratios[least]:.3f} ({least})"
    best = [
        found["microseconds"]["NCCL"]
        / min(time for name, time in found["microseconds"].items() if name not in PEERS + ALONE)
        for found in rows
        if "NCCL" in found["microseconds"] and set(found["microseconds"]) - set(PEERS + ALONE)
    ]
    shares = [hidden(found["microseconds"]) for found in rows if {"NCCL", "ours", *ALONE} <= set(found["microseconds"])]
    if shares:
        yield f"share of the exposed communication that ours hides: median {statistics.median(shares):.0%}"
    if best:
        yield f"NCCL / the fastest engine of each layer: geometric mean {statistics.geometric_mean(best):.3f}"


PEERS = ("NCCL", "torch")
ALONE = ("communication", "GEMM")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument(
        "--engines", nargs="*", default=[], help="time these engines too, by the beginning of their names"
    )
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--rounds", type=int, default=11)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    WATCHDOG.start()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    rows, failures = list[dict[str, Any]](), list[str]()
    say(f"{dist.get_world_size()} × {torch.cuda.get_device_name()}, torch {torch.__version__}; µs, and NCCL / ours")
    for number, layer in enumerate(each for each in layers(dist.get_world_size()) if options.only in each.name):
        WATCHDOG.expect(f"{layer.name}, its data")
        case = Case(layer, number)
        runs = verified(case, case.contenders(options.engines), failures)
        try:
            rows.append(row(case, measure(case, runs | case.alone(), options.rounds, flush)))
        except Exception as error:
            failures.append(f"{layer.name}: {type(error).__name__}: {error}")
            say(f"FAILED {failures[-1]}")
            continue
        say(line(rows[-1]))
        if options.json and dist.get_rank() == 0:
            content = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": rows}
            content |= {"command": " ".join(sys.argv), "ranks": dist.get_world_size(), "failures": failures}
            options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    WATCHDOG.expect("the end")
    for text in summary(rows):
        say(text)
    for text in failures:
        say(f"FAILED {text}")
    dist.destroy_process_group()
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
