"""Order of a cluster's threads through flags: strong writes release, strong reads acquire (PTX ISA 9.1 section 8.8).

The rows of a cluster are in the order in which its memory changed, so a read sees the last write before it. Flags may
lie in global memory, too; a store of another cluster is then left out.
"""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.checks.order.access_kinds import CLUSTER, WEAK, Kind
from warpwright.vgpu.checks.order.clocks import GENERIC, Clock, Clocks, join

__all__ = ["SharedFlags"]

_FLAGS = 256  # places whose writes have a column of their own; of others, one that a fence releases is unordered
_Releases = dict[tuple[int, int], Clock]  # by CTA and scope


class SharedFlags:
    """What the value at each place releases, and what lanes have read and not yet acquired.

    ``released`` by place: what its reader may acquire; ``pending`` by lane: what its next fence acquires; ``fences`` by
    lane: scope of its last fence and what the lane knew then, and ``fenced`` the lane's clock after it; ``columns`` by
    place: the column that counts its writes, and their number; ``own`` by lane and column: the lane's last write.
    """

    def __init__(self, clocks: Clocks, lanes_a_cta: int) -> None:
        self.clocks, self.lanes_a_cta = clocks, lanes_a_cta
        self.released: dict[int, _Releases] = {}
        self.pending: dict[int, _Releases] = {}
        self.fences: dict[int, tuple[int, Clock]] = {}
        self.fenced = np.full(clocks.lanes, np.iinfo(np.uint32).max, np.uint32)
        self.columns: dict[int, tuple[int, int]] = {}
        self.own: dict[int, dict[int, int]] = {}
        self.refused: Clock | None = None  # what acquires in other CTAs would know if their scope were not .cta

    def number(self, lane: int, place: int) -> tuple[int, int]:
        """Returns column and value of a lane's next write to a place: who acquires the write knows that it is over."""
        if place not in self.columns and len(self.columns) == _FLAGS:
            return lane, int(self.clocks.table[GENERIC, lane, lane])
        column, count = self.columns.get(place) or (self.clocks.column(), 0)
        self.columns[place] = column, count + 1
        self.clocks.reach(np.array([lane]), column, count + 1)
        self.own.setdefault(lane, {})[column] = count + 1
        return column, count + 1

    def fence_proxy(self, lane: int) -> None:
        """The async proxy sees the writes that the lane has made."""
        for column, value in self.own.pop(lane, {}).items():
            self.clocks.see(lane, column, value)

    def read(self, lane: int, place: int, kind: Kind, acquires: bool) -> None:
        """A lane reads the value at a place. If it does not acquire, its next fence does."""
        for (rank, scope), clock in self.released.get(place, {}).items():
            if acquires:
                self._acquire(lane, rank, min(scope, kind.scope), clock)
            else:
                _join(self.pending.setdefault(lane, {}), (rank, min(scope, kind.scope)), clock)

    def write(self, lane: int, place: int, kind: Kind, column: int, value: int) -> None:
        """A lane makes a strong write to a place. If the write releases, or follows a fence, its readers may acquire.
        The write is complete for a lane that knows ``value`` of ``column``. An atomic operation continues the release
        sequence whose value it read."""
        releases = self.released.setdefault(place, {})
        if not kind.reads:
            releases.clear()
        rank = lane // self.lanes_a_cta
        for scope, clock in self._known_fences(lane):
            _join(releases, (rank, min(scope, kind.scope)), clock)
            if column >= self.clocks.lanes:
                _join(releases, (rank, min(scope, kind.scope)), self._alone(column, value))
        if kind.releases:
            _join(releases, (rank, kind.scope), self.clocks.release(np.array([lane])))

    def _known_fences(self, lane: int) -> list[tuple[int, Clock]]:
        """Returns the last fence of the lane, and those of other lanes that it has learned of since, at a barrier."""
        last = self.fences.get(lane)
        knows = self.clocks.table[GENERIC, lane, : self.clocks.lanes] >= self.fenced
        if last is not None:
            knows &= last[1][GENERIC, : self.clocks.lanes] < self.fenced
        return [self.fences[other] for other in np.flatnonzero(knows).tolist()]

    def _alone(self, column: int, value: int) -> Clock:
        clock = self.clocks.blank()
        clock[GENERIC, column] = value
        return clock

    def fence(self, lane: int, scope: int) -> None:
        """A lane executes a fence: its later strong writes release what it knows, and its earlier strong reads
        acquire."""
        for (rank, reach), clock in self.pending.pop(lane, {}).items():
            self._acquire(lane, rank, min(scope, reach), clock)
        self.fences[lane] = scope, self.clocks.of(lane)
        self.fenced[lane] = self.clocks.table[GENERIC, lane, lane]

    def _acquire(self, lane: int, rank: int, scope: int, clock: Clock) -> None:
        if scope >= CLUSTER or (scope > WEAK and rank == lane // self.lanes_a_cta):
            self.clocks.acquire(np.array([lane]), clock)
        elif scope > WEAK:
            self.refused = join(self.refused, clock)


def _join(releases: _Releases, key: tuple[int, int], clock: Clock) -> None:
    known = releases.get(key)
    if known is not clock:
        joined = join(known, clock)
        assert joined is not None
        releases[key] = joined
