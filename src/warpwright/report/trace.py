"""A timeline as a trace for Perfetto or chrome://tracing, in the JSON of the Trace Event format.

CTAs are processes; roles, engines and ring slots are threads. Events that overlap on one engine get threads of their
own ("TMA", "TMA 2", …): a thread of a trace holds one event at a time. Arrows lead from a copy to the product that
reads what it brought.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from warpwright.report.format import headline
from warpwright.report.lanes import SLOT, TENSOR, TMA, kind, lanes
from warpwright.vgpu.timing import Profile, Span

__all__ = ["trace_of"]

Event = dict[str, Any]
ALL = 1 << 30
WAIT_COLOR = "grey"


def trace_of(profile: Profile) -> dict[str, Any]:
    """The trace of a profile's representative cluster; times in microseconds from its start."""
    scale = 1 / profile.clock_mhz
    placed = list(_placed(profile.spans))
    events = [*_names(placed), *(_complete(span, tid, scale) for span, tid, _ in placed), *_arrows(placed, scale)]
    facts = {name: value for name, value in profile.as_dict().items() if name not in ("spans", "roles", "conflicts")}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"title": headline(profile), **facts}}


def _placed(spans: Sequence[Span]) -> Iterator[tuple[Span, int, str]]:
    """Every span with the number and the name of its thread."""
    threads: dict[int, int] = {}
    for lane in lanes(spans, ctas=ALL):
        first = threads.get(lane.cta, 0)
        ends: list[float] = []
        for span in lane.spans:
            index = next((index for index, end in enumerate(ends) if end <= span.start), len(ends))
            ends[index : index + 1] = [span.end]
            yield span, first + index, lane.track if not index else f"{lane.track} {index + 1}"
        threads[lane.cta] = first + len(ends)


def _names(placed: Sequence[tuple[Span, int, str]]) -> Iterator[Event]:
    """Metadata: what processes and threads are called, and their order."""
    for cta in sorted({span.cta for span, *_ in placed}):
        yield _metadata("process_name", cta, 0, name=f"CTA {cta}")
        yield _metadata("process_sort_index", cta, 0, sort_index=cta)
    for cta, tid, name in dict.fromkeys((span.cta, tid, name) for span, tid, name in placed):
        yield _metadata("thread_name", cta, tid, name=name)
        yield _metadata("thread_sort_index", cta, tid, sort_index=tid)


def _metadata(what: str, cta: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": cta, "tid": tid, "args": args}


def _complete(span: Span, tid: int, scale: float) -> Event:
    what = kind(span)
    event = {
        "ph": "X",
        "name": span.name,
        "cat": what,
        "pid": span.cta,
        "tid": tid,
        "ts": span.start * scale,
        "dur": (span.end - span.start) * scale,
        "args": {"where": span.where, "cycles": round(span.end - span.start, 1)},
    }
    return {**event, "cname": WAIT_COLOR} if what == "wait" else event


def _arrows(placed: Sequence[tuple[Span, int, str]], scale: float) -> Iterator[Event]:
    """Flow events from each copy into a slot to the first product that starts on it afterwards, on its CTA if any."""
    work = [(span, tid, found[0]) for span, tid, _ in placed if (found := SLOT.search(span.name))]
    products: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for span, tid, slot in work:
        if span.track == TENSOR:
            products.setdefault((slot, span.cta), []).append((span.start, tid))
    number = 0
    for copy, tid, slot in work:
        if copy.track != TMA or kind(copy) != "copy":
            continue
        for cta in (copy.cta, *(other for other in range(copy.cta))):
            starts = products.get((slot, cta), [])
            index = bisect_left(starts, (copy.end, -1))
            if index < len(starts):
                start, target = starts[index]
                number += 1
                shared = {"name": slot, "cat": "data", "id": number}
                yield {"ph": "s", **shared, "pid": copy.cta, "tid": tid, "ts": copy.start * scale}
                yield {"ph": "f", "bp": "e", **shared, "pid": cta, "tid": target, "ts": start * scale}
                break
