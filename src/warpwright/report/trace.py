"""A timeline as a trace for Perfetto or chrome://tracing, in the JSON of the Trace Event format.

CTAs are processes; roles, engines and ring slots are threads. A thread of a trace has one event at a time, so that
concurrent events of an engine are on several threads ("TMA", "TMA 2", …). An arrow leads from a copy to the MMA that
reads its slot.
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
ALL_CTAS = 1 << 30
WAIT_COLOR = "grey"
PARTS = ("spans", "roles", "conflicts", "phases", "memory", "resources")  # of a profile, which are no single facts


def trace_of(profile: Profile) -> dict[str, Any]:
    """Returns the trace of a profile's representative cluster; times are in microseconds from its start."""
    scale = 1 / profile.clock_mhz
    threads = list(_threads(profile.spans))
    events = [*_names(threads), *(_complete(span, tid, scale) for span, tid, _ in threads), *_arrows(threads, scale)]
    facts = {name: value for name, value in profile.as_dict().items() if name not in PARTS}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"title": headline(profile), **facts}}


def _threads(spans: Sequence[Span]) -> Iterator[tuple[Span, int, str]]:
    """Yields every span with the index and the name of its thread."""
    counts: dict[int, int] = {}
    for lane in lanes(spans, ctas=ALL_CTAS):
        first = counts.get(lane.cta, 0)
        ends: list[float] = []
        for span in lane.spans:
            index = next((index for index, end in enumerate(ends) if end <= span.start), len(ends))
            ends[index : index + 1] = [span.end]
            yield span, first + index, lane.track if not index else f"{lane.track} {index + 1}"
        counts[lane.cta] = first + len(ends)


def _names(threads: Sequence[tuple[Span, int, str]]) -> Iterator[Event]:
    """Yields metadata events: names and order of processes and threads."""
    for cta in sorted({span.cta for span, *_ in threads}):
        yield _metadata("process_name", cta, 0, name=f"CTA {cta}")
        yield _metadata("process_sort_index", cta, 0, sort_index=cta)
    for cta, tid, name in dict.fromkeys((span.cta, tid, name) for span, tid, name in threads):
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


def _arrows(threads: Sequence[tuple[Span, int, str]], scale: float) -> Iterator[Event]:
    """Yields flow events from each copy into a slot to the first later MMA on that slot, on its own CTA if any."""
    work = [(span, tid, found[0]) for span, tid, _ in threads if (found := SLOT.search(span.name))]
    mmas: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for span, tid, slot in work:
        if span.track == TENSOR:
            mmas.setdefault((slot, span.cta), []).append((span.start, tid))
    number = 0
    for copy, tid, slot in work:
        if copy.track != TMA or kind(copy) != "copy":
            continue
        for cta in (copy.cta, *(other for other in range(copy.cta))):
            starts = mmas.get((slot, cta), [])
            index = bisect_left(starts, (copy.end, -1))
            if index < len(starts):
                start, target = starts[index]
                number += 1
                shared = {"name": slot, "cat": "data", "id": number}
                yield {"ph": "s", **shared, "pid": copy.cta, "tid": tid, "ts": copy.start * scale}
                yield {"ph": "f", "bp": "e", **shared, "pid": cta, "tid": target, "ts": start * scale}
                break
