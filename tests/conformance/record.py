"""``python -m tests.conformance.record [probe …]``: record the answers of a real GPU in ``golden/``.

Each probe runs in processes of its own. A case that faults or hangs is reported and skipped. ``--to FOLDER`` stores to
another folder, ``--whole`` stores complete answers.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conformance.golden import GOLDEN, store
from warpwright.run.devices import device
from warpwright.selftest.ask import collect
from warpwright.selftest.probes import Probe, probes_of

PROCESSES = 8


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.record")
    parser.add_argument("probes", nargs="*")
    parser.add_argument("--to", type=Path, default=GOLDEN)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(words)
    given.to.mkdir(parents=True, exist_ok=True)
    known = probes_of(device(given.device).spec.arch)
    chosen = [probe for probe in known if not given.probes or probe.name in given.probes]
    with ThreadPoolExecutor(PROCESSES) as pool:
        failures = pool.map(lambda probe: record(probe, given.to, given.device, given.whole), chosen)
        return int(sum(failures) > 0)


def record(probe: Probe, to: Path, name: str, whole: bool = False) -> int:
    """Store the answers of a GPU to one probe; returns the number of cases without an answer."""
    began = time.monotonic()
    found, failures = collect(probe, name, whole)
    store(to / f"{probe.name}.npz", found)
    head = f"{probe.name}: {len(found)} answers, {len(failures)} without, in {time.monotonic() - began:.0f} s"
    print("\n    ".join([head, *failures]), flush=True)
    return len(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
