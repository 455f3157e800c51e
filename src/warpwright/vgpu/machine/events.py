"""What happens in a run, as one stream of events, and the protocol of those who listen.

Lane code reports synchronisation (``arrive``, ``expect_tx``, ``wait``) only when a launch has observers; engines report
``issue`` and ``complete`` of every asynchronous operation; the machine reports barriers and the life of CTAs. Events of
one cluster come in an order that happened; clusters run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from warpwright.vgpu.program.program import Inst, Program

__all__ = ["Barrier", "Event", "Observer", "Recorder"]


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
    and ``lane`` the issuer, -1 where no thread issued it. ``nbytes`` counts bytes moved or expected.
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
    coords: tuple[int, ...] = ()


class Observer(Protocol):
    """Listens to a launch. Called from worker threads, one cluster at a time on each."""

    def launched(self, program: Program) -> None:
        """A launch begins."""

    def event(self, event: Event) -> None:
        """Something happened."""


class Recorder:
    """An observer that keeps every event of every cluster, for tests and tools."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.events: list[Event] = []

    def launched(self, program: Program) -> None:
        self.program = program

    def event(self, event: Event) -> None:
        self.events.append(event)
