"""The speed of the virtual GPU: ``python bench/vgpu.py [--json] [--sizes 1024,2048,4096] [--rounds 3]``.

- compile: seconds from the text of 10,000 PTX instructions (integer arithmetic, straight line) to machine code;
- lanes: lane-instructions a second on one core, a loop of such instructions in one CTA of 1024 threads;
- gemm: process time (user + system) of GEMM levels 3, 9 and 10 as published, M = N = K, standard normal bf16, with
  compiled code, against NumPy's float32 product of the same matrices in the same process, taken in turns; medians;
- memory: the peak of this process.

At 4096 it fails if a level takes more of NumPy's time than its bar.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.lang import Global, ctaid, kernel, loop, ntid, tid, u32, var

UNROLLED = 2_500  # rounds of four instructions
ROUNDS, BODY = 5_000, 250
THREADS = 1024
BARS = {3: 4.0, 9: 2.0, 10: 2.0}  # level: times NumPy's float32 product, at 4096
BAR_SIZE = 4096
DEVICE = "b200"  # virtual, also on a machine with a GPU


@kernel("sm_100a", threads=32)
def straight_line(out: Global[u32], *, salt=0):
    x = var(u32, tid.x)
    for i in range(UNROLLED):
        x.set((x * 1_664_525 + (1_013_904_223 + i + salt)) ^ (x >> 7))
    out[tid.x] = x


@kernel("sm_100a", threads=THREADS)
def arithmetic_loop(out: Global[u32], rounds: u32):
    x = var(u32, tid.x)
    for _ in loop(rounds):
        for i in range(BODY):
            x.set((x * 1_664_525 + (1_013_904_223 + i)) ^ (x >> 7))
    out[ctaid.x * ntid.x + tid.x] = x


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def instructions_of(ptx: str) -> int:
    """Returns the number of instructions in a PTX text, without directives, labels and braces."""
    return sum(line.strip().endswith(";") and not line.strip().startswith(".") for line in ptx.splitlines())


def compile_seconds() -> dict[str, float]:
    """Returns the seconds of a launch of a new kernel less a launch of a compiled one, per 10,000 instructions."""
    out = np.zeros(32, np.uint32)
    first, again = [], []
    for salt in range(3):
        traced = straight_line.trace(salt=salt)
        first.append(seconds(lambda traced=traced: ww.launch(traced, 1, args=[out], device=DEVICE)))
        again.append(seconds(lambda traced=traced: ww.launch(traced, 1, args=[out], device=DEVICE)))
    count = instructions_of(traced.ptx)
    spent = statistics.median(first) - statistics.median(again)
    return {"instructions": count, "compile_s_per_10k": spent * 10_000 / count}


def lane_rate() -> dict[str, float]:
    """Returns lane-instructions a second on one core; one CTA runs on one core."""
    out = np.zeros(THREADS, np.uint32)
    body = arithmetic_loop.trace()
    per_round = instructions_of(body.ptx)

    def run(rounds: int) -> float:
        return seconds(lambda: ww.launch(body, 1, args=[out, rounds], device=DEVICE))

    run(3)
    assert np.array_equal(out, by_numpy(3)), "the loop computes something else than NumPy"
    times = [run(ROUNDS) - run(0) for _ in range(3)]
    lanes = per_round * ROUNDS * THREADS
    return {"lane_instructions_per_s": lanes / statistics.median(times)}


def by_numpy(rounds: int) -> Any:
    """Returns the result of `arithmetic_loop`, by NumPy."""
    x = np.arange(THREADS, dtype=np.uint32)
    for i in range(rounds * BODY):
        x = (x * np.uint32(1_664_525) + np.uint32(1_013_904_223 + i % BODY)) ^ (x >> np.uint32(7))
    return x


def process_seconds(call: Callable[[], Any]) -> float:
    """Returns user and system time of all threads: that of others on the machine does not count, nor does that of
    NumPy's threads, which spin for 0.1 s after a product."""
    wait_for_rest()
    start = time.process_time()
    call()
    return time.process_time() - start


def wait_for_rest() -> None:
    """Wait until no thread of this process runs."""
    while True:
        start = time.process_time()
        time.sleep(0.02)
        if time.process_time() - start < 0.002:
            return


def gemm(size: int, rounds: int) -> list[dict[str, float]]:
    """Time the levels and NumPy, in turns; the first launch of a level compiles and is not counted."""
    random = np.random.default_rng(size)
    a, b = (random.standard_normal((size, size), np.float32).astype(ml_dtypes.bfloat16) for _ in range(2))
    a32, b32 = a.astype(np.float32), b.astype(np.float32)
    for level in BARS:
        ww.matmul(a, b.T, level=level, device=DEVICE)
    ours: dict[int, list[float]] = {level: [] for level in BARS}
    numpy = []
    for _ in range(rounds):
        for level, times in ours.items():
            times.append(process_seconds(lambda level=level: ww.matmul(a, b.T, level=level, device=DEVICE)))
            numpy.append(process_seconds(lambda: a32 @ b32.T))
    peer = statistics.median(numpy)
    rows = [(level, statistics.median(times)) for level, times in ours.items()]
    return [{"size": size, "level": n, "cpu_s": spent, "numpy_f32_s": peer, "ratio": spent / peer} for n, spent in rows]


def missed(rows: list[dict[str, float]]) -> list[str]:
    """Returns the bars that are missed, in words."""
    return [
        f"level {row['level']} takes {row['ratio']:.2f} times NumPy's time; expected at most {BARS[int(row['level'])]}"
        for row in rows
        if row["size"] == BAR_SIZE and row["ratio"] > BARS[int(row["level"])]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", default="1024,2048,4096")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        **compile_seconds(),
        **lane_rate(),
        "gemm": [row for size in sizes for row in gemm(size, options.rounds)],
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024)
        / 1e9,
    }
    print(json.dumps(report, indent=2) if options.json else text(report))
    for line in missed(report["gemm"]):
        print(line, file=sys.stderr)
    return 1 if missed(report["gemm"]) else 0


def text(report: dict[str, Any]) -> str:
    """Returns the report as text."""
    lines = [
        f"machine            {report['machine']}",
        f"compile            {report['compile_s_per_10k']:.2f} s per 10,000 instructions ({report['instructions']:,})",
        f"lane instructions  {report['lane_instructions_per_s'] / 1e9:.1f} G a second on one core",
    ]
    lines += [
        f"level {row['level']:2} at {row['size']:5}  {row['cpu_s']:.2f} s of CPU, {row['ratio']:.2f} x NumPy's float32 "
        f"product ({row['numpy_f32_s']:.2f} s)"
        for row in report["gemm"]
    ]
    return "\n".join([*lines, f"peak memory        {report['peak_memory_gb']:.2f} GB"])


if __name__ == "__main__":
    sys.exit(main())
