"""What happens before what in all clusters of a launch: clocks inside a cluster, releases and acquires between them.

An acquire pattern is ordered after a release pattern if it reads the value that the release wrote, or what atomic
operations made of it, and if the scope of each includes the other's thread (PTX ISA 9.1 sections 8.7 to 8.9). Which
write a read saw is known because clusters that order one another run in turns, in one order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.order.access_kinds import CLUSTER, CTA, DEVICE
from warpwright.vgpu.checks.order.contexts import Contexts
from warpwright.vgpu.checks.order.flags import Acquired, Flags, Released

__all__ = ["Known", "Order", "Strong"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Strong(NamedTuple):
    """A strong access of one lane, in the order of the run."""

    cluster: int
    row: int
    lane: int
    address: int
    reads: bool
    writes: bool


class Known(NamedTuple):
    """The knowledge of a lane at a moment: its cluster, its number in `Contexts`, and the lane."""

    cluster: int
    known: int
    lane: int


class _Release(NamedTuple):
    cluster: int
    released: Released


_State = tuple[int, tuple[int, ...]]  # a cluster, and how many acquires of each of its lanes


class Order:
    """``contexts``, ``flags`` and the rank of the node of each cluster, by its number here; ``per_cta`` lanes."""

    def __init__(self, contexts: list[Contexts], flags: list[Flags], ranks: list[int], per_cta: int) -> None:
        self.contexts, self.flags, self.ranks, self.per_cta = contexts, flags, ranks, per_cta
        self.seen: dict[tuple[int, int, int], tuple[_Release, ...]] = {}
        self.states: dict[Known, _State] = {}
        self.steps: dict[_State, tuple[set[_Release], set[_State]]] = {}
        self.reached: dict[_State, frozenset[_Release]] = {}
        self.refused: set[int] | None = None  # of `without_scopes`: scopes that do not include both threads

    def without_scopes(self) -> Order:
        """Returns the order that there would be if all releases and acquires had the scope of the system."""
        found = copy.copy(self)
        found.steps, found.reached, found.refused = {}, {}, set()
        return found

    def follow(self, accesses: Iterable[Strong]) -> None:
        """Go through all strong accesses, in order, and note which releases each read sees."""
        heads: dict[int, tuple[_Release, ...]] = {}
        for access in accesses:
            head = heads.get(access.address, ())
            if access.reads:
                self.seen[access.cluster, access.row, access.lane] = head
            if access.writes:
                released = self.flags[access.cluster].releases.get((access.row, access.lane))
                new = (_Release(access.cluster, released),) if released else ()
                heads[access.address] = head + new if access.reads else new

    def before(self, cluster: int, columns: Ints, values: Ints, later: int, known: Ints, lanes: Ints) -> Bools:
        """Returns whether accesses of ``cluster`` that are over with ``values`` of ``columns`` happen before what lanes
        of cluster ``later`` do with the knowledge of these numbers."""
        if cluster == later:
            found = self.contexts[cluster].ordered(known, lanes, columns, values)
        else:
            found = np.zeros(len(known), np.bool_)
        rest = np.flatnonzero(~found) if self.seen else np.empty(0, np.int64)
        for state, some in self._by_states(later, known[rest], lanes[rest]) if len(rest) else ():
            here = rest[some]
            found[here] = self._covered(cluster, columns[here], values[here], state)
        return found

    def _by_states(self, cluster: int, known: Ints, lanes: Ints) -> Iterator[tuple[_State, Ints]]:
        """Yields each state of the moments of lanes with the knowledge of these numbers, and the places of these."""
        moments, which = np.unique(known << 32 | lanes, return_inverse=True)
        numbers: dict[_State, int] = {}
        each = (Known(cluster, moment >> 32, moment & 0xFFFF_FFFF) for moment in moments.tolist())
        number = np.array([numbers.setdefault(self._state(one), len(numbers)) for one in each], np.int64)[which]
        order = np.argsort(number, kind="stable")
        return zip(numbers, np.split(order, np.cumsum(np.bincount(number))[:-1]), strict=True)

    def _covered(self, cluster: int, columns: Ints, values: Ints, state: _State) -> Bools:
        """Returns which accesses are covered by releases that have reached a state."""
        releases = [release for release in self._reach(state) if release.cluster == cluster]
        return self.contexts[cluster].reached(
            {point for release in releases for point in release.released.points}, columns, values
        )

    def _reach(self, start: _State) -> frozenset[_Release]:
        """Returns the releases that happen before the moments of a state."""
        if start not in self.reached:
            todo, states, found = [start], {start}, set[_Release]()
            while todo:
                releases, further = self._step(todo.pop())
                found |= releases
                todo += further - states
                states |= further
            self.reached[start] = frozenset(found)
        return self.reached[start]

    def _step(self, state: _State) -> tuple[set[_Release], set[_State]]:
        """Returns the releases that the acquires of a state saw, and the states of the lanes that released them."""
        if state not in self.steps:
            found = set(self._acquired(*state))
            moments = (Known(each.cluster, point.known, point.lane) for each in found for point in each.released.points)
            self.steps[state] = found, {self._state(moment) for moment in moments}
        return self.steps[state]

    def _state(self, moment: Known) -> _State:
        """Returns how many acquires of each lane of its cluster a moment knows of."""
        if moment not in self.states:
            columns = np.array(list(self.flags[moment.cluster].columns.values()), np.int64)
            counts = self.contexts[moment.cluster].values_of(moment.known, moment.lane, columns)
            self.states[moment] = moment.cluster, tuple(counts.tolist())
        return self.states[moment]

    def _acquired(self, cluster: int, counts: tuple[int, ...]) -> Iterator[_Release]:
        """Yields the releases that the first acquires of each lane saw."""
        flags = self.flags[cluster]
        for lane, count in zip(flags.columns, counts, strict=True):
            for acquired in flags.acquires[lane][:count]:
                for row in acquired.rows:
                    for release in self.seen.get((cluster, row, lane), ()):
                        if self._in_scope(release, cluster, lane, acquired):
                            yield release

    def _in_scope(self, release: _Release, cluster: int, lane: int, acquired: Acquired) -> bool:
        """Whether the scopes of a release and of an acquire include each other's threads."""
        scope = min(release.released.scope, acquired.scope)
        inside = scope > CLUSTER or release.cluster == cluster
        if scope == DEVICE:
            inside = self.ranks[release.cluster] == self.ranks[cluster]
        if scope == CTA:
            inside &= release.released.points[0].lane // self.per_cta == lane // self.per_cta
        if not inside and self.refused is not None:
            self.refused.add(scope)
        return inside or self.refused is not None
