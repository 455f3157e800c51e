"""First launches of processes from several threads at once, and verdicts in several threads.

``python -m tests.threads [--launches 1000] [--verdicts 1000]`` forks a process for each first launch, which 2 to 16
threads make together; every 50th is a new interpreter. It then compares verdicts in 8 threads with those of one thread.
The exit status is 1 if a process crashes, hangs or computes a wrong result, or a verdict differs.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import warpwright as ww
from tests.races import deadlock_kernels, kernels
from warpwright.lang import Global, If, ctaid, kernel, tid, u32
from warpwright.vgpu.checks.findings import Verdict

THREADS = range(2, 17)
FRESH = 50  # one process of so many is a new interpreter
SECONDS = 60  # of a process, after which it hangs


@kernel("sm_90a", threads=64)
def number(x: Global[u32], *, shift: int = 0) -> None:
    i = ctaid.x * 64 + tid.x
    x[i] = i + shift


@kernel("sm_90a", threads=32)
def branch(x: Global[u32], deep: u32) -> None:
    with If(deep != 0):
        x[tid.x] = tid.x


def launch(thread: int) -> None:
    """Launch one of three kernels, and compare its result."""
    x = np.zeros(256, np.uint32)
    ww.launch(number.configure(shift=thread % 3), 4, args=[x], device="h200")
    assert np.array_equal(x, np.arange(256) + thread % 3), x


def in_threads(count: int, work: Callable[[int], object]) -> list[str]:
    """Run ``work`` in threads that begin at once. Returns the tracebacks of those that raised."""
    barrier, errors = threading.Barrier(count), list[str]()

    def run(thread: int) -> None:
        barrier.wait()
        try:
            work(thread)
        except Exception:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return errors


def first_launches(count: int) -> int:
    """The first launches of this process, from ``count`` threads. Returns the exit status."""
    errors = in_threads(count, launch)
    print(*errors, sep="\n", end="", file=sys.stderr)
    return int(bool(errors))


def forked(count: int) -> int:
    """Returns the exit status of `first_launches` in a new process, negative for a signal."""
    child = os.fork()
    if not child:
        faulthandler.enable()
        signal.alarm(SECONDS)
        os._exit(first_launches(count))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fresh(count: int) -> int:
    """The same in a new interpreter."""
    code = f"from tests.threads import first_launches; raise SystemExit(first_launches({count}))"
    try:
        return subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        return -signal.SIGALRM


def processes(launches: int) -> Counter[int]:
    """Returns how many processes ended with each status."""
    found: Counter[int] = Counter()
    for each in range(launches):
        run = fresh if each % FRESH == FRESH - 1 else forked
        found[run(THREADS[each % len(THREADS)])] += 1
    return found


VERDICTS: dict[str, Callable[[], Verdict]] = {
    "incomplete": lambda: ww.check(branch, 1, args=[words(), 0], device="h200"),
    "complete": lambda: ww.check(branch, 1, args=[words(), 1], device="h200"),
    "race": lambda: ww.check(kernels.neighbours, 2, args=[words()]),
    "no race": lambda: ww.check(kernels.neighbours.configure(right=True), 1, args=[words()]),
    "proxy fence": lambda: ww.check(kernels.store_box, 1, args=[np.zeros((32, 32), np.float32)]),
    "fault": lambda: ww.check(kernels.fault_in_first_cta, 2, args=[words()]),
    "deadlock": lambda: ww.check(deadlock_kernels.mutual_wait, 1, args=[4]),
    "peer": lambda: ww.check(kernels.peer, 2, args=[words()]),
}


def words() -> Any:
    return np.zeros(64, np.uint32)


def wrong_verdicts(verdicts: int, threads: int = 8) -> Iterator[str]:
    """Yields a line for each verdict in ``threads`` threads that is not the one of a single thread."""
    expected = {name: (judge().kind, str(judge())) for name, judge in VERDICTS.items()}
    names, wrong = list(VERDICTS), list[str]()

    def judge(thread: int) -> None:
        for each in range(thread, verdicts, threads):
            name = names[each // threads % len(names)] if thread % 2 else names[(each * 5 + thread) % len(names)]
            found = VERDICTS[name]()
            if (found.kind, str(found)) != expected[name]:
                wrong.append(f"{name}: {found}")

    wrong += in_threads(threads, judge)
    yield from wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--verdicts", type=int, default=1000)
    given = parser.parse_args()
    sys.setswitchinterval(1e-5)
    statuses = processes(given.launches)
    print(f"{given.launches:,} first launches from {THREADS[0]} to {THREADS[-1]} threads:", end=" ")
    print(
        ", ".join(
            f"{count:,} {'right' if not status else f'with status {status}'}" for status, count in statuses.items()
        ),
        flush=True,
    )
    wrong = list(wrong_verdicts(given.verdicts))
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    print(f"{given.verdicts:,} verdicts in 8 threads: {given.verdicts - len(wrong):,} equal to those of one thread")
    failed = given.launches - statuses[0] + len(wrong)
    print(f"{given.launches + given.verdicts - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
