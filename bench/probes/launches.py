"""Launches, and starts and exits of CTAs and clusters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from probes.harness import Bench, Measurement, summarise
from warpwright.cuda.driver import call
from warpwright.lang import Break, Global, If, clock64, ctaid, f32, globaltimer, kernel, loop, smem, tid, u32, u64
from warpwright.run.launch import entry_point

SPIN = 4000  # cycles
LARGE = 200 << 10  # bytes of shared memory: one CTA an SM


@kernel("sm_90a", threads=128)
def spin(out: Global[u64], cycles: u32, *, nbytes=0, threads=128, cluster=1):
    """Spin, and write the nanoseconds at start and end of each CTA."""
    if nbytes:
        smem.array(u32, nbytes // 4)
    begin, end = globaltimer(), clock64() + cycles.to(u64)
    for _ in loop():
        now = clock64()
        Break(when=now >= end)
    with If(tid.x == 0):
        out[ctaid.x * 2] = begin
        out[ctaid.x * 2 + 1] = globaltimer()


def measure(bench: Bench) -> Iterator[Measurement]:
    yield from launch(bench)
    yield from turnover(bench)


def launch(bench: Bench) -> Iterator[Measurement]:
    """Time by events, and time from the first CTA's start to the last CTA's end; isolated, after a flush."""
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
        run = bench.prepare(probe, grid, [out, 0])
        yield summarise(
            f"launch.{name}", [t * 1e6 for t in bench.seconds(run)], "us", "empty kernel, one wave, by events"
        )
        yield summarise(
            f"launch.{name}.inside", spans_inside(bench, run, out, grid), "us", "first start to last end in it"
        )
        times = [bench.seconds(bench.prepare(probe, waves * grid, [out, SPIN])) for waves in bench.pick((1, 9), (1, 2))]
        waves = [(b - a) / bench.pick(8, 1) * 1e6 for a, b in zip(*times, strict=True)]
        yield summarise(f"launch.{name}.wave", waves, "us", f"each further wave of CTAs that spin {SPIN} cycles")
    run = bench.prepare(spin, 1, [out, 0])
    yield summarise("launch.one_cta", [t * 1e6 for t in bench.seconds(run)], "us", "empty kernel of one CTA")


@kernel("sm_90a", threads=256)
def copy(source: Global[f32], target: Global[f32]):
    i = ctaid.x * 256 + tid.x
    target[i] = source[i]


def spans_inside(bench: Bench, run: object, out: object, grid: int) -> list[float]:
    spans = []
    for _ in range(3 * bench.repeats):
        bench.flush()
        run()
        bench.wait()
        stamps = bench.read(out).astype(np.int64)[: 2 * grid].reshape(grid, 2)
        spans.append(float(stamps[:, 1].max() - stamps[:, 0].min()) / 1e3)
    return spans


def turnover(bench: Bench) -> Iterator[Measurement]:
    """Many CTAs that exit at once: the cost of start and exit for an SM with several resident CTAs."""
    count = bench.pick(64, 2)
    out = bench.array((count * 16 * bench.sms * 2,), "u64")
    for threads, resident in ((128, 16), (256, 8), (1024, 2)):
        for cycles in (0, 1000):
            probe = spin.configure(threads=threads)
            runs = [bench.prepare(probe, n * resident * bench.sms, [out, cycles]) for n in (count // 2, count)]
            times = [bench.seconds(run) for run in runs]
            waves = [(b - a) / (count // 2) * 1e6 for a, b in zip(*times, strict=True)]
            how = f"a wave of {resident} CTAs an SM, each spins {cycles} cycles"
            yield summarise(f"launch.turnover.{threads}_threads.{cycles}", waves, "us", how)
    count = bench.pick(512, 2)
    source, target = (bench.array((count * 8 * bench.sms * 256,), "f32") for _ in range(2))
    runs = [bench.prepare(copy, n * 8 * bench.sms, [source, target]) for n in (count // 2, count)]
    times = [bench.seconds(run) for run in runs]
    waves = [(b - a) / (count // 2) * 1e6 for a, b in zip(*times, strict=True)]
    yield summarise("launch.turnover.copy", waves, "us", "a wave of 8 CTAs an SM, each copies 1 KB of device memory")
    for size in bench.pick((2, 4, 8), ()):
        traced = spin.configure(cluster=size, nbytes=LARGE).trace()
        entry = entry_point(traced)
        function = bench.device.function(entry.module, entry.name, traced.threads, traced.cluster, traced.smem_bytes)
        config = function.at((1024, 1, 1), [0, 0]).config
        resident_clusters = call(function.bindings.cuOccupancyMaxActiveClusters(function.handle, config))
        yield summarise(
            f"launch.clusters_of_{size}", [resident_clusters], "clusters", "resident together, one CTA an SM"
        )
