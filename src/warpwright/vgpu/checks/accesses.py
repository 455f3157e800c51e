"""Accesses, sets of them, and the shadow of a memory: who wrote each cell last and who has read it since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.clocks import GENERIC, SEEN, Clocks
from warpwright.vgpu.jit.runtime import function

__all__ = ["ATOMIC", "ENGINE", "NEVER", "WRITE", "Accesses", "Cells", "Ids", "Shadow"]

NEVER = 1 << 40  # the value of what has not completed: nobody knows of it
Ids = NDArray[np.int64]
Cells = NDArray[np.int64]
_FIELDS = {"column": np.int32, "value": np.int64, "machine": np.bool_, "lane": np.int32, "atomic": np.bool_,
           "inst": np.int32}  # fmt: skip
_FEW = 1024
WRITE, ENGINE, ATOMIC, _ATOMICS_ONLY = 1, 2, 4, 8  # of an access, for `shadow.ll`; of the reads before it, which count


class Accesses:
    """Every access of a cluster: it is over for whoever knows ``value`` of ``column``. ``machine``: it was made by an
    engine, so no proxy fence is between it and other engines; ``inst`` and ``lane`` made or issued it;
    ``atomic``: it does not race with others that are, and counts as a read and a write for all else."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.rows: dict[str, NDArray[Any]] = {name: np.zeros(_FEW, dtype) for name, dtype in _FIELDS.items()}
        self.count = 0
        self.sets: list[tuple[int, ...]] = []
        self.known: dict[tuple[int, ...], int] = {}
        self.unions: dict[tuple[int, int], int] = {}
        self.members_flat, self.starts = np.zeros(_FEW, np.int32), np.zeros(_FEW, np.int64)
        self.atomics = False
        self._frame = np.zeros(10, np.int64)
        self._framed: NDArray[np.uint32] | None = None

    def frame(self) -> int:
        """The address of what `shadow.ll` needs to know of clocks, accesses and sets."""
        if self._framed is not self.clocks.table:
            fields = [self.rows[name] for name in ("column", "value", "machine", "lane", "atomic")]
            self._frame[:3] = self.clocks.where
            self._frame[3:] = [array.ctypes.data for array in (*fields, self.members_flat, self.starts)]
            self._framed = self.clocks.table
            self._address = self._frame.ctypes.data
        return self._address

    def add(
        self, column: Ids | int, value: Ids | int, machine: bool, inst: int, lanes: Ids | int, atomic: bool = False
    ) -> Ids:
        """New accesses, one a lane; gives their numbers."""
        self.atomics |= atomic
        count = np.broadcast(column, value, lanes).size
        first = self._room(count)
        for name, given in zip(_FIELDS, (column, value, machine, lanes, atomic, inst), strict=True):
            self.rows[name][first : first + count] = given
        return np.arange(first, first + count)

    def one(self, column: int, value: int, machine: bool, inst: int, lane: int) -> int:
        """A new access; gives its number."""
        first = self._room(1)
        for name, given in zip(_FIELDS, (column, value, machine, lane, False, inst), strict=True):
            self.rows[name][first] = given
        return first

    def _room(self, count: int) -> int:
        first, self.count = self.count, self.count + count
        while self.count > len(self.rows["lane"]):
            self.rows = {name: np.concatenate([held, np.zeros_like(held)]) for name, held in self.rows.items()}
            self._framed = None
        return first

    def complete(self, ids: Iterable[int], value: int) -> None:
        """Accesses that were in flight are over from ``value`` of their column on."""
        self.rows["value"][list(ids)] = value

    def unknown(self, ids: Ids, lanes: Ids | int) -> NDArray[np.bool_]:
        """Which accesses the lanes do not know to be over."""
        known = self.clocks.table[GENERIC, lanes, self.rows["column"][ids]]
        late: NDArray[np.bool_] = known < self.rows["value"][ids]
        return late

    def unseen(self, ids: Ids, lanes: Ids | int) -> NDArray[np.bool_]:
        """Which accesses of threads an operation that the lanes issue to the async proxy need not see."""
        late = self.clocks.table[SEEN, lanes, self.rows["column"][ids]] < self.rows["value"][ids]
        hidden: NDArray[np.bool_] = late & ~self.rows["machine"][ids]
        return hidden

    def untaken(self, ids: Ids, lanes: Ids, taken: NDArray[np.uint32] | None) -> NDArray[np.bool_]:
        """Which accesses of other warps to tensor memory the warp of the lanes has not taken up with a fence."""
        if taken is None:
            return np.zeros(len(ids), np.bool_)
        columns, values = self.rows["column"][ids], self.rows["value"][ids]
        apart = self.rows["lane"][ids] // 32 != lanes // 32
        missed: NDArray[np.bool_] = apart & (np.append(taken, 0)[np.minimum(columns, len(taken))] < values)
        return missed

    def members(self, held: int) -> tuple[int, ...]:
        """The accesses of a set: 0 is empty, n > 0 only access n - 1, n < 0 one of `sets`."""
        return () if held == 0 else (held - 1,) if held > 0 else self.sets[-held - 1]

    def with_(self, held: int, access: int) -> int:
        """A set with one more access, less those that it makes up for: they are over before it, and if they are a
        thread's so is it, since for the async proxy the one does not stand for the other; nor a read for an atomic."""
        if held == 0:
            return access + 1
        key = held, access
        if key not in self.unions:
            old = np.array(self.members(held), np.int64)
            lane = int(self.rows["lane"][access])
            apart = self.rows["machine"][access] & ~self.rows["machine"][old]
            apart |= self.rows["atomic"][old] & ~self.rows["atomic"][access]
            kept = old[self.unknown(old, lane) | apart]
            self.unions[key] = self._set((*kept.tolist(), access))
        return self.unions[key]

    def _set(self, members: tuple[int, ...]) -> int:
        if len(members) == 1:
            return members[0] + 1
        if members not in self.known:
            self.sets.append(members)
            self.known[members] = -len(self.sets)
            self._flatten(members)
        return self.known[members]

    def _flatten(self, members: tuple[int, ...]) -> None:
        """Keep a new set for `shadow.ll` too."""
        number = len(self.sets)
        first = int(self.starts[number - 1])
        while number >= len(self.starts) or first + len(members) > len(self.members_flat):
            self.members_flat = np.concatenate([self.members_flat, np.zeros_like(self.members_flat)])
            self.starts = np.concatenate([self.starts, np.zeros_like(self.starts)])
            self._framed = None
        self.members_flat[first : first + len(members)] = members
        self.starts[number] = first + len(members)


class Shadow:
    """What the cells of a memory remember: the last write (-1: none), the set of reads since it."""

    def __init__(self, accesses: Accesses, cells: int) -> None:
        self.accesses = accesses
        self.writer = np.full(cells, -1, np.int32)
        self.readers = np.zeros(cells, np.int32)
        self.where = self.writer.ctypes.data, self.readers.ctypes.data, cells
        self._quiet, self._read = function("shadow_quiet"), function("shadow_read")

    def quiet(
        self, cells: Cells, lanes: Ids | int, flags: int, pipe: int = -1, taken: NDArray[np.uint32] | None = None
    ) -> int:
        """Whether all that an access of ``lanes`` to ``cells`` comes after is over for it (`shadow.ll`): 0 if not, 3
        where something was never written, else 1."""
        frame = self.accesses.frame()
        many, one = (0, lanes) if isinstance(lanes, int) else (lanes.ctypes.data, 0)
        if self.accesses.atomics and not flags & WRITE:
            flags |= _ATOMICS_ONLY
        known = (0, 0) if taken is None else (taken.ctypes.data, len(taken))
        found: int = self._quiet(frame, *self.where, cells.ctypes.data, len(cells), many, one, flags, pipe, *known)
        return found

    def before(self, cells: Cells, lanes: Ids | int, write: bool, atomic: bool = False) -> tuple[Ids, Ids]:
        """Pairs (access, lane) that an access of ``lanes`` to ``cells`` comes after: writes, for a write reads too; of
        reads and writes alike only those that are not atomic where the access is."""
        if not self.accesses.atomics:
            return self._pairs(cells, lanes, write)
        ids, who = self._pairs(cells, lanes, True)
        is_atomic = self.accesses.rows["atomic"][ids]
        if atomic:
            return ids[~is_atomic], who[~is_atomic]
        if write:
            return ids, who
        written, by = self._pairs(cells, lanes, False)
        return np.append(ids[is_atomic], written), np.append(who[is_atomic], by)

    def _pairs(self, cells: Cells, lanes: Ids | int, write: bool) -> tuple[Ids, Ids]:
        written = _pairs(self.writer[cells], lanes, -1)
        if not write:
            return written
        pairs = [written]
        held, who = _pairs(self.readers[cells], lanes, 0)
        if len(held):
            pairs.append((held[held > 0] - 1, who[held > 0]))
            for one, lane in zip(held[held < 0].tolist(), who[held < 0].tolist(), strict=True):
                members = np.array(self.accesses.members(one), np.int64)
                pairs.append((members, np.full(len(members), lane, np.int64)))
        ids, who = (np.concatenate(part) for part in zip(*pairs, strict=True)) if len(pairs) > 1 else written
        return ids, who

    def write(self, cells: Cells, ids: Ids | int) -> None:
        self.writer[cells] = ids
        self.readers[cells] = 0

    def read(self, cells: Cells, ids: Ids | int) -> None:
        """Remember a read; ``ids`` one a cell or one for all."""
        left = np.empty(len(cells), np.int64)
        many, one = (0, ids) if isinstance(ids, int) else (ids.ctypes.data, 0)
        frame = self.accesses.frame()
        count = self._read(frame, *self.where, cells.ctypes.data, len(cells), many, one, left.ctypes.data)
        if count:
            cells = cells[left[:count]]
            each = np.full(count, ids) if isinstance(ids, int) else ids[left[:count]]
            self.readers[cells] = self._merged(self.readers[cells], each)

    def _merged(self, held: NDArray[np.int32], ids: Ids) -> NDArray[np.int32]:
        """Every set with one more access."""
        keys, inverse = np.unique(held.astype(np.int64) << 32 | ids, return_inverse=True)
        merged = [self.accesses.with_(key >> 32, key & 0xFFFF_FFFF) for key in keys.tolist()]
        found: NDArray[np.int32] = np.array(merged, np.int32)[inverse.ravel()]
        return found


def _same(values: NDArray[np.int32]) -> bool:
    return bool((values == values[:1]).all())


def _pairs(held: NDArray[np.int32], lanes: Ids | int, none: int) -> tuple[Ids, Ids]:
    """Distinct pairs of what cells hold, unless it is ``none``, and of the lanes."""
    if isinstance(lanes, int):
        found = held[:1] if _same(held) else np.unique(held)
        found = found[found != none].astype(np.int64)
        return found, np.full(len(found), lanes, np.int64)
    chosen = held != none
    if not chosen.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    packed = np.unique(held[chosen].astype(np.int64) << 20 | lanes[chosen])
    return packed >> 20, packed & 0xFFFFF
