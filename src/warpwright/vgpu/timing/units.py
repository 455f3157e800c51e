"""The units of the SMs of a cluster as queues with clocks, and the mbarriers of its shared memory."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Any

from warpwright.targets import Timing

__all__ = ["WINDOW", "Barrier", "Memory", "Pipe", "Scheduler", "Unit", "Units", "WarpTensor"]

WINDOW = 512.0  # cycles over which shared-memory bandwidth is averaged
SKEW = 640.0  # cycles that SMs are apart (start.load.* of bench/micro.py): an idle share may be used that much later


@dataclass(slots=True)
class Unit:
    """A first-come-first-served queue: ``free``: end of the last service; ``busy``: cycles of service so far."""

    free: float = 0.0
    busy: float = 0.0

    def take(self, now: float, cycles: float, skew: float = 0.0) -> float:
        """Queue at ``now`` for ``cycles``; returns the end of the service.

        ``skew``: the skew of the SMs that share the unit. SMs are not in step, so idle time up to this old is usable.
        """
        self.free = max(self.free, now - skew if self.busy else now) + cycles
        self.busy += cycles
        return self.free


@dataclass(slots=True)
class WarpTensor(Unit):
    """The tensor core of a scheduler as a queue of mma.sync. It stands still while the scheduler issues other
    instructions, which take the ports of the register file.

    ``seen``: of the issue slots of the scheduler, those up to the time ``at``, and that of the next mma.sync.
    """

    seen: float = 0.0
    at: float = 0.0

    def delay(self, now: float, slots: float, each: float) -> None:
        """Let time pass up to ``now``, at which ``slots`` slots of the scheduler are taken; one of them delays the
        tensor core by ``each`` cycles. Slots of later cycles are left for the next call."""
        passed = now - self.at
        some = min(max(0.0, slots - self.seen), passed)
        if self.free > self.at:
            self.free = max(now, self.free + some * each)
        self.at, self.seen = now, self.seen + some + 1


@dataclass(slots=True)
class Pipe:
    """Cycles of a pipe that warps share round robin: each of n warps with cycles left gets every n-th.

    ``rounds`` counts rounds up to ``now``; ``marks``, ascending: the round in which each warp has its last cycle. Until
    ``slow_until`` a wgmma executes, and only a share of the cycles is free: ``rate``, or ``alone`` for one warp.
    """

    now: float = 0.0
    rounds: float = 0.0
    marks: list[float] = field(default_factory=list)
    busy: float = 0.0
    slow_until: float = 0.0
    rate: float = 1.0
    alone: float = 1.0

    def take(self, now: float, cycles: float) -> float:
        """Reserve cycles for a warp from ``now`` on; returns its mark, for `end`."""
        self.advance(now)
        self.busy += cycles
        mark = self.rounds + cycles
        insort(self.marks, mark)
        return mark

    def slow(self, now: float, until: float, rate: float, alone: float = 0.0) -> None:
        """Note that a wgmma executes from ``now`` to ``until``. Meanwhile warps share ``rate`` of the cycles; a warp
        that alone has cycles left gets ``alone`` of them, or ``rate`` where that is 0."""
        self.advance(now)
        self.slow_until, self.rate, self.alone = until, rate, alone or rate

    def share(self, count: int) -> float:
        """The share of the cycles that ``count`` warps get beside a wgmma."""
        return self.rate if count > 1 else self.alone

    def advance(self, now: float) -> None:
        marks, last = self.marks, self.now
        if now <= last:
            return
        while marks:  # the hottest loop of a replay
            count = len(marks)
            cycles, slow = (marks[0] - self.rounds) * count, self.slow_until - last
            then = last + cycles if slow <= 0.0 else self.time_of(last, cycles, count)
            passed = (then if then < now else now) - last
            if slow > 0.0:
                passed -= self.pass_slowly(slow if slow < passed else passed, count)
            if then > now:
                self.rounds += passed / count
                break
            last, self.rounds = then, marks.pop(0)
        self.now = now

    def pass_slowly(self, cycles: float, count: int) -> float:
        """Returns how many of so many cycles beside a wgmma ``count`` warps have not had."""
        return cycles * (1 - self.share(count))

    def end_at(self, now: float, mark: float) -> float:
        """`end` at ``now``; ``now`` for a warp that has had its cycles."""
        self.advance(now)
        return self.end(mark) if mark > self.rounds else now

    def time_of(self, now: float, cycles: float, count: int) -> float:
        """Returns when ``count`` warps that share the pipe from ``now`` on have used ``cycles`` of it in total."""
        slow = self.slow_until - now
        if slow <= 0.0:
            return now + cycles
        rate = self.share(count)
        return now + (cycles / rate if cycles <= slow * rate else cycles + slow * (1 - rate))

    def end(self, mark: float) -> float:
        """The time at which the warp with a mark has its last cycle, if no other warp joins."""
        time, rounds, count = self.now, self.rounds, len(self.marks)
        for each in self.marks:
            if rounds >= mark:
                break
            time = self.time_of(time, (each - rounds) * count, count)
            rounds, count = each, count - 1
        return time


@dataclass(slots=True)
class Scheduler(Pipe):
    """The issue slots of a scheduler, one a cycle, that warps share round robin. While a wgmma executes, a run of
    instructions (one of each warp with slots left) alternates with a burst of ``rate`` cycles, in which the tensor core
    uses the ports of the register file and nothing issues.

    ``lost``: cycles by which arithmetic has delayed the tensor core; a run of one instruction does not delay it.
    """

    lost: float = 0.0

    def share(self, count: int) -> float:
        return count / (count + self.rate)

    def pass_slowly(self, cycles: float, count: int) -> float:
        runs = cycles / (count + self.rate)
        self.lost += runs * (count - 1)
        return runs * self.rate

    def issue(self, now: float, slots: float, dense: float) -> float:
        """Reserve slots for a warp from ``now`` on: for ``slots`` single instructions and for ``dense`` instructions in
        successive cycles, with no burst between them. Returns the warp's mark, for `end`."""
        self.advance(now)
        if dense and self.slow_until > now:
            self.lost += dense
            self.busy += dense * (1 - self.share(1))
            dense *= self.share(1)
        return self.take(now, slots + dense)

    def stolen(self, now: float) -> float:
        """Returns by how many cycles arithmetic has delayed the tensor core up to ``now``, since the last call."""
        self.advance(now)
        lost, self.lost = self.lost, 0.0
        return lost


@dataclass(frozen=True, slots=True)
class Memory:
    """Bandwidths in bytes a cycle: of L2 reads, L2 writes, device memory and GPCs, which all replayed SMs share; and of
    the port of one SM. ``overwrites``: stores hit lines that are dirty in L2, so device memory takes nothing. ``link``:
    bandwidth of each direction to the other GPUs of a node, which all replayed SMs share; ``link_latency``: cycles of
    a load from a peer beyond those of a load from L2."""

    l2: float
    l2_write: float
    hbm: float
    gpcs: float
    sm: float
    overwrites: bool = False
    link: float = 1.0
    link_latency: float = 0.0


class Units:
    """The units of the SMs of one cluster, a set for each SM; of L2 and device memory the cluster's share."""

    def __init__(self, timing: Timing, ranks: int, memory: Memory) -> None:
        self.timing, self.memory = timing, memory
        self.schedulers = [[Scheduler() for _ in range(timing.schedulers)] for _ in range(ranks)]
        self.half, self.special = ([[Pipe() for _ in range(timing.schedulers)] for _ in range(ranks)] for _ in "hs")
        self.tma = [Unit() for _ in range(ranks)]
        self.tensor = [Unit() for _ in range(ranks)]
        self.warp_tensor = [[WarpTensor() for _ in range(timing.schedulers)] for _ in range(ranks)]
        self.tmem = [[Unit() for _ in range(timing.schedulers)] for _ in range(ranks)]
        self.shared = [Unit() for _ in range(ranks)]  # shared by tensor cores, TMA and lanes
        self.lanes = [Unit() for _ in range(ranks)]
        self.lsu = [Unit() for _ in range(ranks)]
        self.remote = [Unit() for _ in range(ranks)]
        self.port = [Unit() for _ in range(ranks)]
        self.l2 = Unit()
        self.hbm = Unit()
        self.gpcs = Unit()
        self.link_in, self.link_out = Unit(), Unit()

    def fetch(
        self, now: float, nbytes: float, miss: float, share: float, ranks: tuple[int, ...], link: float = 0.0
    ) -> float:
        """The time at which bytes that leave L2 at ``now`` at the earliest reach the SMs; ``miss``: share from device
        memory.

        They cost L2 ``share`` of their bytes: less where neighbours request the same, more by multicast. ``link``: the
        share that another GPU sends.
        """
        if link:
            now = self.link_in.take(now, nbytes * link / self.memory.link, SKEW) + link * self.memory.link_latency
        end = self.l2.take(now, nbytes * share / self.memory.l2, SKEW)
        if miss:
            end = max(end, self.hbm.take(now, nbytes * miss / self.memory.hbm, SKEW))
        end = max(end, self.gpcs.take(now, nbytes / self.memory.gpcs, SKEW))
        for rank in ranks:
            end = max(end, self.port[rank].take(now, nbytes / self.memory.sm))
        return end

    def store(
        self, now: float, nbytes: float, rank: int, slower: float = 1.0, *, evicted: float = 1.0, link: float = 0.0
    ) -> float:
        """The time at which bytes that leave an SM at ``now`` at the earliest are in L2; device memory takes
        the share ``evicted`` of them later.

        L2 takes ``slower`` times the cycles of plain stores. ``link``: the share that another GPU receives.
        """
        own, sent = nbytes * (1 - link), now
        if link:
            sent = self.link_out.take(now, nbytes * link / self.memory.link, SKEW) + link * self.memory.link_latency / 2
        if evicted and not self.memory.overwrites:
            self.hbm.take(now, own * evicted / self.memory.hbm, SKEW)
        end = max(sent, self.l2.take(now, own * slower / self.memory.l2_write, SKEW))
        return max(end, self.port[rank].take(now, nbytes / self.memory.sm))


@dataclass(slots=True)
class Barrier:
    """An mbarrier in time. ``phase`` counts completed phases; ``waiting``: (warp, parity)."""

    count: int = 0
    pending: int = 0
    bytes: int = 0
    phase: int = 0
    waiting: list[tuple[Any, int]] = field(default_factory=list)

    def passes(self, parity: int) -> bool:
        """Whether the phase of a parity is complete."""
        return self.phase & 1 != parity

    def update(self, arrivals: int, nbytes: int) -> bool:
        """Apply arrivals and expected bytes (delivered bytes are negative); true if the phase completes."""
        self.pending -= arrivals
        self.bytes += nbytes
        if self.pending > 0 or self.bytes:
            return False
        self.pending = self.count
        self.phase += 1
        return True
