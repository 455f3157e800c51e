"""Mistakes with barriers: mbarriers that do not exist, wrong counts, deadlocks, and barriers in divergent code.

``wrong`` names the mistake; without it the kernel is correct.
"""

from __future__ import annotations

from tests.races.parts import next_rank, start
from warpwright.lang import If, bar, elect_one, fence, kernel, ld, loop, mbarrier, role, smem, tid, u32, warp
from warpwright.lang import cluster as ctas
from warpwright.lang.context import current


@kernel("sm_90a", threads=32)
def use_of_mbarrier(*, cluster: int = 1, use: str = "arrive", wrong: str = "") -> None:
    """An mbarrier is used before its initialisation or after its end; arrivals come from another CTA."""
    ready = mbarrier(1, name="ready")
    with If(elect_one()):
        if wrong != "before":
            ready.init()
        fence.mbarrier_init()
    ctas.sync()
    with If(elect_one()):
        if wrong == "after":
            ready.inval()
    ctas.sync()
    with If(elect_one()):
        if use == "wait":
            if not wrong:
                ready.arrive()
            ready.wait(0)
        elif use == "arrive":
            ready.at(next_rank()).arrive()
        elif use == "expect":
            ready.at(next_rank()).expect_tx(16)
        else:
            ready.inval()
    ctas.sync()


@kernel("sm_90a", threads=96)
def partitions(*, cluster: int = 1, wrong: str = "") -> None:
    """Warps with roles wait for arrivals of the next CTA; ``wrong`` says why they never come."""
    ready = [mbarrier(2 if wrong == "under" else 1, name=f"ready{number}") for number in range(2)]
    start(*ready)

    @role(warp=0, elect=True)
    def first() -> None:
        if wrong not in ("mutual", "returned"):
            ready[0].at(next_rank()).arrive()
        if wrong != "returned":
            ready[1].wait(0, scope="cluster")
        if wrong == "mutual":
            ready[0].at(next_rank()).arrive()

    @role(warp=1, elect=True)
    def second() -> None:
        if wrong != "mutual":
            ready[1].at(next_rank()).arrive()
        ready[0].wait(0, scope="cluster")
        if wrong == "mutual":
            ready[1].at(next_rank()).arrive()

    ctas.sync()


@kernel("sm_90a", threads=64)
def arrivals(*, cluster: int = 1, wrong: str = "") -> None:
    """One thread arrives for a phase that another waits for: too often, at once or one after the other."""
    ready, count = mbarrier(2 if wrong == "underflow" else 1, name="ready"), smem.array(u32, 4)
    start(ready)
    with If(tid.x == 0):
        count[0] = 1
        if wrong == "underflow":
            ready.at(next_rank()).arrive()
            ready.at(next_rank()).arrive(2)
        else:
            ready.at(next_rank()).arrive()
        if wrong == "twice":
            ready.at(next_rank()).arrive()
    ctas.sync()
    with If(tid.x == 32):
        ready.wait(0, scope="cluster")
        ld(count)
    ctas.sync()


@kernel("sm_90a", threads=64)
def phases(iterations: u32, *, cluster: int = 1, wrong: str = "") -> None:
    """One warp completes phases, another waits for each: in lockstep, or for fewer of them, or for more."""
    full, empty = mbarrier(1, name="full"), mbarrier(1, name="empty")
    start(full, empty)

    @role(warp=0, elect=True)
    def signal() -> None:
        for number in loop(iterations - 1 if wrong == "more_waits" else iterations):
            if wrong != "lapped":
                empty.wait((number & 1) ^ 1, scope="cluster")
            full.at(next_rank()).arrive()

    @role(warp=1, elect=True)
    def watch() -> None:
        before = (ctas.rank + ctas.size - 1) % ctas.size
        for number in loop(iterations - 2 if wrong == "more_completions" else iterations):
            full.wait(number & 1, scope="cluster")
            empty.at(before).arrive()

    ctas.sync()


@kernel("sm_90a", threads=128)
def uneven_waits(iterations: u32, *, cluster: int = 1, wrong: str = "") -> None:
    """The warps of a warpgroup wait for the phases of an mbarrier, which do not wait for one of them."""
    full, empty = mbarrier(1, name="full"), mbarrier(3 if wrong else 4, name="empty")
    start(full, empty)
    with If(elect_one()):
        for number in loop(iterations):
            with If(warp.id == 0):
                empty.wait((number & 1) ^ 1)
                full.arrive()
            full.wait(number & 1)
            with If(warp.id < (3 if wrong else 4)):
                empty.arrive()
    warp.sync()
    ctas.sync()


@kernel("sm_90a")
def hazard(*, cluster: int = 1, threads: int = 64, kind: str = "raw", wrong: str = "") -> None:
    """The threads of a CTA, or the lanes of a warp, access the same words without a barrier: read after write, write
    after read or after write."""
    words, sync = smem.array(u32, 64), warp.sync if threads == 32 else bar.sync
    other = threads - 1 - tid.x
    words[other] = 0
    sync()
    if kind == "war":
        ld(words + tid.x)
    else:
        words[tid.x] = tid.x
    if not wrong:
        sync()
    if kind == "raw":
        ld(words + other)
    else:
        words[other] = 1


@kernel("sm_90a", threads=64)
def divergent(*, cluster: int = 1, wrong: str = "") -> None:
    """Threads arrive at a barrier of the CTA: not all warps, not all lanes, after some exited, or with other counts."""
    with If(tid.x < {"warp": 32, "lanes": 48}.get(wrong, 64)):
        if wrong == "count":
            current().emit("barrier.sync", 1, 96)
        else:
            bar.sync(1, 64)
    bar.sync()


@kernel("sm_90a", threads=64)
def named_barriers(iterations: u32, *, cluster: int = 1, wrong: str = "") -> None:
    """A warp produces words and another consumes them, with a named barrier for each direction."""
    words = smem.array(u32, 32)

    @role(warp=0)
    def produce() -> None:
        for number in loop(iterations):
            if wrong != "empty":
                bar.sync(2, 64)
            if wrong == "early":
                bar.arrive(1, 64)
            words[warp.lane] = number
            if wrong not in ("full", "early"):
                bar.arrive(1, 64)

    @role(warp=1)
    def consume() -> None:
        for _ in loop(iterations):
            if wrong != "empty":
                bar.arrive(2, 64)
            if wrong != "full":
                bar.sync(1, 64)
            ld(words + (31 - warp.lane))

    ctas.sync()
