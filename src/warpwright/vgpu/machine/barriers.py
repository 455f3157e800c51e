"""Named barriers of a CTA and the barrier of a cluster, settled by the machine (PTX ISA 9.1, 9.7.13.1 and 9.7.13.3).

Lane code blocks the lanes that reach a barrier. `settle` looks at all blocked warps, counts arrivals and releases the
warps whose barrier is complete. A warp arrives at a named barrier when all its live lanes have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import ProtocolError
from warpwright.vgpu.jit.state import DONE, WAIT_BAR, WAIT_CLUSTER
from warpwright.vgpu.jit.sync import BAR_ARRIVE, BAR_RED
from warpwright.vgpu.machine import faults
from warpwright.vgpu.machine.state import ClusterState, lane_table
from warpwright.vgpu.program.program import Inst, Register

__all__ = ["ClusterBarrier", "NamedBarriers"]

_BARRIERS = 16


def _gathered(warp: Any) -> bool:
    """Whether all live lanes of a warp wait at the same named barrier."""
    live = int(warp["live"])
    if int(warp["blocked"]) & live != live:
        return False
    lanes = _lanes(live)
    at = warp["wait_addr"][lanes]
    return bool((warp["wait_kind"][lanes] == WAIT_BAR).all() and (at == at[0]).all())


def _lanes(mask: int) -> list[int]:
    return [lane for lane in range(32) if mask >> lane & 1]


@dataclass(slots=True)
class _Bar:
    """One named barrier: threads arrived of ``count`` (0: all of the CTA), warps that wait, their predicates."""

    arrived: int = 0
    count: int = 0
    waiting: list[int] = field(default_factory=list)
    votes: list[bool] = field(default_factory=list)


class NamedBarriers:
    """The 16 named barriers of every CTA of a cluster."""

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.bars = [[_Bar() for _ in range(_BARRIERS)] for _ in range(cluster.ranks)]
        self.waiting: set[int] = set()

    def settle(self) -> bool:
        """Count new arrivals. Returns whether some warp may run on."""
        moved = [self._arrive(index) for index in self.cluster.blocked_warps(WAIT_BAR)]
        return any(moved)

    def _arrive(self, index: int) -> bool:
        cluster, warp = self.cluster, self.cluster.warps[index]
        if not _gathered(warp):
            return False
        lanes = _lanes(int(warp["live"]))
        number, word = int(warp["wait_addr"][lanes[0]]), int(warp["wait_arg"][lanes[0]])
        rank, how, count = index // cluster.per_cta, word >> 32 & 0xFF, word & 0xFFFF_FFFF
        if index not in self.waiting:
            self._validate(index, number, count)
            self._count(index, number, how)
            self.bars[rank][number].votes += [bool(int(warp["wait_arg"][i]) >> 40 & 1) for i in lanes if how == BAR_RED]
        bar = self.bars[rank][number]
        if bar.arrived < (count or self._live_threads(rank)):
            return how == BAR_ARRIVE
        self._open(rank, number, bar)
        return True

    def _count(self, index: int, number: int, how: int) -> None:
        """Count the arrival of a warp. A warp that only arrives runs on."""
        cluster, rank = self.cluster, index // self.cluster.per_cta
        bar = self.bars[rank][number]
        bar.arrived += 32
        cluster.tell_warp("bar", index, number)
        if how == BAR_ARRIVE:
            cluster.release(index, WAIT_BAR)
        else:
            self.waiting.add(index)
            bar.waiting.append(index)

    def progress(self, rank: int, number: int, count: int) -> str:
        """Returns how many threads have arrived at a barrier for ``count`` threads (0: all), in words."""
        return f"{self.bars[rank][number].arrived} of {count or self._live_threads(rank)} threads have arrived"

    def _live_threads(self, rank: int) -> int:
        """Returns the threads that a barrier without a count waits for: those of warps that have not exited."""
        per_cta = self.cluster.per_cta
        status = self.cluster.warps["status"][rank * per_cta : (rank + 1) * per_cta]
        return 32 * int(np.count_nonzero(status != DONE))

    def _validate(self, index: int, number: int, count: int) -> None:
        inst = self._inst(index)
        if number >= _BARRIERS or count % 32:
            text = f"barrier {number} with {count} threads; expected barrier 0 to 15 and a multiple of 32."
            raise faults.error(ProtocolError, self.cluster, inst, index, 0, text)
        bar = self.bars[index // self.cluster.per_cta][number]
        if bar.arrived and bar.count != count:
            given, before = (f"{c} threads" if c else "all threads of the CTA" for c in (count, bar.count))
            text = f"barrier {number} for {given}; others arrived at it for {before}: give the same count everywhere."
            raise faults.error(ProtocolError, self.cluster, inst, index, 0, text)
        bar.count = count

    def _open(self, rank: int, number: int, bar: _Bar) -> None:
        for index in bar.waiting:
            self._reduce(index, self._inst(index), bar.votes)
            self.waiting.discard(index)
            self.cluster.release(index, WAIT_BAR)
        self.bars[rank][number] = _Bar()

    def _inst(self, index: int) -> Inst:
        """Returns the barrier at which a warp waits. Its exited lanes may have run last."""
        return self.cluster.waiting_at(index, _lanes(int(self.cluster.warps[index]["live"]))[0])

    def _reduce(self, index: int, inst: Inst, votes: list[bool]) -> None:
        """Write the reduction of the predicates, if an instruction reads it: other registers have no slot."""
        target, slots = inst.find("d"), self.cluster.launch.kernel.slots
        if isinstance(target, Register) and target.name in slots:
            offset = slots[target.name]
            words = self.cluster.bytes[index, offset : offset + 4 * max(1, target.bits)].view(np.uint32)
            result = {"popc": sum(votes), "and": -int(all(votes)), "or": -int(any(votes))}[inst["op"]]
            words[: 32 if target.bits > 1 else 1] = result & 0xFFFF_FFFF


class ClusterBarrier:
    """The barrier of the cluster: a count of arrivals and a phase. Every thread waits for the phase it arrived in.

    ``owed``: for every lane of every warp, the phase that it has arrived in and not yet waited for, else -1.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.phase = 0
        self.owed = np.full((cluster.count, 32), -1, np.int64)

    def settle(self) -> bool:
        """Count new arrivals and release the lanes whose phase is over. Returns whether some lane may run on."""
        warps = self.cluster.warps
        blocked = lane_table(warps["blocked"] & warps["live"]) & (warps["wait_kind"] == WAIT_CLUSTER)
        waits = warps["wait_arg"] != 0
        arriving, waiting = blocked & ~waits, blocked & waits
        self._check(arriving & (self.owed >= 0), "arrives again before it has waited; alternate arrive and wait")
        self._check(waiting & (self.owed < 0), "waits without having arrived; put barrier.cluster.arrive before it")
        self.owed[arriving] = self.phase
        passed = waiting & (self.owed < self.phase)
        self.owed[passed] = -1
        warps["blocked"] &= ~_masks(arriving | passed)
        for index in np.flatnonzero(arriving.any(axis=1)).tolist() if self.cluster.observed else ():
            self.cluster.tell_warp("cluster", index)
        moved = bool((arriving | passed).any())
        if self._start_phase():
            self.settle()
            return True
        return moved

    def progress(self) -> str:
        """Returns how many threads have arrived, in words."""
        live = lane_table(self.cluster.warps["live"])
        return f"{int((live & (self.owed == self.phase)).sum())} of {int(live.sum())} threads have arrived"

    def _start_phase(self) -> bool:
        """Start a new phase if every thread that has not exited has arrived. Returns whether it did."""
        here = self.owed == self.phase
        if not here.any() or (_masks(here) & self.cluster.warps["live"] != self.cluster.warps["live"]).any():
            return False
        self.phase += 1
        return True

    def _check(self, wrong: NDArray[np.bool_], what: str) -> None:
        for index, lane in np.argwhere(wrong).tolist() if wrong.any() else ():
            inst = self.cluster.inst_at(index)
            raise faults.error(ProtocolError, self.cluster, inst, index, lane, f"{what}.")


_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def _masks(table: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Returns flags, shape (warps, 32), as lane masks."""
    masks: NDArray[np.uint32] = (table * _BITS).sum(axis=1, dtype=np.uint32)
    return masks
