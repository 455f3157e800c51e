"""The lanes of a timeline: which there are, in which order, and which stretch of it shows what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from warpwright.vgpu.timing import Span

__all__ = ["SLOT", "TENSOR", "Lane", "Windows", "coalesced", "kind", "lanes", "ring_of", "slot_number", "windows"]

SLOT = re.compile(r"(\w+)\[(\d+)\]")
TENSOR = "tensor core"
STATES = ("filling", "full", "in use")
WAITS = re.compile(r"waits|barrier|cluster barrier|issue slots")
COPIES = re.compile(r"load|TMA|copy|copies|fill|prefetch", re.IGNORECASE)
PRODUCTS = re.compile(r"mma|multipl|tensor core", re.IGNORECASE)
STORES = re.compile(r"stor|epilogue", re.IGNORECASE)
MEMORY = re.compile(r"memory")
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
    """The lanes of the first ``ctas`` CTAs: in the order in which they first do something, slots of a ring together."""
    tracks: dict[tuple[int, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.cta < ctas and span.end > span.start:
            tracks.setdefault((span.cta, span.track), []).append(span)
    made = [Lane(cta, track, *ring_of(track), tuple(found)) for (cta, track), found in tracks.items()]
    begins: dict[str, float] = {}
    for lane in made:
        name = lane.ring or lane.track
        begins[name] = min(begins.get(name, float("inf")), _first_work(lane.spans))
    ranks = {name: rank for rank, name in enumerate(sorted(begins, key=lambda name: begins[name]))}
    return sorted(made, key=lambda lane: (lane.cta, ranks[lane.ring or lane.track], lane.slot))


def _first_work(spans: Sequence[Span]) -> float:
    """When a lane first does something; a slot counts from when it is full, so that it stands below what fills it."""
    return next((span.start for span in spans if kind(span) not in ("wait", "filling")), spans[-1].start)


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
    first, last = pace[0].start, pace[-1].end
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
    """Busy spans of CTA 0's tensor core, else of its busiest track, by start."""
    busy: dict[str, list[Span]] = {}
    for span in spans:
        if span.cta == 0 and kind(span) != "wait" and not ring_of(span.track)[0]:
            busy.setdefault(span.track, []).append(span)
    found = busy.get(TENSOR) or max(
        busy.values(), key=lambda each: sum(span.end - span.start for span in each), default=list(spans)
    )
    return sorted(found, key=lambda span: span.start)


def coalesced(spans: Sequence[Span], within: tuple[float, float], steps: int) -> list[tuple[str, float, float]]:
    """(kind, start, end) of what lies in a window, neighbours of one kind joined where less than 1/steps is between."""
    left, right = within
    least = (right - left) / steps
    joined: list[tuple[str, float, float]] = []
    for span in spans:
        start, end = max(span.start, left), min(span.end, right)
        if end <= start:
            continue
        name = kind(span)
        if joined and joined[-1][0] == name and start - joined[-1][2] < least:
            joined[-1] = (name, joined[-1][1], max(end, joined[-1][2]))
        else:
            joined.append((name, start, end))
    return joined
