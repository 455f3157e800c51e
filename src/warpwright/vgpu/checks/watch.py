"""Judges one cluster: applies all that it did, row by row, in the order in which it happened.

Lane code leaves a row for every access, barrier, fence and asynchronous operation (`watch.ll`); the machine reports
when an engine arrives on an mbarrier.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from warpwright.errors import DescriptorError, DeviceError
from warpwright.vgpu.checks.knowledge import BITS, Knowledge, Row
from warpwright.vgpu.checks.meanings import registers
from warpwright.vgpu.checks.stream import Block
from warpwright.vgpu.jit.record import MEETING, TOUCH

__all__ = ["apply_row", "follow"]


def follow(known: Knowledge, blocks: Iterable[Block], limit: int | None = None) -> None:
    """Go through all rows of a cluster, or through so many. An address or a descriptor that the device refuses ends the
    walk: the machine reports it."""
    with suppress(DeviceError, DescriptorError):
        for block in blocks:
            _follow_block(known, block, limit)
            if known.at == limit:
                return


def _follow_block(known: Knowledge, block: Block, limit: int | None) -> None:
    heads, signals = block.heads.tolist(), block.signals.tolist()
    places, packed = iter(block.places), iter(block.packed)
    known.records = iter(block.records.tolist())
    row_end = signal_end = 0
    for (rows, _, signalled), live, running in zip(block.steps.tolist(), block.live, block.running, strict=True):
        known.live, known.running = live, running
        last: Row | None = None
        row_start, row_end = row_end, row_end + rows
        stop = row_end if limit is None else min(row_end, row_start + limit - known.at)
        for before, head in itertools.pairwise([[], *heads[row_start:stop]]):
            row = Row(head)
            tables = head[1] >> 32 & 15
            if tables:
                row.places = next(places)[row.lanes - 32 * row.warp]
            if tables > 1:
                row.packed = next(packed)[row.lanes - 32 * row.warp]
            if last is None or head != before or not _polls(known, row, last):
                apply_row(known, row)
            known.at, last = known.at + 1, row
        known.contexts.settle()
        _settle_exits(known)
        signal_start, signal_end = signal_end, signal_end + signalled
        for signal in signals[signal_start:signal_end]:
            known.signal(*signal)
        if known.at == limit:
            return


def _settle_exits(known: Knowledge) -> None:
    """Complete the barriers that waited only for threads that have exited."""
    for (rank, _), bar in known.named.items():
        bar.settle(known.clocks, known.running_threads(rank))
    if not np.array_equal(known.live, known.settled_live):
        known.settled_live = known.live
        known.whole.set_live(known.clocks, (known.live[:, None] >> BITS & 1 == 1).ravel())


def _polls(known: Knowledge, row: Row, last: Row) -> bool:
    """Whether a warp repeats the load before it, as when it polls a flag: the row tells nothing new."""
    same = row.places is not BITS and bool((row.places == last.places).all() and (row.places >= 0).all())
    return same and known.insts[row.inst].name == "ld"


def apply_row(known: Knowledge, row: Row) -> None:
    """Apply the meaning of a row."""
    if row.extra & TOUCH:
        registers.touch(known, row)
        return
    if row.extra & MEETING:
        known.meet(row)
        return
    function = known.meanings[row.inst]
    if known.globals.kinds[row.inst] is None:
        known.contexts.settle()
    if function is not None:
        function(known, row)
        known.last[row.warp] = row
