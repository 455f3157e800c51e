"""The locks that each thread of a cluster has, and which it acquires meanwhile."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Locks", "Nest", "Section"]

_RECENT = 16  # sections of a thread that are over while it has another lock
_EQUAL = 16  # pairs of sections of a thread that differ in time only


@dataclass(slots=True, eq=False)
class Section:
    """A thread has the lock at a place from row ``start``, where instruction ``inst`` acquires it, to row ``end``."""

    place: int
    inst: int
    start: int
    end: int = -1

    def covers(self, row: int) -> bool:
        return self.start < row and (self.end < 0 or row < self.end)


class Nest(NamedTuple):
    """A lane acquires the lock of ``inner`` while it has that of ``outer``, and those at the places ``gates``."""

    lane: int
    outer: Section
    inner: Section
    gates: frozenset[int]


@dataclass(slots=True)
class Locks:
    """``acquires``: the instructions that acquire locks. An attempt counts if the lane later writes to the lock and
    does not try again in between: that write releases it. ``places`` of locks that were released."""

    acquires: frozenset[int]
    open: dict[int, dict[int, Section]] = field(default_factory=lambda: defaultdict(dict))
    over: dict[int, list[Section]] = field(default_factory=lambda: defaultdict(list))
    nests: dict[tuple[object, ...], list[Nest]] = field(default_factory=lambda: defaultdict(list))
    places: set[int] = field(default_factory=set)

    def write(self, lane: int, place: int, inst: int, row: int) -> None:
        """A lane tries to acquire a lock, or writes to a place otherwise."""
        section = self.open[lane].pop(place, None)
        if inst in self.acquires:
            self.open[lane][place] = Section(place, inst, row)
        elif section is not None:
            self._release(lane, section, row)

    def _release(self, lane: int, section: Section, row: int) -> None:
        section.end = row
        self.places.add(section.place)
        for other in self.over[lane]:
            for outer, inner in ((section, other), (other, section)):
                if outer.covers(inner.start) and outer.place != inner.place:
                    self._add(Nest(lane, outer, inner, self._gates(lane, outer, inner)))
        self.over[lane] = [*self.over[lane][1 - _RECENT :], section] if self.open[lane] else []

    def _gates(self, lane: int, outer: Section, inner: Section) -> frozenset[int]:
        every = (*self.open[lane].values(), *self.over[lane])
        return frozenset(each.place for each in every if each.covers(inner.start)) - {outer.place, inner.place}

    def _add(self, nest: Nest) -> None:
        known = self.nests[nest.lane, nest.outer.place, nest.outer.inst, nest.inner.place, nest.inner.inst, nest.gates]
        if len(known) < _EQUAL:
            known.append(nest)
