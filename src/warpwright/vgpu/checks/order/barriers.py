"""Barriers as carriers of knowledge: an arrival releases what its thread knows, a wait acquires it.

mbarriers follow the documented object (PTX ISA 9.1 section 9.7.13.15): a phase ends when no arrival is pending and no
byte is outstanding. Named barriers (9.7.13.1) release all threads of a round at once; the barrier of the cluster
(9.7.13.3) has an arrive that releases and a wait that acquires.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.order.clocks import GENERIC, Clock, Clocks, Lanes, join, lane_mask, mask_of, slice_of
from warpwright.vgpu.jit.runtime import function

__all__ = ["Arrival", "Mbarrier", "NamedBarriers", "Operation", "RemoteArrival", "Whole"]

_REMEMBERED = 32  # operations of a phase
_NAMED = 16  # barriers of a CTA
_TABLE, _CLOCK, _COUNT = 4, 5, 12  # words of a named barrier: the table of the open round, its clock, what it expects


@dataclass(slots=True)
class Operation:
    """An operation on an mbarrier: instruction, lane (-1: an engine's), arrivals, bytes expected and delivered."""

    inst: int
    lane: int
    count: int
    expect: int
    complete: int


class Arrival(NamedTuple):
    """An arrival on an mbarrier, or at a named barrier: its instruction, its lane, and the clock of the lane from which
    on others know of the arrival."""

    inst: int
    lane: int
    value: int


class Mbarrier:
    """One mbarrier: its column, what a phase expects, and the clocks of the open phase and of the last one.

    ``place``: its first byte. ``waited``: for each lane, its clock when it saw the end of phase ``saw``, by instruction
    ``wait_inst``, of ``parity``. The next phase must not end before that wait is known to be over, else it could have
    missed its phase.
    ``repeated``: a wait that a lane passed twice for one phase; ``late``: by lane, the phase whose end it did not see.
    ``operations``: the last ones of the open phase; ``ends``: those that ended the last phases. ``known``: lanes that
    know of the initialisation, ``seen_async``: lanes through which the async proxy sees it; both only grow.
    ``arrivals``: the last arrivals of lanes in the open phase, ``last_arrivals``: in the phase before.
    ``witnesses``: for lanes of a warp, columns and values of which none was reached before their wait: who knows one
    knows of the wait. ``issued``: what lanes knew when they issued the commits that arrived in the open phase.
    ``unfenced``: the phase of the cluster's barrier in which the initialising lane arrived without a release, -1 if it
    did not.
    """

    def __init__(self, column: int, place: int, init: int, expected: int, lanes: int) -> None:
        self.column, self.place, self.init = column, place, init
        self.expected = self.pending = expected
        self.bytes = self.phase = 0
        self.open: Clock | None = None
        self.last: Clock | None = None
        self.waited = np.zeros(lanes, np.int64)
        self.saw = np.full(lanes, -1, np.int64)
        self.wait_inst = np.zeros(lanes, np.int64)
        self.parity = np.zeros(lanes, np.int8)
        self.known = np.zeros(lanes, np.bool_)
        self.seen_async: set[int] = set()
        self.repeated = -1
        self.late: dict[int, int] = {}
        self.operations: deque[Operation] = deque(maxlen=_REMEMBERED)
        self.ends: deque[Operation] = deque(maxlen=3)
        self.arrivals: dict[int, Arrival] = {}
        self.last_arrivals: dict[int, Arrival] = {}
        self.witnesses: dict[int, list[tuple[int, Lanes, Lanes]]] = {}
        self.issued: NDArray[np.uint32] | None = None
        self.unfenced = -1

    def arrive(self, clocks: Clocks, clock: Clock | None, count: int, expect: int, complete: int) -> bool:
        """Count an operation. Returns whether it ends the phase."""
        self.open = join(self.open, clock)
        self.pending -= count
        self.bytes += expect - complete
        if self.pending or self.bytes:
            return False
        last = clocks.widened(self.open)
        self.phase, self.pending = self.phase + 1, self.expected
        last[GENERIC, self.column] = self.phase
        self.last, self.open = last, None
        return True

    def wait(self, clocks: Clocks, lanes: Lanes, inst: int, acquires: bool, parity: int) -> None:
        """The lanes pass a wait: they know of the end of the last phase, and of all that its arrivals released."""
        if self.last is not None and acquires:
            clocks.acquire(lanes, self.last)
        first, where = int(lanes[0]), slice_of(lanes)
        seen = int(self.saw[first])
        if seen == self.phase and self.wait_inst[first] == inst and self.phase:
            self.repeated = inst
        if self.phase > max(seen, 0) + 1:
            self.late[first] = max(seen, 0)
        self.waited[where], self.saw[where], self.wait_inst[where] = clocks.own[where], self.phase, inst
        self.parity[where] = parity
        if self.witnesses:
            self._forget(lanes)
        clocks.tick(lanes)

    def _forget(self, lanes: Lanes) -> None:
        """The lanes wait again: their waits before have no witness now."""
        first, mask = mask_of(lanes)
        rows = self.witnesses.pop(first // 32, ())
        left = [(lanes & ~mask, columns, values) for lanes, columns, values in rows if lanes & ~mask]
        if left:
            self.witnesses[first // 32] = left

    def end_phase(self) -> None:
        """A phase is over: only its last operation is remembered."""
        self.last_arrivals, self.arrivals = self.arrivals, {}
        self.ends.append(self.operations[-1])
        self.operations.clear()

    def unknown_arrival(self, knows: NDArray[np.uint32]) -> Arrival | None:
        """Returns an arrival of the last phase that a lane with this knowledge need not know of, None if there is none:
        the lane's own arrival may count for that phase."""
        if not self.phase or knows[self.column] >= self.phase:
            return None
        unknown = (each for lane, each in self.last_arrivals.items() if knows[lane] < each.value)
        return next(unknown, None)

    def witness(self, warp: int, mask: int, columns: Lanes, values: Lanes) -> None:
        """Who knows one of ``values`` of ``columns`` knows of the waits of these lanes of a warp."""
        self.witnesses.setdefault(warp, []).append((mask, columns, values))

    def known_waits(self, warp: int, mask: int, knows: NDArray[np.uint32]) -> int:
        """Returns those of some lanes of a warp whose waits are part of this knowledge."""
        first = 32 * warp
        if mask.bit_count() == 1:  # NumPy is slow for one lane
            lane = first + mask.bit_length() - 1
            return mask if knows.item(lane) >= self.waited.item(lane) or self.is_witnessed(lane, knows) else 0
        lanes = slice(first, first + 32)
        found = lane_mask(knows[lanes] >= self.waited[lanes]) & mask
        late = [i for i in range(32) if (mask & ~found) >> i & 1]
        return found | sum(1 << i for i in late if self.is_witnessed(first + i, knows))

    def commit(self, knows: NDArray[np.uint32]) -> None:
        """A commit arrives that a lane issued when it knew this."""
        less, more = sorted((knows[:0] if self.issued is None else self.issued, knows), key=len)
        self.issued = more
        if len(less):
            self.issued = more.copy()
            self.issued[: len(less)] = np.maximum(more[: len(less)], less)

    def overtaken(self) -> list[tuple[bool, int]]:
        """Returns a lane that saw the end of the phase before the last, where the end of the last does not know it, nor
        what caused the end; before it, whether of all such lanes a lane of their warp is known to have left the same
        wait. Empty if there is none."""
        before, issued, self.issued = (self.saw == self.phase - 1).nonzero()[0], self.issued, None
        if self.last is None or not len(before):
            return []
        last, waited = self.last[GENERIC], self.waited[before]
        late = last[before] < waited
        if not np.count_nonzero(late):
            return []
        if issued is not None:
            last, width = last.copy(), min(len(last), len(issued))
            last[:width] = np.maximum(last[:width], issued[:width])
            late = last[before] < waited
        found = [lane for lane in before[late].tolist() if not self.is_witnessed(lane, last)]
        left = {(lane // 32, int(self.wait_inst[lane])) for lane in before.tolist() if lane not in found}
        return sorted(((lane // 32, int(self.wait_inst[lane])) in left, lane) for lane in found)[:1]

    def is_witnessed(self, lane: int, knows: NDArray[np.uint32]) -> bool:
        """Returns whether this knowledge includes the lane's wait, by a collective of its warp or by a commit."""
        for mask, columns, values in self.witnesses.get(lane // 32, ()):
            inside = columns < len(knows)
            if mask >> lane % 32 & 1 and (knows[columns[inside]] >= values[inside]).any():
                return True
        return False


class RemoteArrival(NamedTuple):
    """An arrival of an engine of another CTA on an mbarrier: the phase that it counts for, the instruction, the CTA,
    and of a commit its lane, else -1; ``number``: of the operation, in the order of issue."""

    mbarrier: Mbarrier
    phase: int
    inst: int
    cta: int
    lane: int
    number: int


class Named:
    """A named barrier of a CTA (`named.ll`), whose lanes begin at ``first``. A warp arrives when all its live lanes
    have."""

    def __init__(self, clocks: Clocks, first: int, lanes: int) -> None:
        self.clocks, self.first = clocks, first
        self._unknown, self._arrive, self._settle = (
            function(f"bar_{name}") for name in ("unknown", "arrive", "settle")
        )
        self._arrivals = np.zeros((2, lanes, 3), np.int64)
        self._warps = np.zeros((2, lanes // 32), np.int32)
        tables = [self._arrivals.ctypes.data, lanes, first, *(each.ctypes.data for each in self._warps)]
        self._words = np.array([clocks.column(), 0, 0, 0, 0, 0, 0, *tables, 0], np.int64)
        self.where = self._words.ctypes.data
        self._clock = clocks.blank()
        self.make_room()

    def make_room(self) -> None:
        """Let the clock have all columns that there are now."""
        if self._words[_CLOCK] == 0 or self._clock.shape[1] < self.clocks.width:
            self._clock = self.clocks.widened(self._clock)
            self._words[_CLOCK : _CLOCK + 2] = self._clock.ctypes.data, self._clock.shape[1]

    def unknown_arrival(self, lane: int) -> Arrival | None:
        """Returns an arrival of the round before that a lane need not know of: its own may count for that round."""
        at = self._unknown(self.clocks.address, self.where, lane) - 1
        if at < 0:
            return None
        value, inst, _ = self._arrivals[1 - self._words[_TABLE], at].tolist()
        return Arrival(inst, self.first + at, value)

    def arrive(self, lanes: Lanes, live: int, count: int, everyone: int, waits: bool, inst: int) -> None:
        """Lanes of a warp with ``live`` lanes arrive in a round of ``count`` threads, 0 for all of the CTA.
        ``everyone``: threads of the CTA's warps that have not exited."""
        self._words[_COUNT] = count
        self.make_room()
        self._arrive(self.clocks.address, self.where, *mask_of(lanes), live, everyone, waits, inst)

    def settle(self, everyone: int) -> None:
        """If the round is complete, the lanes that waited learn what all know."""
        self._settle(self.clocks.address, self.where, everyone)


class NamedBarriers:
    """The named barriers of a cluster that were used. ``table``: host addresses of 16 a CTA; ``everyone``: threads of
    each CTA's warps that have not exited."""

    def __init__(self, clocks: Clocks, ranks: int) -> None:
        self.clocks = clocks
        self.used: dict[tuple[int, int], Named] = {}
        self.table = np.zeros((ranks, _NAMED), np.int64)
        self.everyone = np.full(ranks, clocks.lanes // ranks)

    def at(self, rank: int, number: int) -> Named:
        """Returns a barrier of a CTA. The machine refuses numbers that do not exist."""
        if (rank, number) not in self.used:
            lanes = self.clocks.lanes // len(self.table)
            self.used[rank, number] = Named(self.clocks, rank * lanes, lanes)
            self.table[rank, number : number + 1] = self.used[rank, number].where
        return self.used[rank, number]

    def settle(self) -> None:
        """Complete the rounds that waited only for threads that have exited."""
        for (rank, _), bar in self.used.items():
            bar.settle(self.everyone.item(rank))


class Whole:
    """The barrier of the cluster: lanes wait for the phase that they arrived in. A phase ends when all ``live`` lanes,
    which have not exited, have arrived (``here``). ``passed``: the last phase that each lane has waited for."""

    def __init__(self, lanes: int) -> None:
        self.live = np.ones(lanes, np.bool_)
        self.here = np.zeros(lanes, np.bool_)
        self.phase = 0
        self.open: Clock | None = None
        self.ended: dict[int, Clock] = {}
        self.owed = np.zeros(lanes, np.int64)
        self.passed = np.full(lanes, -1, np.int64)
        self.waiting: list[tuple[int, Lanes]] = []

    def arrive(self, clocks: Clocks, lanes: Lanes, clock: Clock | None) -> None:
        self.owed[lanes] = self.phase
        self.here[lanes] = True
        self.open = join(self.open, clock)
        self._settle(clocks)

    def set_live(self, clocks: Clocks, live: NDArray[np.bool_]) -> None:
        """Only these lanes have not exited: no lane waits for others."""
        self.live = live
        self._settle(clocks)

    def wait(self, clocks: Clocks, lanes: Lanes) -> None:
        phase = int(self.owed[lanes[0]])
        self.passed[lanes] = phase
        if phase in self.ended:
            clocks.acquire(lanes, self.ended[phase])
        elif phase == self.phase:
            self.waiting.append((phase, lanes))

    def _settle(self, clocks: Clocks) -> None:
        if not self.here.any() or not self.here[self.live].all():
            return
        self.ended.pop(self.phase - 2, None)  # a lane that waits arrived in this phase or in the one before
        if self.open is not None:
            self.ended[self.phase] = self.open
        for phase, lanes in self.waiting:
            if phase in self.ended:
                clocks.acquire(lanes, self.ended[phase])
        self.phase, self.open, self.waiting = self.phase + 1, None, []
        self.here[:] = False
