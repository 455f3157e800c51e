"""``python -m tests.conformance.record [probe …]``: record the answers of a real GPU in ``golden/``.

Each probe runs in its own process. A case that faults or hangs ends its process, is reported and is skipped; the next
process continues after it. ``--to FOLDER`` stores to another folder, ``--whole`` stores complete answers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.conformance.cases import everything
from tests.conformance.probes import FAULTS, GOLDEN, PROBES, REFUSALS, answer, store

PATIENCE = 60  # seconds until a case counts as hanging; the first one also starts the process
PROCESSES = 8
AGAIN = 3  # exit status: a fault was the answer, and ended the process's use of the GPU


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.record")
    parser.add_argument("probes", nargs="*")
    parser.add_argument("--to", type=Path, default=GOLDEN)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--first", type=int, help="be the process that answers one probe's cases from this one on")
    given = parser.parse_args(words)
    if given.first is not None:
        return ask(given.probes[0], given.first, given.to, given.whole, given.device)
    given.to.mkdir(parents=True, exist_ok=True)
    names = [probe.name for probe in (*PROBES, *REFUSALS) if not given.probes or probe.name in given.probes]
    options = ["--device", given.device, *(["--whole"] if given.whole else [])]
    with ThreadPoolExecutor(PROCESSES) as pool:
        failures = pool.map(lambda name: record(name, given.to, options), names)
        return int(sum(failures) > 0)


def ask(name: str, first: int, folder: Path, whole: bool, device: str) -> int:
    """Record the cases of a probe from index ``first`` on, each in a file; returns AGAIN after an expected fault."""
    probe = next(probe for probe in (*PROBES, *REFUSALS) if probe.name == name)
    for number, case in enumerate(probe.cases()):
        if number >= first:
            found = answer(replace(case, keep=everything) if whole else case, device)
            np.save(folder / "answer.npy", found)
            (folder / "answer.npy").rename(folder / f"{number}.npy")
            if case.refused and found[0] == FAULTS:
                return AGAIN
    return 0


def record(name: str, to: Path, options: list[str]) -> int:
    """Store the answers to one probe; returns the number of cases without an answer."""
    probe = next(probe for probe in (*PROBES, *REFUSALS) if probe.name == name)
    cases = [case.name for case in probe.cases()]
    failures, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder, number = Path(place), 0
        while number < len(cases):
            why = run(name, number, folder, options)
            number = next((n for n in range(number, len(cases)) if not (folder / f"{n}.npy").exists()), len(cases))
            if number < len(cases) and why:
                failures.append(f"    {cases[number]}: {why}")
                number += 1
        done = [n for n in range(len(cases)) if (folder / f"{n}.npy").exists()]
        found = {cases[n]: np.load(folder / f"{n}.npy") for n in done}
    store(to / f"{name}.npz", found)
    seconds = time.monotonic() - began
    print("\n".join([f"{name}: {len(found)} of {len(cases)} answers in {seconds:.0f} s", *failures]), flush=True)
    return len(failures)


def run(name: str, first: int, folder: Path, options: list[str]) -> str:
    """Run one process until it ends or hangs; returns its last output, or "" if the next process should continue."""
    command = [sys.executable, "-m", "tests.conformance.record", name, "--first", str(first), "--to", str(folder)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        count, since = -1, time.monotonic()
        while process.poll() is None and time.monotonic() - since < PATIENCE:
            time.sleep(0.1)
            if (now := len(list(folder.glob("[0-9]*.npy")))) != count:
                count, since = now, time.monotonic()
        if process.poll() is None:
            process.kill()
            process.wait()
            return f"no answer in {PATIENCE} s"
        if process.returncode == AGAIN:
            return ""
        log.seek(0)
        return (log.read().strip().splitlines() or ["no words"])[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
