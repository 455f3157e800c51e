"""What happens in a run: the stream of events, and the protocol of observers and listeners of a launch.

Lane code reports synchronisation (``arrive``, ``expect_tx``, ``wait``) only to listeners that ask for events; engines
report ``issue`` and ``complete`` of every asynchronous operation; the machine reports barriers and the life of CTAs.
Events of one cluster come in an order that happened; clusters run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from warpwright.targets import Timing
from warpwright.vgpu.program.operation import Op
from warpwright.vgpu.program.program import Inst, Program

__all__ = ["Barrier", "Event", "EventLog", "Listener", "Observer", "Records", "Rows"]

Rows = NDArray[np.int64]
Records = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Launch = TypeVar("Launch", contravariant=True)
Cluster = TypeVar("Cluster", contravariant=True)


@dataclass(frozen=True, slots=True)
class Barrier:
    """An mbarrier: the rank of the CTA whose shared memory holds it, and its offset there in bytes."""

    rank: int
    offset: int


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    ``kind``: ``start`` and ``exit`` of a CTA; ``issue`` and ``complete`` of an asynchronous operation, joined by
    ``number``; ``arrive``, ``expect_tx``, ``complete_tx`` on an mbarrier, ``wait`` for one (``done``: the phase of
    ``parity`` was complete); ``bar`` and ``cluster`` for those barriers. ``cta`` is the rank in the cluster, ``warp``
    and ``lane`` the issuer, -1 where no thread issued it. ``nbytes`` counts bytes moved or expected. ``op``: the
    operands of an ``issue``, but of a wgmma, whose operands are in the log of its warp.
    """

    kind: str
    cluster: int
    cta: int
    warp: int = -1
    lane: int = -1
    inst: Inst | None = None
    number: int = -1
    barrier: Barrier | None = None
    count: int = 0
    nbytes: int = 0
    parity: int = -1
    done: bool = True
    op: Op | None = None


class Observer(Protocol):
    """Receives the events of a launch. Called from worker threads, one cluster at a time on each."""

    def launched(self, program: Program) -> None:
        """A launch begins."""

    def event(self, event: Event) -> None:
        """Something happened."""


class EventLog:
    """An observer that stores every event of every cluster, for tests and tools."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.events: list[Event] = []

    def launched(self, program: Program) -> None:
        self.program = program

    def event(self, event: Event) -> None:
        self.events.append(event)


class Listener(Generic[Launch, Cluster]):
    """Follows one launch. Every method does nothing unless a subclass overrides it; calls come from worker threads, one
    cluster at a time on each.

    events : lane code reports synchronisation, and `event` is called
    accesses : lane code leaves a row for every access, barrier and fence, and `signal` is called
    doubted : lane code leaves rows for all that is computed from these loads, and rows of these stores have the values
    timing : lane code leaves rows that count cycles by these costs
    in_turn : clusters run one after another, in one order
    represents : the clusters that run stand for others, and hand out no work: they need not run in step
    """

    events = False
    accesses = False
    doubted: frozenset[int] = frozenset()
    timing: Timing | None = None
    in_turn = False
    represents = False

    def launched(self, launch: Launch) -> Sequence[int] | None:
        """A launch begins. Returns the clusters to run, or None for all."""
        return None

    def begin(self, cluster: Cluster) -> None:
        """A cluster begins."""

    def event(self, event: Event) -> None:
        """An event of the launch, such as an arrival, a wait or the issue of an operation."""

    def take(self, cluster: Cluster, rows: Rows, records: Records) -> None:
        """A cluster ran for a turn: the rows that lane code left, and the records of the operations that it issued.
        Both arrays are valid only during the call."""

    def signal(
        self, cluster: Cluster, inst: int, number: int, cta: int, rank: int, offset: int, count: int, nbytes: int
    ) -> None:
        """Operation ``number`` of ``cta`` arrives on an mbarrier, or delivers bytes for it."""

    def end(self, cluster: Cluster, error: Exception | None = None, own: bool = False) -> None:
        """A cluster has ended. ``error``: it was stopped, by an error of its own if ``own``, otherwise because the
        launch would never end."""
