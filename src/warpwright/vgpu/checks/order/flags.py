"""Order through global memory: strong writes that release, strong reads that acquire (PTX ISA 9.1 section 8.8).

While a cluster is judged, `Flags` only notes which reads acquire and what each write releases. Which write a read saw
depends on all clusters: `Order` finds it when the launch is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.order.access_kinds import Kind
from warpwright.vgpu.checks.order.clocks import GENERIC, Clocks, Lanes
from warpwright.vgpu.checks.order.contexts import Contexts, Point

__all__ = ["Acquired", "Flags", "Released"]

Ints = NDArray[np.int64]


class Released(NamedTuple):
    """What a write releases to its readers: all that was before some points, in a scope."""

    scope: int
    points: tuple[Point, ...]


class Acquired(NamedTuple):
    """Reads (rows of the lane) that acquire for all that follows, in a scope."""

    scope: int
    rows: tuple[int, ...]


@dataclass(slots=True)
class Flags:
    """Strong accesses of one judged cluster.

    ``releases`` by row and lane; ``acquires`` of each lane in order: a lane that knows value n of that lane's column
    (``columns``) knows the first n. ``fences``: the last of each lane, with its scope; ``unfenced``: its strong reads
    since.
    """

    contexts: Contexts
    clocks: Clocks
    releases: dict[tuple[int, int], Released] = field(default_factory=dict)
    acquires: dict[int, list[Acquired]] = field(default_factory=dict)
    columns: dict[int, int] = field(default_factory=dict)
    fences: dict[int, tuple[int, Point]] = field(default_factory=dict)
    unfenced: dict[int, list[int]] = field(default_factory=dict)

    def access(self, row: int, lanes: Lanes, kind: Kind, returns: bool) -> None:
        """Lanes of a warp make a strong access. An atomic operation that returns a value acquires even if it is
        relaxed: PTX asks for a fence after it, but the published last-block pattern has none."""
        self.contexts.settle()
        for lane in lanes.tolist():
            if kind.reads and (kind.acquires or (kind.writes and returns)):
                self._acquire(lane, kind.scope, (row,))
            elif kind.reads and returns:
                self.unfenced.setdefault(lane, []).append(row)
        for point in self.contexts.points(lanes) if kind.writes else ():
            own = ((kind.scope, point),) if kind.releases else ()
            found = [*own, *self._fenced(point.lane)]
            if found:
                scope = min(kind.scope, max(scope for scope, _ in found))
                self.releases[row, point.lane] = Released(scope, tuple(point for _, point in found))
        if kind.releases:
            self.clocks.release(lanes)

    def _fenced(self, lane: int) -> Iterator[tuple[int, Point]]:
        """Yields the fences of the lane, and those of other lanes that it knows of through a barrier."""
        for other, (scope, point) in self.fences.items():
            if other == lane or self.clocks.table[GENERIC, lane, other] >= point.value:
                yield scope, point

    def fence(self, lanes: Lanes, scope: int) -> None:
        """The lanes execute a fence: their later strong writes release all earlier accesses, and their earlier strong
        reads acquire. The caller then advances the clocks of the lanes by one."""
        self.contexts.settle()
        for lane in lanes.tolist():
            if lane in self.unfenced:
                self._acquire(lane, scope, tuple(self.unfenced.pop(lane)))
        self.fences.update((point.lane, (scope, point)) for point in self.contexts.points(lanes))

    def _acquire(self, lane: int, scope: int, rows: tuple[int, ...]) -> None:
        events = self.acquires.setdefault(lane, [])
        events.append(Acquired(scope, rows))
        if lane not in self.columns:
            self.columns[lane] = self.clocks.column()
        self.clocks.reach(np.array([lane]), self.columns[lane], len(events))
