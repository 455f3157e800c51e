"""Accesses, sets of accesses, and the shadow of a memory: the last write of each cell and the reads since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.order.clocks import GENERIC, SEEN, Clocks
from warpwright.vgpu.jit.runtime import function

__all__ = ["ATOMIC", "ENGINE", "NEVER", "STRONG_READ", "WRITE", "Accesses", "Cells", "Ids", "Shadow"]

NEVER = 1 << 40  # the value of an access that is not complete: no lane knows of it
Ids = NDArray[np.int64]
Cells = NDArray[np.int64]
Words = NDArray[np.bool_]
_FIELDS = {"column": np.int32, "value": np.int64, "machine": np.bool_, "lane": np.int32, "atomic": np.int8,
           "inst": np.int32}  # fmt: skip
_FEW, _MANY = 1024, 1 << 16
WRITE, ENGINE, ATOMIC = 1, 2, 4  # of an access, for `shadow.ll`
STRONG_READ = 2  # of ``atomic``
_ATOMICS_ONLY, _REMEMBER = 8, 16  # only atomic reads before it count; judge nothing
_NODES = 11  # the word of the frame with the number of nodes
_FULL, _DONE = 4, 3  # no room for nodes; the bit from which on the number of finished lanes is stored


class Accesses:
    """Every access of a cluster: it is over for a lane that knows ``value`` of ``column``. ``machine``: an engine made
    it, so it needs no proxy fence before other engines; ``inst`` and ``lane`` made or issued it; ``atomic``: it does
    not race with other atomic accesses, and counts as a read and a write for all else, or (2) as a read."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.rows: dict[str, NDArray[Any]] = {name: np.zeros(_FEW, dtype) for name, dtype in _FIELDS.items()}
        self.count = 0
        self.atomics = False
        self.readers: list[NDArray[np.int32]] = []  # of all shadows
        self._nodes = np.zeros((2, _MANY), np.int32)
        self._frame = np.zeros(13, np.int64)
        self._framed: NDArray[np.uint32] | None = None

    def frame(self) -> int:
        """Returns the address of the frame: what `shadow.ll` reads of clocks, accesses and sets."""
        if self._framed is not self.clocks.table:
            self._frame[:3] = self.clocks.where
            self._frame[3:9] = [self.rows[name].ctypes.data for name in _FIELDS]
            self._frame[9:11] = [nodes.ctypes.data for nodes in self._nodes]
            self._frame[12] = self._nodes.shape[1]
            self._framed = self.clocks.table
            self._address = self._frame.ctypes.data
        return self._address

    def grow(self) -> None:
        """Make room for nodes of sets: free the nodes that no cell leads to, or double the room."""
        used = self._reached()
        if 2 * np.count_nonzero(used) < len(used):
            self._compact(used)
        else:
            self._nodes = np.concatenate([self._nodes, np.zeros_like(self._nodes)], axis=1)
            self._framed = None

    def _reached(self) -> NDArray[np.bool_]:
        """Returns the nodes that cells lead to."""
        used = np.zeros(int(self._frame[_NODES]), np.bool_)
        found = np.concatenate(self.readers)
        while len(found := np.unique(~found[found < 0])):
            found = found[~used[found]]
            used[found] = True
            found = self._nodes[1, found]
        return used

    def _compact(self, used: NDArray[np.bool_]) -> None:
        """Renumber the nodes: those in use get the first numbers."""
        numbers = np.cumsum(used) - 1
        self._frame[_NODES] = count = np.count_nonzero(used)
        self._nodes[:, :count] = self._nodes[:, : len(used)][:, used]
        for sets in (self._nodes[1, :count], *self.readers):
            several = sets < 0
            sets[several] = ~numbers[~sets[several]]

    def add(
        self, column: Ids | int, value: Ids | int, machine: bool, inst: int, lanes: Ids | int, atomic: int = 0
    ) -> Ids:
        """Add accesses, one for each lane. Returns their numbers."""
        self.atomics |= atomic > 0
        count = np.broadcast(column, value, lanes).size
        first = self.reserve(count)
        for name, given in zip(_FIELDS, (column, value, machine, lanes, atomic, inst), strict=True):
            self.rows[name][first : first + count] = given
        return np.arange(first, first + count)

    def one(self, column: int, value: int, machine: bool, inst: int, lane: int) -> int:
        """Add an access. Returns its number."""
        first = self.reserve(1)
        for name, given in zip(_FIELDS, (column, value, machine, lane, False, inst), strict=True):
            self.rows[name][first] = given
        return first

    def reserve(self, count: int) -> int:
        """Reserve numbers for accesses. Returns the first."""
        first, self.count = self.count, self.count + count
        while self.count > len(self.rows["lane"]):
            self.rows = {name: np.concatenate([row, np.zeros_like(row)]) for name, row in self.rows.items()}
            self._framed = None
        return first

    def complete(self, ids: Iterable[int], value: int) -> None:
        """Mark accesses that were in flight as complete: a lane that knows ``value`` of their column knows them."""
        self.rows["value"][list(ids)] = value

    def unknown(self, ids: Ids, lanes: Ids | int) -> NDArray[np.bool_]:
        """Returns which accesses the lanes do not know to be over."""
        known = self.clocks.table[GENERIC, lanes, self.rows["column"][ids]]
        late: NDArray[np.bool_] = known < self.rows["value"][ids]
        return late

    def unseen(self, ids: Ids, lanes: Ids | int) -> NDArray[np.bool_]:
        """Returns which accesses of threads an operation of the async proxy that the lanes issue may not see."""
        late = self.clocks.table[SEEN, lanes, self.rows["column"][ids]] < self.rows["value"][ids]
        hidden: NDArray[np.bool_] = late & ~self.rows["machine"][ids]
        return hidden

    def unacquired(self, ids: Ids, lanes: Ids, acquired: NDArray[np.uint32] | None) -> NDArray[np.bool_]:
        """Which accesses of other warps to tensor memory the warp of the lanes has not acquired up with a fence."""
        if acquired is None:
            return np.zeros(len(ids), np.bool_)
        columns, values = self.rows["column"][ids], self.rows["value"][ids]
        apart = self.rows["lane"][ids] // 32 != lanes // 32
        missed: NDArray[np.bool_] = apart & (np.append(acquired, 0)[np.minimum(columns, len(acquired))] < values)
        return missed

    def members(self, cell: int) -> list[int]:
        """Returns the accesses of a set of reads, given as a cell stores it."""
        found = []
        while cell < 0:
            access, cell = self._nodes[:, ~cell].tolist()
            found.append(access)
        return found + ([cell - 1] if cell else [])


class Shadow:
    """The shadow of a memory: for each cell the last write (-1: none) and the set of reads since."""

    def __init__(self, accesses: Accesses, cells: int) -> None:
        self.accesses = accesses
        self.writer = np.full(cells, -1, np.int32)
        self.readers = np.zeros(cells, np.int32)
        accesses.readers.append(self.readers)
        self.where = self.writer.ctypes.data, self.readers.ctypes.data, cells
        self._quiet, self._read, self._lanes = map(function, ("shadow_quiet", "shadow_read", "shadow_lanes"))

    def quiet(
        self, cells: Cells, lane: int, flags: int, pipe: int = -1, acquired: NDArray[np.uint32] | None = None
    ) -> int:
        """Returns 0 if an access of a lane to cells is unordered with one before it, else 1, or 3 if a cell was never
        written (`shadow.ll`)."""
        known = (0, 0) if acquired is None else (acquired.ctypes.data, len(acquired))
        frame, flags = self.accesses.frame(), self._flags(flags)
        found: int = self._quiet(frame, *self.where, cells.ctypes.data, len(cells), lane, flags, pipe, *known)
        return found

    def _flags(self, flags: int) -> int:
        """A read is ordered against atomic accesses, which are stored among the reads."""
        return flags | _ATOMICS_ONLY if self.accesses.atomics and not flags & WRITE else flags

    def lanes(self, places: Ids, lanes: Ids, nbytes: int, cell: int, inst: int, write: bool, mbarriers: Words) -> int:
        """Judge and store accesses of lanes, ``nbytes`` each at a place. Returns what `quiet` does; if that is 0,
        stores nothing. ``cell``: the logarithm of a cell's bytes; ``mbarriers``: the words of 8 bytes where mbarriers
        live, which a write may not touch."""
        first, done, flags = self.accesses.reserve(len(lanes)), 0, self._flags(int(write))
        found = left = self._some(places, lanes, nbytes, cell, first, inst, flags, mbarriers)
        while left & _FULL:
            done += left >> _DONE
            self.accesses.grow()
            left = self._some(
                places[done:], lanes[done:], nbytes, cell, first + done, inst, flags | _REMEMBER, mbarriers
            )
        return found & 3

    def _some(
        self, places: Ids, lanes: Ids, nbytes: int, cell: int, id: int, inst: int, flags: int, mbarriers: Words
    ) -> int:
        given = places.ctypes.data, len(lanes), lanes.ctypes.data, nbytes, cell, id, inst, flags, mbarriers.ctypes.data
        found: int = self._lanes(self.accesses.frame(), *self.where, *given)
        return found

    def before(self, cells: Cells, lanes: Ids | int, write: bool, atomic: bool = False) -> tuple[Ids, Ids]:
        """Returns pairs (access, lane) that an access of ``lanes`` to ``cells`` must be ordered after: writes, for a
        write reads too; for an atomic access only those that are not atomic."""
        ids, who = self._pairs(cells, lanes, write)
        if not self.accesses.atomics:
            return ids, who
        if atomic:
            weak = self.accesses.rows["atomic"][ids] == 0
            return ids[weak], who[weak]
        if write:
            return ids, who
        every, by = self._pairs(cells, lanes, True)
        updates = self.accesses.rows["atomic"][every] == 1
        return np.append(every[updates], ids), np.append(by[updates], who)

    def _pairs(self, cells: Cells, lanes: Ids | int, write: bool) -> tuple[Ids, Ids]:
        written = _pairs(self.writer[cells], lanes, -1)
        if not write:
            return written
        pairs = [written]
        values, who = _pairs(self.readers[cells], lanes, 0)
        if len(values):
            pairs.append((values[values > 0] - 1, who[values > 0]))
            for one, lane in zip(values[values < 0].tolist(), who[values < 0].tolist(), strict=True):
                members = np.array(self.accesses.members(one), np.int64)
                pairs.append((members, np.full(len(members), lane, np.int64)))
        ids, who = (np.concatenate(part) for part in zip(*pairs, strict=True)) if len(pairs) > 1 else written
        return ids, who

    def unread(self, cells: Cells) -> Ids:
        """Returns the last writes of cells that were not read since."""
        found: Ids = np.unique(self.writer[cells[self.readers[cells] == 0]])
        return found

    def write(self, cells: Cells, ids: Ids | int) -> None:
        self.writer[cells] = ids
        self.readers[cells] = 0

    def read(self, cells: Cells, ids: Ids | int) -> None:
        """Store a read; ``ids``: one a cell, or one for all."""
        if not isinstance(ids, int):
            for one in dict.fromkeys(ids.tolist()):
                self.read(cells[ids == one], one)
            return
        done = 0
        while done < len(cells):
            some = cells[done:]
            done += self._read(self.accesses.frame(), *self.where, some.ctypes.data, len(some), ids)
            if done < len(cells):
                self.readers[cells[done]]  # raises where a cell lies outside the memory
                self.accesses.grow()


def _same(values: NDArray[np.int32]) -> bool:
    return bool((values == values[:1]).all())


def _pairs(values: NDArray[np.int32], lanes: Ids | int, none: int) -> tuple[Ids, Ids]:
    """Returns distinct pairs of the values of cells, without ``none``, and of the lanes."""
    if isinstance(lanes, int):
        found = values[:1] if _same(values) else np.unique(values)
        found = found[found != none].astype(np.int64)
        return found, np.full(len(found), lanes, np.int64)
    chosen = values != none
    if not chosen.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    packed = np.unique(values[chosen].astype(np.int64) << 20 | lanes[chosen])
    return packed >> 20, packed & 0xFFFFF
