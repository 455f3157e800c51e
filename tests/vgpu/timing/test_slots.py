"""Slots of rings: which operations fill and read them, when they are full, and which mbarriers belong to them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from warpwright.vgpu.timing.slots import CopySpan, MmaSpan, Slots
from warpwright.vgpu.timing.steps import Box, Mma

STRIDE, TILE = 4096, 1024
FULL, EMPTY = (0, 8), (16, 24)


def box(slot: int, *ranks: int, owner: int = 0) -> Box:
    """Returns a copy into slot ``slot`` of these CTAs; the full mbarriers are those of CTA ``owner``."""
    targets = tuple((rank, TILE * (slot + 1), owner * STRIDE + FULL[slot]) for rank in ranks)
    return Box(0, ranks[0], TILE, 8, targets=targets)


def mma(slot: int, *ranks: int) -> Mma:
    places = tuple((rank, TILE * (slot + 1) + 32) for rank in ranks)
    return Mma(128, 128, 0, 0, ranks, places, places)


def barriers(*ranks: int, full: bool = True) -> dict[int, tuple[str, str]]:
    names = {}
    for rank in ranks:
        names |= {rank * STRIDE + place: ("ab.empty", "k.py:1") for place in EMPTY}
        names |= {rank * STRIDE + place: ("ab.full", "k.py:2") for place in FULL} if full else {}
    return names


def states(slots: Slots, track: str, cta: int = 0):
    spans = sorted((span for span in slots.spans() if (span.track, span.cta) == (track, cta)), key=lambda s: s.start)
    assert all(before.end <= after.start for before, after in pairwise(spans))
    return [(span.name, span.start, span.end) for span in spans]


@pytest.fixture
def pair() -> Slots:
    """Returns two slots of two CTAs: the full mbarriers are in CTA 0, and MMAs of the pair read both CTAs' bytes."""
    known = {**barriers(0), **barriers(1, full=False)}
    copies = [
        CopySpan(box(slot, rank), rank, 100.0 * number, 100.0 * number + 300, "k.py:9")
        for number, slot in enumerate((0, 1))
        for rank in (0, 1)
    ]
    copies += [CopySpan(box(0, rank), rank, 600.0, 900.0, "k.py:9") for rank in (0, 1)]
    mmas = [MmaSpan(mma(slot, 0, 1), start, start + 50, "k.py:8") for slot, start in ((0, 400.0), (1, 500.0))]
    mmas.append(MmaSpan(mma(0, 0, 1), 950.0, 1000.0, "k.py:8"))
    phases = [(FULL[0], 300.0), (FULL[1], 400.0), (EMPTY[0], 460.0), (STRIDE + EMPTY[0], 470.0), (FULL[0], 900.0)]
    return Slots(known, STRIDE, copies, mmas, phases)


def test_a_slot_fills_is_full_and_is_in_use_until_its_release(pair) -> None:
    assert states(pair, "ab[0]") == [
        ("filling", 0.0, 300.0),
        ("full", 300.0, 400.0),
        ("in use", 400.0, 460.0),
        ("filling", 600.0, 900.0),
        ("full", 900.0, 950.0),
        ("in use", 950.0, 1000.0),
    ]


def test_a_peer_has_the_slots_of_its_own_bytes_and_its_own_release(pair) -> None:
    assert states(pair, "ab[0]", cta=1)[:3] == [
        ("filling", 0.0, 300.0),
        ("full", 300.0, 400.0),
        ("in use", 400.0, 470.0),
    ]
    assert states(pair, "ab[1]", cta=1) == [("filling", 100.0, 400.0), ("full", 400.0, 500.0), ("in use", 500.0, 550.0)]


def test_copies_and_mmas_name_their_slot(pair) -> None:
    spans = list(pair.spans())
    assert [(s.name, s.cta) for s in spans if s.track == "TMA"][:3] == [
        ("load ab[0]", 0),
        ("load ab[0]", 1),
        ("load ab[1]", 0),
    ]
    assert [s.name for s in spans if s.track == "tensor core" and s.cta == 1] == ["mma ab[0]", "mma ab[1]", "mma ab[0]"]


def test_a_multicast_box_fills_the_slot_of_every_target() -> None:
    copies = [CopySpan(box(0, 0, 1), 0, 5.0, 50.0, "")]
    slots = Slots(barriers(0), STRIDE, copies, [], [(FULL[0], 50.0), (EMPTY[0], 80.0)])
    assert states(slots, "ab[0]") == states(slots, "ab[0]", cta=1) == [("filling", 5.0, 50.0), ("in use", 50.0, 80.0)]
    assert [span.name for span in slots.spans() if span.track == "TMA"] == ["load ab[0]"]


def test_a_ring_without_copies_begins_with_the_mma_after_its_release() -> None:
    """Sums in tensor memory: MMAs write them, and the consumer that waits for full reads them."""
    known = {0: ("acc.full", "k.py:3"), 8: ("acc.full", "k.py:3"), 16: ("acc.empty", ""), 24: ("acc.empty", "")}
    mmas = [MmaSpan(mma(0, 0), start, start + 40, "") for start in (100.0, 140.0, 200.0, 240.0, 400.0)]
    phases = [(0, 190.0), (16, 350.0), (8, 290.0), (24, 360.0), (0, 450.0)]
    slots = Slots(known, STRIDE, [], mmas, phases)
    assert states(slots, "acc[0]")[:2] == [("filling", 100.0, 190.0), ("in use", 190.0, 350.0)]
    assert states(slots, "acc[1]")[0] == ("filling", 200.0, 290.0)
    assert states(slots, "acc[0]")[2] == ("filling", 400.0, 450.0)


def test_stores_and_barriers_without_a_ring_have_no_slot() -> None:
    store = CopySpan(Box(0, 0, TILE, 8), 0, 1.0, 2.0, "k.py:5")
    other = CopySpan(box(0, 0), 0, 3.0, 4.0, "k.py:6")
    slots = Slots({FULL[0]: ("done", "")}, STRIDE, [store, other], [MmaSpan(mma(0, 0), 5.0, 6.0, "")], [])
    assert [(s.track, s.name) for s in slots.spans()] == [("TMA", "store"), ("TMA", "load"), ("tensor core", "mma")]
