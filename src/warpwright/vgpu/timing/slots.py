"""Ring slots on a timeline: the copies that fill a slot, the MMAs that read it, and its states over time.

A ring shows in its barriers: an array of ``ab.full`` and ``ab.empty`` for each CTA. A copy belongs to the slot whose
full barrier it signals, in whichever CTA that barrier is; an MMA belongs to the slot whose bytes it reads. So the slots
of a CTA whose peer has the barriers are known too. A slot fills from the first copy (without copies: from its first
MMA, or from its last release) to the end of the full phase; it is full until an MMA reads it, and in use until its
release.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from warpwright.vgpu.timing.result import Span
from warpwright.vgpu.timing.steps import Box, Mma

__all__ = ["CopySpan", "MmaSpan", "Slots", "indices"]

NEVER = float("inf")


class CopySpan(NamedTuple):
    """A box that CTA ``rank`` copied."""

    box: Box
    rank: int
    start: float
    end: float
    where: str


class MmaSpan(NamedTuple):
    mma: Mma
    start: float
    end: float
    where: str


class _Slot(NamedTuple):
    cta: int
    ring: str
    number: int

    @property
    def track(self) -> str:
        return f"{self.ring}[{self.number}]"


@dataclass(slots=True)
class _Life:
    """One slot: ends of its full and empty phases, its copies, and the MMAs that read it."""

    full: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    copies: list[CopySpan] = field(default_factory=list)
    mmas: list[MmaSpan] = field(default_factory=list)
    where: str = ""


class Slots:
    """The slots of a kernel's rings with their copies, MMAs and phases.

    ``barriers``: for the address of each mbarrier with a wait, its name and the line of the wait; ``stride``: bytes
    from one CTA's shared memory to the next; ``phases``: (address, end), ascending.
    """

    def __init__(
        self,
        barriers: Mapping[int, tuple[str, str]],
        stride: int,
        copies: Sequence[CopySpan],
        mmas: Sequence[MmaSpan],
        phases: Sequence[tuple[int, float]],
    ) -> None:
        self.copies, self.mmas = copies, mmas
        self.lives: dict[_Slot, _Life] = defaultdict(_Life)
        self.ranges: dict[int, list[tuple[int, int, _Slot]]] = defaultdict(list)
        self.found: dict[tuple[int, int], _Slot | None] = {}  # of operands, by rank and offset
        halves = _halves(barriers, stride)
        ends: dict[int, list[float]] = defaultdict(list)
        for place, end in phases:
            ends[place].append(end)
        for place, (slot, half) in halves.items():
            life = self.lives[slot]
            getattr(life, half)[:] = ends[place]
            if half == "full":
                life.where = barriers[place][1]
        self._fill(halves, ends)
        self._read()
        self._release()

    def _fill(self, halves: Mapping[int, tuple[_Slot, str]], ends: Mapping[int, list[float]]) -> None:
        """Assign copies to slots, and record the bytes of each slot."""
        known: set[tuple[int, int]] = set()
        for copy in self.copies:
            for rank, offset, place in copy.box.targets:
                if place not in halves:
                    continue
                own = halves[place][0]._replace(cta=rank)
                life = self.lives[own]
                life.copies.append(copy)
                if not life.full:
                    life.full, life.where = ends[place], copy.where
                if (rank, offset) not in known:
                    known.add((rank, offset))
                    self.ranges[rank].append((offset, offset + copy.box.nbytes, own))
        for ranges in self.ranges.values():
            ranges.sort(key=lambda entry: entry[0])

    def _read(self) -> None:
        for mma in self.mmas:
            for slot in self._operands(mma):
                self.lives[slot].mmas.append(mma)

    def _release(self) -> None:
        """Copy to each slot without an empty mbarrier the phases of its peer's: all consumers arrive there."""
        for slot, life in self.lives.items():
            peers = [other for key, other in self.lives.items() if key[1:] == slot[1:]]
            life.empty = life.empty or next((other.empty for other in peers if other.empty), [])

    def _operands(self, mma: MmaSpan) -> set[_Slot]:
        for place in (operands := (*mma.mma.left, *mma.mma.right)):
            if place not in self.found:
                self.found[place] = self._slot_at(*place)
        return {slot for place in operands if (slot := self.found[place]) is not None}

    def _slot_at(self, rank: int, offset: int) -> _Slot | None:
        """The slot that has the bytes at an offset of shared memory."""
        ranges = self.ranges.get(rank, [])
        index = bisect_right(ranges, offset, key=lambda entry: entry[0]) - 1
        return ranges[index][2] if index >= 0 and offset < ranges[index][1] else None

    def spans(self) -> Iterator[Span]:
        """The spans of copies, of MMAs and of the slots."""
        filled = {id(copy): slot.track for slot, life in self.lives.items() for copy in life.copies}
        for copy in self.copies:
            track = filled.get(id(copy), "")
            name = f"load {track}".strip() if copy.box.targets else "store"
            yield Span("TMA", copy.rank, name, copy.start, copy.end, copy.where, copy.box.nbytes)
        for mma in self.mmas:
            tracks = sorted({slot.track for slot in self._operands(mma)})
            name = " ".join(["mma", *tracks])
            for rank in mma.mma.ranks:
                yield Span("tensor core", rank, name, mma.start, mma.end, mma.where, mma.mma.nbytes)
        for slot, life in self.lives.items():
            yield from self._states(slot, life)

    def _states(self, slot: _Slot, life: _Life) -> Iterator[Span]:
        """The states filling, full and in use of each full phase."""
        starts = [mma.start for mma in life.mmas]
        begins = [copy.start for copy in life.copies]
        released = 0.0
        for number, full in enumerate(life.full):
            following = life.full[number + 1] if number + 1 < len(life.full) else NEVER
            first, last = bisect_left(starts, full), bisect_left(starts, following)
            used = life.mmas[first].start if first < last else full
            empty = bisect_right(life.empty, used)
            end = life.mmas[last - 1].end if first < last else used
            if empty < len(life.empty) and life.empty[empty] < following:
                end = max(end, life.empty[empty])
            index = bisect_left(begins, released)
            begin = begins[index] if index < len(begins) and begins[index] < full else self._begin(slot, released, full)
            where = life.mmas[first].where if first < last else life.where
            yield from _spans(
                slot, where, number, ("filling", begin, full), ("full", full, used), ("in use", used, end)
            )
            released = end

    def _begin(self, slot: _Slot, released: float, full: float) -> float:
        """The time at which a slot without copies starts to fill: its first MMA after the ring's last slot became
        full."""
        ends, starts = self._full_ends[slot[:2]], self._mma_starts
        before = bisect_left(ends, full)
        since = max(released, ends[before - 1]) if before else released
        first = bisect_left(starts, since)
        return starts[first] if first < len(starts) and starts[first] < full else since

    @cached_property
    def _full_ends(self) -> dict[tuple[int, str], list[float]]:
        """For each CTA and ring the ends of the full phases of all slots, ascending."""
        found: dict[tuple[int, str], list[float]] = defaultdict(list)
        for slot, life in self.lives.items():
            found[slot[:2]] += life.full
        return {ring: sorted(ends) for ring, ends in found.items()}

    @cached_property
    def _mma_starts(self) -> list[float]:
        return sorted(mma.start for mma in self.mmas)


def _halves(barriers: Mapping[int, tuple[str, str]], stride: int) -> dict[int, tuple[_Slot, str]]:
    """For the address of each barrier of a ring its slot, by its index among barriers of one name, and its half."""
    found: dict[int, tuple[_Slot, str]] = {}
    for place, (name, index) in indices({place: name for place, (name, _) in barriers.items()}, stride).items():
        ring, dot, half = name.partition(".")
        if dot:
            found[place] = _Slot(place // stride, ring, index), half
    return found


def indices(names: Mapping[int, str], stride: int) -> dict[int, tuple[str, int]]:
    """Returns for the address of each mbarrier its name and its index among those of that name in its CTA."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    found = {}
    for place in sorted(names):
        key = place // stride, names[place]
        found[place] = names[place], counts[key]
        counts[key] += 1
    return found


def _spans(slot: _Slot, where: str, phase: int, *states: tuple[str, float, float]) -> Iterator[Span]:
    for name, start, end in states:
        if end > start:
            yield Span(slot.track, slot.cta, name, start, end, where, phase=phase)
