"""Times on the GPU's own clock, by events."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warpwright.cuda.driver import call, require

__all__ = ["Times", "measure", "medians", "sustained", "times"]

Run = Callable[[], object]

L2_FLUSH_BYTES = 256 << 20  # several times the L2 of any GPU here


def measure(run: Run, *, rounds: int = 20, warmup: int = 3, cold: bool = True, stream: int = 0) -> list[float]:
    """Seconds that each of ``rounds`` calls of ``run`` took on the GPU; ``run`` starts work on ``stream``.

    ``cold``: before each call the L2 is filled with other data, outside the time.
    """
    return samples({"": run}, rounds=rounds, warmup=warmup, cold=cold, stream=stream)[""]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of several calls: the median, and the quartiles below and above it."""

    median: float
    low: float
    high: float


def times(runs: Mapping[str, Run], *, rounds: int = 30, stream: int = 0) -> dict[str, Times]:
    """What each of ``runs`` takes, from cold L2: in every round each of them runs once, in random order."""
    found = samples(runs, rounds=rounds, warmup=3, cold=True, stream=stream)
    return {name: _quartiles(each) for name, each in found.items()}


def _quartiles(seconds: list[float]) -> Times:
    if len(seconds) == 1:
        return Times(seconds[0], seconds[0], seconds[0])
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Times(median, low, high)


def medians(runs: Mapping[str, Run], *, rounds: int = 30, stream: int = 0) -> dict[str, float]:
    """Median seconds of each of ``runs``, from cold L2: in every round each of them runs once, in random order."""
    found = samples(runs, rounds=rounds, warmup=3, cold=True, stream=stream)
    return {name: statistics.median(times) for name, times in found.items()}


def sustained(run: Run, *, seconds: float, estimate: float, stream: int = 0) -> float:
    """Seconds that a call takes back to back for ``seconds`` after as long a warm-up; ``estimate`` is that of one."""
    bindings, count = require(), max(2, int(seconds / estimate))
    for _ in range(count):
        run()
    start, end = (call(bindings.cuEventCreate(0)) for _ in range(2))
    call(bindings.cuEventRecord(start, stream))
    for _ in range(count):
        run()
    call(bindings.cuEventRecord(end, stream))
    call(bindings.cuStreamSynchronize(stream))
    return _seconds(bindings, start, end) / count


def samples(runs: Mapping[str, Run], *, rounds: int, warmup: int, cold: bool, stream: int) -> dict[str, list[float]]:
    """Seconds of every call of each of ``runs``, which take turns in random order; the first ``warmup`` are dropped."""
    bindings, order = require(), random.Random(0)
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
    flush = int(call(bindings.cuMemAlloc(L2_FLUSH_BYTES), "filling L2")) if cold else 0
    try:
        for _ in range(warmup + rounds):
            for name in order.sample(list(runs), len(runs)):
                pairs[name].append(_timed(bindings, runs[name], flush, stream))
        call(bindings.cuStreamSynchronize(stream))
        return {name: [_seconds(bindings, *pair) for pair in each][warmup:] for name, each in pairs.items()}
    finally:
        if flush:
            bindings.cuMemFree(flush)


def _timed(bindings: Any, run: Run, flush: int, stream: int) -> tuple[Any, Any]:
    start, end = (call(bindings.cuEventCreate(0)) for _ in range(2))
    if flush:
        call(bindings.cuMemsetD8Async(flush, 1, L2_FLUSH_BYTES, stream))
    call(bindings.cuEventRecord(start, stream))
    run()
    call(bindings.cuEventRecord(end, stream))
    return start, end


def _seconds(bindings: Any, start: Any, end: Any) -> float:
    milliseconds = call(bindings.cuEventElapsedTime(start, end))
    for event in (start, end):
        bindings.cuEventDestroy(event)
    return float(milliseconds) / 1e3
