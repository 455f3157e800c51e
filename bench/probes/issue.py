"""The cost of an instruction: latency of a dependent chain, and throughput of many warps with many chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from probes.harness import Bench, Measurement, summarise, time_block
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    bar,
    bf16x2,
    elect_one,
    ex2,
    f32,
    fma,
    kernel,
    loop,
    max,
    mbarrier,
    mul_wide,
    pack,
    redux,
    select,
    shfl,
    tid,
    u32,
    u64,
    unpack,
    var,
    warp,
)
from warpwright.types import Scalar

CHAINS = 8  # independent chains of a warp, for throughput
WARPS = 16
BRANCHES = 32  # in a round
BRANCH_KINDS = {
    "loop": "an iteration: compare, leave or not, two additions",
    "skip": "nobody goes into a block of one instruction",
    "lane": "one thread arrives at an mbarrier, the others do not",
    "sync": "warp.sync of threads that are together",
    "lane_sync": "one thread arrives at an mbarrier, then all synchronise",
}
STEPS = 128  # of one chain, or of all chains together, in a round

# name: (type of the chain, one step, instructions of a step)
OPS: dict[str, tuple[type[Scalar], Callable[[Any, Any], Expr], int]] = {
    "fma_f32": (f32, lambda x, k: fma(x, k, k), 1),
    "add_f32": (f32, lambda x, k: x + k, 1),
    "integer": (u32, lambda x, k: (x ^ k) + k, 2),
    "mad_u32": (u32, lambda x, k: x * k + k, 1),
    "mad_wide": (u32, lambda x, k: unpack(mul_wide(x, k), u32)[0], 1),
    "pack_bf16": (f32, lambda x, k: pack(bf16x2, x, k).bitcast(f32), 1),
    "ex2": (f32, lambda x, k: ex2(x), 1),
    "shfl": (u32, lambda x, k: shfl.down(x, 1), 1),
    "redux": (u32, lambda x, k: redux.add(x), 1),
    "max_f32": (f32, lambda x, k: max(-x, k), 1),
    "select": (f32, lambda x, k: select(x > k, -x, x), 2),
    "shfl_max": (f32, lambda x, k: max(-shfl.bfly(x, 1), k), 2),
    "ex2_fma": (f32, lambda x, k: ex2(fma(x, k, k)), 2),
    "ex2_add_max": (f32, lambda x, k: max(-(ex2(x) + k), k), 3),
    "max_fma2": (f32, lambda x, k: max(-fma(fma(x, k, k), k, k), k), 3),
    "weigh": (f32, lambda x, k: max(-(ex2(fma(x, k, k)) + k), k), 4),
}


@kernel("sm_90a", threads=32)
def chains(
    out: Global[u64], rounds: u32, seed: u32, sink: Global[u32], *, op="fma_f32", width=1, threads=32, steps=STEPS
):
    kind, step, _ = OPS[op]
    own = seed + tid.x  # the assembler would drop shuffles of a value that is equal in all lanes
    constant = own.bitcast(f32) if kind is f32 else own
    values = [var(kind, constant + i) for i in range(width)]
    with time_block(out):
        for _ in loop(rounds):
            for _ in range(steps // width):
                for value in values:
                    value.set(step(value, constant))
    for value in values:
        with If(value.bitcast(u32) == 0x12345):  # so that the assembler keeps the chain
            sink[tid.x] = 1


@kernel("sm_90a", threads=32)
def straight(out: Global[u64], rounds: u32, seed: u32, sink: Global[u32], *, count=4096):
    """Straight-line code that runs once: the cost of instruction fetch."""
    value = var(f32, seed.bitcast(f32))
    with time_block(out):
        for i in range(count):
            value.set(fma(value, value, float(i)))
    with If(value.bitcast(u32) == 0x12345):
        sink[tid.x] = 1


@kernel("sm_90a", threads=32)
def branches(out: Global[u64], rounds: u32, limit: u32, sink: Global[u32], *, what="loop"):
    """Control flow around minimal code, ``BRANCHES`` times a round."""
    never = mbarrier(1 << 19, name="never")
    with If(warp.lane == 0):
        never.init()
    bar.sync()
    left, passed, leads = var(u32, 0), var(u32, 0), elect_one()

    def iterate() -> None:
        for _ in loop():
            Break(when=left < limit)
            left.set(left - limit)
            passed.set(passed + 1)

    def arrive_one_lane() -> None:
        with If(leads):
            never.arrive()

    def skip_block() -> None:
        with If(left > limit):
            never.arrive()

    with time_block(out):
        for _ in loop(rounds):
            if what == "loop":
                left.set(limit * (BRANCHES + 1) - 1)
                iterate()
            for _ in range(0 if what == "loop" else BRANCHES):
                if "lane" in what:
                    arrive_one_lane()
                if "skip" in what:
                    skip_block()
                if "sync" in what:
                    warp.sync()
                passed.set(passed ^ left)
    with If(passed + left == 0x12345):
        sink[tid.x] = 1


def measure(bench: Bench) -> Iterator[Measurement]:
    sink, steps = bench.array((1024,), "u32"), bench.pick(STEPS, 2 * CHAINS)
    for op, (_, _, instructions) in OPS.items():
        args, per = (0x3F800001, sink), steps * instructions
        latency = bench.slope(chains.configure(op=op, steps=steps), args, per=per)
        yield summarise(f"issue.{op}.latency", latency, "cycles", "one chain, one warp")
        alone = bench.slope(chains.configure(op=op, width=CHAINS, steps=steps), args, per=per)
        yield summarise(f"issue.{op}.warp", alone, "cycles/instruction", f"{CHAINS} chains, one warp")
        many = chains.configure(op=op, width=CHAINS, threads=32 * WARPS, steps=steps)
        full = bench.slope(many, args, per=per * WARPS / 4)
        yield summarise(f"issue.{op}.scheduler", full, "cycles/instruction", f"{WARPS // 4} warps a scheduler")
    for what in ("loop", "skip", "lane", "sync", "lane_sync"):
        cycles = bench.slope(branches.configure(what=what), [7, sink], per=BRANCHES)
        yield summarise(f"issue.branch.{what}", cycles, "cycles", BRANCH_KINDS[what])
    count = bench.pick(4096, 64)
    for cold in (True, False):
        spans = bench.spans(straight.configure(count=count), bench.sms, [1, 1, sink], cold=cold).mean(axis=1) / count
        state = "cold" if cold else "warm"
        yield summarise(f"issue.straight.{state}", list(spans), "cycles/instruction", f"{count} fma that run once")
