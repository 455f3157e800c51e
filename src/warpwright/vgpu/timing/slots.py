"""Slots of rings on a timeline: which copies fill a slot, which products read it, and what state it is in when.

A ring is seen in its barriers: ``ab.full`` and ``ab.empty`` in a row for each CTA. A copy belongs to the slot whose
full barrier it signals, wherever that lies, and a product to the slot from whose bytes it reads; so the slots of a
CTA whose peer holds the barriers are known too. A slot fills from the first copy (without copies: from the product
that begins it, or from its last release) to the end of the full phase; it is full until a product reads it, and in
use until it is released.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from warpwright.vgpu.timing.result import Span
from warpwright.vgpu.timing.steps import Box, Product

__all__ = ["Copied", "Multiplied", "Slots"]

NEVER = float("inf")


class Copied(NamedTuple):
    """A box that CTA ``rank`` moved."""

    box: Box
    rank: int
    start: float
    end: float
    where: str


class Multiplied(NamedTuple):
    product: Product
    start: float
    end: float
    where: str


class _Slot(NamedTuple):
    cta: int
    ring: str
    number: int

    @property
    def track(self) -> str:
        return f"{self.ring}[{self.number}]"


@dataclass(slots=True)
class _Life:
    """What is known of one slot: ends of its full and empty phases, its copies and the products that read it."""

    full: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    copies: list[Copied] = field(default_factory=list)
    products: list[Multiplied] = field(default_factory=list)
    where: str = ""


class Slots:
    """``barriers``: for the place of each barrier that is waited for, its name and the line of the wait; ``stride``:
    bytes from one CTA's shared memory to the next; ``phases``: (place, end), ascending."""

    def __init__(
        self,
        barriers: Mapping[int, tuple[str, str]],
        stride: int,
        copies: Sequence[Copied],
        products: Sequence[Multiplied],
        phases: Sequence[tuple[int, float]],
    ) -> None:
        self.copies, self.products = copies, products
        self.lives: dict[_Slot, _Life] = defaultdict(_Life)
        self.ranges: dict[int, list[tuple[int, int, _Slot]]] = defaultdict(list)
        halves = _halves(barriers, stride)
        ends: dict[int, list[float]] = defaultdict(list)
        for place, end in phases:
            ends[place].append(end)
        for place, (slot, half) in halves.items():
            life = self.lives[slot]
            getattr(life, half)[:] = ends[place]
            if half == "full":
                life.where = barriers[place][1]
        self._fill(halves, ends)
        self._read()
        self._release()

    def _fill(self, halves: Mapping[int, tuple[_Slot, str]], ends: Mapping[int, list[float]]) -> None:
        """Which copies go to which slot, and where its bytes lie."""
        known: set[tuple[int, int]] = set()
        for copied in self.copies:
            for rank, offset, place in copied.box.targets:
                if place not in halves:
                    continue
                own = halves[place][0]._replace(cta=rank)
                life = self.lives[own]
                life.copies.append(copied)
                if not life.full:
                    life.full, life.where = ends[place], copied.where
                if (rank, offset) not in known:
                    known.add((rank, offset))
                    self.ranges[rank].append((offset, offset + copied.box.nbytes, own))
        for held in self.ranges.values():
            held.sort(key=lambda entry: entry[0])

    def _read(self) -> None:
        for product in self.products:
            for slot in self._operands(product):
                self.lives[slot].products.append(product)

    def _release(self) -> None:
        """A slot without an empty barrier of its own is released with that of a peer, which all consumers signal."""
        for slot, life in self.lives.items():
            peers = [other for key, other in self.lives.items() if key[1:] == slot[1:]]
            life.empty = life.empty or next((other.empty for other in peers if other.empty), [])

    def _operands(self, multiplied: Multiplied) -> set[_Slot]:
        operands = (*multiplied.product.left, *multiplied.product.right)
        return {slot for rank, offset in operands if (slot := self._holder(rank, offset)) is not None}

    def _holder(self, rank: int, offset: int) -> _Slot | None:
        """The slot whose bytes lie at a place of shared memory."""
        held = self.ranges.get(rank, [])
        index = bisect_right(held, offset, key=lambda entry: entry[0]) - 1
        return held[index][2] if index >= 0 and offset < held[index][1] else None

    def spans(self) -> Iterator[Span]:
        """The spans of copies, of products and of the slots."""
        filled = {id(copied): slot.track for slot, life in self.lives.items() for copied in life.copies}
        for copied in self.copies:
            track = filled.get(id(copied), "")
            name = f"load {track}".strip() if copied.box.targets else "store"
            yield Span("TMA", copied.rank, name, copied.start, copied.end, copied.where)
        for multiplied in self.products:
            tracks = sorted({slot.track for slot in self._operands(multiplied)})
            name = " ".join(["mma", *tracks])
            for rank in multiplied.product.ranks:
                yield Span("tensor core", rank, name, multiplied.start, multiplied.end, multiplied.where)
        for slot, life in self.lives.items():
            yield from self._states(slot, life)

    def _states(self, slot: _Slot, life: _Life) -> Iterator[Span]:
        """Filling, full and in use, once for each full phase."""
        starts = [multiplied.start for multiplied in life.products]
        begins = [copied.start for copied in life.copies]
        released = 0.0
        for number, full in enumerate(life.full):
            following = life.full[number + 1] if number + 1 < len(life.full) else NEVER
            first, last = bisect_left(starts, full), bisect_left(starts, following)
            used = life.products[first].start if first < last else full
            empty = bisect_right(life.empty, used)
            end = life.products[last - 1].end if first < last else used
            if empty < len(life.empty) and life.empty[empty] < following:
                end = max(end, life.empty[empty])
            index = bisect_left(begins, released)
            begin = begins[index] if index < len(begins) and begins[index] < full else self._begun(slot, released, full)
            where = life.products[first].where if first < last else life.where
            yield from _shown(slot, where, ("filling", begin, full), ("full", full, used), ("in use", used, end))
            released = end

    def _begun(self, slot: _Slot, released: float, full: float) -> float:
        """When a slot without copies began to be filled: at the first product since its ring's last slot was full."""
        others = [end for other, life in self.lives.items() if other[:2] == slot[:2] for end in life.full if end < full]
        since = max([released, *others])
        starts = [multiplied.start for multiplied in self.products if since <= multiplied.start < full]
        return min(starts, default=since)


def _halves(barriers: Mapping[int, tuple[str, str]], stride: int) -> dict[int, tuple[_Slot, str]]:
    """For the place of each barrier of a ring its slot, by its order among those of one name, and its half."""
    rows: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place in sorted(barriers):
        rows[place // stride, barriers[place][0]].append(place)
    found: dict[int, tuple[_Slot, str]] = {}
    for (cta, name), places in rows.items():
        ring, dot, half = name.partition(".")
        for index, place in enumerate(places if dot else ()):
            found[place] = _Slot(cta, ring, index), half
    return found


def _shown(slot: _Slot, where: str, *states: tuple[str, float, float]) -> Iterator[Span]:
    for name, start, end in states:
        if end > start:
            yield Span(slot.track, slot.cta, name, start, end, where)
