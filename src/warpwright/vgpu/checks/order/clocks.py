"""Vector clocks of the lanes of a cluster, once for the generic proxy and once for what the async proxy sees.

A column is a lane's own clock, the phases of an mbarrier, the groups of a warpgroup or a thread, or the operations of
a tensor core. An access is over for a lane whose entry in the access's column has reached the access's value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.jit.runtime import function

__all__ = ["GENERIC", "SEEN", "Clock", "Clocks", "Lanes", "join"]

GENERIC, SEEN = 0, 1  # what a lane knows; what the async proxy sees of it
_SPARE = 256
_STEP = 16  # columns that `clocks.ll` takes at a time

Clock = NDArray[np.uint32]  # (2, columns), a multiple of 16 of them
Lanes = NDArray[np.int64]


class Clocks:
    """``table[GENERIC, lane]`` is what a lane knows, ``table[SEEN, lane]`` what the async proxy sees through it: what
    lanes had done at their last proxy fences (PTX ISA 9.1 section 8.9.4, causality order)."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.used = self.width = lanes
        self._acquire, self._release = function("clock_acquire"), function("clock_release")
        self._place(np.zeros((2, lanes, lanes + _SPARE), np.uint32))
        own = np.arange(lanes)
        self.table[GENERIC, own, own] = 1

    def _place(self, table: NDArray[np.uint32]) -> None:
        self.table = table
        self.where = table.ctypes.data, table.shape[2], table.shape[1] * table.shape[2]

    def column(self) -> int:
        """Returns a new column, which is 0 for every lane."""
        if self.used == self.table.shape[2]:
            self._place(np.concatenate([self.table, np.zeros_like(self.table[:, :, :_SPARE])], axis=2))
        self.used += 1
        self.width = -(-self.used // _STEP) * _STEP
        return self.used - 1

    def blank(self) -> Clock:
        """Returns a clock that knows nothing."""
        return np.zeros((2, self.width), np.uint32)

    def now(self, lanes: Lanes) -> NDArray[np.int64]:
        """Returns the lanes' own clocks."""
        values: NDArray[np.int64] = self.table[GENERIC, lanes, lanes].astype(np.int64)
        return values

    def of(self, lane: int) -> Clock:
        """Returns what a lane knows: that is over before the operation that the lane issues now is complete. What the
        lane does from now on is not part of it."""
        clock: Clock = self.table[:, lane, : self.width].copy()
        self.table[GENERIC, lane, lane] += 1
        return clock

    def release(self, lanes: Lanes) -> Clock:
        """Returns what the lanes know together. What they do from now on is not part of it."""
        clock = self.blank()
        self._release(*self.where, lanes.ctypes.data, len(lanes), clock.ctypes.data, self.width)
        return clock

    def acquire(self, lanes: Lanes, clock: Clock) -> None:
        """The lanes learn what a clock knows."""
        self._acquire(*self.where, lanes.ctypes.data, len(lanes), clock.ctypes.data, clock.shape[1])

    def fence_proxy(self, lanes: Lanes, columns: Lanes) -> None:
        """The async proxy sees what the lanes have done themselves (their own ``columns``, one each). What other lanes
        have done it sees only if those fenced before the barrier between."""
        self.table[SEEN, lanes, lanes] = self.table[GENERIC, lanes, lanes]
        self.table[SEEN, lanes, columns] = self.table[GENERIC, lanes, columns]
        self.table[GENERIC, lanes, lanes] += 1

    def reach(self, lanes: Lanes, column: int, value: int) -> None:
        """The lanes know that a column has reached a value."""
        self.table[GENERIC, lanes, column] = np.maximum(self.table[GENERIC, lanes, column], value)

    def pass_on(self, lanes: Lanes, columns: Lanes) -> None:
        """Other lanes may see, through barriers, what these lanes know of some columns (of tensor memory)."""
        rows = np.ix_(lanes, columns)
        self.table[SEEN][rows] = np.maximum(self.table[SEEN][rows], self.table[GENERIC][rows])


def join(a: Clock | None, b: Clock | None) -> Clock | None:
    """Returns what two clocks know together."""
    if a is None or b is None:
        return b if a is None else a
    if a.shape[1] < b.shape[1]:
        a, b = b, a
    joined = a.copy()
    joined[:, : b.shape[1]] = np.maximum(joined[:, : b.shape[1]], b)
    return joined
