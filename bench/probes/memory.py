"""Global memory through ordinary loads and stores: latency of L1, L2 and HBM, bandwidth by kind and number of SMs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from probes.harness import Bench, Measurement, each, summarise, time_block
from warpwright.lang import Global, If, Kernel, ctaid, kernel, ld, loop, nctaid, st, tid, u32, u64, var

THREADS = 1024
BATCH = 4  # loads of 16 bytes in flight a thread
ROW = 32  # words of 128 bytes


@kernel("sm_90a", threads=32)
def chase(out: Global[u64], rounds: u32, x: Global[u32], *, cache="cg"):
    """Each load returns the index of the next."""
    index = var(u32, x[0])
    with time_block(out):
        for _ in loop(rounds):
            index.set(ld(x + index, cache=cache))
    with If(index == 0x7FFFFFFF):
        x[0] = index


@kernel("sm_90a", threads=THREADS)
def stream(out: Global[u64], rounds: u32, x: Global[u32], y: Global[u32], vectors: u32, *, mode="read"):
    """Read, write or copy ``vectors`` · 16 bytes, ``rounds`` times over, all CTAs side by side."""
    total = var(u32, 0)
    with time_block(out):
        for _ in loop(rounds):
            for first in loop(ctaid.x * THREADS, vectors, nctaid.x * (THREADS * BATCH)):
                places = [first + tid.x + nctaid.x * (THREADS * i) for i in range(BATCH)]
                loaded = (
                    [ld(x + at * 4, vec=4, cache="cg") for at in places] if mode != "write" else [[total] * 4] * BATCH
                )
                for at, words in zip(places, loaded, strict=True):
                    if mode == "read":
                        for word in words:
                            total ^= word
                    else:
                        st(y + at * 4, *words)
    with If(total == 0x12345):
        y[tid.x] = total


def latencies(bench: Bench) -> Iterator[Measurement]:
    """Strides that access every 128-byte row once; the time includes one mad.wide for the address."""
    for name, megabytes, cache, stride in (("l1", 0.015625, "ca", 33), ("l2", 4, "cg", 129), ("hbm", 512, "cg", 40009)):
        rows = int(bench.pick(megabytes * (1 << 20), 1 << 14)) // (4 * ROW)
        table = np.zeros((rows, ROW), np.uint32)
        table[:, 0] = (np.arange(rows) + stride) % rows * ROW
        x = bench.upload(table.reshape(-1))
        cold = name == "hbm"
        rounds = (256, 1280) if name != "hbm" else (64, 512)
        if name == "l2":
            bench.spans(chase.configure(cache=cache), 1, [bench.pick(rows, 2), x], repeats=1)
        cycles = bench.slope(chase.configure(cache=cache), [x], rounds=rounds, cold=cold)
        yield summarise(f"global.{name}.latency", cycles, "cycles", f"a row of 128 bytes out of {megabytes} MB a load")


def vectors(nbytes: int, grid: int) -> int:
    """Returns the maximum number of 16-byte vectors in ``nbytes`` that fill whole rounds of every CTA."""
    chunk = grid * THREADS * BATCH
    return nbytes // 16 // chunk * chunk


def bandwidths(bench: Bench) -> Iterator[Measurement]:
    small, large = bench.pick((24 << 20, 1 << 30), (1 << 19, 1 << 19))
    x, y = (bench.array((large // 4,), "u32") for _ in range(2))
    for grid in bench.pick((1, 4, 16, 33, 66, 99, 132), (1, 2)):
        count = vectors(small, grid)
        cycles = bench.slope(stream, [x, y, count], rounds=(2, 10) if grid > 4 else (1, 2), grid=grid)
        values = each(count * 16 / grid, cycles)
        yield summarise(f"l2.read.{grid}_sms", values, "bytes/cycle/SM", f"{small >> 20} MB in L2")
    for mode, factor in (("write", 1), ("copy", 2)):
        count = vectors(small, bench.sms)
        cycles = bench.slope(stream.configure(mode=mode), [x, y, count], rounds=(2, 10), grid=bench.sms)
        values = each(factor * count * 16 / bench.sms, cycles)
        yield summarise(f"l2.{mode}.{bench.sms}_sms", values, "bytes/cycle/SM", "read and written bytes, in L2")
    for mode, factor in (("read", 1), ("write", 1), ("copy", 2)):
        values = array_rate(bench, stream.configure(mode=mode), x, y, large)
        yield summarise(f"hbm.{mode}", [factor * v for v in values], "GB/s", "1 GB less 0.5 GB, two CTAs an SM")
    for grid in bench.pick((8, 33, 66, 132), (1,)):
        count = vectors(large // 4, grid)
        cycles = bench.spans(stream, grid, [1, x, y, count], cold=True).mean(axis=1)
        values = each(count * 16 / grid, cycles)
        yield summarise(f"hbm.read.{grid}_sms", values, "bytes/cycle/SM", "256 MB, cold L2")


def array_rate(bench: Bench, probe: Kernel, x: object, y: object, nbytes: int) -> list[float]:
    """Returns GB/s by events, of the whole array less half of it, which cancels the launch."""
    grid = 2 * bench.sms
    out = bench.array((grid * 2 * THREADS // 32,), "u64")
    half, full = (vectors(size, grid) for size in (nbytes // 2, nbytes))
    times = [bench.seconds(bench.prepare(probe, grid, [out, 1, x, y, count])) for count in (half, full)]
    return [(full - half) * 16e-9 / max(b - a, 1e-9) for a, b in zip(*times, strict=True)]


def measure(bench: Bench) -> Iterator[Measurement]:
    yield from latencies(bench)
    yield from bandwidths(bench)
