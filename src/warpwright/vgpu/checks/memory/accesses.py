"""Accesses, sets of accesses, and the shadow of a memory: the last write of each cell and the reads since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.memory.cells import Cells, cells_of
from warpwright.vgpu.checks.order.clocks import GENERIC, SEEN, Clocks
from warpwright.vgpu.jit.runtime import function

__all__ = ["ATOMIC", "ENGINE", "NEVER", "STRONG_READ", "WRITE", "Accesses", "Acquired", "Ids", "Repeated", "Shadow",
           "SharedShadow", "Touch"]  # fmt: skip

NEVER = 1 << 40  # the value of an access that is not complete: no lane knows of it
Ids = NDArray[np.int64]
Words = NDArray[np.bool_]
_FIELDS = {"column": np.int32, "value": np.int64, "machine": np.bool_, "lane": np.int32, "atomic": np.int8,
           "inst": np.int32}  # fmt: skip
_FEW, _MANY = 1 << 17, 1 << 16
WRITE, ENGINE, ATOMIC = 1, 2, 4  # of an access, for `shadow.ll`
STRONG_READ = 2  # of ``atomic``
_ATOMICS_ONLY, _REMEMBER = 8, 16  # only atomic reads before it count; judge nothing
_NODES, _COUNT = 11, 13  # the words of the frame with the number of nodes, and of accesses
_UNWRITTEN = 3  # of `shadow_op`: cells may be unwritten
_FULL, _DONE = 4, 3  # no room for nodes; the bit from which on the number of finished lanes is stored
_WARP = 32


class Acquired:
    """What tcgen05.fence made visible to a warp: ``values`` of columns, at host address ``where``."""

    __slots__ = ("values", "where")

    def __init__(self, values: NDArray[np.uint32]) -> None:
        self.values, self.where = values, values.ctypes.data


class Accesses:
    """Every access of a cluster: it is over for a lane that knows ``value`` of ``column``. ``machine``: an engine made
    it, so it needs no proxy fence before other engines; ``inst`` and ``lane`` made or issued it; ``atomic``: it does
    not race with other atomic accesses, and counts as a read and a write for all else, or (2) as a read. ``parts``: of
    an access that stands for several MMAs, the instruction of each and the cells that it reads."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.rows: dict[str, NDArray[Any]] = {name: np.zeros(_FEW, dtype) for name, dtype in _FIELDS.items()}
        self._room, self.atomics = _FEW, False
        self.parts: dict[int, list[tuple[int, Cells]]] = {}
        self.readers: list[NDArray[np.int32]] = []  # of all shadows
        self._nodes = np.zeros((2, _MANY), np.int32)
        self._frame = np.zeros(14, np.int64)
        self._framed: NDArray[np.uint32] | None = None
        self.where = self._frame.ctypes.data
        self._access = function("shadow_access")

    @property
    def count(self) -> int:
        """The number of accesses."""
        return self._frame.item(_COUNT)

    def update_frame(self) -> None:
        """Update the frame: what `shadow.ll` reads of clocks, accesses and sets."""
        if self._framed is not self.clocks.table:
            self._frame[:3] = self.clocks.where
            self._frame[3:9] = [self.rows[name].ctypes.data for name in _FIELDS]
            self._frame[9:11] = [nodes.ctypes.data for nodes in self._nodes]
            self._frame[12] = self._nodes.shape[1]
            self._framed = self.clocks.table

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
        self.make_room(1)
        self.update_frame()
        found: int = self._access(self.where, column, value, machine, inst, lane)
        return found

    def reserve(self, count: int) -> int:
        """Reserve numbers for accesses. Returns the first."""
        self.make_room(count)
        first = self.count
        self._frame[_COUNT] = first + count
        return first

    def make_room(self, count: int) -> None:
        """Make room for accesses."""
        while self._frame.item(_COUNT) + count > self._room:
            self.rows = {name: np.concatenate([row, np.zeros_like(row)]) for name, row in self.rows.items()}
            self._room, self._framed = 2 * self._room, None

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

    def unacquired(self, ids: Ids, lanes: Ids, acquired: Acquired | None) -> NDArray[np.bool_]:
        """Which accesses of other warps to tensor memory the warp of the lanes has not acquired up with a fence."""
        if acquired is None:
            return np.zeros(len(ids), np.bool_)
        columns, values, known = self.rows["column"][ids], self.rows["value"][ids], acquired.values
        apart = self.rows["lane"][ids] // 32 != lanes // 32
        missed: NDArray[np.bool_] = apart & (np.append(known, 0)[np.minimum(columns, len(known))] < values)
        return missed

    def separate(self, ids: Ids, who: Ids, cells: Ids) -> tuple[Ids, Ids]:
        """Returns pairs of accesses and lanes: in place of an access of several MMAs one of each that reads cells."""
        if self.parts.keys().isdisjoint(ids.tolist()):
            return ids, who
        pairs = []
        for access, lane in zip(ids.tolist(), who.tolist(), strict=True):
            insts = [inst for inst, read in self.parts.get(access, ()) if np.isin(cells, read.numbers).any()]
            pairs += [(self._copy(access, inst), lane) for inst in insts] or [(access, lane)]
        found = np.array(pairs, np.int64)
        return found[:, 0], found[:, 1]

    def _copy(self, access: int, inst: int) -> int:
        """Add an access as another one, of another instruction. Returns its number."""
        column, value, lane = (self.rows[name].item(access) for name in ("column", "value", "lane"))
        return self.one(column, value, True, inst, lane)

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
        given = [accesses.where, self.writer.ctypes.data, self.readers.ctypes.data, cells]
        self._words = np.array([*given, 0, 0], np.int64)  # a shadow of `shadow.ll`
        self.where = self._words.ctypes.data
        self._touch, self._read = function("shadow_touch"), function("shadow_read")

    def touch(
        self,
        cells: Cells,
        lane: int,
        flags: int,
        pipe: int = -1,
        acquired: Acquired | None = None,
        access: int = -1,
    ) -> int:
        """Judge an access of a lane. Returns 0 if it is unordered with one before it, else 1, or 3 if a cell was never
        written; then store it under the number ``access``, unless that is below 0 (`shadow.ll`)."""
        self.accesses.update_frame()
        where, count = (0, 0) if acquired is None else (acquired.where, len(acquired.values))
        flags = self.flags(flags)
        found: int = self._touch(self.where, cells.where, cells.count, lane, flags, pipe, where, count, access)
        if found & _FULL:
            self.read(cells, access)
        return found & 3

    def flags(self, flags: int) -> int:
        """A read is ordered against atomic accesses, which are stored among the reads."""
        return flags | _ATOMICS_ONLY if self.accesses.atomics and not flags & WRITE else flags

    def before(self, cells: Ids, lanes: Ids | int, write: bool, atomic: bool = False) -> tuple[Ids, Ids]:
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

    def _pairs(self, cells: Ids, lanes: Ids | int, write: bool) -> tuple[Ids, Ids]:
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

    def unread(self, cells: Ids) -> Ids:
        """Returns the last writes of cells that were not read since."""
        found: Ids = np.unique(self.writer[cells[self.readers[cells] == 0]])
        return found

    def write(self, cells: Ids, ids: Ids | int) -> None:
        """Store writes; ``ids``: one a cell, or one for all."""
        self.writer[cells] = ids
        self.readers[cells] = 0

    def read(self, cells: Cells, access: int) -> None:
        """Store a read."""
        if cells.count and cells.runs.max() > len(self.readers):
            raise IndexError(f"cells end at {cells.runs.max()}, the memory has {len(self.readers)}")
        self.accesses.update_frame()
        while self._read(self.where, cells.where, cells.count, access) < cells.count:
            self.accesses.grow()
            self.accesses.update_frame()

    def read_lanes(self, cells: Ids, ids: Ids) -> None:
        """Store reads, one a cell."""
        for one in dict.fromkeys(ids.tolist()):
            self.read(cells_of(cells[ids == one]), one)


Touch = tuple[Shadow, Cells, int, bool]


class Repeated:
    """The accesses of an engine's operation, which is issued many times (`shadow_op`). ``touches``: of each access the
    shadow, the cells, the flags, and whether all cells must be written."""

    def __init__(self, column: int, inst: int, lane: int, pipe: int, touches: Sequence[Touch]) -> None:
        self.accesses, self.cells = touches[0][0].accesses, [cells for _, cells, _, _ in touches]
        self.acquired: Acquired | None = None
        words = [column, inst, lane, pipe, 0, 0, len(touches)]
        for shadow, cells, flags, written in touches:
            words += [shadow.where, cells.where, cells.count, flags, 1 if written else _UNWRITTEN]
        self._words = np.array(words, np.int64)
        self.where = self._words.ctypes.data
        self._enter = function("shadow_op")

    def enter(self, value: int, acquired: Acquired | None = None) -> int:
        """Store the operation, which is over with ``value`` of its column. Returns the number of the access, -1 if it
        is unordered with another one, or reads what is not written; then nothing is stored."""
        if acquired is not self.acquired and acquired is not None:
            self.acquired = acquired
            self._words[4:6] = acquired.where, len(acquired.values)
        self.accesses.make_room(1)
        self.accesses.update_frame()
        found: int = self._enter(self.where, value, _ATOMICS_ONLY if self.accesses.atomics else 0)
        return found - 1


class SharedShadow(Shadow):
    """The shadow of a cluster's shared memory. ``shift``: the logarithm of a cell's bytes; ``mbarriers``: the words of
    8 bytes where mbarriers live, which a thread's write may not touch."""

    def __init__(self, accesses: Accesses, cells: int, shift: int, mbarriers: Words) -> None:
        super().__init__(accesses, cells)
        self.mbarriers = mbarriers
        self._words[4:] = shift, mbarriers.ctypes.data
        self._lanes = function("shadow_lanes")

    def lanes(self, places: int, warp: int, nbytes: int, inst: int, write: bool) -> int:
        """Judge and store accesses of a warp's lanes, ``nbytes`` each; ``places``: the host address of 32 places, below
        0 for lanes that make none. Returns what `touch` does; if that is 0, stores nothing."""
        self.accesses.make_room(_WARP)
        flags = self.flags(int(write))
        found = left = self._some(places, warp, nbytes, inst, flags, 0)
        while left & _FULL:
            self.accesses.grow()
            left = self._some(places, warp, nbytes, inst, flags | _REMEMBER, left >> _DONE)
        return found & 3

    def _some(self, places: int, warp: int, nbytes: int, inst: int, flags: int, first: int) -> int:
        self.accesses.update_frame()
        found: int = self._lanes(self.where, places, _WARP * warp, nbytes, inst, flags, first)
        return found


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
