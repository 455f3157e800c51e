"""Repeated launches, predicted and measured: ``python bench/warm.py [--measure] [--write FILE]``.

The time of a launch in a loop, as many publications measure it: a launch of equal arguments follows another, and the
time of all is divided by their number. On a GPU a kernel that spins holds the stream until the loop has been launched,
so the time of the host is hidden; loops last 20 ms after a rest, less than the power limit needs to act. ``alone_us``
is the time of an isolated launch from cold L2, by events. Predictions are those of ``ww.profile(…, warm=True)`` for an
H200. Cases: the kernels of ``bench/predict.py``, reductions and products whose data L2 keeps or does not, and CTAs that
spin, from which `Timing.relaunch_us` follows. Without ``--measure`` the measurements are read from
``bench/measured/h200_warm.json``. Exit status 1 if the mean error is above its goal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import predict
from predict import Case, kernel_case, level_case, matmul_case
from probes.harness import Bench
from probes.launches import LARGE, spin

from warpwright import cuda
from warpwright.cuda.driver import call, require

STORED = predict.MEASURED / "h200_warm.json"
MEAN_GOAL = 0.10
HOLD, REST, LOOP = 8_000_000, 0.25, 20_000.0  # cycles before a loop; seconds before it; microseconds of it
SPINS = {"plain": {}, "smem": {"nbytes": LARGE}, "cluster_2": {"cluster": 2, "nbytes": LARGE}}
SPIN_CYCLES = (4000, 20_000, 80_000)
READ_MIB = (4, 16, 28, 40, 44, 48, 64, 96)
ROWS, SQUARES = (16, 64, 128, 256, 512), (1024, 1536, 2048, 2304, 2560, 2816)


def cases() -> Iterator[Case]:
    add_up = predict.load_example("06_reduction", "add_up").trace("sm_90a")
    for mib in READ_MIB:
        n = mib << 18
        yield kernel_case(
            "reduction", n, add_up, 8 * predict.SMS, lambda array, n=n: [array((n,), "f32"), array((1,), "f32"), n]
        )
    yield from (matmul_case(m, 4096, 4096) for m in ROWS)
    yield from (matmul_case(size, size, size) for size in SQUARES)
    yield from (matmul_case(*shape) for shape in predict.UNSEEN)
    yield from (level_case(number, size) for size in predict.SIZES for number in range(1, predict.LEVELS + 1))


def measure() -> list[dict[str, Any]]:
    """Returns the measured microseconds on the GPU of this machine."""
    bench = Bench("cuda")
    out = bench.array((2 * 8 * bench.sms,), "u64")
    hold, rows = bench.prepare(spin, bench.sms, [out, HOLD]), []
    for name, config in SPINS.items():
        for cycles in SPIN_CYCLES:
            run = bench.prepare(spin.configure(**config), bench.sms, [out, cycles])
            rows.append({"case": f"spin {name}", "size": cycles, **times(bench, run, hold)})
    return rows + [{"case": case.name, "size": case.size, **times(bench, case.start(bench), hold)} for case in cases()]


def times(bench: Bench, run: Callable[[], Any], hold: Callable[[], Any]) -> dict[str, float]:
    bench.wait()
    time.sleep(REST)
    alone = 1e6 * statistics.median(cuda.measure(run, rounds=9, warmup=1))
    count = max(4, min(50, int(LOOP / alone)))
    loops = [loop_us(bench, run, hold, count) for _ in range(3)]
    return {"us": round(statistics.median(loops), 2), "alone_us": round(alone, 2)}


def loop_us(bench: Bench, run: Callable[[], Any], hold: Callable[[], Any], count: int) -> float:
    """Returns the microseconds of a launch in a loop of ``count``."""
    bindings = require()
    bench.wait()
    time.sleep(REST)
    hold()
    run()
    start, end = (call(bindings.cuEventCreate(0)) for _ in range(2))
    call(bindings.cuEventRecord(start, 0))
    for _ in range(count):
        run()
    call(bindings.cuEventRecord(end, 0))
    bench.wait()
    return 1e3 * float(call(bindings.cuEventElapsedTime(start, end))) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure on the GPU of this machine first")
    parser.add_argument("--write", type=Path, help="write new measurements to this file")
    options = parser.parse_args()
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    if options.measure:
        stored = {
            "device": cuda.device("cuda").spec.name,
            "command": "python bench/warm.py --measure",
            "rows": measure(),
        }
        if options.write:
            options.write.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    measured = [{**row, "sets": [row["us"]]} for row in stored["rows"]]
    rows = predict.compare(measured, list(cases()), warm=True)
    found = predict.summary(rows)
    print(predict.table(rows))
    print(f"mean absolute error {100 * found['mean']:.1f} %, worst {100 * found['worst']:.1f} %")
    sys.exit(found["mean"] > MEAN_GOAL)


if __name__ == "__main__":
    main()
