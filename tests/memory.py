"""The memory of a process after many launches with large arguments, without the garbage collector.

``python -m tests.memory [--launches 500] [--megabytes 200]`` prints the resident memory after the tenth launch and
after the last, for launches, verdicts, profiles and faults of a small kernel. The exit status is 1 if they differ by
more than 5 %. It reads /proc, so it runs on Linux.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from resource import getpagesize
from typing import Any

import numpy as np

import warpwright as ww
from warpwright.errors import DeviceError
from warpwright.lang import Global, ctaid, kernel, tid, u32

FIRST, TOLERANCE = 10, 0.05


@kernel("sm_90a", threads=64)
def write(x: Global[u32], at: u32) -> None:
    x[at + ctaid.x * 64 + tid.x] = 1


def fault(x: Any) -> None:
    with suppress(DeviceError):
        ww.launch(write, 4, args=[x, 1 << 31], device="h200")


WAYS: dict[str, Callable[[Any], object]] = {
    "launch": lambda x: ww.launch(write, 4, args=[x, 0], device="h200"),
    "check": lambda x: ww.check(write, 4, args=[x, 0], device="h200"),
    "profile": lambda x: ww.profile(write, 4, args=[x, 0], device="h200"),
    "fault": fault,
}


def resident() -> int:
    """The resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize() // 1_000_000


def memory(run: Callable[[Any], object], launches: int, megabytes: int) -> Iterator[int]:
    """Yields the resident memory after each launch; its argument is new and freed."""
    for _ in range(launches):
        run(np.zeros(megabytes * 250_000, np.uint32))
        yield resident()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=500)
    parser.add_argument("--megabytes", type=int, default=200)
    given = parser.parse_args()
    gc.disable()
    grown = 0
    for name, run in WAYS.items():
        found = list(memory(run, given.launches, given.megabytes))
        first, last = found[min(FIRST, given.launches) - 1], found[-1]
        far = abs(last - first) > TOLERANCE * first
        grown += far
        print(f"{name:8} {first:6,} MB after {FIRST}, {last:6,} MB after {given.launches:,}", "  FAR" * far, flush=True)
    print(f"{len(WAYS) - grown} passed, {grown} failed")
    return int(grown > 0)


if __name__ == "__main__":
    sys.exit(main())
