"""Vector clocks of the lanes of a cluster, once for the generic proxy and once for what the async proxy sees.

A column is a lane's own clock, the phases of an mbarrier, the groups of a warpgroup or a thread, or the operations of
a tensor core. An access is over for a lane whose entry in the access's column has reached the access's value.
"""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.jit.runtime import function

__all__ = ["GENERIC", "SEEN", "Clock", "Clocks", "Lanes", "Snapshot", "join", "lane_mask", "mask_of", "slice_of"]

GENERIC, SEEN = 0, 1  # what a lane knows; what the async proxy sees of it
_SPARE = 256
_STEP = 16  # columns that `clocks.ll` takes at a time
_WARP, _WHOLE = 32, 0xFFFF_FFFF

Clock = NDArray[np.uint32]  # (2, columns), a multiple of 16 of them
Lanes = NDArray[np.int64]


class Snapshot(NamedTuple):
    """What the lanes of a warp knew: one row if the lanes differ only in their ``own`` columns. Or what one lane knew:
    one row, and no ``own``."""

    rows: NDArray[np.uint32]
    own: NDArray[np.uint32] | None
    first: int

    def of(self, lanes: Lanes, columns: Lanes) -> NDArray[np.int64]:
        """Returns what lanes knew of columns."""
        inside = lanes - self.first
        rows = inside if len(self.rows) > 1 else np.zeros_like(inside)
        there = np.minimum(columns, self.rows.shape[1] - 1)
        found = np.where(columns < self.rows.shape[1], self.rows[rows, there], 0).astype(np.int64)
        if self.own is not None:
            mine = (columns >= self.first) & (columns < self.first + _WARP)
            found[mine] = self.own[inside[mine], columns[mine] - self.first]
        return found

    def row(self, lane: int) -> NDArray[np.uint32]:
        """Returns what a lane knew of all columns."""
        inside = lane - self.first
        found: NDArray[np.uint32] = self.rows[inside if len(self.rows) > 1 else 0]
        if self.own is None:
            return found
        found = found.copy()
        found[self.first : self.first + _WARP] = self.own[inside]
        return found


class Clocks:
    """``table[GENERIC, lane]`` is what a lane knows, ``table[SEEN, lane]`` what the async proxy sees through it: what
    lanes had done at their last proxy fences (PTX ISA 9.1 section 8.9.4, causality order). ``own`` is a
    view of each lane's entry for itself. ``alike``: the rows of a warp differ at most in the columns of its lanes, as
    after a barrier that all its lanes waited for; what the lanes do together is then done once (`clocks.ll`).
    Lanes that an operation takes are lanes of one warp, in order; ``address`` is that of the words of `clocks.ll`."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.used = self.width = lanes
        names = ("acquire", "release", "sync", "reach", "tick")
        self._acquire, self._release, self._sync, self._reach, self._tick = (
            function(f"clock_{name}") for name in names
        )
        self.alike = np.ones(lanes // _WARP, np.bool_)
        self._words = np.zeros(6, np.int64)
        self.address = self._words.ctypes.data
        self._place(np.zeros((2, lanes, lanes + _SPARE), np.uint32))
        self.own[:] = 1

    def _place(self, table: NDArray[np.uint32]) -> None:
        self.table = table
        self.where = table.ctypes.data, table.shape[2], table.shape[1] * table.shape[2]
        self.own = table[GENERIC].reshape(-1)[:: table.shape[2] + 1]
        self._room = np.empty((2, table.shape[2]), np.uint32)
        self._words[:] = *self.where, self.alike.ctypes.data, self._room.ctypes.data, self.width

    def column(self) -> int:
        """Returns a new column, which is 0 for every lane."""
        if self.used == self.table.shape[2]:
            self._place(np.concatenate([self.table, np.zeros_like(self.table[:, :, :_SPARE])], axis=2))
        self.used += 1
        self._words[-1] = self.width = -(-self.used // _STEP) * _STEP
        return self.used - 1

    def blank(self) -> Clock:
        """Returns a clock that knows nothing."""
        return np.zeros((2, self.width), np.uint32)

    def widened(self, clock: Clock | None) -> Clock:
        """Returns a copy of a clock with all columns that there are now."""
        if clock is not None and clock.shape[1] == self.width:
            return clock.copy()
        copy = self.blank()
        if clock is not None:
            copy[:, : clock.shape[1]] = clock
        return copy

    def now(self, lanes: Lanes) -> NDArray[np.int64]:
        """Returns the lanes' own clocks."""
        values: NDArray[np.int64] = self.own[slice_of(lanes)].astype(np.int64)
        return values

    def tick(self, lanes: Lanes) -> None:
        """What the lanes do from now on is not part of what others have learned of them."""
        self._tick(self.address, *mask_of(lanes))

    def of(self, lane: int) -> Clock:
        """Returns what a lane knows: that is over before the operation that the lane issues now is complete. What the
        lane does from now on is not part of it."""
        clock: Clock = self.table[:, lane, : self.width].copy()
        self.own[lane] += 1
        return clock

    def release(self, lanes: Lanes) -> Clock:
        """Returns what the lanes know together. What they do from now on is not part of it."""
        clock = self.blank()
        self._release(self.address, *mask_of(lanes), _address_of(clock), self.width)
        return clock

    def sync(self, lanes: Lanes) -> None:
        """The lanes learn what each of them knows."""
        self._sync(self.address, *mask_of(lanes))

    def acquire(self, lanes: Lanes, clock: Clock) -> None:
        """The lanes learn what a clock knows."""
        self._acquire(self.address, *mask_of(lanes), _address_of(clock), clock.shape[1])

    def show(self, lanes: Lanes, columns: Lanes) -> None:
        """The async proxy sees what the lanes have done that ``columns`` count, one each."""
        self.alike[lanes[0] // _WARP] = False
        self.table[SEEN, lanes, columns] = self.table[GENERIC, lanes, columns]

    def reach(self, lanes: Lanes, column: int, value: int) -> None:
        """The lanes know that a column has reached a value."""
        self._reach(self.address, *mask_of(lanes), column, value)

    def pass_on(self, lanes: Lanes, columns: Lanes) -> None:
        """Other lanes may see, through barriers, what these lanes know of some columns (of tensor memory)."""
        if self._are_alike(lanes):
            clock = self.blank()
            clock[SEEN, columns] = self.table[GENERIC, lanes[0], columns]
            return self.acquire(lanes, clock)
        self.alike[lanes[0] // _WARP] &= len(lanes) == _WARP
        rows = np.ix_(lanes, columns)
        self.table[SEEN][rows] = np.maximum(self.table[SEEN][rows], self.table[GENERIC][rows])

    def seen(self, lanes: Lanes) -> NDArray[np.uint32]:
        """Returns what the async proxy sees through lanes."""
        table = self.table[SEEN, :, : self.used]
        if not self._are_alike(lanes):
            most: NDArray[np.uint32] = table[lanes].max(axis=0)
            return most
        own = slice_of(lanes)
        found: NDArray[np.uint32] = table[lanes[0]].copy()
        found[own] = table[own, own].max(axis=0)
        return found

    def _are_alike(self, lanes: Lanes) -> bool:
        """Returns whether lanes are a warp whose rows differ at most in the columns of its lanes."""
        return len(lanes) == _WARP and bool(self.alike[lanes[0] // _WARP])

    def see(self, lane: int, column: int, value: int) -> None:
        """The async proxy sees through a lane that a column has reached a value."""
        self.alike[lane // _WARP] = False
        self.table[SEEN, lane, column] = max(self.table[SEEN, lane, column], value)

    def snapshot(self, warp: int) -> Snapshot:
        """Returns what the lanes of a warp know."""
        first = warp * _WARP
        table = self.table[GENERIC, first : first + _WARP, : self.used]
        rows = table[:1] if self.alike[warp] else table
        return Snapshot(rows.copy(), table[:, first : first + _WARP].copy(), first)


def slice_of(lanes: Lanes) -> slice | Lanes:
    """Returns an index of the lanes, a slice for one lane and for a warp: NumPy is faster with slices."""
    first, count = lanes.item(0), len(lanes)
    return slice(first, first + count) if count == 1 or count == _WARP else lanes


def _address_of(clock: Clock) -> int:
    """Returns the host address of a clock, as ``clock.ctypes.data`` does, which takes five times as long."""
    return addressof(c_char.from_buffer(clock.data))


def mask_of(lanes: Lanes) -> tuple[int, int]:
    """Returns the first lane of the lanes' warp, and the lanes among those of the warp."""
    lane, count = lanes.item(0), len(lanes)
    if count == _WARP:
        return lane, _WHOLE
    inside = lane % _WARP
    return lane - inside, 1 << inside if count == 1 else sum(1 << one % _WARP for one in lanes.tolist())


def lane_mask(chosen: NDArray[np.bool_]) -> int:
    """Returns the chosen lanes of a warp as a mask."""
    return int.from_bytes(np.packbits(chosen, bitorder="little").tobytes(), "little")


@overload
def join(a: Clock, b: Clock | None) -> Clock: ...
@overload
def join(a: Clock | None, b: Clock | None) -> Clock | None: ...
def join(a: Clock | None, b: Clock | None) -> Clock | None:
    """Returns what two clocks know together."""
    if a is None or b is None:
        return b if a is None else a
    if a.shape == b.shape:
        return np.maximum(a, b)
    if a.shape[1] < b.shape[1]:
        a, b = b, a
    joined = a.copy()
    joined[:, : b.shape[1]] = np.maximum(joined[:, : b.shape[1]], b)
    return joined
