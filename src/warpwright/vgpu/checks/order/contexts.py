"""What lanes knew when they touched global memory, kept while a cluster is judged, by row and by operation.

Equal clusters are judged once, so an access's address and its context are separate: addresses belong to each cluster,
contexts to the rows of the cluster that was judged. The context of the earlier of two accesses is its epoch, when it
was over (a column of the clocks and a value); the context of the later access is what its lane knew.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.order.clocks import GENERIC, Clock, Clocks, Lanes, Snapshot

__all__ = ["Contexts", "Epochs", "Point"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_LANE = np.arange(32)


class Point(NamedTuple):
    """A moment of a lane: what its warp knew by then (a number of `Contexts`), and the lane's clock from which on
    others know that the moment has passed."""

    lane: int
    known: int
    value: int


class Epochs(NamedTuple):
    """Accesses; complete for a lane that knows ``value`` of ``column``; ``known`` numbers the warp's knowledge."""

    column: Ints
    value: Ints
    known: Ints


class Contexts:
    """Contexts of one judged cluster. ``always``: store what lanes knew from the first access on; else from the first
    write on, before which no access of the cluster can race with another. ``depends``: on earlier launches, whose end
    is column ``grid``."""

    def __init__(self, clocks: Clocks, always: bool, depends: bool) -> None:
        self.clocks = clocks
        self.keeps = always or depends
        self.grid = clocks.column() if depends else -1
        self.known: list[Snapshot] = []
        self.newest: dict[int, tuple[NDArray[np.uint32], int]] = {}  # by warp
        self.pending: list[tuple[int, int]] = []
        self.rows: list[Ints] = []
        self.values: list[Ints] = []
        self.knowns: list[Ints] = []
        self.ops: dict[int, tuple[int, int, int, int, int]] = {}
        self.fences: list[Point] = []
        self.map_releases: list[Point] = []
        self.map_acquires: list[Point] = []

    def note(self, row: int, warp: int, writes: bool) -> None:
        """Lanes of a warp touch global memory in a row. Clocks must not change until `settle`."""
        self.keeps |= writes
        self.pending.append((row, warp))

    def settle(self) -> None:
        """Store the contexts of the rows noted so far."""
        if not self.pending:
            return
        rows, warps = np.array(self.pending, np.int64).T
        self.pending.clear()
        lanes = warps[:, None] * 32 + _LANE
        self.rows.append(rows)
        self.values.append(self.clocks.table[GENERIC, lanes, lanes].astype(np.int64))
        seen = {warp: self.knows(warp) for warp in dict.fromkeys(warps.tolist())}
        self.knowns.append(np.array([seen[warp] for warp in warps.tolist()], np.int64))

    def knows(self, warp: int) -> int:
        """Returns the number of what a warp's lanes know now, -1 if it is not stored."""
        if not self.keeps:
            return -1
        table = self.clocks.table[GENERIC, warp * 32 : warp * 32 + 32, : self.clocks.used]
        newest, number = self.newest.get(warp, (None, -1))
        if newest is None or not np.array_equal(newest, table):
            self.newest[warp] = table.copy(), len(self.known)
            self.known.append(_smallest(self.clocks.snapshot(warp)))
            number = len(self.known) - 1
        return number

    def _alone(self, lane: int, clock: Clock | None) -> int:
        """Returns the number of what a single lane knows now, which is ``clock`` if given; -1 if it is not stored."""
        if not self.keeps:
            return -1
        rows = self.clocks.table[GENERIC, lane : lane + 1, : self.clocks.used].copy() if clock is None else clock[:1]
        self.known.append(Snapshot(rows, None, lane))
        return len(self.known) - 1

    def points(self, lanes: Lanes) -> list[Point]:
        """Returns this moment of some lanes of a warp. The caller advances their clocks right after."""
        self.settle()
        known, values = self.knows(int(lanes[0]) // 32), self.clocks.now(lanes).tolist()
        return [Point(lane, known, value + 1) for lane, value in zip(lanes.tolist(), values, strict=True)]

    def issue(
        self,
        op: int,
        lane: int,
        epoch: tuple[int, int],
        used: tuple[int, int],
        writes: bool,
        clock: Clock | None = None,
    ) -> None:
        """A lane issues an asynchronous operation: the epochs (column, value) of its accesses of global memory and of
        its use of the tensor map. A column below 0 is an access that is not complete: -1 - its number."""
        self.keeps |= writes
        self.ops[op] = *epoch, *used, self._alone(lane, clock)

    def finish(self, columns: Ints, values: Ints) -> None:
        """Store the contexts of a judged cluster. Access i is complete for every lane that knows ``values[i]`` of
        ``columns[i]``."""
        self.settle()
        self.row = np.concatenate([*self.rows, np.empty(0, np.int64)]).astype(np.int64)
        self.value = np.concatenate([*self.values, np.empty((0, 32), np.int64)])
        self.number = np.concatenate([*self.knowns, np.empty(0, np.int64)]).astype(np.int64)
        self.rows, self.values, self.knowns = [], [], []
        self.newest.clear()
        table = np.array([self.ops[op] for op in sorted(self.ops)], np.int64).reshape(-1, 5)
        for column in (0, 2):
            late = table[:, column] < 0
            access = -1 - table[late, column]
            table[late, column : column + 2] = np.stack([columns[access], values[access]], axis=1)
        self.op, self.issued = np.array(sorted(self.ops), np.int64), table

    def of_rows(self, rows: Ints, lanes: Ints) -> Epochs:
        """Returns the contexts of lanes' own accesses."""
        at = np.searchsorted(self.row, rows)
        return Epochs(lanes, self.value[at, lanes % 32], self.number[at])

    def of_ops(self, ops: Ints, maps: bool) -> Epochs:
        """Returns the contexts of asynchronous operations, or of their uses of tensor maps."""
        table = self.issued[np.searchsorted(self.op, ops)]
        first = 2 if maps else 0
        return Epochs(table[:, first], table[:, first + 1], table[:, 4])

    def values_of(self, known: int, lane: int, columns: Ints) -> Ints:
        """Returns what a lane knew of columns."""
        return self.known[known].of(np.full(len(columns), lane), columns)

    def ordered(self, known: Ints, lanes: Ints, columns: Ints, values: Ints) -> Bools:
        """Whether lanes, with the knowledge of these numbers, know that values of columns were reached."""
        found = np.zeros(len(known), np.bool_)
        for number in np.unique(known).tolist():
            chosen = known == number
            if number >= 0:
                found[chosen] = self.known[number].of(lanes[chosen], columns[chosen]) >= values[chosen]
        return found

    def reached(self, points: Collection[Point], columns: Ints, values: Ints) -> Bools:
        """Whether one of some moments knows that values of columns were reached."""
        rows = [self.known[point.known].row(point.lane) for point in points if point.known >= 0]
        most = np.zeros(max(map(len, rows), default=0) + 1, np.uint32)
        for row in rows:
            np.maximum(most[: len(row)], row, out=most[: len(row)])
        found: Bools = most[np.minimum(columns, len(most) - 1)] >= values
        return found & bool(rows)


def _smallest(known: Snapshot) -> Snapshot:
    """Returns the snapshot with one row if that is enough."""
    others = known.rows[1:].copy()
    others[:, known.first : known.first + 32] = known.rows[0, known.first : known.first + 32]
    return known._replace(rows=known.rows[:1]) if (others == known.rows[0]).all() else known
