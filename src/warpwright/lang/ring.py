"""`Ring`: pipeline stages in shared or tensor memory, each with a full and an empty mbarrier.

Slot n of a ring is the n-th filling of its stages: it uses stage ``n % stages`` in phase ``n // stages``. The producer
waits for the slot's ``empty`` (the consumer has released the stage's previous slot), fills the stage and arrives at
``full``; the consumer waits for ``full``, reads the stage and arrives at ``empty``. On new barriers the first
``stages`` waits for ``empty`` pass at once.
"""

from __future__ import annotations

from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.control import loop, var
from warpwright.lang.expr import Expr
from warpwright.lang.ops.mbarrier import BYTES, mbarrier
from warpwright.lang.smem import Place, Tile
from warpwright.lang.tensor_memory import TmemTile
from warpwright.lang.trace import current
from warpwright.types import pred, u32

__all__ = ["Cursor", "Ring", "Slot"]

Member = Tile | TmemTile
RESERVED = ("full", "empty", "stage", "phase", "nbytes", "name")


class Ring:
    """``stages`` stages with the given tiles; ``full`` and ``empty`` are the arrival counts of the two barriers.

    ``Ring(8, full=1, empty=1, a=smem.tile(…), b=smem.tile(…))``: every stage has an ``a`` and a ``b``, tiles of shared
    or of tensor memory. With ``name="ab"`` the labels of waits are ``wait_ab_full_0`` … and reports say ``ab.full``.
    The constructor emits nothing: one thread calls `init` and ``fence.mbarrier_init()``, then all threads synchronise.
    With ``empty=0`` slots have no `empty`: another barrier says when they may be filled.
    Each role advances a cursor of its own, `producer` or `consumer`. The constructor allocates the barriers, the first
    use of a slot allocates the stages.

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
        self.empty = mbarrier.array(stages, empty, name=f"{name}_empty" if name else "empty") if empty else []
        self.offsets, self.stride = _layout(members)
        self.place = Place(max(self.stride * stages, 1), max((tile.align for tile in self.tiles), default=1))
        for tile in members.values():
            if isinstance(tile, TmemTile):
                tile.claim.repeat(stages)

    @property
    def tiles(self) -> list[Tile]:
        """The tiles in shared memory, in order."""
        return [tile for tile in self.members.values() if isinstance(tile, Tile)]

    @property
    def nbytes(self) -> int:
        """The bytes of one stage's tiles in shared memory, as TMA counts them."""
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
        """Returns a cursor at slot 0 for the role that fills the stages and waits for ``slot.empty``."""
        return Cursor(self)

    def consumer(self) -> Cursor:
        """Returns a cursor at slot 0 for the role that reads the stages and waits for ``slot.full``."""
        return Cursor(self)


def _layout(members: dict[str, Member]) -> tuple[dict[str, int], int]:
    """Returns the byte offset of each shared-memory tile within a stage, and the bytes from one stage to the next."""
    offsets: dict[str, int] = {}
    top, align = 0, 1
    for name, tile in members.items():
        if isinstance(tile, Tile):
            offsets[name] = -(-top // tile.align) * tile.align
            top, align = offsets[name] + tile.nbytes, max(align, tile.align)
    return offsets, -(-top // align) * align


class Cursor:
    """The position of one role in a ring: two registers, stage and phase. ``next(cursor)`` and `skip` advance them."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.stage = var(u32, 0)
        self.phase = var(u32, 0)

    def __next__(self) -> Slot:
        slot = self.peek()
        self._advance()
        return slot

    def peek(self) -> Slot:
        """Returns the slot that ``next`` would return, and does not advance."""
        return Slot(self.ring, self.stage.to(u32), self.phase.to(u32))

    def skip(self, count: Expr | int) -> None:
        """Advance ``count`` slots, which another thread uses. ``count`` may be a run-time value, u32."""
        past = self.stage + count
        self.phase ^= past // self.ring.stages & 1
        self.stage.set(past % self.ring.stages)

    def _advance(self) -> None:
        """Advance one slot; after the last stage comes stage 0 of the other phase."""
        trace = current()
        if self.ring.stages == 1:
            self.phase ^= 1
            return
        self.stage += 1
        wraps = trace.result("setp.eq.u32", pred, self.stage, self.ring.stages)
        trace.emit("mov.u32", self.stage, 0, guard=wraps)
        trace.emit("xor.b32", self.phase, self.phase, 1, guard=wraps)

    def wait_all_empty(self) -> None:
        """Wait until every slot is empty, so that no arrival is in flight to this CTA when the CTA exits."""
        for _ in loop(self.ring.stages):
            next(self).empty.wait()


class Slot:
    """One filling of a stage: the stage's tiles by their names in the ring, and its barriers in this slot's phase.

    ``slot.full.wait()`` waits until the stage is filled, ``slot.empty.wait()`` until it may be filled. ``stage`` and
    ``phase`` (0 or 1) are run-time values, u32; ``nbytes`` are the bytes of the tiles in shared memory.
    """

    def __init__(self, ring: Ring, stage: Any, phase: Expr) -> None:
        self.ring, self.stage, self.phase = ring, stage, phase
        self.nbytes = ring.nbytes

    @property
    def full(self) -> mbarrier:
        """The mbarrier that completes when this slot is filled."""
        return self._barrier(self.ring.full[0], self.phase)

    @property
    def empty(self) -> mbarrier:
        """The mbarrier that completes when the stage's previous slot is released."""
        return self._barrier(self.ring.empty[0], self.phase ^ 1)

    def __getattr__(self, name: str) -> Any:
        members = self.ring.members
        if name not in members:
            raise AttributeError(f"a slot of this ring has full, empty, {', '.join(members)}; not {name}")
        tile = members[name]
        if isinstance(tile, TmemTile):
            return tile if self.ring.stages == 1 else tile.at_shift(self.stage * tile.shape[1])
        base, start = self.ring.place.known()
        return tile.placed(self._stage_address(base, self.ring.stride), start + self.ring.offsets[name])

    def _barrier(self, first: mbarrier, parity: Expr) -> mbarrier:
        base = self._stage_address(current().smem_at(0), BYTES)
        return mbarrier.at_address(base, first.offset, first.count, name=first.name, parity=parity)

    def _stage_address(self, base: Expr, stride: int) -> Expr:
        return base if self.ring.stages == 1 else self.stage * stride + base
