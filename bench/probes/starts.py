"""The start of a launch: uncached parameters, code and data; and the start of later waves of CTAs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from probes.bulk import COLUMNS
from probes.harness import Bench, Measurement, summarise
from probes.traffic import Tiles, operands
from warpwright import TensorMap
from warpwright.lang import (
    Global,
    If,
    bar,
    bf16,
    clock64,
    clusterid,
    ctaid,
    f32,
    fma,
    kernel,
    loop,
    role,
    tma,
    u32,
    u64,
    var,
)

STAMPS = 4
MOST = 3  # CTAs an SM
WARM = [
    *(Tiles("one", rows, flight, down) for rows, flight in (((128, 128), 6), ((128, 256), 4)) for down in (16, 32, 64)),
    *(Tiles("one", (128, 128), 1, down, 512, resident) for resident in (2, 3) for down in (16, 64)),
]
COLD = [
    *(Tiles("one", (128, 128), 6, 64, products) for products in (0, 512)),
    Tiles("one", (128, 256), 4, 32, 1024),
    *(Tiles("one", (128, 128), 1, 64, 512, resident) for resident in (2, 3)),
]


@kernel("sm_90a", threads=160)
def enter(
    a: tma.Map[bf16],
    b: tma.Map[bf16],
    d: tma.Map[bf16],
    out: Global[u64],
    first: u32,
    sink: Global[f32],
    second: u32,
    *,
    far=0,
    use=True,
):
    """Clocks of a CTA's last warp: at its first instruction, before its role, in it after ``far`` instructions of
    another one, and (``use``) once it has used parameters."""
    begin = clock64()
    bar.sync()
    known = clock64()
    place = ctaid.x * STAMPS

    @role(warps=range(4))
    def other() -> None:
        value = var(f32, 1.0)
        for _ in range(far):
            value.set(fma(value, value, 1.5))
        with If(value == 12345.0):
            sink[0] = value

    @role(warp=4, elect=True)
    def own() -> None:
        there = clock64()
        count = var(u32, 0)
        if use:
            for _ in loop(clusterid.x // first, second):
                count += 1
        done = clock64()
        with If(count == 12345):
            sink[1] = 1.0
        for at, clock in enumerate((begin, known, there, done)):
            out[place + at] = clock


def measure(bench: Bench) -> Iterator[Measurement]:
    yield from entries(bench)
    yield from first_blocks(bench)
    yield from waves(bench)


def entries(bench: Bench) -> Iterator[Measurement]:
    out, sink = bench.array((STAMPS * bench.sms,), "u64"), bench.array((32,), "f32")
    x = bench.array((64, COLUMNS), "bf16")
    maps = [TensorMap(x, (8, COLUMNS), swizzle=128)] * 3
    for far, use in bench.pick(((0, True), (0, False), (2048, True)), ((0, True), (16, False))):
        run = bench.prepare(enter.configure(far=far, use=use), bench.sms, [*maps, out, 1000, sink, 0])
        for name, cold in (("warm", False), ("cold", True)):
            rows = []
            for _ in range(3 * bench.repeats):
                if cold:
                    bench.flush()
                run()
                bench.wait()
                rows.append(bench.read(out).astype(np.int64).reshape(bench.sms, STAMPS))
            clocks = np.array(rows[1:] or rows)
            for at, what in enumerate(("together", "role", "used"), 1):
                times, title = clocks[:, :, at] - clocks[:, :, 0], f"start.{what}.far_{far}_{use:d}.{name}"
                yield summarise(title, list(times.mean(axis=1)), "cycles", "mean of the CTAs")
                yield summarise(f"{title}.last", list(times.max(axis=1)), "cycles", "the last CTA")


def first_blocks(bench: Bench) -> Iterator[Measurement]:
    """Time from the issue of a launch's first k-blocks to their completion; L2 is cold."""
    width = bench.pick(2048, 256)
    (x, y), totals = operands(bench, 1 << 15, width), bench.array((4 * bench.sms,), "u64")
    for rows in bench.pick(((8, 0), (64, 0), (128, 0), (128, 128), (128, 256)), ((8, 0),)):
        for flight, down in bench.pick(((1, 8), (1, 16), (4, 16)), ((1, 1),)):
            case = Tiles("one", rows, flight, down)
            args = [0, totals, *case.maps(x, y), width, down, 0, 0]
            spans = bench.spans(case.probe(), bench.sms, args, cold=True, repeats=2 * bench.repeats)
            name = f"start.load.{rows[0]}_{rows[1]}x{flight}.down_{down}"
            yield summarise(name, list(spans.mean(axis=1)), "cycles", "mean of the CTAs")
            yield summarise(f"{name}.last", list(spans.max(axis=1)), "cycles", "the last CTA")


def waves(bench: Bench) -> Iterator[Measurement]:
    """k-blocks of CTAs of the first wave and of later waves, from L2 or, in each wave, from device memory."""
    count = bench.pick(8, 3)
    kinds = (("waves", 512, 1 << 17, WARM, 100), ("waves.cold", 8192, 1 << 14, COLD, 126))
    for name, width, rows, cases, blocks in bench.pick(kinds, (("waves", 256, 256, WARM[:1], 12),)):
        (x, y), totals = operands(bench, rows, width), bench.array((count * MOST * bench.sms,), "u64")
        for case in cases:
            places = case.resident * bench.sms
            args = [blocks // case.flight - 1, totals, *case.maps(x, y), width, case.down, 0, case.products]
            spans = bench.spans(case.probe(), count * places, args, cold=name == "waves.cold")
            each = spans / (blocks // case.flight * case.flight)
            for which, part in (("first", each[:, :places]), ("later", each[:, places:-places])):
                title = f"{name}.{case.name}.{which}"
                yield summarise(title, list(part.mean(axis=1)), "cycles/k-block", "mean of the CTAs of the waves")
