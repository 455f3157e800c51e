"""The order of synchronisation in one schedule of a launch, as a number: equal in schedules that do not differ in it.

Two schedules are equal if the strong accesses of each word come in one order, and if each phase of each mbarrier has
the same arrivals and waits. Reads between the same two writes have no order, nor have reductions that return nothing.
Of a loop that polls, only the last access counts.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.facts import Facts
from warpwright.vgpu.checks.order.access_kinds import Kind, is_strong
from warpwright.vgpu.checks.stream import GlobalRows
from warpwright.vgpu.machine.events import Rows
from warpwright.vgpu.program.program import Inst, mentions, results

__all__ = ["SyncOrder", "has_choice"]

_WRITE, _READ, _REDUCE = range(3)  # kinds of accesses; accesses of one kind commute, but not writes
_LANE = np.arange(32)
_QUEUES = ("", "warp", "grid")  # of instructions whose effect no schedule changes
_TURN, _ROW, _LANES, _CLUSTER, _PLACE, _INST = range(6)  # columns of an access


def has_choice(facts: Facts) -> bool:
    """Whether another schedule may order the synchronisation of a launch otherwise."""
    return any(_chooses(inst, kind) for inst, kind in zip(facts.program.insts, _kinds(facts), strict=True))


def _chooses(inst: Inst, kind: Kind | None) -> bool:
    """Whether the effect of an instruction may depend on what other threads or engines have done."""
    waits = inst.traits.queue == "barrier" and inst.traits.blocks
    timed = any(name.startswith(("%clock", "%globaltimer")) for name in mentions(inst)[0])
    reads = kind is not None and kind.reads and bool(results(inst))
    return timed or reads or inst.name == "activemask" or not (waits or inst.traits.queue in _QUEUES)


def _kinds(facts: Facts) -> list[Kind | None]:
    """Returns the strong accesses among the instructions."""
    pairs = zip(facts.strong, facts.globals.kinds, strict=True)
    return [next((kind for kind in pair if kind is not None and is_strong(kind)), None) for pair in pairs]


class SyncOrder:
    """The strong accesses of a launch, from `add`, and ``phases``: of each judged cluster, by digest, a sum of hashes
    of the arrivals and waits of its mbarriers."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.lock = facts, threading.Lock()
        self.phases: dict[bytes, int] = {}
        self.parts: list[Rows] = [np.empty((0, 6), np.int64)]
        kinds = _kinds(facts)
        self.strong = np.array([kind is not None for kind in kinds], np.bool_)
        self.kinds = np.array([_kind(*each) for each in zip(facts.program.insts, kinds, strict=True)], np.int64)
        polls = [kind == _READ or at in facts.acquires for at, kind in enumerate(self.kinds.tolist())]
        self.polls = np.array(polls, np.bool_)

    def add(self, rows: GlobalRows) -> None:
        """Store the strong accesses in a part of a cluster's stream."""
        heads = rows.heads[rows.rows]
        inst = heads[:, 0] & 0xFFFF_FFFF
        row, lane = np.nonzero((heads[:, 1, None] >> _LANE & 1 == 1) & self.strong[inst][:, None])
        own = np.full(len(row), rows.cluster.number)
        cluster, place = self._words(rows, rows.addresses[row, lane])
        lanes = own << 32 | (heads[row, 0] >> 32) * 32 + lane
        columns = rows.turns[rows.rows][row], rows.first + rows.rows[row], lanes, cluster, place, inst[row]
        with self.lock:
            self.parts.append(np.stack(columns, axis=1))

    def _words(self, rows: GlobalRows, hosts: Rows) -> tuple[Rows, Rows]:
        """Returns the cluster and the place of words of shared memory, -1 and the address of words of global memory."""
        places = hosts - rows.cluster.shared_host
        inside = (places >= 0) & (places < rows.cluster.ranks * rows.cluster.shared_stride)
        addresses = self.facts.globals.addresses.allocations.virtual_of(hosts)
        return np.where(inside, rows.cluster.number, -1), np.where(inside, places, addresses)

    def number(self) -> int:
        """Returns the number of the order, once the launch is over."""
        accesses = np.concatenate(self.parts)
        accesses = accesses[np.lexsort(accesses[:, [_LANES, _ROW, _TURN, _PLACE, _CLUSTER]].T)]
        accesses = accesses[~self._repeated(accesses)]
        kinds = self.kinds[accesses[:, _INST]]
        apart = np.ones(len(accesses), np.bool_)
        apart[1:] = (np.diff(accesses[:, [_CLUSTER, _PLACE]], axis=0) != 0).any(axis=1)
        apart[1:] |= (np.diff(kinds) != 0) | (kinds[1:] == _WRITE)
        rows = np.column_stack([accesses[:, [_CLUSTER, _PLACE, _LANES, _INST]], np.cumsum(apart)])
        digest = hashlib.blake2b(rows[np.lexsort(rows.T)].tobytes(), digest_size=8).digest()
        phases = ((number, self.phases.get(each, 0)) for number, each in self.facts.globals.digests.items())
        return hash((digest, tuple(sorted(phases))))

    def _repeated(self, accesses: Rows) -> NDArray[np.bool_]:
        """Returns which accesses of a poll come before another one of the same thread, word and instruction, with no
        access of the thread between."""
        order = np.lexsort(accesses[:, [_LANES, _PLACE, _CLUSTER]].T)
        ordered = accesses[order]
        same = (np.diff(ordered[:, [_LANES, _CLUSTER, _PLACE, _INST]], axis=0) == 0).all(axis=1)
        found = np.zeros(len(accesses), np.bool_)
        found[order[:-1]] = same & self.polls[ordered[:-1, _INST]]
        return found


def _kind(inst: Inst, kind: Kind | None) -> int:
    if kind is None or not kind.writes:
        return _READ
    return _WRITE if results(inst) or not kind.reads else _REDUCE
