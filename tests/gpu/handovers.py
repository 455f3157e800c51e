"""Small, correct kernels that hand data from one role to another through mbarriers, in the ways that attention does.

racecheck reports races in some of them, more in older versions, because it does not model each way. Its reports on
attention kernels that use one of those ways are therefore false positives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import warpwright as ww
from warpwright.lang import (
    Global,
    If,
    Kernel,
    Ring,
    bar,
    cp_async,
    elect_one,
    fence,
    kernel,
    ld,
    loop,
    role,
    smem,
    st,
    tma,
    u32,
    var,
    warp,
)

ROUNDS, WORDS = 6, 32


def ready(ring: Ring) -> None:
    @role(warp=0, elect=True)
    def init() -> None:
        ring.init()
        fence.mbarrier_init()

    bar.sync()


@kernel("sm_90a", threads=96)
def stored(given: Global[u32], out: Global[u32]) -> None:
    """One thread stores, one thread reads, and so does a warp."""
    ring = Ring(2, empty=2, item=smem.tile(u32, (1, 8)))
    ready(ring)

    @role(warp=0, elect=True)
    def give() -> None:
        items = ring.producer()
        for turn in loop(ROUNDS):
            slot = next(items)
            slot.empty.wait()
            for first in (0, 4):
                st(slot.item.at(0, first), *(given[turn * WORDS + first + i] for i in range(4)))
            slot.full.arrive()

    def total(slot: Any) -> Any:
        slot.full.wait()
        words = [*ld(slot.item.at(0, 0), vec=4), *ld(slot.item.at(0, 4), vec=4)]
        return sum(words[1:], words[0])

    @role(warp=1, elect=True)
    def take() -> None:
        items, seen = ring.consumer(), var(u32, 0)
        for _ in loop(ROUNDS):
            slot = next(items)
            seen.set(seen + total(slot))
            slot.empty.arrive()
        out[0] = seen

    @role(warp=2)
    def share() -> None:
        items, seen, one = ring.consumer(), var(u32, 0), elect_one()
        for _ in loop(ROUNDS):
            slot = next(items)
            seen.set(seen + total(slot))
            warp.sync()
            with If(one):
                slot.empty.arrive()
        out[warp.lane + 1] = seen


def received(ring: Ring, out: Global[Any], *, by_tma: bool) -> None:
    """Warp 1 reads, each lane a word, from memory that TMA, or threads, overwrite."""

    @role(warp=1)
    def take() -> None:
        items, seen, one = ring.consumer(), var(u32, 0), elect_one()
        for _ in loop(ROUNDS):
            slot = next(items)
            slot.full.wait()
            seen.set(seen + ld(slot.row.at(0, warp.lane)))
            if by_tma:
                fence.proxy_async()
            warp.sync()
            with If(one):
                slot.empty.arrive()
        out[warp.lane] = seen


@kernel("sm_90a", threads=64)
def bulk(given: Global[u32], out: Global[u32]) -> None:
    """Bulk copies, which the tool attributes to the issuing thread as stores."""
    ring = Ring(2, row=smem.tile(u32, (1, WORDS)))
    ready(ring)

    @role(warp=0, elect=True)
    def give() -> None:
        rows = ring.producer()
        for turn in loop(ROUNDS):
            slot = next(rows)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.copy(slot.row.address, (given + turn * WORDS).address, slot.nbytes, slot.full)

    received(ring, out, by_tma=True)


@kernel("sm_90a", threads=64)
def copied(given: Global[u32], out: Global[u32]) -> None:
    """cp.async, whose completion is an arrival of the issuing thread."""
    ring = Ring(2, full=32, row=smem.tile(u32, (1, 4 * WORDS)))
    ready(ring)

    @role(warp=0)
    def give() -> None:
        rows = ring.producer()
        for turn in loop(ROUNDS):
            slot = next(rows)
            slot.empty.wait()
            cp_async.copy(slot.row.at(0, warp.lane * 4), given + (turn * 4 * WORDS + warp.lane * 4))
            cp_async.arrive(slot.full)

    received(ring, out, by_tma=False)


KERNELS: Mapping[str, Kernel] = {"stored": stored, "bulk": bulk, "copied": copied}


def expected(name: str, given: np.ndarray) -> np.ndarray:
    """Returns the expected ``out`` of a kernel."""
    if name == "stored":
        return np.full(33, given[: ROUNDS * WORDS].reshape(ROUNDS, WORDS)[:, :8].sum(), np.uint32)
    step = WORDS if name == "bulk" else 4 * WORDS
    return given[: ROUNDS * step].reshape(ROUNDS, step)[:, :WORDS].sum(0, dtype=np.uint32)


def arguments(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns random words, and an array for the result."""
    given = np.random.default_rng(0).integers(0, 1 << 20, ROUNDS * 4 * WORDS, dtype=np.uint32)
    return given, np.zeros(33 if name == "stored" else WORDS, np.uint32)


def run(device: str) -> None:
    """Run and verify all of them."""
    for name, each in KERNELS.items():
        given, out = arguments(name)
        ww.launch(each, 1, args=[given, out], device=device)
        assert np.array_equal(out, expected(name, given)), name
