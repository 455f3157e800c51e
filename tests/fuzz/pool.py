"""Batches of mutants in processes of their own: a crash or a hang ends one process and is recorded."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.mutators import mutant

__all__ = ["run"]

BATCH = 2200
HANG_SECONDS = 60.0  # a launch that reaches its limit takes a few seconds on a slow machine
START_SECONDS = 60.0
ROOT = Path(__file__).parent.parent.parent

Row = dict[str, Any]


def run(seed: int, processes: int, launch: int, ask: int, deadline: float, most: int) -> list[Row]:
    """Returns the rows of all mutants until the deadline (of time.monotonic), or of ``most`` mutants."""
    rows: list[Row] = []
    lock = threading.Lock()
    starts = iter(range(0, most, BATCH))

    def work() -> None:
        while time.monotonic() < deadline:
            with lock:
                first = next(starts, None)
            if first is None:
                return
            rows.extend(_batch(seed, first, min(BATCH, most - first), launch, ask, deadline))

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(rows, key=lambda row: row["number"])


def _batch(seed: int, first: int, count: int, launch: int, ask: int, deadline: float) -> Iterator[Row]:
    """Yields the rows of a batch; after a crash or a hang a new process goes on after the mutant."""
    end = first + count
    while first < end and time.monotonic() < deadline:
        with _process(seed, first, end - first, launch, ask) as (process, lines):
            wait = START_SECONDS + HANG_SECONDS
            while first < end and time.monotonic() < deadline:
                outcome, line = _next(lines, wait)
                wait = HANG_SECONDS
                yield json.loads(line) if outcome == "line" else _lost(seed, first, outcome, process)
                first += 1
                if outcome != "line":
                    break


@contextlib.contextmanager
def _process(*numbers: int) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str]]]:
    """A process of one batch and the lines that it prints, then an empty one."""
    lines: queue.Queue[str] = queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = os.environ | {"WARPWRIGHT_CACHE": folder, "PYTHONPATH": paths}
        command = [sys.executable, "-m", "tests.fuzz.batch", *map(str, numbers)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

        def read() -> None:
            for line in process.stdout or ():
                lines.put(line)
            lines.put("")

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield process, lines
        finally:
            process.kill()
            process.wait()
            reader.join()
            assert process.stdout is not None
            process.stdout.close()


def _next(lines: queue.Queue[str], wait: float) -> tuple[str, str]:
    try:
        line = lines.get(timeout=wait)
    except queue.Empty:
        return "hang", ""
    return ("line", line) if line else ("crash", "")


def _lost(seed: int, number: int, outcome: str, process: subprocess.Popen[str]) -> Row:
    """The row of a mutant whose process crashed or did not answer."""
    made = mutant(seed, number)
    status = f"exit status {process.wait()}" if outcome == "crash" else f"no answer in {HANG_SECONDS:.0f} s"
    row = {"number": number, "mutator": made.mutator, "file": made.file, "line": made.line}
    return row | {"before": made.before, "after": made.after, "load": [outcome, status], "seconds": 0}
