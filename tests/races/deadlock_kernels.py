"""Kernels that deadlock, each for another reason; with ``right`` they complete."""

from __future__ import annotations

from warpwright.lang import (
    Break,
    Global,
    If,
    Ring,
    atom,
    bar,
    cluster,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    nctaid,
    role,
    setmaxnreg,
    smem,
    st,
    tid,
    tma,
    u32,
    var,
    warp,
)

ROWS, COLUMNS = 32, 32


@kernel("sm_90a", threads=64)
def mutual_wait(tiles: u32, *, right: bool = False) -> None:
    """Each role waits for the other's first arrival."""
    full, empty = mbarrier(1, name="full"), mbarrier(1, name="empty")
    with If(tid.x == 0):
        full.init()
        empty.init()
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        for k in loop(tiles):
            empty.wait((k & 1) ^ 1 if right else k & 1)
            full.arrive()

    @role(warp=1, elect=True)
    def use() -> None:
        for k in loop(tiles):
            full.wait(k & 1)
            empty.arrive()


@kernel("sm_90a", threads=64)
def unreleased_stage(tiles: u32, *, right: bool = False) -> None:
    """The stages of a ring are never released."""
    ring = Ring(2, full=1, empty=1, name="ab", x=smem.tile(f32, (ROWS, COLUMNS)))
    with If(tid.x == 0):
        ring.init()
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for _ in loop(tiles):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive()

    @role(warp=1, elect=True)
    def use() -> None:
        slots = ring.consumer()
        for _ in loop(tiles):
            slot = next(slots)
            slot.full.wait()
            if right:
                slot.empty.arrive()


@kernel("sm_90a", threads=64)
def count_too_high(x: Global[u32], *, right: bool = False) -> None:
    """A warp elects one thread to arrive; the barrier counts 32."""
    ready = mbarrier(1 if right else 32, name="ready")
    with If(tid.x == 0):
        ready.init()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        ready.arrive()
    with If(warp.id == 1):
        ready.wait(0)


@kernel("sm_90a", threads=64)
def short_loop(tiles: u32, *, right: bool = False) -> None:
    """One loop is shorter than the other."""
    full, empty = mbarrier(1, name="full"), mbarrier(1, name="empty")
    with If(tid.x == 0):
        full.init()
        empty.init()
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        for k in loop(tiles if right else tiles - 1):
            empty.wait((k & 1) ^ 1)
            full.arrive()

    @role(warp=1, elect=True)
    def use() -> None:
        for k in loop(tiles):
            full.wait(k & 1)
            empty.arrive()


@kernel("sm_90a", threads=32)
def bytes_at_wrong_mbarrier(x: tma.Map[f32], *, right: bool = False) -> None:
    """One mbarrier expects the bytes, another counts them."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    full, other = mbarrier(1, name="full"), mbarrier(1, name="other")
    with If(elect_one()):
        full.init()
        other.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full if right else other)
    warp.sync()
    full.wait(0)
    with If(elect_one()):
        other.arrive()
    other.wait(0)


@kernel("sm_90a", threads=32)
def unexpected_bytes(x: tma.Map[f32], *, right: bool = False) -> None:
    """No thread expects the bytes of a copy."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(2, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        if right:
            full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
        full.arrive()
    warp.sync()
    full.wait(0)


@kernel("sm_90a", threads=64)
def barrier_in_branch(x: Global[u32], *, right: bool = False) -> None:
    """Some lanes of a warp arrive at a barrier of the CTA; the other lanes wait on another object."""
    done = mbarrier(1, name="done")
    with If(tid.x == 0):
        done.init()
    bar.sync()
    with If(tid.x < (32 if right else 16)):
        bar.sync(1, 64)
        with If(tid.x == 0):
            done.arrive()
    if not right:
        with If((tid.x >= 16) & (tid.x < 32)):
            done.wait(0)
    with If(warp.id == 1):
        bar.sync(1, 64)


@kernel("sm_90a", threads=64)
def crossed_barriers(x: Global[u32], *, right: bool = False) -> None:
    """Two warps arrive at two barriers in opposite order."""
    first, second = (1, 1) if right else (1, 2)

    @role(warp=0)
    def forward() -> None:
        bar.sync(first, 64)
        bar.sync(second if not right else 2, 64)

    @role(warp=1)
    def reverse() -> None:
        bar.sync(second, 64)
        bar.sync(first if not right else 2, 64)


@kernel("sm_90a", cluster=2, threads=32)
def arrive_after_cluster_sync(x: Global[u32], *, right: bool = False) -> None:
    """One CTA waits for an arrival that the other sends after the cluster barrier."""
    ready = mbarrier(1, name="ready")
    with If(elect_one()):
        ready.init()
        fence.mbarrier_init()
    cluster.sync()
    if not right:
        with If(cluster.rank == 0):
            ready.wait(0)
    cluster.sync()
    with If((cluster.rank == 1) & elect_one()):
        ready.at(0).arrive()
    if right:
        with If(cluster.rank == 0):
            ready.wait(0)
    cluster.sync()


@kernel("sm_90a", threads=512)
def too_many_registers(x: Global[u32], *, right: bool = False) -> None:
    """Warps request more registers than the other warps release."""
    with If(warp.id < 4):
        if right:
            setmaxnreg.dec(40)
        x[tid.x] = 1
    with If((warp.id >= 4) & (warp.id < 8)):
        setmaxnreg.inc(160)
        x[tid.x] = 1


@kernel("sm_90a", threads=64)
def poll_flag(x: Global[u32], *, right: bool = False) -> None:
    """A warp counts its polls of a flag, which another warp sets after a barrier of both."""
    flag = smem.array(u32, 1)
    with If(tid.x == 0):
        flag[0] = 0
    bar.sync()
    iterations = var(u32, 0)

    @role(warp=0)
    def poll() -> None:
        for _ in loop():
            iterations.set(iterations + 1)
            Break(when=ld(flag, sem="volatile") != 0)
        x[tid.x] = iterations
        if not right:
            bar.sync(1, 64)

    @role(warp=1)
    def publish() -> None:
        if not right:
            bar.sync(1, 64)
        with If(elect_one()):
            st(flag, 1, sem="volatile")


@kernel("sm_90a", threads=64)
def grid_barrier(count: Global[u32], *, right: bool = False) -> None:
    """A barrier of the grid whose last arrival resets the count before the other CTAs have read it."""
    with If(tid.x == 0):
        fence.acq_rel("gpu")
        ticket = atom.add(count, 1)
        if not right:
            with If(ticket == nctaid.x - 1):
                st(count, 0, sem="relaxed", scope="gpu")
        for _ in loop():
            Break(when=ld(count, sem="acquire", scope="gpu") == nctaid.x)
    bar.sync()


@kernel("sm_90a", threads=64)
def numbers_differ(x: Global[u32], *, right: bool = False) -> None:
    """Two warps wait at barriers of different numbers."""
    with If(warp.id == 0):
        bar.sync(1, 64)
    with If(warp.id == 1):
        bar.sync(1 if right else 2, 64)
    x[tid.x] = 1


@kernel("sm_90a", threads=32)
def poll_phase(iterations: u32, *, right: bool = False) -> None:
    """A warp tests a phase in a loop; each iteration counts against a large limit."""
    done = mbarrier(1, name="done")
    with If(elect_one()):
        done.init()
        if right:
            done.arrive()
    warp.sync()
    left = var(u32, iterations)
    for _ in loop():
        left.set(left - 1)
        Break(when=done.test_wait(0) | (left == 0))


@kernel("sm_90a", threads=64)
def store_out_of_bounds(x: Global[u32]) -> None:
    """The second CTA's second warp writes beyond the end of an array."""

    @role(warp=1)
    def reach() -> None:
        x[tid.x * 16 * ctaid.x] = 1


@kernel("sm_90a", threads=32)
def unreleased_lock(x: Global[u32]) -> None:
    """A lock that is never released: each iteration writes and changes nothing."""
    for _ in loop():
        Break(when=atom.cas(x, 1, 2) == 1)


@kernel("sm_90a", threads=32)
def publish_polls(x: Global[u32]) -> None:
    """A thread publishes its number of polls, so that no two iterations leave the same memory."""
    iterations = var(u32, 0)
    for _ in loop():
        iterations.set(iterations + 1)
        st(x + 1, iterations, sem="volatile")
        Break(when=ld(x, sem="volatile") != 0)


@kernel("sm_90a", threads=64)
def one_parity(x: Global[u32], *, right: bool = False) -> None:
    """The second wait names the phase of the first."""
    full = mbarrier(1, name="full")
    with If(tid.x == 0):
        full.init()
    bar.sync()
    for iteration in range(2):
        with If(tid.x == 0):
            full.arrive()
        with If(warp.id == 1):
            full.wait(iteration if right else 0)
        bar.sync()


@kernel("sm_90a", threads=64)
def poll_waiting_warp(x: Global[u32], *, right: bool = False) -> None:
    """A warp polls a phase; the warp that would complete it waits for the polling warp."""
    done = mbarrier(1, name="done")
    with If(tid.x == 0):
        done.init()
    bar.sync()

    @role(warp=0)
    def ask() -> None:
        for _ in loop():
            Break(when=done.test_wait(0))
        bar.sync(1, 64)

    @role(warp=1)
    def answer() -> None:
        if not right:
            bar.sync(1, 64)
        with If(elect_one()):
            done.arrive()
        if right:
            bar.sync(1, 64)
