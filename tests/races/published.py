"""Mistakes that were made in real kernels, each in the smallest kernel that has it; with ``right`` it is mended."""

from __future__ import annotations

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
    ld,
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
    wgmma,
)

ROWS, COLUMNS = 32, 32


@kernel("sm_90a", threads=64)
def late_fence(y: tma.Map[f32], *, right: bool = False) -> None:
    """The thread that stores fences for all, behind the barrier: a fence speaks for its own thread only."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for column in range(0, COLUMNS, 2):
        st(tile.at(warp.lane, column + warp.id), tid.x.to(f32))
    if right:
        fence.proxy_async()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        if not right:
            fence.proxy_async()
        tma.store(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=64)
def others_group(y: tma.Map[f32], *, right: bool = False) -> None:
    """One thread commits the store's group, another waits for it, then the memory is written again."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    with If(warp.id == 0):
        for column in range(COLUMNS):
            st(tile.at(warp.lane, column), tid.x.to(f32))
        fence.proxy_async()
    bar.sync()
    with If(tid.x == 0):
        tma.store(y[0, 0], tile)
        tma.commit_group()
        if right:
            tma.wait_group(0, read=True)
    if not right:
        with If(tid.x == 32):
            tma.wait_group(0, read=True)
    bar.sync()
    st(tile.at(warp.lane, warp.id), tid.x.to(f32))
    if not right:
        with If(tid.x == 0):
            tma.wait_group(0)


@kernel("sm_90a", cluster=2, threads=32)
def multicast_early(x: tma.Map[f32], *, right: bool = False) -> None:
    """One CTA sends to both while the other still reads what came before."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
    cluster.sync()
    with If(elect_one()):
        full.arrive_expect_tx(tile.nbytes)
    with If((cluster.rank == 0) & elect_one()):
        tma.load(tile, x[0, 0], full, multicast=3)
    full.wait(0)
    ld(tile.at(warp.lane, 0), vec=4)
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        full.arrive_expect_tx(tile.nbytes)
    if right:
        cluster.sync()
    with If((cluster.rank == 0) & elect_one()):
        tma.load(tile, x[0, COLUMNS], full, multicast=3)
    full.wait(1)
    cluster.sync()


@kernel("sm_90a", cluster=2, threads=32)
def lonely_multicast(x: tma.Map[f32], *, right: bool = False) -> None:
    """Both CTAs expect a box; it is sent to one of them."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
    cluster.sync()
    with If(elect_one()):
        full.arrive_expect_tx(tile.nbytes)
    with If((cluster.rank == 0) & elect_one()):
        tma.load(tile, x[0, 0], full, multicast=3 if right else 1)
    full.wait(0)
    cluster.sync()


@kernel("sm_90a", threads=160)
def early_release(a: tma.Map[bf16], b: tma.Map[bf16], steps: u32, *, right: bool = False) -> None:
    """A stage is released while the products that read it are in flight."""
    ring = Ring(
        2,
        full=1,
        empty=4,
        name="ab",
        a=smem.tile(bf16, (64, 64), swizzle=128),
        b=smem.tile(bf16, (64, 64), swizzle=128),
    )
    with If((warp.id == 0) & elect_one()):
        ring.init()
        fence.mbarrier_init()
    bar.sync()

    @role(warp=4, elect=True)
    def load() -> None:
        slots = ring.producer()
        for k in loop(steps):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.a, a[0, k * 64], slot.full)
            tma.load(slot.b, b[0, k * 64], slot.full)

    @role(warps=range(4))
    def multiply() -> None:
        acc, slots = wgmma.accumulator(f32, (64, 64)), ring.consumer()
        for k in loop(steps):
            slot = next(slots)
            slot.full.wait()
            wgmma.fence()
            for part in range(0, 64, 16):
                wgmma.mma(acc, slot.a[:, part : part + 16], slot.b[:, part : part + 16], accumulate=k > 0)
            wgmma.commit_group()
            wgmma.wait_group(0 if right else 1)
            with If(elect_one()):
                slot.empty.arrive()
        if not right:
            wgmma.wait_group(0)


@kernel("sm_90a", threads=64)
def one_phase(x: tma.Map[f32], tiles: u32, *, right: bool = False) -> None:
    """The reader waits for the same phase in every turn."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    full, empty = mbarrier(1, name="full"), mbarrier(32, name="empty")
    with If((warp.id == 0) & elect_one()):
        full.init()
        empty.init()
        fence.mbarrier_init()
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        for k in loop(tiles):
            empty.wait((k & 1) ^ 1)
            full.arrive_expect_tx(tile.nbytes)
            tma.load(tile, x[0, k * COLUMNS], full)

    @role(warp=1)
    def read() -> None:
        for k in loop(tiles):
            full.wait(k & 1 if right else 0)
            ld(tile.at(warp.lane, 0), vec=4)
            fence.proxy_async()
            empty.arrive()


@kernel("sm_90a", threads=64)
def single_stage(x: tma.Map[f32], tiles: u32, *, right: bool = False) -> None:
    """One stage is loaded again and again; nobody says that it is free."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    full, empty = mbarrier(1, name="full"), mbarrier(32, name="empty")
    with If((warp.id == 0) & elect_one()):
        full.init()
        empty.init()
        fence.mbarrier_init()
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        for k in loop(tiles):
            if right:
                empty.wait((k & 1) ^ 1)
            full.arrive_expect_tx(tile.nbytes)
            tma.load(tile, x[0, k * COLUMNS], full)
            full.wait(k & 1)

    @role(warp=1)
    def read() -> None:
        for k in loop(tiles):
            full.wait(k & 1)
            ld(tile.at(warp.lane, 0), vec=4)
            fence.proxy_async()
            empty.arrive()


@kernel("sm_90a", threads=32)
def expected_twice(x: tma.Map[f32], *, right: bool = False) -> None:
    """Twice the bytes are expected that come."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(tile.nbytes * (1 if right else 2))
        tma.load(tile, x[0, 0], full)
    warp.sync()
    full.wait(0)


@kernel("sm_90a", threads=64)
def all_arrive(x: Global[u32], *, right: bool = False) -> None:
    """Thirty-two lanes arrive at a barrier that counts to one."""
    ready = mbarrier(1, name="ready")
    with If(tid.x == 0):
        ready.init()
    bar.sync()
    with If(warp.id == 0):
        if right:
            with If(elect_one()):
                ready.arrive()
        else:
            ready.arrive()
    ready.wait(0)


@kernel("sm_90a", threads=32)
def initialised_again(x: Global[u32], *, right: bool = False) -> None:
    """A barrier is initialised for a second use, and has not been invalidated."""
    ready = mbarrier(32, name="ready")
    for _ in range(2):
        with If(elect_one()):
            ready.init()
        warp.sync()
        ready.arrive()
        ready.wait(0)
        warp.sync()
        if right:
            with If(elect_one()):
                ready.inval()
            warp.sync()


@kernel("sm_90a", threads=32)
def overwritten(x: Global[u32], *, right: bool = False) -> None:
    """Scratch memory over a barrier that lives."""
    held, ready = smem.array(u32, 32), mbarrier(32, name="ready")
    with If(elect_one()):
        ready.init()
    warp.sync()
    ready.arrive()
    ready.wait(0)
    warp.sync()
    scratch = held if right else Pointer(u32, ready.address, space="shared::cta")
    with If(elect_one()):
        scratch[0] = 7


@kernel("sm_90a", threads=64)
def arrives_twice(x: Global[u32], *, right: bool = False) -> None:
    """A warp arrives twice for one turn of a named barrier, so that the other does not wait for what it writes."""
    held = smem.array(u32, 32)
    with If(warp.id == 0):
        if not right:
            bar.arrive(1, 64)
        held[warp.lane] = warp.lane
        bar.arrive(1, 64)
    with If(warp.id == 1):
        bar.sync(1, 64)
        x[warp.lane] = held[warp.lane]


@kernel("sm_90a", threads=64)
def half_a_barrier(x: Global[u32], *, right: bool = False) -> None:
    """Half of the threads meet at one barrier, half at another: attention's divergent bar.sync."""
    with If(warp.id == 0):
        bar.sync(1, 32) if right else bar.sync(0)
    with If(warp.id == 1):
        bar.sync(1 if not right else 2, 64 if not right else 32)


@kernel("sm_90a", threads=64)
def unwaited(x: tma.Map[f32], *, right: bool = False) -> None:
    """A load is read before its barrier was waited for; on most machines it has come by then."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If((warp.id == 0) & elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    bar.sync()
    if right:
        full.wait(0)
    ld(tile.at(warp.lane, 0), vec=4)
    full.wait(0)


@kernel("sm_100a", threads=128)
def tensor_core(
    d: Global[f32],
    *,
    fenced: bool = True,
    committed: bool = True,
    accumulates: bool = True,
    loaded: bool = True,
    met: bool = True,
    opened: bool = True,
    allocated: bool = True,
) -> None:
    """A product whose operands threads have written, with one thing or another forgotten."""
    a_tile, b_tile = smem.tile(bf16, (128, 64), swizzle=128), smem.tile(bf16, (64, 64), swizzle=128)
    acc, multiplied = tmem.tile(f32, (128, 64)), mbarrier(1, name="multiplied")
    with If((warp.id == 0) & elect_one()):
        multiplied.init()
        fence.mbarrier_init()

    @role(warp=1)
    def alloc() -> None:
        tmem.alloc()

    for first in range(0, 64, 2):
        at = Pointer(u32, a_tile.at(0, 0).address, space="shared::cta") + (tid.x * 32 + first // 2)
        st(at, 0x3F803F80)
    for first in range(0, 64, 4):
        at = Pointer(u32, b_tile.at(0, 0).address, space="shared::cta") + (tid.x * 16 + first // 4)
        st(at, 0x3F803F80)
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
            tcgen05.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=accumulates and k > 0)
        if committed:
            tcgen05.commit(multiplied)
        else:
            multiplied.arrive()

    multiplied.wait(0)
    tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(acc)
    if loaded:
        tcgen05.wait_ld()
    for column in range(0, 64, 4):
        st(d + tid.x * 64 + column, *row[column : column + 4])
    tcgen05.wait_ld()
    tcgen05.fence_before_thread_sync()
    if met:
        bar.sync()
    tcgen05.fence_after_thread_sync()

    @role(warp=1)
    def free() -> None:
        tmem.dealloc()


@kernel("sm_100a", threads=160)
def early_reuse(a: tma.Map[bf16], b: tma.Map[bf16], tiles: u32, *, right: bool = False) -> None:
    """One thread releases tensor memory for all, when it has read its own part: the level-7 document's release."""
    a_tile, b_tile = smem.tile(bf16, (128, 64), swizzle=128), smem.tile(bf16, (64, 64), swizzle=128)
    acc = tmem.tile(f32, (128, 64))
    loaded, done, free = mbarrier(1, name="loaded"), mbarrier(1, name="done"), mbarrier(1, name="free")
    with If((warp.id == 0) & elect_one()):
        for each in (loaded, done, free):
            each.init()
        fence.mbarrier_init()

    @role(warp=1)
    def alloc() -> None:
        tmem.alloc()

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


@kernel("sm_90a", cluster=2, threads=32)
def odd_pair(x: tma.Map[f32], tiles: u32, *, right: bool = False) -> None:
    """The leader waits for both CTAs of a pair; with an odd number of tiles one has none and leaves."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(2, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
    cluster.sync()
    mine = tiles if not right else (tiles + 1) // 2 * 2  # beyond the last tile, TMA fills with zeros
    with If((cluster.rank < mine) & elect_one()):
        full.at(0).arrive()
    with If((cluster.rank == 0) & elect_one()):
        full.expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    with If(cluster.rank == 0):
        full.wait(0)
    cluster.sync()


@kernel("sm_90a", threads=64)
def traps(x: tma.Map[f32], y: tma.Map[f32], *, right: bool = True) -> None:
    """Looks wrong and is in order: a wait alone between a load and threads' reads; parity 1 of a fresh barrier; threads
    and TMA read the same memory with nothing between them."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If((warp.id == 0) & elect_one()):
        full.init()
        fence.mbarrier_init()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        full.wait(1)
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    full.wait(0)
    ld(tile.at(warp.lane, 0), vec=4)
    with If((warp.id == 0) & elect_one()):
        tma.store(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)
