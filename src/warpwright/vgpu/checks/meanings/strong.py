"""Strong accesses of shared memory (PTX ISA 9.1 sections 8.4 and 8.8): atomic operations, and loads and stores that are
relaxed, acquire, release or volatile. They do not race with one another, and they order other accesses."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.checks.memory.accesses import STRONG_READ, Ids
from warpwright.vgpu.checks.memory.footprints import BARRIER_BYTES
from warpwright.vgpu.checks.order.access_kinds import CTA, Kind
from warpwright.vgpu.checks.order.clocks import Lanes
from warpwright.vgpu.checks.row import Row

__all__ = ["note_locks", "strong_access", "synchronise"]

Unwritten = NDArray[np.bool_]


def strong_access(known: Knowledge, row: Row, kind: Kind, lanes: Lanes, places: Lanes) -> tuple[Unwritten, Lanes]:
    """Judge and store accesses of lanes, one place each. Returns which cells were never written, and the lane of
    each."""
    cells, who = known.footprints.of_lanes(places, lanes, row.a)
    known.judge(known.shared, cells, who, row.inst, write=kind.writes, atomic=True)
    if known.facts.narrow and known.cluster.ranks > 1:
        _check_scopes(known, row, kind, cells, who)
    empty = known.shared.writer[cells] < 0
    note_locks(known, row, kind, lanes, places)
    if kind.writes:
        known.check_overwrite(places // BARRIER_BYTES, lanes, row.inst)
        columns, values = _epochs(known, lanes, places)
        ids = known.accesses.add(columns, values, False, row.inst, lanes, 1).repeat(len(cells) // len(lanes))
        known.shared.write(cells[empty], ids[empty])
    else:
        columns, values = lanes, known.clocks.now(lanes)
        ids = known.accesses.add(columns, values, False, row.inst, lanes, STRONG_READ).repeat(len(cells) // len(lanes))
    known.shared.read_lanes(cells, ids)
    if known.facts.synchronises:
        synchronise(known, kind, zip(lanes.tolist(), places.tolist(), columns, values, strict=True), row.inst)
    return empty, who


def _check_scopes(known: Knowledge, row: Row, kind: Kind, cells: Ids, who: Lanes) -> None:
    """Find strong accesses of two CTAs, one of CTA scope: they race as weak ones do (section 8.7.1)."""
    ids, lanes = known.shared.before(cells, who, True)
    rows, threads = known.accesses.rows, 32 * known.cluster.per_cta
    apart = (rows["atomic"][ids] > 0) & (rows["lane"][ids] // threads != lanes // threads)
    apart &= known.accesses.unknown(ids, lanes)
    for access, lane in zip(ids[apart].tolist(), lanes[apart].tolist(), strict=True):
        other = known.facts.strong[rows["inst"][access]]
        if other is not None and CTA in (other.scope, kind.scope) and (other.writes or kind.writes):
            known.find_pair("race", access, row.inst, lane, "they are of two CTAs, and one has the scope .cta")


def _epochs(known: Knowledge, lanes: Lanes, places: Lanes) -> tuple[Lanes, Lanes]:
    """Returns column and value of the lanes' writes."""
    if not known.facts.synchronises:
        return lanes, known.clocks.now(lanes)
    given = zip(lanes.tolist(), places.tolist(), strict=True)
    columns, values = np.array([known.shared_flags.number(*each) for each in given], np.int64).T
    return columns, values


def note_locks(known: Knowledge, row: Row, kind: Kind, lanes: Lanes, places: Lanes) -> None:
    """Lanes may acquire locks, or release them: store what they know before."""
    if known.facts.acquires and kind.writes:
        known.contexts.note(known.at, row.warp, writes=True)
        known.contexts.settle()
        for lane, place in zip(lanes.tolist(), places.tolist(), strict=True):
            known.locks.write(lane, place, row.inst, known.at)


def synchronise(known: Knowledge, kind: Kind, accesses: Iterable[tuple[int, int, int, int]], inst: int) -> None:
    """Lanes acquire and release, in turn: lane, place, and column and value of a write that is to be ordered too. An
    atomic operation that returns a value acquires, as `Flags` has it."""
    returns = kind.reads and known.insts[inst].name != "red"
    for lane, place, column, value in accesses:
        if place in known.apart:
            continue
        if returns:
            known.shared_flags.read(lane, place, kind, kind.acquires or kind.writes)
        if kind.writes:
            known.shared_flags.write(lane, place, kind, column, value)
