"""The lanes of a timeline, their order, and the windows that show its prologue, steady state and epilogue."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from statistics import median

from warpwright.vgpu.timing import Span

__all__ = [
    "ALL_WARPS",
    "ENGINES",
    "SLOT",
    "TENSOR",
    "TMA",
    "Lane",
    "Windows",
    "coalesce",
    "kind",
    "lanes",
    "merge_tracks",
    "ring_of",
    "slot_number",
    "whole_window",
    "windows",
]

SLOT = re.compile(r"(\w+)\[(\d+)\]")
TENSOR, TMA = "tensor core", "TMA"
STATES = ("filling", "full", "in use")
WAITS = re.compile(r"waits|barrier|cluster barrier|issue slots")
COPIES = re.compile(r"load|TMA|copy|copies|fill|prefetch", re.IGNORECASE)
MULTIPLIES = re.compile(r"mma|multipl|tensor core", re.IGNORECASE)
STORES = re.compile(r"stor|epilogue", re.IGNORECASE)
MEMORY = re.compile(r"memory")
TMA_STORES = "TMA stores"
ENGINES = (TMA, TENSOR, TMA_STORES)
FLOW = ("other", "copy", "operands", "multiply", "accumulators", "store")
ALL_WARPS = "all warps"
MIN_SHARE = 0.1  # of the run, for a role with a lane of its own
STEADY_PASSES = 3  # of the ring, in the window of the steady state


@dataclass(frozen=True, slots=True)
class Lane:
    """One track of one CTA. For a slot, ``ring`` is the name of its ring and ``slot`` its index; else "" and -1."""

    cta: int
    track: str
    ring: str
    slot: int
    spans: tuple[Span, ...]


def ring_of(track: str) -> tuple[str, int]:
    """Returns ``("ab", 3)`` for the track ``ab[3]``, and ``("", -1)`` for a track that is no slot."""
    found = SLOT.fullmatch(track)
    return (found[1], int(found[2])) if found else ("", -1)


def slot_number(span: Span) -> str:
    """Returns ``"3"`` for a span that works on slot 3 of a ring (``"load ab[3]"``), else ``""``."""
    found = SLOT.search(span.name)
    return found[2] if found else ""


def kind(span: Span) -> str:
    """Returns the kind of a span: a key of `report.figure.PAINT`.

    The span's name decides, else its role or engine. A memory access of a role that neither copies nor multiplies
    belongs to the epilogue.
    """
    return _kind(span.name, span.track)


@lru_cache(maxsize=4096)
def _kind(name: str, track: str) -> str:
    if name in STATES:
        return name
    if WAITS.match(name):
        return "wait"
    for text in (name, track):
        for pattern, found in ((MULTIPLIES, "multiply"), (COPIES, "copy"), (STORES, "store")):
            if pattern.search(text):
                return found
    return "store" if MEMORY.search(name) else "other"


def lanes(spans: Iterable[Span], ctas: int = 2) -> list[Lane]:
    """Returns the lanes of the first ``ctas`` CTAs in the order of the data flow.

    The order is: other roles, roles and engines that copy, rings of operands, roles and engines that multiply, rings
    of accumulators, roles and engines that store.
    """
    tracks: dict[tuple[int, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.cta < ctas and span.end > span.start:
            tracks.setdefault((span.cta, span.track), []).append(span)
    unsorted = [Lane(cta, track, *ring_of(track), tuple(found)) for (cta, track), found in tracks.items()]
    ranks = _ranks(unsorted)
    return sorted(unsorted, key=lambda lane: (lane.cta, ranks[lane.ring or lane.track], lane.slot))


def _ranks(unsorted: Sequence[Lane]) -> dict[str, tuple[float, float]]:
    """Returns the rank of each track or ring in the data flow: by its main kind, then by its first work."""
    first_mma = min((_first_work(lane.spans) for lane in unsorted if lane.track == TENSOR), default=float("inf"))
    ranks: dict[str, tuple[float, float]] = {}
    for lane in unsorted:
        first = _first_work(lane.spans)
        what = ("accumulators" if first > first_mma else "operands") if lane.ring else _main_kind(lane.spans)
        rank = FLOW.index(what) + 0.5 * (lane.track in ENGINES)
        name = lane.ring or lane.track
        ranks[name] = min(ranks.get(name, (len(FLOW), first)), (rank, first))
    return ranks


def _main_kind(spans: Sequence[Span]) -> str:
    """Returns the kind, waits excluded, with the most cycles of a track."""
    cycles: dict[str, float] = {}
    for span in spans:
        cycles[kind(span)] = cycles.get(kind(span), 0.0) + span.end - span.start
    cycles.pop("wait", None)
    return max(cycles, key=lambda name: cycles[name], default="other")


def _first_work(spans: Sequence[Span]) -> float:
    """Returns the start of a lane's first span that is neither a wait nor the filling of a slot."""
    return next((span.start for span in spans if kind(span) not in ("wait", "filling")), spans[-1].start)


def merge_tracks(spans: Sequence[Span]) -> list[Span]:
    """Returns the spans on fewer tracks: short roles move to the track "all warps", TMA stores to a track of their own.

    Engines and rings keep their tracks, and so does a role that lasts for `MIN_SHARE` of the run, waits included.
    """
    extents: dict[tuple[str, int], tuple[float, float]] = {}
    for span in spans:
        first, last = extents.get((span.track, span.cta), (span.start, span.end))
        extents[span.track, span.cta] = min(first, span.start), max(last, span.end)
    shortest = MIN_SHARE * max((last for _, last in extents.values()), default=0.0)
    long = {track for (track, _), (first, last) in extents.items() if ring_of(track)[0] or last - first > shortest}
    tracks = {ALL_WARPS, *ENGINES, *long}
    return [replace(span, track=_track(span, tracks)) for span in spans]


def _track(span: Span, tracks: Collection[str]) -> str:
    if span.track == TMA and kind(span) == "store":
        return TMA_STORES
    return span.track if span.track in tracks else ALL_WARPS


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a timeline (start, end), in cycles: the whole run, its beginning, some passes of the ring, its end."""

    whole: tuple[float, float]
    prologue: tuple[float, float]
    steady: tuple[float, float]
    epilogue: tuple[float, float]


def windows(spans: Sequence[Span]) -> Windows:
    """Returns the windows of a timeline, placed by the tensor core, or by the busiest engine or role without one."""
    begin, end = whole_window(spans)
    pace = _pacemaker(spans)
    first, last = pace[0].start, max(span.end for span in spans if span.track == pace[-1].track)
    steps = [after.start - before.start for before, after in pairwise(pace)]
    period = median(steps) if steps else max(end - begin, 1.0)
    stages = max((ring_of(span.track)[1] for span in spans), default=-1) + 1
    ring_pass = period * max(stages, 4)
    middle = pace[len(pace) // 2].start
    length = min(STEADY_PASSES * ring_pass, max(last - first, period))
    steady = _clamp(middle - length / 2, length, begin, end)
    prologue = begin, min(first + 1.25 * ring_pass, end)
    epilogue = max(last - 0.75 * ring_pass, begin), end
    return Windows((begin, end), prologue, steady, epilogue)


def whole_window(spans: Iterable[Span]) -> tuple[float, float]:
    """Returns the window of the whole run."""
    extents = [(span.start, span.end) for span in spans]
    return min(0.0, *(start for start, _ in extents)), max(end for _, end in extents)


def _clamp(start: float, length: float, begin: float, end: float) -> tuple[float, float]:
    start = max(begin, min(start, end - length))
    return start, min(start + length, end)


def _pacemaker(spans: Sequence[Span]) -> list[Span]:
    """Returns the busy spans of CTA 0's tensor core, or of its busiest track, by start; one span for each slot use."""
    busy: dict[str, list[Span]] = {}
    for span in spans:
        if span.cta == 0 and kind(span) != "wait" and not ring_of(span.track)[0]:
            busy.setdefault(span.track, []).append(span)
    found = busy.get(TENSOR) or max(
        busy.values(), key=lambda each: sum(span.end - span.start for span in each), default=list(spans)
    )
    found = sorted(found, key=lambda span: span.start)
    return [span for before, span in pairwise([None, *found]) if span and not _continues(before, span)]


def _continues(before: Span | None, span: Span) -> bool:
    if before is None or not slot_number(span) or before.name != span.name:
        return False
    return span.start - before.end < before.end - before.start


def coalesce(spans: Sequence[Span], window: tuple[float, float], steps: int) -> dict[str, list[tuple[float, float]]]:
    """Returns the (start, end) of each kind in a window; gaps below 1/``steps`` of the window are closed."""
    left, right = window
    gap = (right - left) / steps
    joined: dict[str, list[tuple[float, float]]] = {}
    for span in spans:
        start, end = max(span.start, left), min(span.end, right)
        if end <= start:
            continue
        extents = joined.setdefault(kind(span), [])
        if extents and start - extents[-1][1] < gap:
            extents[-1] = extents[-1][0], max(end, extents[-1][1])
        else:
            extents.append((start, end))
    return joined
