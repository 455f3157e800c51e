"""Order through global memory: strong writes that release, strong reads that acquire (PTX ISA 9.1 section 8.8).

While a cluster is judged it is only noted which reads acquire and what a write would release: which write a read sees
is a matter of all clusters, and is found when the launch is over (`Order`).
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
    """What a write gives to those who read it: all that was before some points, in a scope."""

    scope: int
    points: tuple[Point, ...]


class Acquired(NamedTuple):
    """Reads (rows of the lane) that order what comes behind, in a scope."""

    scope: int
    rows: tuple[int, ...]


@dataclass(slots=True)
class Flags:
    """Strong accesses of one judged cluster.

    ``releases`` by row and lane; ``acquires`` of each lane in order: who knows n of the lane's column (``columns``)
    knows the first n. ``fences``: the last one of each lane, with its scope; ``unfenced``: its strong reads since.
    """

    contexts: Contexts
    clocks: Clocks
    releases: dict[tuple[int, int], Released] = field(default_factory=dict)
    acquires: dict[int, list[Acquired]] = field(default_factory=dict)
    columns: dict[int, int] = field(default_factory=dict)
    fences: dict[int, tuple[int, Point]] = field(default_factory=dict)
    unfenced: dict[int, list[int]] = field(default_factory=dict)

    def access(self, row: int, lanes: Lanes, kind: Kind, returns: bool) -> None:
        """Lanes of a warp do a strong access. An atomic operation that returns a value acquires also when it is
        relaxed: PTX asks for a fence behind it, the published last-block pattern has none."""
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
        """Fences of the lane and of those whose fences it knows of: a barrier has come between."""
        for other, (scope, point) in self.fences.items():
            if other == lane or self.clocks.table[GENERIC, lane, other] >= point.value:
                yield scope, point

    def fence(self, lanes: Lanes, scope: int) -> None:
        """What came before is released by strong writes that follow; strong reads that came before acquire. The clocks
        of the lanes go on by one right behind this."""
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
