"""Mistakes at the beginning and the end of what a thread uses: CTAs that have not started or have exited, mbarriers
that are gone, tensor memory, and commits of what another thread has issued.
"""

from __future__ import annotations

from warpwright.lang import (
    Global,
    If,
    Pointer,
    bar,
    bf16,
    cluster,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    warp,
)
from warpwright.lang.ops.descriptor import shared_descriptor

ROWS, COLUMNS = 32, 32


@kernel("sm_90a", cluster=2, threads=32)
def stores_at_entry(x: Global[u32], *, right: bool = False) -> None:
    """A thread writes to the other CTA's shared memory as its first action: that CTA may not have started."""
    words = smem.array(u32, 32)
    if right:
        cluster.sync()
    other = cluster.map(words.address, cluster.rank ^ 1)
    st(Pointer(u32, other, space="shared::cluster") + tid.x, tid.x)
    cluster.sync()
    x[cluster.rank * 32 + tid.x] = words[31 - tid.x]


@kernel("sm_90a", cluster=2, threads=32)
def arrives_at_entry(x: Global[u32], *, right: bool = False) -> None:
    """Both CTAs initialise their mbarriers, and arrive at the other's without a barrier of the cluster between."""
    ready = mbarrier(32, name="ready")
    with If(elect_one()):
        ready.init()
        fence.mbarrier_init()
    if right:
        cluster.sync()
    else:
        warp.sync()
    ready.at(cluster.rank ^ 1).arrive()
    ready.wait(0, scope="cluster")
    cluster.sync()


@kernel("sm_90a", cluster=2, threads=32)
def multicasts_at_entry(x: tma.Map[f32], *, right: bool = False) -> None:
    """The first multicast starts before the other CTA need have initialised its mbarrier."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(tile.nbytes)
    if right:
        cluster.sync()
    else:
        warp.sync()
    with If((cluster.rank == 0) & elect_one()):
        tma.load(tile, x[0, 0], full, multicast=3)
    full.wait(0)
    cluster.sync()


@kernel("sm_90a", threads=32)
def number_as_parity(x: tma.Map[f32], tiles: u32, *, right: bool = False) -> None:
    """The wait gets the number of the phase, not its parity: the third phase has the number 2."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
    warp.sync()
    for number in loop(tiles):
        with If(elect_one()):
            full.arrive_expect_tx(tile.nbytes)
            tma.load(tile, x[0, 0], full)
        full.wait(number & 1 if right else number)
        warp.sync()


@kernel("sm_90a", threads=32)
def leaves_a_load(x: tma.Map[f32], *, right: bool = False) -> None:
    """The CTA exits while a prefetched tile is on its way to shared memory, which the next CTA has then."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
    warp.sync()
    with If(elect_one()):
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    if right:
        full.wait(0)


@kernel("sm_90a", threads=32)
def ends_twice(x: Global[u32], *, right: bool = False) -> None:
    """Every lane invalidates the mbarrier that one lane initialised."""
    ready = mbarrier(32, name="ready")
    with If(elect_one()):
        ready.init()
    warp.sync()
    ready.arrive()
    ready.wait(0)
    warp.sync()
    if right:
        with If(elect_one()):
            ready.inval()
    else:
        ready.inval()


@kernel("sm_100a", threads=128)
def others_commit(d: Global[f32], *, right: bool = False) -> None:
    """A warp multiplies, another commits: a commit covers what its own thread has issued, which is nothing."""
    a_tile, b_tile = smem.tile(bf16, (128, 16), swizzle=32), smem.tile(bf16, (64, 16), swizzle=32)
    acc, done = tmem.tile(f32, (128, 64)), mbarrier(1, name="done")
    with If((warp.id == 0) & elect_one()):
        done.init()
        fence.mbarrier_init()
    with If(warp.id == 1):
        tmem.alloc()
    for tile, words in ((a_tile, 8), (b_tile, 4)):
        for word in range(words):
            st(Pointer(u32, tile.at(0, 0).address, space="shared::cta") + (tid.x * words + word), 0x3F803F80)
    fence.proxy_async()
    bar.sync()
    tmem.open()
    with If((warp.id == 0) & elect_one()):
        tcgen05.mma(acc, a_tile, b_tile, accumulate=False)
        if right:
            tcgen05.commit(done)
    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()
    if not right:
        with If((warp.id == 2) & elect_one()):
            tcgen05.commit(done)
    done.wait(0)
    tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(acc)
    tcgen05.wait_ld()
    d[tid.x] = row[0]
    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()
    with If(warp.id == 1):
        tmem.dealloc()


@kernel("sm_100a", threads=128)
def refilled_copy(d: Global[f32], *, right: bool = False, written: bool = True) -> None:
    """Threads write the next data to shared memory that tcgen05.cp may still read, or it reads what no thread wrote."""
    source, copied, done = smem.tile(bf16, (128, 16), swizzle=32), tmem.tile(f32, (128, 8)), mbarrier(1, name="done")
    words = Pointer(u32, source.at(0, 0).address, space="shared::cta")
    with If((warp.id == 0) & elect_one()):
        done.init()
        fence.mbarrier_init()
    with If(warp.id == 1):
        tmem.alloc()
    if written:
        for word in range(8):
            st(words + (tid.x * 8 + word), word)
    fence.proxy_async()
    bar.sync()
    tmem.open()
    with If((warp.id == 0) & elect_one()):
        tcgen05.cp(copied, shared_descriptor(source), "128x256b")
        tcgen05.commit(done)
    if right:
        done.wait(0)
    st(words + tid.x, tid.x)
    done.wait(0)
    tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(copied)
    tcgen05.wait_ld()
    d[tid.x] = row[0]
    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()
    with If(warp.id == 1):
        tmem.dealloc()
