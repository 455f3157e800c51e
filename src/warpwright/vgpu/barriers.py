"""Named barriers of a CTA and the barrier of a cluster (PTX ISA 9.1 sections 9.7.13.1, 9.7.13.3), settled by the machine.

Lanes that reach one are blocked by lane code; `settle` looks at all blocked warps, counts who has come and lets go
those whose barrier is complete. A warp has come to a named barrier when all its live lanes have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from warpwright.errors import ProtocolError
from warpwright.vgpu import faults
from warpwright.vgpu.events import Event
from warpwright.vgpu.jit.state import DONE, WAIT_BAR, WAIT_BULK, WAIT_CLUSTER
from warpwright.vgpu.jit.sync import BAR_ARRIVE, BAR_RED
from warpwright.vgpu.program import Inst, Register

if TYPE_CHECKING:
    from warpwright.vgpu.cluster import Cluster

__all__ = ["Named", "Whole", "blocked_warps"]

_BARRIERS = 16


def blocked_warps(cluster: Cluster, kind: int) -> list[int]:
    """Warps with lanes that wait for ``kind``."""
    warps = cluster.warps
    found = []
    for index in np.flatnonzero(warps["blocked"] & warps["live"]).tolist():
        mask = int(warps["blocked"][index] & warps["live"][index])
        lane = (mask & -mask).bit_length() - 1
        if warps["wait_kind"][index, lane] == kind:
            found.append(index)
    return found


def _lanes(mask: int) -> list[int]:
    return [lane for lane in range(32) if mask >> lane & 1]


@dataclass(slots=True)
class _Bar:
    """One named barrier: threads that have arrived, warps that wait, their predicates."""

    arrived: int = 0
    waiting: list[int] = field(default_factory=list)
    votes: list[bool] = field(default_factory=list)


class Named:
    """The 16 named barriers of every CTA of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bars = [[_Bar() for _ in range(_BARRIERS)] for _ in range(cluster.ranks)]
        self.here: set[int] = set()

    def settle(self) -> bool:
        """Count new arrivals; true when some warp may go on."""
        return any([self._arrive(index) for index in blocked_warps(self.cluster, WAIT_BAR)])

    def _arrive(self, index: int) -> bool:
        cluster, warp = self.cluster, self.cluster.warps[index]
        live = int(warp["live"])
        if int(warp["blocked"]) & live != live:
            return False
        lane = _lanes(live)[0]
        number, word = int(warp["wait_addr"][lane]), int(warp["wait_arg"][lane])
        rank, how, count = index // cluster.per_cta, word >> 32 & 0xFF, word & 0xFFFF_FFFF
        inst = cluster.launch.insts[int(warp["inst"])]
        self._validate(index, inst, number, count)
        bar = self.bars[rank][number]
        if index not in self.here:
            bar.arrived += 32
            cluster.tell(Event("bar", cluster.number, rank, index % cluster.per_cta, inst=inst, count=number))
            if how == BAR_ARRIVE:
                cluster.release(index, WAIT_BAR)
            else:
                self.here.add(index)
                bar.waiting.append(index)
            bar.votes += [bool(int(warp["wait_arg"][i]) >> 40 & 1) for i in _lanes(live) if how == BAR_RED]
        if bar.arrived < (count or self._everyone(rank)):
            return how == BAR_ARRIVE
        self._open(rank, number, bar)
        return True

    def _everyone(self, rank: int) -> int:
        """Threads that a barrier without a count waits for: warps that have not exited."""
        per_cta = self.cluster.per_cta
        status = self.cluster.warps["status"][rank * per_cta : (rank + 1) * per_cta]
        return 32 * int(np.count_nonzero(status != DONE))

    def _validate(self, index: int, inst: Inst, number: int, count: int) -> None:
        if number >= _BARRIERS or count % 32:
            who = faults.who(self.cluster, inst, index, 0)
            raise ProtocolError(f"{who}: barrier {number} with {count} threads; expected barrier 0 to 15 and a multiple of 32.")

    def _open(self, rank: int, number: int, bar: _Bar) -> None:
        for index in bar.waiting:
            inst = self.cluster.launch.insts[int(self.cluster.warps["inst"][index])]
            if inst.name.endswith(".red"):
                self._reduce(index, inst, bar.votes)
            self.here.discard(index)
            self.cluster.release(index, WAIT_BAR)
        self.bars[rank][number] = _Bar()

    def _reduce(self, index: int, inst: Inst, votes: list[bool]) -> None:
        target = inst.operands[0]
        if isinstance(target, Register):
            offset = self.cluster.launch.kernel.slots[target.name]
            held = self.cluster.bytes[index, offset : offset + 4 * max(1, target.bits)].view(np.uint32)
            result = {"popc": sum(votes), "and": -int(all(votes)), "or": -int(any(votes))}[inst["op"]]
            held[: 32 if target.bits > 1 else 1] = result & 0xFFFF_FFFF

    def bulk_done(self) -> None:
        """All bulk copies are complete: no group is pending, whoever waited for one goes on."""
        for counter in ("groups", "lane_groups", "lane_uncommitted", "uncommitted"):
            self.cluster.warps[counter] = 0
        for index in blocked_warps(self.cluster, WAIT_BULK):
            self.cluster.release(index, WAIT_BULK)


class Whole:
    """The barrier of the cluster: a counter of arrivals and a phase; every thread waits for the phase it arrived in."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.phase = 0
        self.arrived = 0
        self.owed = np.full((cluster.count, 32), -1, np.int64)

    def settle(self) -> bool:
        moved = False
        for index in blocked_warps(self.cluster, WAIT_CLUSTER):
            moved |= self._visit(index)
        return self._turn() or moved

    def _visit(self, index: int) -> bool:
        warp = self.cluster.warps[index]
        mask = int(warp["blocked"]) & int(warp["live"])
        lanes = [lane for lane in _lanes(mask) if warp["wait_kind"][lane] == WAIT_CLUSTER]
        waiting = [lane for lane in lanes if warp["wait_arg"][lane]]
        arriving = [lane for lane in lanes if not warp["wait_arg"][lane]]
        for lane in arriving:
            if self.owed[index, lane] >= 0:
                raise self._misuse(index, lane, "arrives again before it has waited; alternate arrive and wait")
            self.owed[index, lane] = self.phase
        self.arrived += len(arriving)
        free = arriving + [lane for lane in waiting if self._passed(index, lane)]
        self.owed[index, [lane for lane in free if lane not in arriving]] = -1
        for lane in free:
            self.cluster.warps["blocked"][index] &= np.uint32(0xFFFF_FFFF ^ (1 << lane))
        self._tell(index, arriving)
        return bool(free)

    def _passed(self, index: int, lane: int) -> bool:
        if self.owed[index, lane] < 0:
            raise self._misuse(index, lane, "waits without having arrived; put barrier.cluster.arrive before it")
        return bool(self.owed[index, lane] < self.phase)

    def _turn(self) -> bool:
        """A new phase when every thread that has not exited has arrived."""
        live = int(sum(int(mask).bit_count() for mask in self.cluster.warps["live"].tolist())) if self.arrived else 1
        gone = int(np.count_nonzero((self.owed == self.phase) & ~self._alive())) if self.arrived else 0
        if self.arrived - gone < live:
            return False
        self.phase, self.arrived = self.phase + 1, 0
        return True

    def _alive(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        bits = self.cluster.warps["live"][:, None] >> np.arange(32, dtype=np.uint32)
        return (bits & 1).astype(bool)

    def _tell(self, index: int, arriving: list[int]) -> None:
        if arriving:
            cluster = self.cluster
            inst = cluster.launch.insts[int(cluster.warps["inst"][index])]
            cluster.tell(Event("cluster", cluster.number, index // cluster.per_cta, index % cluster.per_cta, inst=inst))

    def _misuse(self, index: int, lane: int, what: str) -> ProtocolError:
        inst = self.cluster.launch.insts[int(self.cluster.warps["inst"][index])]
        return ProtocolError(f"{faults.who(self.cluster, inst, index, lane)}: {what}.")


