"""Kernel times on the GPU's clock, by CUDA events."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpwright.cuda.clock import clock_samples
from warpwright.cuda.device import Device
from warpwright.cuda.driver import call, require

__all__ = ["Times", "measure", "medians", "sustained_seconds", "times"]

Run = Callable[[], object]

WARMUP = 3  # rounds that do not count
L2_FLUSH_BYTES = 256 << 20  # several times the L2 of every supported GPU


def measure(run: Run, *, rounds: int = 20, warmup: int = 3, cold: bool = True, stream: int = 0) -> list[float]:
    """Returns the seconds on the GPU of each of ``rounds`` calls of ``run``, which starts work on ``stream``.

    ``cold``: fill the L2 with other data before each call, outside the measured time.
    """
    return samples({"": run}, rounds=rounds, warmup=warmup, cold=cold, stream=stream)[""]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of several calls: the median, the lower quartile and the upper quartile; and the median clock of the SMs
    right after a call, in MHz."""

    median: float
    low: float
    high: float
    clock_mhz: float


def times(runs: Mapping[str, Run], *, device: Device, rounds: int = 30, stream: int = 0) -> dict[str, Times]:
    """Returns the times of each of ``runs``, from cold L2: every round runs each of them once, in random order."""
    names = list(runs)
    with clock_samples(device, (len(names), WARMUP + rounds), stream) as (sample, megahertz):

        def after(name: str, number: int) -> None:
            sample(names.index(name), number)

        found = samples(runs, rounds=rounds, warmup=WARMUP, cold=True, stream=stream, after=after)
        clocks = np.median(megahertz()[:, WARMUP:], axis=1)
    return {name: Times(*_quartiles(found[name]), float(clock)) for name, clock in zip(names, clocks, strict=True)}


def _quartiles(seconds: list[float]) -> tuple[float, float, float]:
    """Returns the median, the lower and the upper quartile."""
    if len(seconds) == 1:
        return seconds[0], seconds[0], seconds[0]
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return median, low, high


def medians(runs: Mapping[str, Run], *, rounds: int = 30, stream: int = 0) -> dict[str, float]:
    """Returns the median seconds of each of ``runs``, measured as in `times`."""
    found = samples(runs, rounds=rounds, warmup=WARMUP, cold=True, stream=stream)
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


def samples(
    runs: Mapping[str, Run],
    *,
    rounds: int,
    warmup: int,
    cold: bool,
    stream: int,
    after: Callable[[str, int], None] = lambda *_: None,
) -> dict[str, list[float]]:
    """Returns the seconds of every call of each of ``runs``, in random order, without the ``warmup`` rounds.

    ``after`` is called after each call, with its name and the number of its round.
    """
    bindings, order = require(), random.Random(0)
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
    flush = int(call(bindings.cuMemAlloc(L2_FLUSH_BYTES), "filling L2")) if cold else 0
    try:
        for number in range(warmup + rounds):
            for name in order.sample(list(runs), len(runs)):
                pairs[name].append(_record(bindings, runs[name], flush, stream))
                after(name, number)
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
