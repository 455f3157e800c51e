"""Predicted against measured time of attention: ``python bench/predict_attention.py [--measure] [--only gradients]``.

Predictions of ``ww.profile`` in fast mode for an H200, of every attention kernel that runs on Hopper, beside
measurements: the wgmma forward in every configuration, the three launches of the backward pass one by one, the steps of
the mma.sync kernel, and the kernel without TMA. CUDA events around isolated launches, 256 MB written to L2 before each,
random normal bfloat16; kernels of one problem alternate in random order, in sets as in `bench/predict.py`.
``--measure`` measures now, on the GPU of this machine; otherwise the measurements are read from
``bench/measured/h200_attention.json``, and no GPU is needed.

The constants of the timing model come from micro-benchmarks (bench/micro.py), none from the kernels evaluated here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from predict import driver, time_in_turns
from probes.harness import Bench

import warpwright as ww
from warpwright import cuda
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90 import direct
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.kernels.attention.sm90.backward_plan import CONFIGS
from warpwright.kernels.attention.sm120 import kernel
from warpwright.kernels.attention.sm120.plan import STEPS, plan
from warpwright.lang import Traced, bf16
from warpwright.ops.attention.backward import choose

ROOT = Path(__file__).parents[1]
STORED = ROOT / "bench" / "measured" / "h200_attention.json"
SMS = 132
EXTENTS = {512: (16, 2048), 1024: (8, 2048), 2048: (4, 2048), 4096: (1, 2048), 8192: (1, 1024)}  # batch, columns
SETS = 4
SHARED = {"sums_at": "sums"}  # parameters with the memory of another one
GOAL = 0.20


@dataclass(frozen=True)
class Case:
    """One launch. ``numbers`` has the scalar arguments and ``shapes`` the shapes of float32 arrays that one launch
    writes for another, both by parameter name; ``counts``: CTAs take tiles from a counter in global memory."""

    kernel: str
    problem: Problem
    traced: Traced
    grid: tuple[int, int, int]
    numbers: Mapping[str, int | float]
    shapes: Mapping[str, tuple[int, ...]]
    counts: bool = False

    @property
    def key(self) -> str:
        """The name of the case: kernel and problem."""
        problem = self.problem
        mask = ", causal" if problem.causal else ""
        return f"{self.kernel}: d {problem.head_dim}, {problem.batch}x{problem.heads}x{problem.q_len}{mask}"


def forward_launch(
    kernel: str, problem: Problem, traced: Traced, grid: tuple[int, int, int], *scalars: Any, **more: Any
) -> Case:
    """Returns the case of a forward kernel without log-sum-exp; ``scalars`` are its other parameters, in order."""
    names = [name for name, _ in traced.params if name not in ("q", "k", "v", "o", "lse", "counter")]
    numbers = {"lse": 0, "counter": 0, **dict(zip(names, scalars, strict=True))}
    return Case(kernel, problem, traced, grid, numbers, {}, **more)


def problem_of(head_dim: int, length: int, causal: bool) -> Problem:
    batch, columns = EXTENTS[length]
    heads = columns // head_dim
    return Problem(batch, heads, heads, length, length, head_dim, causal=causal)


def forward_case(head_dim: int, length: int, causal: bool) -> Case:
    """Returns the case of the wgmma kernel with the chosen configuration."""
    problem = problem_of(head_dim, length, causal)
    name = sm90_plan.choose(problem)
    found = sm90_plan.plan(problem, sms=SMS, config=sm90_plan.CONFIGS[name])
    traced = direct.kernel_of(found.config).trace(dtype=bf16, bounds=found.bounds)
    row = length * head_dim  # of a dense array; the kernel that stores O from registers has no map of it
    output = (problem.heads * row, row, head_dim, head_dim) if found.config.direct else ()
    return forward_launch(f"sm90 {name}", problem, traced, found.grid, *output, *found.scalars, counts=found.uneven)


def backward_cases(head_dim: int, length: int, causal: bool) -> Iterator[Case]:
    """Yields the three launches; prepare and convert do not depend on the mask and appear once.

    So many CTAs are resident that `convert` converts the sums of all heads: then each launch has its whole work alone.
    """
    problem = problem_of(head_dim, length, causal)
    found = choose(problem, "sm_90a", replace(CONFIGS[head_dim, causal], resident=1 << 20))
    for launch in found.launches:
        traced, names = launch.kernel, [name for name, _ in launch.kernel.params]
        numbers = {name: x for name, x in zip(names, launch.args, strict=True) if not isinstance(x, str)}
        if traced.entry == "gradients" or not causal:
            yield Case(f"sm90 {traced.entry}", problem, traced, launch.grid, {"dlse": 0, **numbers}, found.scratch)


def step_case(name: str) -> Case:
    """Returns a step of the kernel for sm_120a, with the extents of the published table."""
    problem = Problem(1, 32, 32, 1024, 1024, 128)
    found = plan(problem, config=STEPS[name])
    return forward_launch(
        f"sm120 {name}", problem, kernel.kernel_of(found.config).trace(arch="sm_90"), found.grid, *found.scalars
    )


def mma_sync_case(head_dim: int, length: int, causal: bool, tma: bool) -> Case:
    """Returns the case of the mma.sync kernel as `ww.attention` runs it on Hopper, with TMA or cp.async."""
    problem = problem_of(head_dim, length, causal)
    found = plan(problem, tma=tma, arch="sm_90")
    traced = kernel.kernel_of(found.config).trace(arch="sm_90")
    strides = [step // 2 for step in np.empty((problem.batch, problem.heads, length, head_dim), "u2").strides[:3]]
    more = [] if tma else [*strides * 4, head_dim]
    return forward_launch(f"sm120 {'tma' if tma else 'cp.async'}", problem, traced, found.grid, *more, *found.scalars)


def cases() -> Iterator[list[Case]]:
    """Yields the groups of cases that alternate on the GPU."""
    masks = (False, True)
    for length in (512, 1024, 2048, 4096, 8192):
        dims = {512: (256,), 2048: (64, 96, 128, 192, 256)}.get(length, (64, 128, 256))
        yield [forward_case(head_dim, length, causal) for head_dim in dims for causal in masks]
    for length in (1024, 4096):
        yield [each for head_dim in (64, 128) for causal in masks for each in backward_cases(head_dim, length, causal)]
    yield [step_case(name) for name in STEPS]
    for tma, length in ((True, 1024), (False, 512)):
        yield [mma_sync_case(head_dim, length, causal, tma) for head_dim in (64, 128, 256) for causal in masks]


def select_cases(only: str) -> list[list[Case]]:
    """Returns the cases whose `Case.key` contains ``only``."""
    found = [[each for each in group if only in each.key] for group in cases()]
    return [group for group in found if group]


def inputs(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the arrays with random numbers."""
    queries = (problem.batch, problem.heads, problem.q_len, problem.head_dim)
    keys = (problem.batch, problem.kv_heads, problem.kv_len, problem.head_dim)
    return {"q": queries, "k": keys, "v": keys, "do": queries}


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the arrays of a case, by the names of their parameters."""
    given = inputs(case.problem)
    queries, keys = given["q"], given["k"]
    found = {**given, "o": queries, "dq": queries, "dk": keys, "dv": keys, "lse": queries[:3], **case.shapes}
    return {name: found[name] for name, _ in case.traced.params if name not in (*case.numbers, *SHARED)}


def arguments(case: Case, arrays: Mapping[str, Any], counter: Any) -> list[Any]:
    """Returns the arguments of a launch, in order."""
    values = {**arrays, **case.numbers, **({"counter": counter} if case.counts else {})}
    return [values[SHARED.get(name, name)] for name, _ in case.traced.params]


def predict(case: Case) -> float:
    """Returns the predicted microseconds of the launch."""
    floats = ("lse", *case.shapes)
    arrays = {name: np.zeros(shape, "f4" if name in floats else bf16.dtype) for name, shape in shapes(case).items()}
    args = arguments(case, arrays, np.zeros(1, np.uint32))
    return float(ww.profile(case.traced, case.grid, args=args, device="h200").time_us)


def measure(groups: list[list[Case]]) -> list[dict[str, Any]]:
    """Returns the measured medians in microseconds, on the GPU of this machine."""
    bench, rows = Bench("cuda"), []
    for group in groups:
        memory: dict[Problem, dict[str, Any]] = {}
        runs = {}
        for case in group:
            arrays = memory.setdefault(case.problem, {})
            add_arrays(bench, case, arrays)
            args = arguments(case, arrays, arrays["counter"])
            runs[case.key] = bench.prepare(case.traced, case.grid, args)
            runs[case.key]()
        for name, sets in time_in_turns(bench, runs, SETS).items():
            us = [round(time, 2) for time in sets]
            rows.append({"case": name, "us": round(statistics.median(us), 2), "sets": us})
    return rows


def add_arrays(bench: Bench, case: Case, arrays: dict[str, Any]) -> None:
    """Add the arrays with random numbers that a case reads and that ``arrays`` lacks."""
    import torch

    wanted = shapes(case)
    if not arrays:
        arrays |= {
            name: torch.randn(extents, device="cuda").bfloat16() for name, extents in inputs(case.problem).items()
        }
        arrays["counter"] = bench.array((1,), "u32")
    if "lse" in wanted and "lse" not in arrays:
        four = [arrays[name] for name in "qkv"]
        arrays["o"], arrays["lse"] = ww.attention(*four, causal=case.problem.causal, return_lse=True)
    for name in wanted.keys() - arrays.keys():
        arrays[name] = bench.array(wanted[name], "f32" if name in case.shapes else "bf16")


def compare(stored: list[dict[str, Any]], groups: list[list[Case]]) -> Iterator[dict[str, Any]]:
    """Yields the measured rows of the cases, each with its prediction and error; of other cases the prediction."""
    known = {row["case"]: row for row in stored}
    for case in (case for group in groups for case in group):
        row, predicted = known.get(case.key), predict(case)
        if row is None:
            yield {"case": case.key, "predicted": round(predicted, 2)}
            continue
        yield {**row, "predicted": round(predicted, 2), "error": predicted / row["us"] - 1}


def line(row: Mapping[str, Any]) -> str:
    if "us" not in row:
        return f"| {row['case']} | not measured | {row['predicted']:.1f} | |"
    return f"| {row['case']} | {row['us']:.1f} | {row['predicted']:.1f} | {100 * row['error']:+.1f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure on the GPU of this machine, predict nothing")
    parser.add_argument("--measured", type=Path, default=STORED, help="measurements to compare with, or to write")
    parser.add_argument("--only", default="", help="part of the names of cases")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    groups = select_cases(options.only)
    if not groups:
        known = next(iter(select_cases("")))[0].key
        parser.error(f"given --only {options.only!r}, which is in no case's name; expected part of one, as {known!r}")
    if options.measure:
        what = {
            "device": cuda.device("cuda").spec.name,
            "driver": driver(),
            "command": "python bench/predict_attention.py --measure",
        }
        text = json.dumps({**what, "rows": measure(groups)}, indent=1)
        options.measured.write_text(text + "\n", encoding="utf-8")
        return
    stored, rows = json.loads(options.measured.read_text(encoding="utf-8")), []
    print(f"measured: {stored['device']}, driver {stored['driver']}, {stored['command']}\n", file=sys.stderr)
    print("| kernel | measured µs | predicted µs | error |\n| --- | --- | --- | --- |")
    for row in compare(stored["rows"], groups):
        rows.append(row)
        print(json.dumps(row) if options.json else line(row), flush=True)
    rows = [row for row in rows if "us" in row]
    if not rows:
        return
    errors = [abs(row["error"]) for row in rows]
    beyond = [row["case"] for row in rows if abs(row["error"]) > GOAL]
    mean, worst = 100 * statistics.mean(errors), 100 * max(errors)
    print(f"\n{len(rows)} measured: mean absolute error {mean:.1f} %, worst {worst:.1f} %")
    print(f"beyond {100 * GOAL:.0f} %: {'; '.join(beyond) or 'none'}")
    sys.exit(1 if beyond else 0)


if __name__ == "__main__":
    main()
