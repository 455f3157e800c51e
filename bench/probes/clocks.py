"""The clock under load: how far and how fast each load reduces it.

The SM's clock is compared with the GPU's timer inside a main loop, on all SMs, in launches of a tenth of a millisecond
with a flush of L2 between them, because the power limit of the board acts only after about 50 ms. One more SM samples
the clock during a main loop of the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from probes.harness import Bench, Measurement, summarise
from probes.tensor import main_loop
from warpwright.lang import Break, Global, If, clock64, globaltimer, kernel, loop, smem, tid, u32, u64, var

REST = 0.5  # seconds without load before each series
SERIES = 0.03  # seconds
FLUSH = 65e-6
KBLOCK = 1024  # cycles of the tensor core for a k-block of 128 × 256 × 64
LARGE = 200 << 10  # bytes of shared memory: one CTA an SM
LOOK = 400  # cycles between two samples of the clock


class Load(NamedTuple):
    """A main loop: its data, the operands that each k-block loads, CTAs of a cluster, columns, cycles of pause."""

    data: str = "normal"
    fill: str = ""
    cluster: int = 1
    columns: int = 256
    pause: int = 0


LOADS = {
    "normal": Load(),
    "normal_a": Load(fill="a"),
    "normal_b": Load(fill="b"),
    "normal_ab": Load(fill="ab"),
    "pair_ab": Load(fill="ab", cluster=2),
    "narrow": Load(columns=128),
    "narrow_a": Load(fill="a", columns=128),
    "narrow_ab": Load(fill="ab", columns=128),
    "narrow_pair_ab": Load(fill="ab", cluster=2, columns=128),
    "pause_300_ab": Load(fill="ab", pause=300),
    "pause_700_ab": Load(fill="ab", pause=700),
    "pause_1024_ab": Load(fill="ab", pause=1024),
    "pause_1500_ab": Load(fill="ab", pause=1500),
    "zeros": Load("zeros"),
    "same_ab": Load("same", "ab"),
    "far_a": Load("far", "a"),
}
LENGTHS = {"normal": (32, 64, 1024), "normal_ab": (32, 64, 1024), "pair_ab": (32, 64, 1024)}
HOW = {
    "same": "all CTAs load the same",
    "far": "from device memory",
    "zeros": "zeros",
    "normal": "standard normal numbers",
}


def measure(bench: Bench) -> Iterator[Measurement]:
    operands = data(bench)
    for name, load in bench.pick(LOADS, {name: LOADS[name] for name in ("normal", "pair_ab")}).items():
        for rounds in bench.pick((256, *LENGTHS.get(name, ())), (4,)):
            yield from series(bench, name, load, rounds, operands[load.data])
    yield from steps(bench, operands["normal"])


def data(bench: Bench) -> dict[str, list[Any]]:
    """Operands by name: a, b, rows, columns."""
    height, width = bench.pick((4096, 1024), (512, 64))
    normal = [bench.normal((height, width)) for _ in range(2)]
    zeros = [bench.array((height, width), "bf16") for _ in range(2)]
    far = bench.normal(bench.pick((bench.sms * 256, 8192), (512, 64)))
    return {
        "normal": [*normal, height, width],
        "zeros": [*zeros, height, width],
        "same": [*normal, 256, width],
        "far": [far, far, *far.shape],
    }


def series(bench: Bench, name: str, load: Load, rounds: int, operands: list[Any]) -> Iterator[Measurement]:
    """Yields the clock and the cycles of a k-block in launches of ``rounds`` k-blocks, L2 flushed before each."""
    count = bench.pick(int(SERIES / (FLUSH + rounds * (KBLOCK + load.pause) / 1600e6)), 2)
    readings = launches(bench, load, rounds, operands, count)
    cycles, nanoseconds = (readings[:, 1] - readings[:, 0]).T
    mhz = np.percentile(cycles / np.maximum(nanoseconds, 1) * 1e3, (25, 50, 75))
    how = f"{HOW[load.data]}, launches of {np.median(nanoseconds) / 1e3:.0f} us"
    yield summarise(f"clock.{name}.rounds_{rounds}", list(mhz), "MHz", how)
    each = np.percentile(cycles / (rounds - 1), (25, 50, 75))
    yield summarise(f"clock.{name}.rounds_{rounds}.cycles", list(each), "cycles/k-block", how)


def launches(bench: Bench, load: Load, rounds: int, operands: list[Any], count: int) -> Any:
    """Returns (clock, nanoseconds) of the first CTA in its first and last k-block, for each launch, after a rest."""
    samples, run = prepare_load(bench, load, rounds, operands, count)
    rest(bench)
    for _ in range(count):
        bench.flush()
        run()
    bench.wait()
    return bench.read(samples).astype(np.int64)[1:].reshape(count, 2, 2)


def prepare_load(bench: Bench, load: Load, rounds: int, operands: list[Any], count: int, sms: int = 0) -> Any:
    samples, out = bench.array((4 * count + 1,), "u64"), bench.array((bench.sms * 9 * 2,), "u64")
    probe = main_loop.configure(fill=load.fill, columns=load.columns, cluster=load.cluster)
    args = [out, rounds, *operands, load.pause, rounds - 1, samples]
    return samples, bench.prepare(probe, sms or bench.sms, args)


def rest(bench: Bench) -> None:
    bench.wait()
    if bench.real:
        time.sleep(REST)


@kernel("sm_90a", threads=32)
def watch(out: Global[u64], count: u32):
    """Write SM clock and nanoseconds every `LOOK` cycles, concurrently with other kernels."""
    smem.array(u32, LARGE // 4)
    due = var(u64, clock64())
    with If(tid.x == 0):
        for i in loop(count):
            for _ in loop():
                now = clock64()
                Break(when=now >= due)
            due += LOOK
            clock, nanoseconds = clock64(), globaltimer()  # both before a store, which may wait for others'
            out[i * 2] = clock
            out[i * 2 + 1] = nanoseconds


# Times in microseconds after the first k-block is issued, or after the last one is filled.
WHEN = {
    "before": (0, -3.0, 0.0, "before the first product"),
    "onset": (0, 1.0, 1.75, "in the first microsecond of products"),
    "third": (0, 2.5, 3.5, "2 us after the first product"),
    "loaded": (0, 10.0, 30.0, "10 to 30 us"),
    "after": (1, 4.0, 7.0, "2 us after the last product"),
}


def steps(bench: Bench, operands: list[Any]) -> Iterator[Measurement]:
    """The clock before, during and after launches of 64 k-blocks, sampled on another SM."""
    rounds, count, looks = bench.pick((64, 40, 20_000), (4, 2, 4))
    samples, run = prepare_load(bench, LOADS["normal_ab"], rounds, operands, count, bench.sms - 4 if bench.real else 2)
    seen = bench.array((2 * looks,), "u64")
    beside = bench.prepare(watch, 1, [seen, looks], aside=True)
    rest(bench)
    beside()
    for _ in range(count):
        bench.flush()
        run()
    bench.wait()
    clocks, at = bench.read(seen).astype(np.int64).reshape(looks, 2).T
    readings = bench.read(samples).astype(np.int64)[1:].reshape(count, 2, 2)[1:, :, 1]
    for name, (which, first, last, how) in WHEN.items():
        edges = [readings[:, which] + 1e3 * us for us in (first, last)]
        passed = [np.interp(edge - at[0], at - at[0], clocks - clocks[0]) for edge in edges]
        inside = (edges[0] > at[0]) & (edges[1] < at[-1]) if bench.real else slice(None)
        mhz = (passed[1] - passed[0])[inside] / (last - first)
        yield summarise(f"clock.steps.{name}", list(np.percentile(mhz, (25, 50, 75))), "MHz", how)
