"""`Ring`: the stages that a producer and a consumer pass to each other, with a full and an empty barrier each.

A stage is filled again and again. The n-th filling of the ring, a slot, lies in stage ``n % stages``; its phase is
``n // stages``. The producer waits until the slot is empty (its stage's previous filling released), fills it, and
signals full; the consumer waits for full, uses it, and signals empty. On fresh barriers the first ``stages`` waits for
empty pass at once.
"""

from __future__ import annotations

from typing import Any

from warpwright.lang.context import current, misuse
from warpwright.lang.control import loop, var
from warpwright.lang.expr import Expr
from warpwright.lang.ops.mbarrier import BYTES, mbarrier
from warpwright.lang.smem import Place, Tile
from warpwright.lang.tmem import TmemTile
from warpwright.types import pred, u32

__all__ = ["Cursor", "Ring", "Slot"]

Member = Tile | TmemTile
RESERVED = ("full", "empty", "stage", "phase", "nbytes", "name")


class Ring:
    """``stages`` stages of the given tiles; ``full`` and ``empty``: the arrivals a phase that the two barriers expect.

    ``Ring(8, full=1, empty=1, a=smem.tile(…), b=smem.tile(…))``: every stage has an ``a`` and a ``b``. Members may be
    tiles of shared or of tensor memory. ``name="ab"``: waits are labelled ``wait_ab_full_0``, and reports say
    ``ab.full``. Nothing is emitted: one thread calls `init`, then ``fence.mbarrier_init()``, then all synchronise.
    Each role walks the ring with a cursor of its own, `producer` or `consumer`. Barriers take shared memory now, the
    stages when a slot is first used.

    Raises KernelError for no stages, a name that is no word, or members called full, empty, stage, phase, nbytes or
    name.
    """

    def __init__(self, stages: int, *, full: int = 1, empty: int = 1, name: str = "", **members: Member) -> None:
        if stages < 1:
            raise misuse(f"given a Ring of {stages} stages; expected at least 1")
        for word in RESERVED:
            if word in members or (word == "name" and not isinstance(name, str)):
                raise misuse(
                    f"given a Ring member called {word}; expected another name: rings and slots have a {word} of "
                    "their own"
                )
        self.stages, self.members, self.name = stages, members, name
        self.full = mbarrier.array(stages, full, name=f"{name}_full" if name else "full")
        self.empty = mbarrier.array(stages, empty, name=f"{name}_empty" if name else "empty")
        self.offsets, self.stride = _layout(members)
        self.place = Place(max(self.stride * stages, 1), max((tile.align for tile in self.tiles), default=1))
        for tile in members.values():
            if isinstance(tile, TmemTile):
                tile.claim.repeat(stages)

    @property
    def tiles(self) -> list[Tile]:
        """The members in shared memory, in order."""
        return [tile for tile in self.members.values() if isinstance(tile, Tile)]

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory of one stage, as TMA counts them when it fills every tile of it."""
        return sum(tile.nbytes for tile in self.tiles)

    def init(self) -> None:
        """Initialise the barriers of every stage.

        Issued by one thread.
        Completes by itself.
        Targets: sm_90 and later.
        PTX ISA 9.1 section 9.7.13.15.9 (mbarrier.init).
        """
        for barrier in (*self.full, *self.empty):
            barrier.init()

    def producer(self) -> Cursor:
        """A cursor at the first slot for the role that fills: it waits for ``slot.empty``."""
        return Cursor(self)

    def consumer(self) -> Cursor:
        """A cursor at the first slot for the role that uses: it waits for ``slot.full``."""
        return Cursor(self)


def _layout(members: dict[str, Member]) -> tuple[dict[str, int], int]:
    """The byte offset of each shared-memory tile within a stage, and the bytes from one stage to the next."""
    offsets: dict[str, int] = {}
    top, align = 0, 1
    for name, tile in members.items():
        if isinstance(tile, Tile):
            offsets[name] = -(-top // tile.align) * tile.align
            top, align = offsets[name] + tile.nbytes, max(align, tile.align)
    return offsets, -(-top // align) * align


class Cursor:
    """Where one role is in a ring: two registers, stage and phase. ``next(cursor)`` is the only way they advance."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.stage = var(u32, 0)
        self.phase = var(u32, 0)

    def __next__(self) -> Slot:
        slot = self.peek()
        self._advance()
        return slot

    def peek(self) -> Slot:
        """The slot that ``next`` gives, without going on."""
        return Slot(self.ring, self.stage.to(u32), self.phase.to(u32))

    def _advance(self) -> None:
        """One slot on; from the last stage to the first, and there to the other phase."""
        trace = current()
        if self.ring.stages == 1:
            self.phase ^= 1
            return
        self.stage += 1
        wraps = trace.result("setp.eq.u32", pred, self.stage, self.ring.stages)
        trace.emit("mov.u32", self.stage, 0, guard=wraps)
        trace.emit("xor.b32", self.phase, self.phase, 1, guard=wraps)

    def drain(self) -> None:
        """Wait until every slot is released, so that no arrival is still on its way to this CTA when it exits."""
        for _ in loop(self.ring.stages):
            next(self).empty.wait()


class Slot:
    """One filling of a stage: its barriers, which know their phase, and its tiles under their names in the ring.

    ``slot.full.wait()`` waits until it is filled, ``slot.empty.wait()`` until its stage may be filled. ``stage`` and
    ``phase`` (0 or 1) are run-time values, u32; ``nbytes`` what TMA counts for its tiles in shared memory.
    """

    def __init__(self, ring: Ring, stage: Expr, phase: Expr) -> None:
        self.ring, self.stage, self.phase = ring, stage, phase
        self.nbytes = ring.nbytes

    @property
    def full(self) -> mbarrier:
        """The barrier that says this slot is filled."""
        return self._barrier(self.ring.full[0], self.phase)

    @property
    def empty(self) -> mbarrier:
        """The barrier that says the stage's previous slot is released."""
        return self._barrier(self.ring.empty[0], self.phase ^ 1)

    def __getattr__(self, name: str) -> Any:
        members = self.ring.members
        if name not in members:
            raise AttributeError(f"a slot of this ring has full, empty, {', '.join(members)}; not {name}")
        tile = members[name]
        if isinstance(tile, TmemTile):
            return tile if self.ring.stages == 1 else tile.at_shift(self.stage * tile.shape[1])
        base, start = self.ring.place.known()
        return tile.placed(self._of_stage(base, self.ring.stride), start + self.ring.offsets[name])

    def _barrier(self, first: mbarrier, parity: Expr) -> mbarrier:
        base = self._of_stage(current().smem_at(0), BYTES)
        return mbarrier.at_address(base, first.offset, first.count, name=first.name, parity=parity)

    def _of_stage(self, base: Expr, stride: int) -> Expr:
        return base if self.ring.stages == 1 else self.stage * stride + base
