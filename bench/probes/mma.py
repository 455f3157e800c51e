"""mma.sync: latency and throughput, alone and with ldmatrix; and the cost of arithmetic during wgmma."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from probes.harness import Bench, Measurement, summarise, time_block
from probes.issue import OPS
from warpwright.lang import (
    Global,
    If,
    Shared,
    b32,
    bar,
    bf16,
    clock64,
    ctaid,
    f32,
    kernel,
    ldmatrix,
    loop,
    mma,
    role,
    smem,
    tid,
    u32,
    u64,
    var,
    warp,
    wgmma,
)

GROUP = 16  # MMAs of a round, for any number of accumulators
FED = 8  # ldmatrix.x4 of a round, for twice as many MMAs
CHAINS = 8
STEPS = 128  # of all chains in a round
PRODUCTS = 8  # wgmma of a warpgroup's round


@kernel("sm_90a", threads=32)
def products(out: Global[u64], rounds: u32, seed: u32, sink: Global[f32], *, sums=1, threads=32):
    """m16n8k16 of bfloat16 into ``sums`` accumulators in turn."""
    words = [(seed + tid.x + i).bitcast(b32) for i in range(6)]
    left, right = mma.left(bf16, words[:4]), mma.right(bf16, words[4:])
    accumulators = [mma.accumulator(f32) for _ in range(sums)]
    with time_block(out):
        for _ in loop(rounds):
            for i in range(GROUP):
                mma.sync(accumulators[i % sums], left, right)
    for each in accumulators:
        with If(each.regs[0] == 12345.0):
            sink[tid.x] = each.regs[0]


@kernel("sm_90a", threads=32)
def multiply_loaded(out: Global[u64], rounds: u32, flip: u32, sink: Global[f32], *, each=2, trans=False, threads=32):
    """``each`` MMAs for each ldmatrix.x4, which loads two B operands; ``flip`` is 0, unknown to the assembler."""
    place = fill_smem(threads)
    with time_block(out):
        accumulators = multiply_from_smem(place, rounds, flip, each, trans)
    for sums in accumulators:
        with If(sums.regs[0] == 12345.0):
            sink[tid.x] = sums.regs[0]


@kernel("sm_90a", threads=128)
def multiply_in_turn(
    out: Global[u64], rounds: u32, seed: u32, sink: Global[u32], *, op="fma_f32", steps=1, threads=128
):
    """Each warp issues an m16n8k16 of bfloat16, then ``steps`` independent steps of arithmetic, and so on."""
    kind, step = OPS[op][:2]
    words = [(seed + tid.x + i).bitcast(b32) for i in range(6)]
    left, right = mma.left(bf16, words[:4]), mma.right(bf16, words[4:])
    accumulators = [mma.accumulator(f32) for _ in range(CHAINS)]
    own = seed + tid.x
    constant = own.bitcast(f32) if kind is f32 else own
    values = [var(kind, constant + i) for i in range(2 * CHAINS)]
    with time_block(out):
        for _ in loop(rounds):
            for i in range(GROUP):
                mma.sync(accumulators[i % CHAINS], left, right)
                for j in range(i * steps, (i + 1) * steps):
                    value = values[j % len(values)]
                    value.set(step(value, constant))
    for word in (*(each.regs[0].bitcast(u32) for each in accumulators), *(value.bitcast(u32) for value in values)):
        with If(word == 0x12345):
            sink[tid.x] = 1


def fill_smem(threads: int) -> Any:
    """Returns the address of a lane's first row in 16 KB of initialised shared memory."""
    tile = smem.array(u32, 4096)
    for i in range(0, 4096, threads):
        with If(tid.x + i < 4096):
            tile[tid.x + i] = tid.x
    bar.sync()
    return var(u32, tile.address + warp.lane * 16)


def multiply_from_smem(place: Any, rounds: Any, flip: Any, each: int = 2, trans: bool = False) -> list[Any]:
    """Runs ``rounds`` rounds of MMAs with B operands from ldmatrix; returns the accumulators."""
    left = mma.left(bf16, [(tid.x + i).bitcast(b32) for i in range(4)])
    accumulators = [mma.accumulator(f32) for _ in range(2 * FED)]
    for _ in loop(rounds):
        for i in range(0, 2 * FED, each):
            words = ldmatrix(Shared(b32, place) + i * 64, 4, trans=trans)
            for own in range(each):
                half = own % 2 * 2
                mma.sync(accumulators[i + own], left, mma.right(bf16, words[half : half + 2]))
        place ^= flip
    return accumulators


@kernel("sm_90a", threads=384)
def multiply_and_calculate(
    out: Global[u64],
    rounds: u32,
    steps: u32,
    seed: u32,
    sink: Global[u32],
    *,
    op="fma_f32",
    n=128,
    source="registers",
    groups=1,
    threads=256,
):
    """A warpgroup issues wgmma, ``groups`` others run ``steps`` rounds of arithmetic; each warp writes its cycles."""
    kind, step, _ = OPS[op]
    a, b = smem.tile(bf16, (64, 64), swizzle=128), smem.tile(bf16, (n, 64), swizzle=128)
    place = (ctaid.x * (threads // 32) + warp.id) * 2
    bar.sync()

    def write_clocks(start: Any) -> None:
        with If(warp.lane == 0):
            out[place] = start
            out[place + 1] = clock64()

    @role(warps=range(4))
    def multiply() -> None:
        acc = wgmma.accumulator(f32, (64, n))
        for register in acc.regs:
            register.set(0.0)
        left = wgmma.left(bf16, [var(b32, 0) for _ in range(4)]) if source == "registers" else None
        start = clock64()
        for _ in loop(rounds):
            wgmma.fence()
            for i in range(PRODUCTS):
                k = i * 16 % 64
                wgmma.mma(acc, left or a[:, k : k + 16], b[:, k : k + 16], accumulate=True)
            wgmma.commit_group()
            wgmma.wait_group(1)
        wgmma.wait_group(0)
        write_clocks(start)
        with If(acc.regs[0] == 12345.0):
            sink[0] = 1

    @role(warps=range(4, 4 + 4 * groups))
    def calculate() -> None:
        own = seed + tid.x
        constant = own.bitcast(f32) if kind is f32 else own
        values = [var(kind, constant + i) for i in range(CHAINS)]
        start = clock64()
        for _ in loop(steps):
            for _ in range(STEPS // CHAINS):
                for value in values:
                    value.set(step(value, constant))
        write_clocks(start)
        for value in values:
            with If(value.bitcast(u32) == 0x12345):
                sink[tid.x] = 1


def measure(bench: Bench) -> Iterator[Measurement]:
    sink = bench.array((1024,), "f32")
    for sums in bench.pick((1, 2, 4, 8, 16), (1, 2)):
        for warps in bench.pick((1, 4, 8, 16), (1,)):
            probe = products.configure(sums=sums, threads=32 * warps)
            cycles = bench.slope(probe, [0, sink], per=GROUP * max(1, warps / 4))
            how = f"{sums} sums, {warps} warps, of a scheduler"
            yield summarise(f"mma.m16n8k16.{sums}_sums.{warps}_warps", cycles, "cycles/instruction", how)
    for warps in bench.pick((1, 4, 8, 16), (1,)):
        cycles = bench.slope(multiply_loaded.configure(threads=32 * warps), [0, sink], per=2 * FED * max(1, warps / 4))
        how = f"an ldmatrix.x4 for two, {warps} warps, of a scheduler"
        yield summarise(f"mma.m16n8k16.fed.{warps}_warps", cycles, "cycles/instruction", how)
    yield from arithmetic_in_turn(bench)
    yield from concurrent_arithmetic(bench)


def arithmetic_in_turn(bench: Bench) -> Iterator[Measurement]:
    """Arithmetic between the mma.sync of a warp."""
    sink = bench.array((1024,), "u32")
    for op in bench.pick(("fma_f32", "pack_bf16", "integer", "ex2"), ("fma_f32",)):
        for steps in bench.pick((1, 2, 4, 8), (1,)):
            for warps in bench.pick((1, 4), (1,)):
                probe = multiply_in_turn.configure(op=op, steps=steps, threads=128 * warps)
                cycles = bench.slope(probe, [0x3F800001, sink], per=GROUP * warps)
                how = f"{steps} steps of arithmetic after each, {warps} warps a scheduler"
                yield summarise(f"mma.mixed.{op}.{steps}.{warps}_warps", cycles, "cycles/instruction", how)


def concurrent_arithmetic(bench: Bench) -> Iterator[Measurement]:
    """Concurrent arithmetic and wgmma: each is timed while the other runs longer."""
    for op in bench.pick(("fma_f32", "ex2", "max_f32", "pack_bf16", "ex2_add_max", "max_fma2", "weigh"), ("fma_f32",)):
        for groups in bench.pick((1, 2), (1,)):
            for source in bench.pick(("none", "shared", "registers"), ("registers",)):
                rows = measure_concurrent(bench, op, groups, source)
                how = f"{groups} warps a scheduler; products of 64 × 128 × 16, A: {source}"
                yield summarise(f"beside.{op}.{groups}.{source}", rows[0], "cycles/step", how)
                if source != "none":
                    yield summarise(f"beside.{op}.{groups}.{source}.product", rows[1], "cycles", how)


def measure_concurrent(bench: Bench, op: str, groups: int, source: str) -> tuple[list[float], list[float]]:
    """Returns a scheduler's cycles for a step of arithmetic, and the cycles of a wgmma, of each repeat."""
    threads, sink = 128 * (1 + groups), bench.array((1024,), "u32")
    out = bench.array((2 * threads // 32,), "u64")
    probe = multiply_and_calculate.configure(
        op=op, groups=groups, source=source.replace("none", "shared"), threads=threads
    )
    found: tuple[list[float], list[float]] = ([], [])
    many, few = bench.pick((400, 40), (2, 1))
    for which, (rounds, steps) in enumerate(((many * 4 if source != "none" else 1, few), (few, many * 4))):
        run = bench.prepare(probe, 1, [out, rounds, steps, 0x3F800001, sink])
        for _ in range(bench.repeats):
            run()
            bench.wait()
            clocks = bench.read(out).astype(np.int64).reshape(-1, 2)
            cycles = clocks[:, 1] - clocks[:, 0]
            mine = cycles[4:].max() / (few * STEPS * groups) if which == 0 else cycles[:4].max() / (few * PRODUCTS)
            found[which].append(float(mine))
    return found
