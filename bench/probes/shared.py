"""Shared memory: latency, and cycles of an SM for each width and conflict; ldmatrix and stmatrix."""

from __future__ import annotations

from collections.abc import Iterator

from probes.harness import Bench, Measurement, summarise, time_block
from warpwright.lang import (
    Global,
    If,
    Shared,
    b32,
    bar,
    kernel,
    ld,
    ldmatrix,
    loop,
    smem,
    st,
    stmatrix,
    tid,
    u32,
    u64,
    var,
    warp,
)

UNROLL = 8
WORDS = 8192
WARPS = 16
FORMS = {"word": (1, 4), "pair": (2, 8), "quad": (4, 16), "word_2way": (1, 8), "word_8way": (1, 32)}


@kernel("sm_90a", threads=32)
def chase(out: Global[u64], rounds: u32, sink: Global[u32], *, matrix=False):
    """Each load returns the address of the next."""
    held = smem.array(u32, 256)
    for i in range(0, 256, 32):
        held[tid.x + i] = held.address
    bar.sync()
    place = var(u32, held.address)
    with time_block(out):
        for _ in loop(rounds):
            for _ in range(UNROLL):
                if matrix:
                    place.set(ldmatrix(Shared(b32, place + warp.lane * 16), 1)[0].bitcast(u32))
                else:
                    place.set(ld(Shared(u32, place)))
    sink[tid.x] = place


@kernel("sm_90a", threads=32)
def traffic(out: Global[u64], rounds: u32, flip: u32, sink: Global[u32], *, op="load", vec=4, stride=16, threads=32):
    """Loads or stores of every warp, ``stride`` bytes from lane to lane; ``flip`` is 0, unknown to the assembler."""
    held = smem.array(u32, WORDS)
    for i in loop(0, WORDS, threads):
        held[tid.x + i] = tid.x
    bar.sync()
    base, total = var(u32, held.address + warp.lane * stride), var(u32, 0)
    with time_block(out):
        for _ in loop(rounds):
            for i in range(UNROLL):
                place = Shared(u32, base) + i * 1024
                if op == "load":
                    words = ld(place, vec=vec)
                    for word in words if vec > 1 else (words,):
                        total ^= word
                elif op == "store":
                    st(place, *[total] * vec)
                elif op == "ldmatrix":
                    for word in ldmatrix(place.cast(b32), vec):
                        total ^= word.bitcast(u32)
                else:
                    stmatrix(place.cast(b32), [total.bitcast(b32)] * vec)
            base ^= flip
    with If(total == 0x12345):
        sink[tid.x] = total


def measure(bench: Bench) -> Iterator[Measurement]:
    sink = bench.array((1024,), "u32")
    for name, matrix in (("load", False), ("ldmatrix", True)):
        latency = bench.slope(chase.configure(matrix=matrix), [sink], per=UNROLL)
        yield summarise(f"shared.{name}.latency", latency, "cycles", "each address from the load before")
    forms = [(f"{op}.{form}", op, *FORMS[form]) for op in ("load", "store") for form in FORMS]
    forms += [(f"{op}.x{num}", op, num, 16) for op in ("ldmatrix", "stmatrix") for num in (1, 4)]
    for name, op, vec, stride in forms:
        for warps in (1, WARPS):
            probe = traffic.configure(op=op, vec=vec, stride=stride, threads=32 * warps)
            cycles = bench.slope(probe, [0, sink], per=UNROLL * warps)
            yield summarise(f"shared.{name}.{warps}_warps", cycles, "cycles/instruction", "of the SM")
