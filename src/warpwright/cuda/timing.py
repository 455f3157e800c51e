"""Times on the GPU's own clock, by events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpwright.cuda.driver import call, require

__all__ = ["measure"]

L2_FLUSH_BYTES = 256 << 20  # several times the L2 of any GPU here


def measure(
    run: Callable[[], object], *, rounds: int = 20, warmup: int = 3, cold: bool = True, stream: int = 0
) -> list[float]:
    """Seconds that each of ``rounds`` calls of ``run`` took on the GPU; ``run`` starts work on ``stream``.

    ``cold``: before each call the L2 is filled with other data, outside the time.
    """
    bindings = require()
    for _ in range(warmup):
        run()
    flush = int(call(bindings.cuMemAlloc(L2_FLUSH_BYTES))) if cold else 0
    try:
        pairs = [_timed(bindings, run, flush, stream) for _ in range(rounds)]
        call(bindings.cuStreamSynchronize(stream))
        return [_seconds(bindings, *pair) for pair in pairs]
    finally:
        if flush:
            bindings.cuMemFree(flush)


def _timed(bindings: Any, run: Callable[[], object], flush: int, stream: int) -> tuple[Any, Any]:
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
