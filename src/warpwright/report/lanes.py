"""The lanes of a timeline: which there are, in which order, and which stretch of it shows what."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from warpwright.vgpu.timing import Span

__all__ = [
    "ENGINES",
    "SLOT",
    "TENSOR",
    "TMA",
    "Lane",
    "Windows",
    "coalesced",
    "kind",
    "lanes",
    "merged",
    "ring_of",
    "slot_number",
    "windows",
]

SLOT = re.compile(r"(\w+)\[(\d+)\]")
TENSOR, TMA = "tensor core", "TMA"
STATES = ("filling", "full", "in use")
WAITS = re.compile(r"waits|barrier|cluster barrier|issue slots")
COPIES = re.compile(r"load|TMA|copy|copies|fill|prefetch", re.IGNORECASE)
PRODUCTS = re.compile(r"mma|multipl|tensor core", re.IGNORECASE)
STORES = re.compile(r"stor|epilogue", re.IGNORECASE)
MEMORY = re.compile(r"memory")
TMA_STORES = "TMA stores"
ENGINES = (TMA, TENSOR, TMA_STORES)
FLOW = ("other", "copy", "operands", "multiply", "sums", "store")
ALL_WARPS = "all warps"
LEAST_SHARE = 0.1
STEADY_PERIODS = 3


@dataclass(frozen=True, slots=True)
class Lane:
    """One track of one CTA. ``ring`` is the name of the ring whose slot it is, ``slot`` its number; "" and -1 else."""

    cta: int
    track: str
    ring: str
    slot: int
    spans: tuple[Span, ...]


def ring_of(track: str) -> tuple[str, int]:
    """``("ab", 3)`` of the track ``ab[3]``; ``("", -1)`` of one that is no slot."""
    found = SLOT.fullmatch(track)
    return (found[1], int(found[2])) if found else ("", -1)


def slot_number(span: Span) -> str:
    """``"3"`` of a span that works on slot 3 of a ring (``"load ab[3]"``), else ``""``."""
    found = SLOT.search(span.name)
    return found[2] if found else ""


def kind(span: Span) -> str:
    """What a span is, as one of the colours of `report.figure`.

    By its name, where that says so, else by the role or engine that does it; memory that neither a copying nor a
    multiplying role touches belongs to the epilogue.
    """
    if span.name in STATES:
        return span.name
    if WAITS.match(span.name):
        return "wait"
    for text in (span.name, span.track):
        for pattern, name in ((PRODUCTS, "multiply"), (COPIES, "copy"), (STORES, "store")):
            if pattern.search(text):
                return name
    return "store" if MEMORY.search(span.name) else "other"


def lanes(spans: Iterable[Span], ctas: int = 2) -> list[Lane]:
    """The lanes of the first ``ctas`` CTAs, in the order of the flow: what copies, the rings that it fills, what
    multiplies, the rings of sums, what stores; first everything else."""
    tracks: dict[tuple[int, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.cta < ctas and span.end > span.start:
            tracks.setdefault((span.cta, span.track), []).append(span)
    made = [Lane(cta, track, *ring_of(track), tuple(found)) for (cta, track), found in tracks.items()]
    ranks = _ranks(made)
    return sorted(made, key=lambda lane: (lane.cta, ranks[lane.ring or lane.track], lane.slot))


def _ranks(made: Sequence[Lane]) -> dict[str, tuple[float, float]]:
    """For each track or ring its place in the flow: by what it does most, and among equals by when it starts to."""
    product = min((_first_work(lane.spans) for lane in made if lane.track == TENSOR), default=float("inf"))
    ranks: dict[str, tuple[float, float]] = {}
    for lane in made:
        first = _first_work(lane.spans)
        what = ("sums" if first > product else "operands") if lane.ring else _main_kind(lane.spans)
        place = FLOW.index(what) + 0.5 * (lane.track in ENGINES)
        name = lane.ring or lane.track
        ranks[name] = min(ranks.get(name, (len(FLOW), first)), (place, first))
    return ranks


def _main_kind(spans: Sequence[Span]) -> str:
    """What a track does for most of the time in which it does not wait."""
    cycles: dict[str, float] = {}
    for span in spans:
        cycles[kind(span)] = cycles.get(kind(span), 0.0) + span.end - span.start
    cycles.pop("wait", None)
    return max(cycles, key=lambda name: cycles[name], default="other")


def _first_work(spans: Sequence[Span]) -> float:
    """When a lane first does something; a slot counts from when it is full."""
    return next((span.start for span in spans if kind(span) not in ("wait", "filling")), spans[-1].start)


def merged(spans: Sequence[Span]) -> list[Span]:
    """The same spans in fewer, clearer lanes: roles that are soon over are joined to what all warps do, since lanes of
    their own would be empty; stores of TMA stand apart from its loads.

    Engines and rings stay, and so does a role that goes on for `LEAST_SHARE` of the time, waits included.
    """
    extents: dict[tuple[str, int], tuple[float, float]] = {}
    for span in spans:
        first, last = extents.get((span.track, span.cta), (span.start, span.end))
        extents[span.track, span.cta] = min(first, span.start), max(last, span.end)
    least = LEAST_SHARE * max((last for _, last in extents.values()), default=0.0)
    lasting = {track for (track, _), (first, last) in extents.items() if ring_of(track)[0] or last - first > least}
    kept = {ALL_WARPS, *ENGINES, *lasting}
    return [replace(span, track=_track(span, kept)) for span in spans]


def _track(span: Span, kept: Collection[str]) -> str:
    if span.track == TMA and kind(span) == "store":
        return TMA_STORES
    return span.track if span.track in kept else ALL_WARPS


@dataclass(frozen=True, slots=True)
class Windows:
    """Stretches of a timeline in cycles: the whole run, its beginning, a few turns of the ring, and its end."""

    whole: tuple[float, float]
    prologue: tuple[float, float]
    steady: tuple[float, float]
    epilogue: tuple[float, float]


def windows(spans: Sequence[Span]) -> Windows:
    """Where to look. The tensor core sets the pace; without one, the engine or role that works most."""
    begin, end = min(0.0, *(span.start for span in spans)), max(span.end for span in spans)
    pace = _pacemaker(spans)
    first, last = pace[0].start, max(span.end for span in spans if span.track == pace[-1].track)
    steps = [after.start - before.start for before, after in pairwise(pace)]
    period = median(steps) if steps else max(end - begin, 1.0)
    stages = max((ring_of(span.track)[1] for span in spans), default=-1) + 1
    turn = period * max(stages, 4)
    middle = pace[len(pace) // 2].start
    length = min(STEADY_PERIODS * turn, max(last - first, period))
    steady = _within(middle - length / 2, length, begin, end)
    prologue = begin, min(first + 1.25 * turn, end)
    epilogue = max(last - 0.75 * turn, begin), end
    return Windows((begin, end), prologue, steady, epilogue)


def _within(start: float, length: float, begin: float, end: float) -> tuple[float, float]:
    start = max(begin, min(start, end - length))
    return start, min(start + length, end)


def _pacemaker(spans: Sequence[Span]) -> list[Span]:
    """Busy spans of CTA 0's tensor core, else of its busiest track, by start; those of one slot in a row are one."""
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


def coalesced(spans: Sequence[Span], within: tuple[float, float], steps: int) -> dict[str, list[tuple[float, float]]]:
    """For each kind the (start, end) of what lies in a window, joined where less than 1/steps of it is between two."""
    left, right = within
    least = (right - left) / steps
    joined: dict[str, list[tuple[float, float]]] = {}
    for span in spans:
        start, end = max(span.start, left), min(span.end, right)
        if end <= start:
            continue
        extents = joined.setdefault(kind(span), [])
        if extents and start - extents[-1][1] < least:
            extents[-1] = extents[-1][0], max(end, extents[-1][1])
        else:
            extents.append((start, end))
    return joined
