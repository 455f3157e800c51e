"""Power: the energy of a flop and of a byte, and the clock at the board's power limit.

Each load runs for seconds while nvidia-smi samples: once with pauses, so that the board stays below its limit and keeps
its voltage, and once without.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from probes.clocks import KBLOCK, LOADS, Load, data, prepare_load
from probes.harness import Bench, Measurement, Run, summarise
from probes.issue import chains
from probes.memory import THREADS, stream, vectors

PAUSE = 2048  # cycles before each k-block, which keep a load below the power limit
STEADY = ("normal", "normal_a", "normal_b", "normal_ab", "pair_ab", "zeros")


def measure(bench: Bench) -> Iterator[Measurement]:
    operands = data(bench)
    for name in bench.pick(STEADY, STEADY[:1]):
        load = LOADS[name]
        yield from tensor(bench, f"power.paused.{name}", load._replace(pause=PAUSE), operands[load.data])
        yield from tensor(bench, f"power.{name}", load, operands[load.data])
    yield from others(bench)


def tensor(bench: Bench, name: str, load: Load, operands: list[Any]) -> Iterator[Measurement]:
    rounds, most = bench.pick(max(64, 2_000_000 // (KBLOCK + load.pause)), 4), 1 << 13
    samples, run = prepare_load(bench, load, rounds, operands, most)
    watts, mhz = steady(bench, run)
    count = int(bench.read(samples)[0]) // 4
    readings = bench.read(samples).astype(np.int64)[1 : 1 + 4 * count].reshape(count, 2, 2)[count // 2 :]
    cycles, nanoseconds = (readings[:, 1] - readings[:, 0]).T
    clock = np.percentile(cycles / np.maximum(nanoseconds, 1) * 1e3, (25, 50, 75))
    yield summarise(f"{name}.clock", list(clock), "MHz", f"nvidia-smi says {statistics.median(mhz):.0f}")
    each = np.percentile(cycles / (rounds - 1), (25, 50, 75))
    yield summarise(f"{name}.cycles", list(each), "cycles/k-block", f"pauses of {load.pause} cycles")
    yield summarise(f"{name}.watts", watts, "W", "by nvidia-smi")


def others(bench: Bench) -> Iterator[Measurement]:
    """Loads without tensor cores."""
    size = bench.pick(1 << 30, 1 << 19)
    x, y = bench.noise(size // 4), bench.array((size // 4,), "u32")
    sink, out = bench.array((1024,), "u32"), bench.array((2 * bench.sms * 2 * THREADS // 32,), "u64")
    grid, near, rounds = 2 * bench.sms, vectors(bench.pick(24 << 20, size), 2 * bench.sms), bench.pick(400, 1)
    far = vectors(size, grid)
    probes: dict[str, tuple[Any, int, list[Any], int]] = {
        "fma": (chains.configure(width=8, threads=512), bench.sms, [out, bench.pick(20_000, 1), 0x3F800001, sink], 0),
        "l2_read": (stream, grid, [out, rounds, x, y, near], 16 * near * rounds),
        "hbm_read": (stream, grid, [out, bench.pick(4, 1), x, y, far], 16 * far * bench.pick(4, 1)),
        "hbm_copy": (stream.configure(mode="copy"), grid, [out, bench.pick(2, 1), x, y, far], 32 * far * 2),
    }
    for name, (probe, ctas, args, nbytes) in probes.items():
        run = bench.prepare(probe, ctas, args)
        watts, mhz = steady(bench, run)
        taken = bench.seconds(run, cold=False, repeats=5)
        yield summarise(f"power.{name}.clock", mhz, "MHz", "by nvidia-smi")
        yield summarise(f"power.{name}.watts", watts, "W", "by nvidia-smi")
        if nbytes:
            yield summarise(f"power.{name}.rate", [1e-9 * nbytes / t for t in taken], "GB/s", "meanwhile")
    watts, mhz = steady(bench, lambda: time.sleep(0.01))
    yield summarise(
        "power.idle.watts", watts, "W", f"nothing runs, the clock stays at {statistics.median(mhz):.0f} MHz"
    )


def steady(bench: Bench, run: Run, seconds: float = 1.5) -> tuple[list[float], list[float]]:
    """Returns watts and MHz by nvidia-smi in the second half of ``seconds`` of launches back to back."""
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
