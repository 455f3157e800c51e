"""Power and clock under load: what a flop and a byte cost, and how far the clock falls, at once and with time.

Two things slow the clock: it falls within microseconds when the load rises, and the power limit pulls it down over a
tenth of a second. Hence bursts after a rest, series of launches with a flush of L2 between them as benchmarks have, and
a second of each load without a pause, with nvidia-smi beside it.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from probes.harness import Bench, Measured, Run, measured
from probes.issue import chains
from probes.memory import THREADS, stream, vectors
from probes.tensor import main_loop

REST = 1.0  # seconds without load before each series
KBLOCK = 1024  # cycles that the tensor core takes for one of 128 × 256 × 64
SHARES = ((0, 0.002), (0.005, 0.03), (0.05, 0.1), (0.4, 1.0))  # seconds since the first launch

# name: (data, operands that are loaded anew, cycles of pause before a k-block)
LOADS = {
    "normal": ("normal", "", 0),
    "normal_a": ("normal", "a", 0),
    "normal_b": ("normal", "b", 0),
    "normal_ab": ("normal", "ab", 0),
    "zeros": ("zeros", "", 0),
    "pause_1024": ("normal", "", 1024),
    "pause_2048": ("normal", "", 2048),
    "pause_8192": ("normal", "", 8192),
    "pause_32768": ("normal", "", 32768),
}


def measure(bench: Bench) -> Iterator[Measured]:
    height, width = bench.pick((4096, 1024), (256, 64))
    operands = {"normal": [bench.normal((height, width)) for _ in range(2)]}
    operands["zeros"] = [bench.array((height, width), "bf16") for _ in range(2)]
    for name, (data, fill, pause) in bench.pick(LOADS, dict(list(LOADS.items())[:2])).items():
        for rounds in bench.pick((64, 256, 2048), (4,)):
            if pause < 4096 or rounds == 256:
                yield from series(bench, name, fill, pause, rounds, [*operands[data], height, width])
        yield from tensor_steady(bench, name, fill, pause, [*operands[data], height, width])
    yield from others(bench)


def series(bench: Bench, name: str, fill: str, pause: int, rounds: int, operands: list[Any]) -> Iterator[Measured]:
    """Launches of ``rounds`` k-blocks, L2 flushed before each: the clock within them as time goes on."""
    microseconds = rounds * (KBLOCK + pause) / 1600 + 65
    count = bench.pick(int(1e6 / microseconds), 2)
    samples, out = bench.array((4 * count + 1,), "u64"), bench.array((bench.sms * 9 * 2,), "u64")
    args = [out, rounds, *operands, pause, rounds - 1, samples]
    run = bench.prepared(main_loop.configure(fill=fill), bench.sms, args)
    rest(bench)
    for _ in range(count):
        bench.flush()
        run()
    bench.wait()
    noted = bench.read(samples).astype(np.int64)[1:].reshape(count, 2, 2)
    cycles, nanoseconds = (noted[:, 1] - noted[:, 0]).T
    mhz, since = cycles / np.maximum(nanoseconds, 1) * 1e3, (noted[:, 0, 1] - noted[0, 0, 1]) * 1e-9
    busy = KBLOCK * (rounds - 1) / max(1.0, float(np.median(cycles)))
    for first, last in SHARES:
        there = mhz[(since >= first) & (since <= last)]
        if there.size:
            how = (
                f"{first} to {last} s after the first launch of {np.median(nanoseconds) / 1e3:.0f} us, busy {busy:.3f}"
            )
            values = list(np.percentile(there, (25, 50, 75)))
            yield measured(f"clock.{name}.rounds_{rounds}.{1000 * last:.0f}_ms", values, "MHz", how)


def rest(bench: Bench) -> None:
    bench.wait()
    if bench.real:
        time.sleep(REST)


def tensor_steady(bench: Bench, name: str, fill: str, pause: int, operands: list[Any]) -> Iterator[Measured]:
    rounds = bench.pick(max(64, 2_000_000 // (KBLOCK + pause)), 4)
    samples, out = bench.array((1 << 16,), "u64"), bench.array((bench.sms * 9 * 2,), "u64")
    args = [out, rounds, *operands, pause, rounds - 1, samples]
    run = bench.prepared(main_loop.configure(fill=fill), bench.sms, args)
    watts, mhz = steady(bench, run)
    count = int(bench.read(samples)[0]) // 4
    noted = bench.read(samples).astype(np.int64)[1 : 1 + 4 * count].reshape(count, 2, 2)[count // 2 :]
    cycles, nanoseconds = (noted[:, 1] - noted[:, 0]).T
    clock = [float(x) for x in np.percentile(cycles / np.maximum(nanoseconds, 1) * 1e3, (25, 50, 75))]
    busy = KBLOCK * (rounds - 1) / max(1.0, float(np.median(cycles)))
    yield measured(f"power.{name}.clock", clock, "MHz", f"launches without a pause; tensor cores busy {busy:.3f}")
    yield measured(f"power.{name}.watts", watts, "W", f"by nvidia-smi, which says {statistics.median(mhz):.0f} MHz")


def others(bench: Bench) -> Iterator[Measured]:
    """Loads without tensor cores."""
    size = bench.pick(1 << 30, 1 << 19)
    x, y = (bench.array((size // 4,), "u32") for _ in range(2))
    sink, out = bench.array((1024,), "u32"), bench.array((2 * bench.sms * 2 * THREADS // 32,), "u64")
    grid, near = 2 * bench.sms, vectors(bench.pick(24 << 20, size), 2 * bench.sms)
    probes: dict[str, tuple[Any, int, list[Any]]] = {
        "fma": (chains.configure(width=8, threads=512), bench.sms, [out, bench.pick(20_000, 1), 0x3F800001, sink]),
        "l2_read": (stream, grid, [out, bench.pick(400, 1), x, y, near]),
        "hbm_read": (stream, grid, [out, bench.pick(4, 1), x, y, vectors(size, grid)]),
        "hbm_copy": (stream.configure(mode="copy"), grid, [out, bench.pick(2, 1), x, y, vectors(size, grid)]),
    }
    for name, (probe, ctas, args) in probes.items():
        run = bench.prepared(probe, ctas, args)
        watts, mhz = steady(bench, run)
        taken = bench.seconds(run, cold=False, repeats=5)
        yield measured(f"power.{name}.clock", mhz, "MHz", f"by nvidia-smi; a launch takes {1e6 * taken[0]:.0f} us")
        yield measured(f"power.{name}.watts", watts, "W", "by nvidia-smi")
    watts, mhz = steady(bench, lambda: time.sleep(0.01))
    yield measured("power.idle.watts", watts, "W", f"nothing runs, the clock stays at {statistics.median(mhz):.0f} MHz")


def steady(bench: Bench, run: Run, seconds: float = 1.5) -> tuple[list[float], list[float]]:
    """Watts and MHz by nvidia-smi in the second half of ``seconds`` of launches without a pause."""
    if not bench.real:
        run()
        return [1.0], [1.0]
    query = ["nvidia-smi", "--query-gpu=power.draw.instant,clocks.sm", "--format=csv,noheader,nounits", "-lms", "50"]
    with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as smi:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(4):
                run()
            bench.wait()
        smi.terminate()
        lines = (smi.stdout.read() if smi.stdout else "").splitlines()
    pairs = [tuple(map(float, line.split(","))) for line in lines if line.count(",") == 1]
    watts, mhz = zip(*pairs[len(pairs) // 2 :], strict=True)
    return list(watts), list(mhz)
