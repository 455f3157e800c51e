"""Launches, starts of CTAs, and the clock under load."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
from probes.harness import Bench, Measured, measured, timed
from probes.tensor import main_loop, pause

from warpwright.lang import Break, Global, If, clock64, cluster, ctaid, globaltimer, kernel, loop, smem, tid, u32, u64

SPIN = 4000  # cycles
LARGE = 200 << 10  # bytes of shared memory: one CTA an SM


@kernel("sm_90a", threads=128)
def spin(out: Global[u64], cycles: u32, *, nbytes=0, threads=128, cluster=1):
    """Spin; write the nanoseconds at start and end of each CTA."""
    if nbytes:
        smem.array(u32, nbytes // 4)
    begin, end = globaltimer(), clock64() + cycles.to(u64)
    for _ in loop():
        now = clock64()
        Break(when=now >= end)
    with If(tid.x == 0):
        out[ctaid.x * 2] = begin
        out[ctaid.x * 2 + 1] = globaltimer()


@kernel("sm_90a", threads=32)
def ticks(out: Global[u64], rounds: u32, pairs: Global[u64]):
    """SM clock and nanoseconds, before and after ``rounds`` cycles."""
    with timed(out):
        pairs[0] = clock64()
        pairs[1] = globaltimer()
        pause(rounds)
        pairs[2] = clock64()
        pairs[3] = globaltimer()


def measure(bench: Bench) -> Iterator[Measured]:
    yield from launch(bench)
    yield from clock(bench)


def launch(bench: Bench) -> Iterator[Measured]:
    """Time by events against time from the first CTA's start to the last one's end; isolated, after a flush."""
    sms = bench.sms
    out = bench.array((64 * sms * 2,), "u64")
    for name, config in (
        ("plain", {}),
        ("smem", {"nbytes": LARGE}),
        ("384_threads", {"threads": 384, "nbytes": LARGE}),
        ("cluster_2", {"cluster": 2, "nbytes": LARGE, "threads": 384}),
        ("cluster_4", {"cluster": 4, "nbytes": LARGE, "threads": 384}),
    ):
        probe = spin.configure(**config)
        grid = sms // config.get("cluster", 1) * config.get("cluster", 1) or config["cluster"]
        run = bench.prepared(probe, grid, [out, 0])
        yield measured(
            f"launch.{name}", [t * 1e6 for t in bench.seconds(run)], "us", "empty kernel, one wave, by events"
        )
        yield measured(f"launch.{name}.inside", inside(bench, run, out, grid), "us", "first start to last end in it")
        times = [
            bench.seconds(bench.prepared(probe, waves * grid, [out, SPIN])) for waves in bench.pick((1, 9), (1, 2))
        ]
        waves = [(b - a) / bench.pick(8, 1) * 1e6 for a, b in zip(*times, strict=True)]
        yield measured(f"launch.{name}.wave", waves, "us", f"each further wave of CTAs that spin {SPIN} cycles")
    run = bench.prepared(spin, 1, [out, 0])
    yield measured("launch.one_cta", [t * 1e6 for t in bench.seconds(run)], "us", "empty kernel of one CTA")


def inside(bench: Bench, run: object, out: object, grid: int) -> list[float]:
    spans = []
    for _ in range(3 * bench.repeats):
        bench.flush()
        run()
        bench.wait()
        stamps = bench.read(out).astype(np.int64)[: 2 * grid].reshape(grid, 2)
        spans.append(float(stamps[:, 1].max() - stamps[:, 0].min()) / 1e3)
    return spans


def clock(bench: Bench) -> Iterator[Measured]:
    pairs, out = bench.array((4,), "u64"), bench.array((2,), "u64")
    run = bench.prepared(ticks, 1, [out, bench.pick(4_000_000, 4), pairs])
    yield measured("clock.light", [rate(bench, run, pairs) for _ in range(bench.repeats)], "MHz", "one thread")
    height, width = bench.pick((4096, 1024), (256, 64))
    for data in ("normal", "zeros"):
        a, b = ((bench.normal if data == "normal" else zeros(bench))((height, width)) for _ in range(2))
        for fill in ("", "a", "b"):
            for idle in bench.pick((0, 512, 1024, 2048), (0,)):
                for rounds in bench.pick((64, 256, 1024, 4096), (4,)):
                    if data == "zeros" and (fill == "a" or idle):
                        continue
                    yield from isolated(bench, (a, b, height, width), data, fill, idle, rounds)
            yield from long(bench, (a, b, height, width), data, fill)


def zeros(bench: Bench):
    return lambda shape: bench.array(shape, "bf16")


def rate(bench: Bench, run: object, pairs: object) -> float:
    run()
    bench.wait()
    first, then, last, now = bench.read(pairs).astype(np.int64)[:4]
    return float(last - first) / max(1, int(now - then)) * 1e3


def isolated(bench: Bench, operands: tuple, data: str, fill: str, idle: int, rounds: int) -> Iterator[Measured]:
    """The clock within launches that stand alone, as bench/gemm.py times them: L2 flushed before each."""
    samples, out = bench.array((64,), "u64"), bench.array((bench.sms * 9 * 2,), "u64")
    args = [out, rounds, *operands, idle, rounds - 1, samples]
    run, clocks, shares = bench.prepared(main_loop.configure(fill=fill), bench.sms, args), [], []
    for _ in range(20 if bench.real else 1):
        for _ in range(3):  # as many as there are between two waits of a benchmark
            bench.flush()
            run()
        clocks.append(rate(bench, lambda: None, samples))
        first, _, last, _ = bench.read(samples).astype(np.int64)[:4]
        shares.append(1024 * (rounds - 1) / max(1, int(last - first)))
    name = f"clock.isolated.{data}.fill_{fill or 'none'}.idle_{idle}.rounds_{rounds}"
    how = f"tensor cores busy {statistics.median(shares):.3f} of the time"
    yield measured(name, clocks, "MHz", how)


def long(bench: Bench, operands: tuple, data: str, fill: str) -> Iterator[Measured]:
    """One launch of about 1.5 s: the clock as time goes on."""
    every, count = bench.pick((2048, 1000), (2, 4))
    samples, out = bench.array((2 * count + 64,), "u64"), bench.array((bench.sms * 9 * 2,), "u64")
    args = [out, every * count, *operands, 0, every, samples]
    bench.prepared(main_loop.configure(fill=fill), bench.sms, args)()
    bench.wait()
    noted = bench.read(samples).astype(np.int64)[: 2 * count].reshape(count, 2)
    cycles, nanoseconds = np.diff(noted, axis=0).T
    since = (noted[1:, 1] - noted[0, 1]) / 1e6
    mhz = cycles / np.maximum(nanoseconds, 1) * 1e3
    for until in (1, 3, 10, 30, 100, 300, 1000):
        there = (since <= until) & (since > until / 3.4)
        if there.any():
            name = f"clock.long.{data}.fill_{fill or 'none'}.{until}_ms"
            yield measured(name, [float(np.median(mhz[there]))], "MHz", "median of the third of a decade before")
