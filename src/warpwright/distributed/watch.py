"""A watch over the calls of a GPU: it ends a wait for a rank that does not come, and tells which rank is missing.

Waits in a kernel end by themselves (`warpwright.kernels.node`). A stream that waits for a flag of a copy knows no time:
a thread of the process looks past the limit which flags of the call have come, and starts a kernel that reports the
rank and traps. Until then nothing is added to a call but one store of its barrier.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

from warpwright.distributed.agreement import DistributedTimeout, late_rank
from warpwright.errors import WarpwrightError
from warpwright.kernels.node import Lack, report_of

__all__ = ["Watch", "keep_watch"]

GRACE = 10.0  # seconds for an answer of the GPU
PERIOD = 0.2  # seconds between two looks, at most
LOOKS = 10  # in a limit, at least
POLL = 0.01
_DIGEST_SHIFT = 32  # of a mark of the barrier

Result = TypeVar("Result")


class Watch:
    """The calls of ``rank``, which waits ``limit`` seconds for another one.

    ``report`` and ``running`` are the addresses of words of the host: kernels store the report of a missing rank (u32)
    to the first, barriers their mark (u64) to the second. ``describe`` returns the text of a digest, ``read_flags`` the
    first flags of this rank; ``stop`` starts a kernel that stores a report and traps. Both may never return.
    """

    def __init__(
        self,
        rank: int,
        limit: float,
        words: tuple[int, int],
        describe: Callable[[int], str],
        read_flags: Callable[[int], Sequence[int]],
        stop: Callable[[int], None],
    ) -> None:
        self.rank, self.limit, self.describe, self.read_flags, self.stop = rank, limit, describe, read_flags, stop
        self.report, self.running = ctypes.c_uint32.from_address(words[0]), ctypes.c_uint64.from_address(words[1])
        self.awaited: dict[int, dict[int, tuple[int, int]]] = {}  # by digest: of each flag the value and the sender
        self._begun: dict[int, tuple[int, int]] = {}
        self._mark, self._since, self._suspect = 0, 0.0, -1
        self._over = self.told = False

    def begin(self, digest: int) -> None:
        """Note a call whose waits follow."""
        self._begun = self.awaited[digest] = {}

    def expect(self, flag: int, value: int, source: int) -> None:
        """Note that a stream of the call waits until rank ``source`` has set a flag to ``value`` at least."""
        self._begun[flag] = value, source

    def require(self) -> None:
        """Raise DistributedTimeout if the GPU has stopped because a rank is missing."""
        if self.report.value:
            raise self.error()

    def error(self) -> DistributedTimeout:
        """Returns the error of a report."""
        return late_rank(self.rank, self.limit, self._text(), self.report.value)

    def look(self, now: float) -> None:
        """Look once, at ``now`` seconds of any clock: end a call whose flags have not come past the limit.

        A flag has to be missing in two looks. The barrier of a call sets the flags back after it has stored its mark.
        """
        mark = self.running.value
        if mark != self._mark:
            self._mark, self._since, self._suspect, self._over = mark, now, -1, False
        if not mark or self._over or self.report.value or now - self._since <= self.limit:
            return
        missing = self._missing()
        if mark != self.running.value:
            return
        self._over = missing is None
        if missing is not None and missing == self._suspect:
            self._end(missing)
        self._suspect = -1 if missing is None else missing

    def _missing(self) -> int | None:
        """Returns a rank that has not set a flag of the call, None if all have come. Without an answer of the GPU it
        tells so and returns None: the GPU may have other work."""
        awaited = dict(self.awaited.get(self._mark >> _DIGEST_SHIFT, {}))
        if not awaited:
            return None
        flags = within(GRACE, lambda: self.read_flags(max(awaited) + 1))
        if flags is None:
            ranks = ", ".join(map(str, sorted({source for _, source in awaited.values()})))
            tell(
                f"rank {self.rank} began {self._text()} more than {self.limit:g} s ago, and its GPU answers no copy; "
                f"if it has no other work, look for an error of rank {ranks}"
            )
            return None
        return next((source for flag, (value, source) in awaited.items() if flags[flag] < value), None)

    def _end(self, missing: int) -> None:
        """End the work of the GPU; without its answer end the process, as torch's own watch of NCCL does."""
        report = report_of(Lack.SEND, missing)
        within(GRACE, lambda: self._stop(report))
        if not self.report.value:
            self.report.value = report
            tell(f"{self.error()}; its GPU did not stop, so the process ends")
            os.abort()

    def _stop(self, report: int) -> None:
        self.stop(report)
        while not self.report.value:
            time.sleep(POLL)

    def _text(self) -> str:
        return self.describe(self.running.value >> _DIGEST_SHIFT)


def within(seconds: float, function: Callable[[], Result]) -> Result | None:
    """Returns the result of a function, or None if the GPU has stopped, or if the function takes longer: then a thread
    still runs it."""
    found: list[Result] = []

    def run() -> None:
        with suppress(WarpwrightError):
            found.append(function())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def tell(sentence: str) -> None:
    """Print to standard error: torch's own calls raise errors that do not name the rank."""
    print(f"warpwright: {sentence}", file=sys.stderr, flush=True)


_WATCHES: WeakSet[Watch] = WeakSet()
_LOCK = threading.Lock()


def keep_watch(watch: Watch) -> None:
    """Let a thread of this process look at ``watch`` as long as it is in use."""
    with _LOCK:
        _WATCHES.add(watch)
    _start()


@functools.cache
def _start() -> None:
    threading.Thread(target=_look_for_ever, name="warpwright watch", daemon=True).start()
    atexit.register(tell_reports)  # of a process that an error of torch ends before the next look


def _look_for_ever() -> None:
    while True:
        time.sleep(look_at_all(time.monotonic()))


def look_at_all(now: float) -> float:
    """Look at every watch that is in use; returns the seconds until the next time."""
    with _LOCK:
        watches = list(_WATCHES)
    for watch in watches:
        watch.look(now)
    tell_reports()
    return min([PERIOD, *(watch.limit / LOOKS for watch in watches)])


def tell_reports() -> None:
    """Tell once of each GPU that has stopped which rank is missing."""
    with _LOCK:
        told = [watch for watch in _WATCHES if watch.report.value and not watch.told]
        for watch in told:
            watch.told = True
    for watch in told:
        tell(str(watch.error()))
