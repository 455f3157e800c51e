"""Mistakes with tensor memory and pairs of CTAs, each in the smallest kernel that has it; with ``right`` the kernel is
correct.
"""

from __future__ import annotations

from tests.races.parts import (
    allocate_columns,
    fill,
    free_columns,
    initialise,
    prepare,
    start,
    store_first_sum,
    sync_tensor_core,
)
from warpwright.lang import (
    Global,
    If,
    Pointer,
    Ring,
    bar,
    bf16,
    cluster,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    role,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    warp,
)
from warpwright.lang.context import current
from warpwright.lang.ops.descriptor import shared_descriptor
from warpwright.lang.trace import addr


@kernel("sm_100a", threads=128)
def tensor_core(
    d: Global[f32],
    *,
    fenced: bool = True,
    committed: bool = True,
    accumulates: bool = True,
    loaded: bool = True,
    synced: bool = True,
    opened: bool = True,
    permitted: bool = True,
    starts_at_zero: bool = True,
    ordered: bool = True,
    freed: bool = True,
) -> None:
    """A tcgen05.mma of operands that threads have written; each option leaves out one synchronisation."""
    a_tile, b_tile = smem.tile(bf16, (128, 64), swizzle=128), smem.tile(bf16, (64, 64), swizzle=128)
    acc, multiplied = tmem.tile(f32, (128, 64)), mbarrier(1, name="multiplied")
    initialise(multiplied)

    @role(warp=1)
    def alloc() -> None:
        if not permitted:
            tcgen05.relinquish_alloc_permit()
        tmem.alloc()

    fill(a_tile)
    fill(b_tile)
    if fenced:
        fence.proxy_async()
    if opened:
        bar.sync()
    tmem.open()
    if not opened:
        bar.sync()

    @role(warp=0, elect=True)
    def multiply() -> None:
        for k in range(0, 64, 16):
            tcgen05.mma(
                acc,
                a_tile[:, k : k + 16],
                b_tile[:, k : k + 16],
                accumulate=(accumulates and k > 0) or not starts_at_zero,
            )
        if committed:
            tcgen05.commit(multiplied)
        else:
            multiplied.arrive()

    if not ordered:
        Pointer(u32, a_tile.at(0, 0).address, space="shared::cta")[tid.x] = 0
    multiplied.wait(0)
    tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(acc)
    if loaded:
        tcgen05.wait_ld()
    for column in range(0, 64, 4):
        st(d + tid.x * 64 + column, *row[column : column + 4])
    tcgen05.wait_ld()
    tcgen05.fence_before_thread_sync()
    if synced:
        bar.sync()
    tcgen05.fence_after_thread_sync()

    @role(warp=1)
    def free() -> None:
        if freed:
            tmem.dealloc()


@kernel("sm_100a", threads=160)
def early_reuse(a: tma.Map[bf16], b: tma.Map[bf16], tiles: u32, *, right: bool = False) -> None:
    """One thread releases tensor memory for all threads when it has read its own part: the release of the level-7
    document."""
    a_tile, b_tile = smem.tile(bf16, (128, 64), swizzle=128), smem.tile(bf16, (64, 64), swizzle=128)
    acc = tmem.tile(f32, (128, 64))
    loaded, done, free = mbarrier(1, name="loaded"), mbarrier(1, name="done"), mbarrier(1, name="free")
    with If((warp.id == 0) & elect_one()):
        for each in (loaded, done, free):
            each.init()
        fence.mbarrier_init()

    allocate_columns()
    bar.sync()
    tmem.open()

    @role(warp=4, elect=True)
    def multiply() -> None:
        loaded.arrive_expect_tx(a_tile.nbytes + b_tile.nbytes)
        tma.load(a_tile, a[0, 0], loaded)
        tma.load(b_tile, b[0, 0], loaded)
        loaded.wait(0)
        for tile in loop(tiles):
            free.wait((tile & 1) ^ 1)
            tcgen05.fence_after_thread_sync()
            for k in range(0, 64, 16):
                tcgen05.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=k > 0)
            tcgen05.commit(done)

    @role(warps=range(4))
    def store() -> None:
        for tile in loop(tiles):
            done.wait(tile & 1)
            tcgen05.fence_after_thread_sync()
            tcgen05.ld(acc)
            tcgen05.wait_ld()
            tcgen05.fence_before_thread_sync()
            if right:
                bar.sync(1, 128)
            with If(tid.x == 0):
                free.arrive()

    tcgen05.fence_before_thread_sync()
    bar.sync()

    @role(warp=1)
    def release() -> None:
        tmem.dealloc()


@kernel("sm_100a", threads=128)
def early_stage(a: tma.Map[bf16], b: tma.Map[bf16], iterations: u32, *, right: bool = False) -> None:
    """The thread that issues the MMAs releases a stage itself, before the tensor core has read it."""
    ring = Ring(
        1,
        full=1,
        empty=1,
        name="ab",
        a=smem.tile(bf16, (128, 64), swizzle=128),
        b=smem.tile(bf16, (64, 64), swizzle=128),
    )
    acc, done = tmem.tile(f32, (128, 64)), mbarrier(1, name="done")
    initialise(ring, done)
    allocate_columns()
    bar.sync()
    tmem.open()

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for k in loop(iterations):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.a, a[0, k * 64], slot.full)
            tma.load(slot.b, b[0, k * 64], slot.full)

    @role(warp=2, elect=True)
    def multiply() -> None:
        slots = ring.consumer()
        for iteration in loop(iterations):
            slot = next(slots)
            slot.full.wait()
            tcgen05.mma(acc, slot.a[:, :16], slot.b[:, :16], accumulate=iteration > 0)
            if right:
                tcgen05.commit(slot.empty)
            else:
                slot.empty.arrive()
        tcgen05.commit(done)

    done.wait(0)
    tcgen05.fence_after_thread_sync()
    bar.sync()
    with If(warp.id == 1):
        tmem.dealloc()


@kernel("sm_100a", threads=128)
def unallocated(x: Global[u32], *, right: bool = False) -> None:
    """The kernel uses tensor memory from column 0 on, and no thread has allocated it."""
    place = smem.scalar(u32)
    with If(warp.id == 0):
        if right:
            tcgen05.alloc(place.address, 32)
        else:
            place[0] = 0
    bar.sync()
    base = place[0]
    current().emit("tcgen05.st.sync.aligned.32x32b.x1.b32", addr(base + (warp.id << 21)), (tid.x,))
    tcgen05.wait_st()
    sync_tensor_core()
    if right:
        with If(warp.id == 0):
            tcgen05.dealloc(base, 32)


@kernel("sm_100a", threads=128)
def missing_store_wait(d: Global[f32], *, right: bool = False, stored: bool = True) -> None:
    """A warp loads from tensor memory before its store there is complete, or without any store."""
    acc = tmem.tile(f32, (128, 32))
    with If(warp.id == 0):
        tmem.alloc()
    bar.sync()
    tmem.open()
    if stored:
        tcgen05.st(acc, [tid.x.to(f32) for _ in range(32)])
    if right:
        tcgen05.wait_st()
    row = tcgen05.ld(acc)
    tcgen05.wait_ld()
    tcgen05.wait_st()
    d[tid.x] = row[0]
    sync_tensor_core()
    with If(warp.id == 0):
        tmem.dealloc()


@kernel("sm_100a", threads=128)
def a_in_tensor_memory(d: Global[f32], *, copied: bool = False, stored: bool = True) -> None:
    """A tcgen05.mma reads A from tensor memory: tcgen05.cp is in order before it, but tcgen05.st needs a wait."""
    a_tile, b_tile = smem.tile(bf16, (128, 16), swizzle=32), smem.tile(bf16, (64, 16), swizzle=32)
    left, acc, done = tmem.tile(f32, (128, 8)), tmem.tile(f32, (128, 64)), mbarrier(1, name="done")
    prepare((a_tile, b_tile), done)
    if not copied:
        tcgen05.st(left, [tid.x.to(f32) for _ in range(8)])
        if stored:
            tcgen05.wait_st()
    sync_tensor_core()
    with If((warp.id == 0) & elect_one()):
        if copied:
            tcgen05.cp(left, shared_descriptor(a_tile), "128x256b")
        tcgen05.mma(acc, left.packed(bf16), b_tile, accumulate=False)
        tcgen05.commit(done)
    done.wait(0)
    tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(acc)
    tcgen05.wait_ld()
    tcgen05.wait_st()
    d[tid.x] = row[0]
    free_columns()


@kernel("sm_100a", threads=128)
def mixed_shapes(d: Global[f32], *, right: bool = False) -> None:
    """Scores overwrite weights that an MMA of another shape may still read: the two MMAs are not in order."""
    a_tile, b_tile = smem.tile(bf16, (128, 16), swizzle=32), smem.tile(bf16, (64, 16), swizzle=32)
    scores, sums = tmem.tile(f32, (128, 64)), tmem.tile(f32, (128, 32))
    done, over = mbarrier(1, name="done"), mbarrier(1, name="over")
    prepare((a_tile, b_tile), done, over)
    with If((warp.id == 0) & elect_one()):
        tcgen05.mma(scores, a_tile, b_tile, accumulate=False)
        tcgen05.commit(done)
        done.wait(0)
        tcgen05.mma(sums, scores.packed(bf16)[:, :16], b_tile[:32, :], accumulate=False)
        if right:
            tcgen05.commit(done)
            done.wait(1)
        tcgen05.mma(scores, a_tile, b_tile, accumulate=False)
        tcgen05.commit(over)
    store_first_sum(d, scores, over)


@kernel("sm_100a", cluster=2, threads=128)
def pair_parts(x: Global[u32], *, synced: bool = True, group: int = 2) -> None:
    """A CTA of a pair frees tensor memory before it knows that the other CTA has finished its allocation."""
    acc = tmem.tile(f32, (128, 64), cta_group=2)
    with If(warp.id == 0):
        tmem.alloc()
        current().emit(f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned")
    tcgen05.fence_before_thread_sync()
    if synced:
        cluster.sync()
    else:
        bar.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()
    x[128 * cluster.rank + tid.x] = acc.address
    with If(warp.id == 0):
        tmem.dealloc()


@kernel("sm_100a", cluster=4, threads=32)
def pair_bytes(a: tma.Map[f32], *, right: bool = False) -> None:
    """The leader of each of two pairs expects the bytes of the whole cluster, and receives those of its pair."""
    tile, full = smem.tile(f32, (32, 32)), mbarrier(1, name="full")
    start(full)
    leader = cluster.rank & 6
    with If(elect_one()):
        with If(cluster.rank == leader):
            full.arrive_expect_tx(tile.nbytes * (2 if right else 4))
        tma.load(tile, a[0, 0], full.at(leader), cta_group=2)
    with If(cluster.rank == leader):
        full.wait(0)
    cluster.sync()


@kernel("sm_100a", threads=128)
def others_commit(d: Global[f32], *, right: bool = False) -> None:
    """A warp multiplies, another commits: a commit covers what its own thread has issued, which is nothing."""
    a_tile, b_tile = smem.tile(bf16, (128, 16), swizzle=32), smem.tile(bf16, (64, 16), swizzle=32)
    acc, done = tmem.tile(f32, (128, 64)), mbarrier(1, name="done")
    prepare((a_tile, b_tile), done)
    with If((warp.id == 0) & elect_one()):
        tcgen05.mma(acc, a_tile, b_tile, accumulate=False)
        if right:
            tcgen05.commit(done)
    sync_tensor_core()
    if not right:
        with If((warp.id == 2) & elect_one()):
            tcgen05.commit(done)
    store_first_sum(d, acc, done)
