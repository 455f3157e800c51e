"""Kernel times on the GPU's clock, by CUDA events."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warpwright.cuda.driver import call, require

__all__ = ["Times", "measure", "medians", "sustained_seconds", "times"]

Run = Callable[[], object]

L2_FLUSH_BYTES = 256 << 20  # several times the L2 of every supported GPU


def measure(run: Run, *, rounds: int = 20, warmup: int = 3, cold: bool = True, stream: int = 0) -> list[float]:
    """Returns the seconds on the GPU of each of ``rounds`` calls of ``run``, which starts work on ``stream``.

    ``cold``: fill the L2 with other data before each call, outside the measured time.
    """
    return samples({"": run}, rounds=rounds, warmup=warmup, cold=cold, stream=stream)[""]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of several calls: the median, the lower quartile and the upper quartile."""

    median: float
    low: float
    high: float


def times(runs: Mapping[str, Run], *, rounds: int = 30, stream: int = 0) -> dict[str, Times]:
    """Returns the times of each of ``runs``, from cold L2: every round runs each of them once, in random order."""
    found = samples(runs, rounds=rounds, warmup=3, cold=True, stream=stream)
    return {name: _quartiles(each) for name, each in found.items()}


def _quartiles(seconds: list[float]) -> Times:
    if len(seconds) == 1:
        return Times(seconds[0], seconds[0], seconds[0])
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Times(median, low, high)


def medians(runs: Mapping[str, Run], *, rounds: int = 30, stream: int = 0) -> dict[str, float]:
    """Returns the median seconds of each of ``runs``, measured as in `times`."""
    found = samples(runs, rounds=rounds, warmup=3, cold=True, stream=stream)
    return {name: statistics.median(times) for name, times in found.items()}


def sustained_seconds(run: Run, *, seconds: float, estimate: float, stream: int = 0) -> float:
    """Returns the mean seconds of a call, back to back for ``seconds`` after a warm-up of the same duration.

    ``estimate`` is the expected time of one call, in seconds.
    """
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
    """Returns the seconds of every call of each of ``runs``, in random order, without the ``warmup`` rounds."""
    bindings, order = require(), random.Random(0)
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
    flush = int(call(bindings.cuMemAlloc(L2_FLUSH_BYTES), "filling L2")) if cold else 0
    try:
        for _ in range(warmup + rounds):
            for name in order.sample(list(runs), len(runs)):
                pairs[name].append(_record(bindings, runs[name], flush, stream))
        call(bindings.cuStreamSynchronize(stream))
        return {name: [_seconds(bindings, *pair) for pair in each][warmup:] for name, each in pairs.items()}
    finally:
        if flush:
            bindings.cuMemFree(flush)


def _record(bindings: Any, run: Run, flush: int, stream: int) -> tuple[Any, Any]:
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
