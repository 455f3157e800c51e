"""The answers of a real GPU to a probe, from processes of their own: ``python -m warpwright.selftest.ask PROBE …``.

A case that faults or hangs ends its process and is reported; the next process continues after it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from warpwright.run.devices import device
from warpwright.selftest.answers import FAULTS, Answers, answer
from warpwright.selftest.probes import Probe, find_probe
from warpwright.selftest.probes.cases import everything

__all__ = ["collect"]

PATIENCE = 60  # seconds until a case counts as hanging; the first one also starts the process
LOOK = 0.1  # seconds between two looks at a process
LOST = 5  # cases without an answer, after which the others of a probe are not asked
AGAIN = 3  # exit status: a fault was the answer, and ended the process's use of the GPU


def collect(probe: Probe, name: str, whole: bool = False) -> tuple[Answers, list[str]]:
    """Returns the answers of the GPU ``name``, and the cases without an answer as "case: reason".

    With ``whole`` an answer is what the kernel wrote, in place of what a probe keeps of it.
    """
    cases = [case.name for case in probe.cases()]
    failures, number = list[str](), 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        while number < len(cases) and len(failures) < LOST:
            why = _run(probe, number, folder, name, whole)
            number = next((n for n in range(number, len(cases)) if not _file(folder, n).exists()), len(cases))
            if number < len(cases) and why:
                failures.append(f"{cases[number]}: {why}")
                number += 1
        if number < len(cases):
            failures.append(f"{len(cases) - number} further cases: not asked after {LOST} without an answer")
        files = {case: _file(folder, n) for n, case in enumerate(cases)}
        return {case: np.load(file) for case, file in files.items() if file.exists()}, failures


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.npy"


def _run(probe: Probe, first: int, folder: Path, name: str, whole: bool) -> str:
    """Run one process until it ends or hangs; returns its last output, or "" if the next process should continue."""
    command = [sys.executable, "-m", __name__, probe.name, str(first), str(folder), name, *["whole"] * whole]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        count, since = -1, time.monotonic()
        while process.poll() is None and time.monotonic() - since < PATIENCE:
            time.sleep(LOOK)
            if (now := len(list(folder.glob("[0-9]*.npy")))) != count:
                count, since = now, time.monotonic()
        if process.poll() is None:
            process.kill()
            process.wait()
            return f"no answer in {PATIENCE} s"
        if process.returncode == AGAIN:
            return ""
        log.seek(0)
        return (log.read().strip().splitlines() or ["no output"])[-1]


def main(probe: str, first: str, folder: str, name: str, *whole: str) -> int:
    """Store the answer to each case of a probe from index ``first`` on; returns AGAIN after an expected fault."""
    gpu = device(name, numerics="hardware")
    for number, case in enumerate(find_probe(probe).cases()):
        if number >= int(first):
            found = answer(replace(case, keep=everything) if whole else case, gpu)
            np.save(Path(folder, "answer.npy"), found)
            Path(folder, "answer.npy").rename(_file(Path(folder), number))
            if case.refused and found[0] == FAULTS:
                return AGAIN
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
