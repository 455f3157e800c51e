"""wgmma: cycles of an instruction by shape and source, latency, and the cost of concurrent TMA traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from probes.harness import Bench, Measurement, summarise, time_block
from probes.traffic import BOTH, sync_cluster
from warpwright.lang import (
    Break,
    Global,
    If,
    Ring,
    atom,
    b32,
    bar,
    bf16,
    clock64,
    clusterid,
    ctaid,
    e4m3,
    elect_one,
    f32,
    fence,
    globaltimer,
    kernel,
    loop,
    role,
    select,
    smem,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)

ROW_BYTES = 128
TYPES = {"bf16": bf16, "e4m3": e4m3}
LEADING = 64  # rows of A a warpgroup


@kernel("sm_90a", threads=128)
def products(
    out: Global[u64],
    rounds: u32,
    sink: Global[f32],
    *,
    n=256,
    source="shared",
    dtype="bf16",
    count=4,
    pending=0,
    threads=128,
):
    """Groups of ``count`` wgmma, 64 rows a warpgroup; after each group wait until ``pending`` groups are in flight."""
    kind, groups = TYPES[dtype], threads // 128
    columns = ROW_BYTES // kind.nbytes
    a = smem.tile(kind, (LEADING * groups, columns), swizzle=128)
    b = smem.tile(kind, (n, columns), swizzle=128)
    acc = wgmma.accumulator(f32, (LEADING, n))
    for register in acc.regs:
        register.set(0.0)
    base, start = a.place.known()
    own = a[:LEADING, :].placed(base + warp.id // 4 * (LEADING * ROW_BYTES), start)
    left = wgmma.left(kind, [var(b32, 0) for _ in range(4)]) if source == "registers" else None
    width = 32 // kind.nbytes
    with time_block(out):
        for _ in loop(rounds):
            wgmma.fence()
            for i in range(count):
                k = i * width % columns
                wgmma.mma(acc, left or own[:, k : k + width], b[:, k : k + width], accumulate=True)
            wgmma.commit_group()
            wgmma.wait_group(pending)
        wgmma.wait_group(0)
    with If(acc.regs[0] == 12345.0):
        sink[0] = acc.regs[0]


@kernel("sm_90a", threads=256)
def turns(out: Global[u64], rounds: u32, sink: Global[f32], delay: u32, *, n=128, count=8):
    """Two warpgroups issue ``count`` wgmma each, the second ``delay`` cycles after the first; both are timed."""
    a = smem.tile(bf16, (2 * LEADING, 64), swizzle=128)
    b = smem.tile(bf16, (n, 64), swizzle=128)
    acc = wgmma.accumulator(f32, (LEADING, n))
    for register in acc.regs:
        register.set(0.0)
    base, start = a.place.known()
    group = warp.id // 4
    own = a[:LEADING, :].placed(base + group * (LEADING * ROW_BYTES), start)
    total = var(u64, 0)
    for _ in loop(rounds):
        bar.sync()
        pause(select(group == 1, delay, 0))
        begin = clock64()
        wgmma.fence()
        for i in range(count):
            k = i * 16 % 64
            wgmma.mma(acc, own[:, k : k + 16], b[:, k : k + 16], accumulate=True)
        wgmma.commit_group()
        wgmma.wait_group(0)
        total += clock64() - begin
    with If((warp.id % 4 == 0) & (warp.lane == 0)):
        out[ctaid.x * 2 + group] = total
    with If(acc.regs[0] == 12345.0):
        sink[0] = acc.regs[0]


@kernel("sm_90a", threads=288)
def main_loop(
    out: Global[u64],
    rounds: u32,
    a: tma.Map[bf16],
    b: tma.Map[bf16],
    height: u32,
    width: u32,
    idle: u32,
    every: u32,
    samples: Global[u64],
    *,
    fill="",
    columns=256,
    cluster=1,
):
    """The main loop of a GEMM without its epilogue: a warp fills a ring of four stages, two warpgroups multiply.

    ``fill`` names the operands ("ab") that each k-block loads; the others load once. In a ``cluster`` of two, each
    CTA multicasts half of b to both. The loader spins ``idle`` cycles before each stage. Every ``every`` rounds, the
    first CTA's loader appends SM clock and nanoseconds to ``samples``, which begin with their number. Operands are
    ``height`` rows of ``width`` columns.
    """
    ring = Ring(
        4,
        full=1,
        empty=2 * cluster,
        a=smem.tile(bf16, (2 * LEADING, 64), swizzle=128),
        b=smem.tile(bf16, (columns, 64), swizzle=128),
    )
    with If((warp.id == 0) & elect_one()):
        ring.init()
        fence.mbarrier_init()
    rank: Any = sync_cluster() if cluster > 1 else 0
    bar.sync()
    number = clusterid.x if cluster > 1 else ctaid.x
    tops = {"a": (ctaid.x * columns) % height, "b": (number * columns) % height}
    with time_block(out):

        @role(warp=8, elect=True)
        def load() -> None:
            slots, column, due = ring.producer(), var(u32, 0), var(u32, 0)
            for k in loop(rounds):
                slot = next(slots)
                slot.empty.wait()
                pause(idle)
                first = k < 4
                for name, tile, source in (("a", slot.a, a), ("b", slot.b, b)):
                    with If(first if name not in fill else k < rounds):
                        slot.full.expect_tx(tile.nbytes)
                        if name == "b" and cluster > 1:
                            load_half(tile, source, tops[name], column, slot.full, rank)
                        else:
                            tma.load(tile, source[tops[name], column], slot.full)
                slot.full.arrive()
                column.set((column + 64) % width)
                # `k % every` would take 16 cycles of each k-block from the tensor core.
                with If((ctaid.x == 0) & (k == due)):
                    due += every
                    offset = atom.add(samples, 2).to(u32)
                    samples[offset + 1] = clock64()
                    samples[offset + 2] = globaltimer()
            slots.wait_all_empty()

        @role(warps=range(8))
        def multiply() -> None:
            acc, slots, used = wgmma.accumulator(f32, (LEADING, columns)), ring.consumer(), ring.consumer()
            leads = warp_leads()
            for k in loop(rounds):
                slot = next(slots)
                slot.full.wait()
                base, start = slot.a.place.known()
                own = slot.a[:LEADING, :].placed(base + warp.id // 4 * (LEADING * ROW_BYTES), start)
                wgmma.fence()
                for kk in range(0, 64, 16):
                    wgmma.mma(acc, own[:, kk : kk + 16], slot.b[:, kk : kk + 16], accumulate=(k % 64 > 0) | (kk > 0))
                wgmma.commit_group()
                wgmma.wait_group(1)
                with If(k > 0):
                    release(next(used).empty, leads, cluster)
            wgmma.wait_group(0)
            release(next(used).empty, leads, cluster)
            with If(acc.regs[0] == 12345.678):
                samples[0] = clock64()

    if cluster > 1:
        sync_cluster()


def load_half(tile: Any, source: Any, top: Any, column: Any, full: Any, rank: Any) -> None:
    """Multicast this CTA's half of a tile to both CTAs of the pair."""
    half = tile.shape[0] // 2
    for part in range(2):
        with If(rank == part):
            rows = slice(part * half, (part + 1) * half)
            tma.load(tile[rows, :], source[top + part * half, column], full, multicast=BOTH)


def release(empty: Any, leads: Any, cluster: int) -> None:
    """Arrive on the empty mbarrier of every CTA that fills a slot: this warpgroup has read it."""
    with If(leads):
        if cluster == 1:
            empty.arrive()
        else:
            for rank in range(cluster):
                empty.at(rank).arrive(scope="cta")


def warp_leads() -> Any:
    """Returns whether this is the first thread of its warpgroup."""
    return (warp.id % 4 == 0) & (warp.lane == 0)


def pause(cycles: Any) -> None:
    """Spin for ``cycles``."""
    with If(cycles > 0):
        end = clock64() + cycles.to(u64)
        for _ in loop():
            now = clock64()
            Break(when=now >= end)


def measure(bench: Bench) -> Iterator[Measurement]:
    sink = bench.array((32,), "f32")
    widths = bench.pick((8, 16, 32, 64, 96, 128, 192, 256), (64, 256))
    for n in widths:
        for source in ("shared", "registers"):
            for groups in (1, 2):
                probe = products.configure(n=n, source=source, threads=128 * groups, pending=1)
                cycles = bench.slope(probe, [sink], rounds=(32, 160), per=4 * groups)
                name = f"wgmma.n{n}.{source}.{groups}_groups"
                yield summarise(name, cycles, "cycles", "an instruction of 64 × n × 16, groups of 4, one pending")
    for n in bench.pick((64, 128, 256), ()):
        cycles = bench.slope(
            products.configure(n=n, dtype="e4m3", pending=1, threads=256), [sink], rounds=(32, 160), per=8
        )
        yield summarise(f"wgmma.n{n}.e4m3.2_groups", cycles, "cycles", "an instruction of 64 × n × 32")
    for n in bench.pick((8, 64, 128, 256), (64,)):
        for count in (1, 4):
            cycles = bench.slope(products.configure(n=n, count=count), [sink], rounds=(32, 160))
            yield summarise(f"wgmma.n{n}.group_of_{count}", cycles, "cycles", "fence, products, commit, wait for all")
    yield from staggered_groups(bench)
    yield from main_loops(bench)


def staggered_groups(bench: Bench) -> Iterator[Measurement]:
    sink, rounds = bench.array((32,), "f32"), bench.pick(64, 1)
    out = bench.array((2 * bench.sms,), "u64")
    for n, count in bench.pick(((128, 8), (256, 4)), ((64, 2),)):
        for delay in bench.pick((0, 32, 100, 200, 300, 400), (0,)):
            run, rows = bench.prepare(turns.configure(n=n, count=count), bench.sms, [out, rounds, sink, delay]), []
            for _ in range(bench.repeats):
                run()
                bench.wait()
                rows.append(bench.read(out).astype(np.float64).reshape(bench.sms, 2).mean(axis=0) / rounds)
            for group, name in enumerate(("first", "second")):
                how = f"a group of {count} products, the second warpgroup {delay} cycles later"
                yield summarise(f"wgmma.turns.n{n}x{count}.{delay}.{name}", [row[group] for row in rows], "cycles", how)


def main_loops(bench: Bench) -> Iterator[Measurement]:
    """Cycles of a k-block of 128 × n × 64 with and without loads from L2 into the ring."""
    height, width = bench.pick((4096, 1024), (256, 64))
    a, b = bench.normal((height, width)), bench.normal((height, width))
    samples = bench.array((1 << 13,), "u64")
    for columns in bench.pick((128, 256), (128,)):
        for fill in ("", "a", "b", "ab"):
            for grid in (1, bench.sms):
                args = [a, b, height, width, 0, 1 << 30, samples]
                cycles = bench.slope(main_loop.configure(fill=fill, columns=columns), args, rounds=(64, 320), grid=grid)
                name = f"wgmma.main_loop.n{columns}.fill_{fill or 'none'}.{grid}_sms"
                nbytes = (128 * ("a" in fill) + columns * ("b" in fill)) * ROW_BYTES
                yield summarise(name, cycles, "cycles/k-block", f"two warpgroups, {nbytes} bytes from L2 a k-block")
