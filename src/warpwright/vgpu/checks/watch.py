"""Judges one cluster: applies all that it did, row by row, in the order in which it happened.

Lane code leaves a row for every access, barrier, fence and asynchronous operation (`watch.ll`); the machine reports
when an engine arrives on an mbarrier.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError, DeviceError
from warpwright.vgpu.checks.knowledge import LOADS, READ, STORES, SYNC, WAIT_STORES, Knowledge
from warpwright.vgpu.checks.meanings import members, registers
from warpwright.vgpu.checks.row import BITS, Row
from warpwright.vgpu.checks.stream import Block
from warpwright.vgpu.jit.record import MEETING, TOUCH
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.machine.events import Rows

__all__ = ["apply_row", "follow"]

_ROW_BYTES, _TABLE_BYTES = 4 * 8, 32 * 8
_TENSOR, _LIVE, _NOTES = 7, 12, 14  # words of `rows.ll` that change: tensor memory, lanes, notes of proxy fences


def follow(known: Knowledge, blocks: Iterable[Block], limit: int | None = None) -> None:
    """Go through all rows of a cluster, or through so many. An address or a descriptor that the device refuses ends the
    walk: the machine reports it."""
    with suppress(DeviceError, DescriptorError):
        for block in blocks:
            _follow_block(known, block, limit)
            if known.at == limit:
                return


def _follow_block(known: Knowledge, block: Block, limit: int | None) -> None:
    rows, signals = _BlockRows(known, block), iter(block.signals.tolist())
    known.records, known.first_record = block.records, known.issued
    try:
        _follow_turns(known, block, rows, signals, limit)
    finally:
        rows.end()


def _follow_turns(
    known: Knowledge, block: Block, rows: _BlockRows, signals: Iterator[list[int]], limit: int | None
) -> None:
    end = 0
    for turn, (count, _, signalled) in enumerate(block.steps.tolist()):
        exits = rows.begin_turn(turn)
        start, end = end, end + count
        rows.follow(start, end if limit is None else min(end, start + limit - known.at))
        known.contexts.settle()
        if exits:
            _settle_exits(known)
        for signal in itertools.islice(signals, signalled):
            known.signal(*signal)
        if known.at == limit:
            return


class _BlockRows:
    """The rows of a block. ``places`` and ``packed``: by row, the number of its table of places, and of operands;
    ``ends``: the end of the run of compiled meanings that the row is in, or its own number; ``joined``: the end of the
    rows that are one with it; ``readers``: its warp if
    its meaning is a compiled read, else -1. ``exits``: by turn, whether threads may have exited since the last one."""

    def __init__(self, known: Knowledge, block: Block) -> None:
        self.known, self.block, self.compiled = known, block, function("rows_follow")
        first, second, a, b = block.heads.T
        words = first & 0xFFFF_FFFF, first >> 32, second >> 36, second & 0xFFFF_FFFF, a, b
        self.words = [column.tolist() for column in words]  # of `Row`
        self.operands = self.words[4]
        self.warps, tables = self.words[1], second >> 32 & 15
        self.tables, self.repeats = tables.tolist(), _equal_before(block.heads).tolist()
        self.places, self.packed = (_counts_before(tables > count).tolist() for count in (0, 1))
        self.ends = _run_ends(block.heads, known.compiled).tolist()
        self.joined = _joined_ends(block.heads, known.compiled).tolist()
        self.readers = np.where(known.compiled[words[0]] == READ, words[1], -1).tolist()
        self.exits: list[bool] = [True, *(_differ(block.live) | _differ(block.running)).tolist()]
        self.rows, self.live = _with_cells(known, block.heads), np.ascontiguousarray(block.live)
        self.at_rows, self.at_places = self.rows.ctypes.data, block.places.ctypes.data
        self.at_live, self.live_bytes = self.live.ctypes.data, self.live.strides[0]
        self.latest: dict[int, int] = {}  # by warp: its last compiled row
        self.state = np.array(_state(known), np.int64)
        self.at_state = self.state.ctypes.data

    def begin_turn(self, turn: int) -> bool:
        """Begin a turn of the machine. Returns whether threads may have exited since the one before."""
        known = self.known
        known.live, self.state[_LIVE] = self.live[turn], self.at_live + turn * self.live_bytes
        if self.exits[turn]:
            running = self.block.running[turn].reshape(known.cluster.ranks, -1)
            known.named.everyone[:] = 32 * running.sum(axis=1)
        return self.exits[turn]

    def follow(self, at: int, stop: int) -> None:
        """Go through rows of one turn of the machine. Rows that are compiled are followed a run at a time."""
        known = self.known
        last: Row | None = None
        while at < stop:
            end = min(self.ends[at], stop)
            if at < end:
                done = self._follow_run(at, end)
                at, known.at, last = at + done, known.at + done, None
                if at == end:
                    continue
            end = min(self.joined[at], stop)
            row = self._row(end - 1)
            if end > at + 1:
                row.a = sum(self.operands[at:end])
            if last is None or not self.repeats[at] or not _polls(known, row, last):
                apply_row(known, row)
            at, known.at, last = end, known.at + end - at, row

    def _follow_run(self, at: int, end: int) -> int:
        """Follow a run of compiled rows. Returns how many are done; the next one has a finding, or room is missing."""
        known, count = self.known, end - at
        known.contexts.settle()
        known.accesses.make_room(len(BITS) * count)
        known.accesses.update_frame()
        self.state[_TENSOR], self.state[_NOTES] = 0 if known.frees else known.tensor.where, known.proxy_fences.where
        rows, places = self.at_rows + _ROW_BYTES * at, self.at_places + _TABLE_BYTES * self.places[at]
        done: int = self.compiled(self.at_state, rows, places, count, known.shared.flags(0))
        latest = dict(zip(self.warps[at : at + done], range(at, at + done), strict=True))
        self.latest.update(latest)
        for warp in latest:
            known.last[warp] = None
        known.loaded.update(self.readers[at : at + done])
        return done

    def end(self) -> None:
        """Store the last row of each warp, for reports of hangs."""
        for warp, at in self.latest.items():
            if self.known.last[warp] is None and self.known.compiled[self.words[0][at]] > WAIT_STORES:
                self.known.last[warp] = self._row(at)

    def _row(self, at: int) -> Row:
        row = Row(*[column[at] for column in self.words])
        tables = self.tables[at]
        if tables:
            inside = _inside(row.mask)
            row.table = self.at_places + _TABLE_BYTES * self.places[at]
            row.places = self.block.places[self.places[at]][inside]
            if tables > 1:
                row.packed = self.block.packed[self.packed[at]][inside]
        return row


def _equal_before(heads: Rows) -> NDArray[np.bool_]:
    """Returns which rows equal the row before them."""
    found = np.zeros(len(heads), np.bool_)
    found[1:] = (heads[1:] == heads[:-1]).all(axis=1)
    return found


def _counts_before(chosen: NDArray[np.bool_]) -> Rows:
    """Returns how many entries before each one are chosen."""
    found: Rows = np.cumsum(chosen) - chosen
    return found


@lru_cache(maxsize=4096)
def _inside(mask: int) -> slice | Rows:
    """Returns an index of the lanes of a mask in a table of 32 words."""
    lanes = np.flatnonzero(mask >> BITS & 1)
    return slice(int(lanes[0]), int(lanes[-1]) + 1) if np.ptp(lanes) == len(lanes) - 1 else lanes


def _state(known: Knowledge) -> list[int]:
    """Returns the words of `rows.ll`."""
    cluster = known.cluster
    clocks = known.compiled.ctypes.data, known.clocks.address, known.moves.ctypes.data
    sizes = cluster.count, cluster.per_cta, cluster.shared_stride
    tensor = 0, known.loads.ctypes.data, len(known.insts), known.acquired_at.ctypes.data
    named = known.named.table.ctypes.data, 0, known.named.everyone.ctypes.data
    return [known.shared.where, *clocks, *sizes, *tensor, *named, 0]


def _with_cells(known: Knowledge, heads: Rows) -> Rows:
    """Returns the rows; those of tcgen05.ld and tcgen05.st with the number and host address of their runs of cells."""
    moves = np.flatnonzero(np.isin(known.compiled[heads[:, 0] & 0xFFFF_FFFF], (LOADS, STORES)))
    if not len(moves):
        return heads
    rows = heads.copy()
    given, which = np.unique(heads[moves][:, (0, 3)], axis=0, return_inverse=True)
    cells = [known.footprints.quarter(known.insts[word & 0xFFFF_FFFF], word >> 32, at) for word, at in given.tolist()]
    rows[moves, 2:] = np.array([(each.count, each.where) for each in cells])[which.ravel()]
    return rows


def _differ(turns: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns which turns differ from the one before, from the second on."""
    found: NDArray[np.bool_] = (turns[1:] != turns[:-1]).any(axis=1)
    return found


def _run_ends(heads: Rows, compiled: NDArray[np.int8]) -> Rows:
    """Returns for each row the end of the run of compiled rows that it is in, else its own number. Accesses have one
    table, other compiled rows none."""
    meanings, numbers = compiled[heads[:, 0] & 0xFFFF_FFFF], np.arange(len(heads))
    chosen = (meanings > 0) & (heads[:, 1] >> 32 == (meanings < SYNC))
    breaks = np.ones(len(heads) + 1, np.bool_)
    breaks[1:-1] = ~chosen[1:] | ~chosen[:-1]
    ends = np.flatnonzero(breaks)
    found: Rows = np.where(chosen, ends[np.searchsorted(ends, numbers, side="right")], numbers)
    return found


def _joined_ends(heads: Rows, compiled: NDArray[np.int8]) -> Rows:
    """Returns for each row the end of the rows from it on that are one: they issue operations of the same engine by the
    same lanes."""
    meanings = compiled[heads[:, 0] & 0xFFFF_FFFF]
    alike = (meanings[1:] < 0) & (meanings[1:] == meanings[:-1]) & (heads[1:, 1] >> 32 == 0)
    alike &= (heads[1:, 0] >> 32 == heads[:-1, 0] >> 32) & (heads[1:, 1] == heads[:-1, 1])
    ends = np.append(np.flatnonzero(~alike) + 1, len(heads))
    found: Rows = ends[np.searchsorted(ends, np.arange(len(heads)), side="right")]
    return found


def _settle_exits(known: Knowledge) -> None:
    """Complete the barriers that waited only for threads that have exited."""
    known.named.settle()
    if not np.array_equal(known.live, known.settled_live):
        known.settled_live = known.live
        known.whole.set_live(known.clocks, (known.live[:, None] >> BITS & 1 == 1).ravel())


def _polls(known: Knowledge, row: Row, last: Row) -> bool:
    """Whether a warp repeats the load before it, as when it polls a flag: the row tells nothing new."""
    same = row.places is not BITS and bool((row.places == last.places).all() and (row.places >= 0).all())
    return same and known.insts[row.inst].name == "ld"


def apply_row(known: Knowledge, row: Row) -> None:
    """Apply the meaning of a row."""
    if row.extra >= TOUCH:
        return _apply_marked(known, row)
    function = known.meanings[row.inst]
    if known.globals.kinds[row.inst] is None:
        known.contexts.settle()
    if function is not None:
        function(known, row)
        known.last[row.warp] = row


def _apply_marked(known: Knowledge, row: Row) -> None:
    """Apply a row that is about registers or about the lanes of the warp, not about memory."""
    if row.extra & TOUCH:
        registers.touch(known, row)
    elif row.extra & MEETING:
        known.meet(row)
    else:
        members.absent(known, row)
