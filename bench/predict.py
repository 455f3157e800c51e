"""Predicted against measured time: ``python bench/predict.py [--measure] [--write FILE] [--sizes 2048,4096,8192]``.

Predictions of ``ww.profile`` in fast mode for an H200, of every level of the Hopper GEMM ladder and of the examples'
copy and reduction, beside measurements: CUDA events around isolated launches, 256 MB written to L2 before each, random
normal data. Kernels of one size alternate in random order, in sets that begin after a rest and end before the power
limit of the board acts; ``us`` is the median of all launches, ``sets`` are the medians of the sets. Levels whose sets
overlap, or that differ by less than 2 %, have no order. ``settled_us`` is the median after 0.3 s of launches of that
kernel alone, where the power limit acts. ``--measure`` measures now, on the GPU of this machine; otherwise the
measurements are read from ``bench/measured/h200.json``, and no GPU is needed. ``--cases unseen``: `ww.matmul` for 30
shapes of language models and others, to which no constant was fitted (``bench/measured/h200_shapes.json``). ``--cases
mma.sync``: the GEMM for sm_120a, compiled for sm_90a (``bench/measured/h200_mma_sync.json``).

The constants of the timing model come from micro-benchmarks (bench/micro.py), none from the kernels evaluated here.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from probes.harness import Bench

import warpwright as ww
from warpwright import TensorMap, cuda
from warpwright.cuda.timing import samples
from warpwright.kernels.gemm import sm90, sm120
from warpwright.lang import Kernel, Traced
from warpwright.ops.binding import bind, layouts_of, values_of
from warpwright.ops.binding import start as start_launches
from warpwright.ops.matmul.plan import Level

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "bench" / "measured"
STORED = {
    "fitted": MEASURED / "h200.json",
    "unseen": MEASURED / "h200_shapes.json",
    "mma.sync": MEASURED / "h200_mma_sync.json",
}
SIZES = (2048, 4096, 8192)
ELEMENTS = (1 << 22, 1 << 24, 1 << 27)  # of float32, of the copy and the reduction
SMS = 132
LEVELS = 9  # the last is the configuration that `ww.matmul` chooses
GOALS = {"fitted": (0.05, 0.15), "unseen": (0.07, 0.20), "mma.sync": (0.10, 0.10)}  # mean and worst error
UNSEEN = (
    (16, 6144, 4096), (32, 28672, 4096), (64, 4096, 14336), (64, 32768, 512), (128, 2112, 7168), (128, 6144, 4096),
    (128, 7168, 2048), (128, 7168, 16384), (128, 28672, 4096), (256, 4096, 14336), (256, 28672, 4096),
    (300, 5000, 8192), (512, 4096, 14336), (512, 6144, 4096), (1000, 3000, 2000), (1024, 4096, 4096),
    (1024, 6144, 4096), (1024, 28672, 4096), (2048, 3584, 18944), (2048, 4096, 14336), (2048, 4608, 3584),
    (3072, 3072, 3072), (4096, 2112, 7168), (4096, 4096, 14336), (4096, 6144, 4096), (4096, 7168, 16384),
    (4096, 32768, 512), (5120, 5120, 5120), (8192, 512, 8192), (8192, 1024, 1024),
)  # fmt: skip
REST, BURST, SETTLE = 0.7, 0.03, 0.3  # seconds: without load before a set, of a set, of launches before "settled_us"
SETS, MOST_ROUNDS = 8, 10
SAME = 0.02  # two levels that differ by less in the measurement are not in any order
Array = Callable[[tuple[int, ...], str], Any]


@dataclass(frozen=True)
class Case:
    """Launches of one problem. ``start`` returns what starts them on a GPU, ``predict`` their microseconds, by the word
    ``warm`` from cold L2 or in a loop."""

    name: str
    size: int
    start: Callable[[Bench], Callable[[], Any]]
    predict: Callable[[bool], float]


def kernel_case(name: str, size: int, kernel: Traced, grid: int, args: Callable[[Array], list[Any]]) -> Case:
    """One launch. ``args`` makes its arguments with a function that makes an array of a shape and element type."""

    def start(bench: Bench) -> Callable[[], Any]:
        def normal_array(shape: tuple[int, ...], dtype: str) -> Any:
            return bench.normal(shape).to(bench.array((1,), dtype).dtype)

        return bench.prepare(kernel, grid, args(normal_array))

    def predict(warm: bool) -> float:
        return float(ww.profile(kernel, grid, args=args(zeros), device="h200", fast=True, warm=warm).time_us)

    return Case(name, size, start, predict)


def level_case(number: int, size: int) -> Case:
    """A level of the ladder, or after the last one `ww.matmul` as it chooses."""
    if number not in sm90.LEVELS:
        return product_case(f"GEMM level {number}", (size, size, size), "bfloat16", None)
    config = sm90.LEVELS[number]
    traced = sm90.kernel_of(config).trace(majors=("k", "k"))
    plan = sm90.plan_gemm(config, size, size, size, sms=SMS, majors=("k", "k"))

    def args(array: Array) -> list[Any]:
        uses = [traced.maps[name] for name in "abd"]
        maps = [
            TensorMap(array((size, size), "bf16"), use.box, swizzle=use.swizzle, l2_promotion=sm90.L2_PROMOTION)
            for use in uses
        ]
        return [*maps, *plan.scalars]

    return kernel_case(f"GEMM level {number}", size, traced, plan.grid[0], args)


def matmul_case(m: int, n: int, k: int) -> Case:
    """`ww.matmul` as it chooses for A (M, K) and B (N, K) in bf16, one launch or two."""
    return product_case(f"matmul {m} × {n}", (m, n, k), "bfloat16", None)


def mma_sync_cases(sizes: tuple[int, ...] = SIZES) -> Iterator[Case]:
    """The GEMM for sm_120a: each level in bf16, and the last one in the other types that Hopper's mma.sync has."""
    for size in sizes:
        for number, config in sm120.LEVELS.items():
            yield product_case(f"mma.sync level {number}", (size, size, size), "bfloat16", config)
        for dtype in ("float16", "float8_e4m3fn", "float8_e5m2"):
            yield product_case(f"mma.sync {dtype}", (size, size, size), dtype, sm120.LEVELS[max(sm120.LEVELS)])


def product_case(name: str, shape: tuple[int, int, int], dtype: str, level: Level | None) -> Case:
    """`ww.matmul` for A (M, K) and B (N, K) by ``level``, or as it chooses."""
    m, n, k = shape

    def start(bench: Bench) -> Callable[[], Any]:
        import torch

        a, b = (bench.normal((rows, k)).to(getattr(torch, dtype)) for rows in (m, n))
        call = ww.launches(ww.matmul, a, b.mT, level=level)
        ((plan, values),) = call.steps
        started = bind(plan, layouts_of(values), call.device)(values_of(values), 0)
        return lambda _kept=call: start_launches(started)

    def predict(warm: bool) -> float:
        a, b = (np.zeros((rows, k), np.dtype(dtype)) for rows in (m, n))
        call = ww.launches(ww.matmul, a, b.T, device="h200", level=level)
        found = [ww.profile(x.kernel, x.grid, args=x.args, device="h200", fast=True, warm=warm) for x in call]
        # a second launch starts before the first has ended
        return float(found[0].time_us + sum(each.time_us - each.launch_us for each in found[1:]))

    return Case(name, k, start, predict)


def load_example(name: str, kernel: str) -> Kernel:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Kernel = getattr(module, kernel)
    return found


def cases(sizes: tuple[int, ...] = SIZES, elements: tuple[int, ...] = ELEMENTS) -> Iterator[Case]:
    for size in sizes:
        for number in range(1, LEVELS + 1):
            yield level_case(number, size)
    copy = load_example("01_copy", "copy").trace("sm_90a")
    add_up = load_example("06_reduction", "add_up").trace("sm_90a")
    for n in elements:
        yield kernel_case("copy", n, copy, n // 256, lambda array, n=n: [array((n,), "f32"), array((n,), "f32"), n])
        yield kernel_case(
            "reduction", n, add_up, 8 * SMS, lambda array, n=n: [array((n,), "f32"), array((1,), "f32"), n]
        )


def measure(chosen: list[Case]) -> list[dict[str, Any]]:
    """Returns the measured medians in microseconds, on the GPU of this machine."""
    bench, rows = Bench("cuda"), []
    for size in dict.fromkeys(case.size for case in chosen):
        runs = {case.name: case.start(bench) for case in chosen if case.size == size}
        sets = time_in_turns(bench, runs)
        for name, run in runs.items():
            count = int(SETTLE * 1e6 / statistics.median(sets[name]))
            settled = statistics.median(cuda.measure(run, rounds=count, warmup=count))
            times = {"us": statistics.median(sets[name]), "settled_us": 1e6 * settled}
            medians = {"sets": [round(us, 2) for us in sets[name]]}
            rows.append({"case": name, "size": size, **{k: round(v, 2) for k, v in times.items()}, **medians})
    return rows


def time_in_turns(bench: Bench, runs: dict[str, Any], sets: int = SETS) -> dict[str, list[float]]:
    """Returns the medians of every set of each run, in microseconds."""
    once = cuda.medians(runs, rounds=1)
    rounds = max(1, min(MOST_ROUNDS, int(BURST / sum(once.values()))))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(sets):
        bench.wait()
        time.sleep(REST)
        for name, seconds in samples(runs, rounds=rounds, warmup=1, cold=True, stream=0).items():
            found[name].append(1e6 * statistics.median(seconds))
    return found


def zeros(shape: tuple[int, ...], dtype: str) -> Any:
    return np.zeros(shape, np.float32 if dtype == "f32" else np.dtype("bfloat16"))


def compare(rows: list[dict[str, Any]], chosen: list[Case], warm: bool = False) -> list[dict[str, Any]]:
    """Returns the measured rows of the chosen cases, each with its prediction and error."""
    known = {(row["case"], row["size"]): row for row in rows}
    result = []
    for case in chosen:
        us, sets = known[case.name, case.size]["us"], known[case.name, case.size]["sets"]
        predicted = case.predict(warm)
        result.append(
            {
                "case": case.name,
                "size": case.size,
                "us": us,
                "sets": sets,
                "predicted": round(predicted, 2),
                "error": predicted / us - 1,
            }
        )
    return result


def disorder(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the pairs of levels of one size whose predicted order is not the measured order."""
    found = []
    for i, one in enumerate(rows):
        for two in rows[i + 1 :]:
            if one["size"] != two["size"] or "level" not in one["case"] or "level" not in two["case"]:
                continue
            measured, predicted = two["us"] / one["us"] - 1, two["predicted"] / one["predicted"] - 1
            if abs(measured) > SAME and disjoint(one["sets"], two["sets"]) and measured * predicted < 0:
                found.append(f"{one['case']} and {two['case'].removeprefix('GEMM ')} at {one['size']}")
    return found


def disjoint(one: list[float], two: list[float]) -> bool:
    """Returns whether all values of one are below all values of the other: repeated measurements agree on the order."""
    return max(one) < min(two) or max(two) < min(one)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [abs(row["error"]) for row in rows]
    return {"mean": statistics.mean(errors), "worst": max(errors), "disorder": disorder(rows)}


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| case | size | measured µs | predicted µs | error |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row['case']} | {row['size']} | {row['us']:.1f} | {row['predicted']:.1f} | {100 * row['error']:+.1f} % |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure on the GPU of this machine first")
    parser.add_argument("--only-measure", action="store_true", help="measure, predict nothing")
    parser.add_argument("--cases", choices=list(GOALS), default="fitted")
    parser.add_argument("--measured", type=Path, help="measurements to compare with")
    parser.add_argument("--write", type=Path, help="write new measurements to this file")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="M = N = K of the ladder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = options.measured or STORED[options.cases]
    sizes = tuple(map(int, options.sizes.split(",")))
    of = {"fitted": lambda: cases(sizes), "unseen": lambda: (matmul_case(*x) for x in UNSEEN)}
    chosen = list((of | {"mma.sync": lambda: mma_sync_cases(sizes)})[options.cases]())
    more = () if options.cases == "fitted" else ("--cases", options.cases)
    if options.measure or options.only_measure:
        gpu = cuda.device("cuda").spec.name
        stored = {
            "device": gpu,
            "driver": driver(),
            "command": " ".join(["python bench/predict.py --measure", *more]),
            "rows": measure(chosen),
        }
        if options.write:
            options.write.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    else:
        stored = json.loads(measured.read_text(encoding="utf-8"))
    if options.only_measure:
        print(json.dumps(stored, indent=1))
        return
    rows = compare(stored["rows"], chosen)
    found = summary(rows)
    if options.json:
        print(json.dumps({**found, "device": stored["device"], "rows": rows}, indent=1))
    else:
        print(f"measured: {stored['device']}, driver {stored['driver']}, {stored['command']}")
        print(table(rows))
        print(f"mean absolute error {100 * found['mean']:.1f} %, worst {100 * found['worst']:.1f} %")
        print(f"order of levels: {'kept' if not found['disorder'] else 'changed: ' + ', '.join(found['disorder'])}")
    mean, worst = GOALS[options.cases]
    sys.exit(0 if found["mean"] <= mean and found["worst"] <= worst and not found["disorder"] else 1)


def driver() -> int:
    """Returns the driver's CUDA version, 13000 for 13.0."""
    from warpwright.cuda.driver import version

    return version()


if __name__ == "__main__":
    main()
