"""The units of the SMs that a cluster runs on, as queues with clocks, and the barriers of its shared memory."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Any

from warpwright.targets import Timing

__all__ = ["WINDOW", "Barrier", "Memory", "Turns", "Unit", "Units"]

WINDOW = 512.0  # cycles over which the bandwidth of shared memory is what it is on average
BEHIND = 640.0  # cycles that SMs are apart (start.load.* of bench/micro.py): idle shares are used that much later


@dataclass(slots=True)
class Unit:
    """A queue served in order: ``free`` is when the last one in it is done, ``busy`` the cycles of service so far."""

    free: float = 0.0
    busy: float = 0.0

    def take(self, now: float, cycles: float, behind: float = 0.0) -> float:
        """Queue up at ``now`` for so many cycles; gives when the service ends.

        ``behind``: a share of something common. SMs do not stay in step, so others leave later what they took before.
        """
        self.free = max(self.free, now - behind if self.busy else now) + cycles
        self.busy += cycles
        return self.free


@dataclass(slots=True)
class Turns:
    """Slots, one a cycle, that warps take in turns: of n that have any to take each gets every n-th.

    ``rounds`` counts turns up to ``now``; ``marks``, ascending: at how many rounds each warp has had all of its own.
    Until ``slow_until`` only ``rate`` slots a cycle are there: products of warpgroups take the others.
    """

    now: float = 0.0
    rounds: float = 0.0
    marks: list[float] = field(default_factory=list)
    busy: float = 0.0
    slow_until: float = 0.0
    rate: float = 1.0

    def take(self, now: float, slots: float) -> float:
        """Slots for a warp from ``now`` on; gives its mark, for `end`."""
        self.go_to(now)
        self.busy += slots
        mark = self.rounds + slots
        insort(self.marks, mark)
        return mark

    def slow(self, now: float, until: float, rate: float) -> None:
        self.go_to(now)
        self.slow_until, self.rate = until, rate

    def go_to(self, now: float) -> None:
        marks = self.marks
        while marks:
            then = self.after((marks[0] - self.rounds) * len(marks))
            if then > now:
                slow = min(max(0.0, self.slow_until - self.now), max(0.0, now - self.now))
                self.rounds += (max(0.0, now - self.now) - slow * (1 - self.rate)) / len(marks)
                break
            self.now, self.rounds = then, marks.pop(0)
        self.now = max(self.now, now)

    def left(self, now: float, mark: float) -> float:
        """As `end`, at ``now``; no later than that for a warp that has had them."""
        self.go_to(now)
        return self.end(mark) if mark > self.rounds else now

    def after(self, slots: float) -> float:
        """When so many slots have been issued from ``now`` on."""
        slow = max(0.0, self.slow_until - self.now)
        if slots <= slow * self.rate:
            return self.now + slots / self.rate
        return self.now + slots + slow * (1 - self.rate)

    def end(self, mark: float) -> float:
        """When the warp with a mark has had its slots, if no other comes."""
        slots, rounds, count = 0.0, self.rounds, len(self.marks)
        for each in self.marks:
            if rounds >= mark:
                break
            slots += (each - rounds) * count
            rounds, count = each, count - 1
        return self.after(slots)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes a cycle that L2 gives and takes, device memory gives and GPCs hand out to all SMs of the replay together,
    and what one SM takes."""

    l2: float
    l2_write: float
    hbm: float
    gpcs: float
    sm: float


class Units:
    """The units of the SMs under one cluster's CTAs, one of each for each SM; L2 and device memory as its share."""

    def __init__(self, timing: Timing, ranks: int, memory: Memory) -> None:
        self.timing, self.memory = timing, memory
        self.schedulers = [[Turns() for _ in range(timing.schedulers)] for _ in range(ranks)]
        self.special = [[Turns() for _ in range(timing.schedulers)] for _ in range(ranks)]
        self.tma = [Unit() for _ in range(ranks)]
        self.tensor = [Unit() for _ in range(ranks)]
        self.warp_tensor = [[Unit() for _ in range(timing.schedulers)] for _ in range(ranks)]
        self.tmem = [[Unit() for _ in range(timing.schedulers)] for _ in range(ranks)]
        self.shared = [Unit() for _ in range(ranks)]  # everybody's: tensor cores, TMA, lanes
        self.lanes = [Unit() for _ in range(ranks)]
        self.lsu = [Unit() for _ in range(ranks)]
        self.remote = [Unit() for _ in range(ranks)]
        self.port = [Unit() for _ in range(ranks)]
        self.l2 = Unit()
        self.hbm = Unit()
        self.gpcs = Unit()

    def fetch(self, now: float, nbytes: float, miss: float, share: float, ranks: tuple[int, ...]) -> float:
        """When bytes that leave L2 at ``now`` at the earliest, ``miss`` of them from device memory, are at the SMs.

        They take the time of ``share`` as many from L2: less where neighbours get the same, more by multicast.
        """
        end = self.l2.take(now, nbytes * share / self.memory.l2, BEHIND)
        if miss:
            end = max(end, self.hbm.take(now, nbytes * miss / self.memory.hbm, BEHIND))
        end = max(end, self.gpcs.take(now, nbytes / self.memory.gpcs, BEHIND))
        for rank in ranks:
            end = max(end, self.port[rank].take(now, nbytes / self.memory.sm))
        return end

    def store(self, now: float, nbytes: float, rank: int, slower: float = 1.0) -> float:
        """When bytes that leave an SM at ``now`` at the earliest are in L2; they go on to device memory in time.

        L2 takes them in ``slower`` times what plain ones take.
        """
        self.hbm.take(now, nbytes / self.memory.hbm, BEHIND)
        end = self.l2.take(now, nbytes * slower / self.memory.l2_write, BEHIND)
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
        """Whether a wait for a parity is over."""
        return self.phase & 1 != parity

    def update(self, arrivals: int, nbytes: int) -> bool:
        """Arrivals and bytes expected (those that come count negative); true when that ends the phase."""
        self.pending -= arrivals
        self.bytes += nbytes
        if self.pending > 0 or self.bytes:
            return False
        self.pending = self.count
        self.phase += 1
        return True
