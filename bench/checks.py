"""The cost of the checks: ``python bench/checks.py [--json] [--rounds 5] [--only "level 7"]``.

Wall time of a launch on the virtual GPU, plain and with ``ww.check``, alternating, after one launch of each that
compiles; the minimum of each, and the peak memory of a process that runs nothing else. Operands are standard normal
bf16, M = N = K = 1024. "One cluster" is a device with so few SMs that one cluster computes everything: the checks
cannot skip a cluster that equals another.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.kernels.memory_flow import arguments, memory_flow
from warpwright.ops.binding import Launch
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

SIZE = 1024
Launches = Callable[[Any], Iterable[Any]]  # the launches of a call on a device


def matmul(level: int) -> Launches:
    random = np.random.default_rng(level)
    a, b = (random.standard_normal((SIZE, SIZE), np.float32).astype(ml_dtypes.bfloat16) for _ in range(2))
    return lambda device: ww.launches(ww.matmul, a, b.T, device=device, level=level)


def flow() -> Launches:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    traced, given = memory_flow.trace(), arguments(a, b, np.zeros((128, 128), np.float32))
    return lambda device: [Launch(traced, (1, 1, 1), tuple(given))]


def device_of(name: str, sms: int = 0) -> Device:
    spec = DEVICES[name]
    return Device(replace(spec, sms=sms or spec.sms))


CASES: dict[str, tuple[Device, Callable[[], Launches]]] = {
    "GEMM level 1, b200": (device_of("b200"), functools.partial(matmul, 1)),
    "GEMM level 3, b200": (device_of("b200"), functools.partial(matmul, 3)),
    "GEMM level 7, b200": (device_of("b200"), functools.partial(matmul, 7)),
    "GEMM level 9, b200": (device_of("b200"), functools.partial(matmul, 9)),
    "GEMM level 9, b200, one cluster": (device_of("b200", 2), functools.partial(matmul, 9)),
    "GEMM level 4, h200": (device_of("h200"), functools.partial(matmul, 4)),
    "GEMM level 8, h200": (device_of("h200"), functools.partial(matmul, 8)),
    "GEMM level 8, h200, one cluster": (device_of("h200", 2), functools.partial(matmul, 8)),
    "memory flow, b200": (device_of("b200"), flow),
}


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Returns one row of the table."""
    device, make = CASES[name]
    launches, kinds = make(), []

    def run_plain() -> None:
        for each in launches(device):
            ww.launch(each.kernel, each.grid, args=each.args, device=device)

    def run_checked() -> None:
        kinds.extend(ww.check(x.kernel, x.grid, args=x.args, device=device, update=True).kind for x in launches(device))

    for run in (run_plain, run_checked):
        run()
    pairs = [(seconds(run_plain), seconds(run_checked)) for _ in range(rounds)]
    assert set(kinds) == {"clean"}, f"{name} is {set(kinds)}"
    least, checked = (min(times) for times in zip(*pairs, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"kernel": name, "plain_s": least, "checked_s": checked, "ratio": checked / least, "peak_mib": peak}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="rows as JSON, one a line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.here, options.rounds)))
        return 0
    if not options.json:
        print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; least of {options.rounds}")
    for name in [name for name in CASES if options.only in name]:
        command = [sys.executable, __file__, "--here", name, "--rounds", str(options.rounds)]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        row = json.loads(line)
        text = "{kernel:32} {plain_s:7.3f} s plain {checked_s:7.3f} s checked {ratio:5.1f} x {peak_mib:6.0f} MiB"
        print(line if options.json else text.format(**row), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
