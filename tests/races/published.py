"""Mistakes of real kernels, each in the smallest kernel that has it; with ``right`` the kernel is correct."""

from __future__ import annotations

from tests.races.parts import initialise, start
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
    ldmatrix,
    loop,
    mbarrier,
    role,
    smem,
    st,
    tid,
    tma,
    u32,
    var,
    warp,
    wgmma,
)

ROWS, COLUMNS = 32, 32


@kernel("sm_90a", threads=64)
def late_fence(y: tma.Map[f32], *, right: bool = False) -> None:
    """The thread that stores fences for all threads, after the barrier: a fence orders its own thread's writes only."""
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
    """One CTA multicasts to both while the other still reads the previous data."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    start(full)
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
    """Both CTAs expect a box; the multicast mask names one of them."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    start(full)
    with If(elect_one()):
        full.arrive_expect_tx(tile.nbytes)
    with If((cluster.rank == 0) & elect_one()):
        tma.load(tile, x[0, 0], full, multicast=3 if right else 1)
    full.wait(0)
    cluster.sync()


@kernel("sm_90a", threads=160)
def early_release(a: tma.Map[bf16], b: tma.Map[bf16], steps: u32, *, right: bool = False) -> None:
    """A stage is released while the wgmma that reads it is in flight."""
    ring = Ring(
        2,
        full=1,
        empty=4,
        name="ab",
        a=smem.tile(bf16, (64, 64), swizzle=128),
        b=smem.tile(bf16, (64, 64), swizzle=128),
    )
    initialise(ring)
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
    """The reader waits for the same phase in every iteration."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    full, empty = mbarrier(1, name="full"), mbarrier(32, name="empty")
    initialise(full, empty)
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
    """One stage is refilled in a loop; no thread releases it."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    full, empty = mbarrier(1, name="full"), mbarrier(32, name="empty")
    initialise(full, empty)
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
    """The mbarrier expects twice the bytes of the copy."""
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
    """An mbarrier is initialised again without invalidation."""
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
def overwritten_mbarrier(x: Global[u32], *, right: bool = False) -> None:
    """Scratch memory overlaps a live mbarrier."""
    buffer, ready = smem.array(u32, 32), mbarrier(32, name="ready")
    with If(elect_one()):
        ready.init()
    warp.sync()
    ready.arrive()
    ready.wait(0)
    warp.sync()
    scratch = buffer if right else Pointer(u32, ready.address, space="shared::cta")
    with If(elect_one()):
        scratch[0] = 7


@kernel("sm_90a", threads=64)
def arrives_twice(x: Global[u32], *, right: bool = False) -> None:
    """A warp arrives twice in one round of a named barrier, so that the other warp does not wait for its writes."""
    buffer = smem.array(u32, 32)
    with If(warp.id == 0):
        if not right:
            bar.arrive(1, 64)
        buffer[warp.lane] = warp.lane
        bar.arrive(1, 64)
    with If(warp.id == 1):
        bar.sync(1, 64)
        x[warp.lane] = buffer[warp.lane]


@kernel("sm_90a", threads=64)
def missing_wait(x: tma.Map[f32], *, right: bool = False) -> None:
    """Threads read a load's data without a wait on its mbarrier; on most machines it has completed by then."""
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


@kernel("sm_90a", cluster=2, threads=32)
def odd_pair(x: tma.Map[f32], tiles: u32, *, right: bool = False) -> None:
    """The leader waits for both CTAs of a pair; with an odd number of tiles one CTA has no tile and exits."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(2, name="full")
    start(full)
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
def matrices_refilled(x: tma.Map[bf16], tiles: u32, *, right: bool = False) -> None:
    """TMA refills a stage that `ldmatrix` reads; the reads are not ordered before the refill."""
    ring = Ring(2, full=1, empty=32, name="rows", x=smem.tile(bf16, (32, 64), swizzle=128))
    initialise(ring)
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for k in loop(tiles):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.x, x[0, k * 64], slot.full)

    @role(warp=1)
    def read() -> None:
        slots = ring.consumer()
        for _ in loop(tiles):
            slot = next(slots)
            slot.full.wait()
            ldmatrix(slot.x.at(warp.lane, 0), 4)
            if right:
                fence.proxy_async()
            slot.empty.arrive()


@kernel("sm_90a", threads=64)
def second_tile(x: tma.Map[f32], tiles: u32, steps: u32, *, right: bool = False) -> None:
    """Phases restart at zero with every tile: after an odd number of steps the second tile's phases are wrong."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    full, empty = mbarrier(1, name="full"), mbarrier(32, name="empty")
    initialise(full, empty)
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        for number in loop(tiles):
            for step in loop(steps):
                iteration = number * steps + step if right else step
                empty.wait((iteration & 1) ^ 1)
                full.arrive_expect_tx(tile.nbytes)
                tma.load(tile, x[0, step * COLUMNS], full)

    @role(warp=1)
    def read() -> None:
        for number in loop(tiles):
            for step in loop(steps):
                iteration = number * steps + step if right else step
                full.wait(iteration & 1)
                ld(tile.at(warp.lane, 0), vec=4)
                fence.proxy_async()
                empty.arrive()


@kernel("sm_90a", threads=256)
def loop_back(a: tma.Map[bf16], b: tma.Map[bf16], steps: u32, *, right: bool = False) -> None:
    """A thread of one warpgroup loads the next tiles when its own wgmma is complete; the other warpgroup's still
    reads."""
    a_tiles = [smem.tile(bf16, (64, 64), swizzle=128) for _ in range(2)]
    b_tile, full = smem.tile(bf16, (64, 64), swizzle=128), mbarrier(1, name="full")
    initialise(full)
    bar.sync()
    acc = wgmma.accumulator(f32, (64, 64))
    for k in loop(steps):
        with If((warp.id == 0) & elect_one()):
            full.arrive_expect_tx(3 * b_tile.nbytes)
            tma.load(a_tiles[0], a[0, k * 64], full)
            tma.load(a_tiles[1], a[0, k * 64], full)
            tma.load(b_tile, b[0, k * 64], full)
        full.wait(k & 1)
        for group in range(2):
            with If(warp.id // 4 == group):
                wgmma.fence()
                wgmma.mma(acc, a_tiles[group][:, :16], b_tile[:, :16], accumulate=k > 0)
                wgmma.commit_group()
                wgmma.wait_group(0)
        if right:
            bar.sync()


@kernel("sm_90a", threads=128)
def written_operands(d: Global[f32], *, fenced: bool = True, ordered: bool = True) -> None:
    """A wgmma reads operands that threads have written, and that they write again while it may be in flight."""
    a_tile, b_tile = smem.tile(bf16, (64, 64), swizzle=128), smem.tile(bf16, (64, 64), swizzle=128)
    starts = [Pointer(u32, tile.at(0, 0).address, space="shared::cta") for tile in (a_tile, b_tile)]
    for first in range(0, 64 * 32, 128):
        for at in starts:
            st(at + (tid.x + first), 0x3F803F80)
    if fenced:
        fence.proxy_async()
    bar.sync()
    acc = wgmma.accumulator(f32, (64, 64))
    wgmma.fence()
    for k in range(0, 64, 16):
        wgmma.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=k > 0)
    wgmma.commit_group()
    if ordered:
        wgmma.wait_group(0)
    bar.sync()
    st(starts[0] + tid.x, 0)
    if not ordered:
        wgmma.wait_group(0)
    d[tid.x] = acc.regs[0]


@kernel("sm_90a", threads=128)
def overwritten_registers(b: tma.Map[bf16], d: Global[f32], *, right: bool = False) -> None:
    """A wgmma reads A from registers that the warp overwrites while the wgmma is in flight."""
    b_tile, full = smem.tile(bf16, (64, 64), swizzle=128), mbarrier(1, name="full")
    with If((warp.id == 0) & elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(b_tile.nbytes)
        tma.load(b_tile, b[0, 0], full)
    bar.sync()
    full.wait(0)
    acc, left = wgmma.accumulator(f32, (64, 64)), [var(u32, 0x3F803F80) for _ in range(4)]
    for k in range(0, 64, 16):
        wgmma.fence()
        wgmma.mma(acc, wgmma.left(bf16, left), b_tile[:, k : k + 16], accumulate=k > 0)
        wgmma.commit_group()
        if right:
            wgmma.wait_group(0)
        left[0] += 1
    wgmma.wait_group(0)
    d[tid.x] = acc.regs[0]


@kernel("sm_90a", threads=64)
def refilled_source(y: tma.Map[f32], *, right: bool = False) -> None:
    """The tile is overwritten after the commit of its store, without a wait."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for iteration in range(2):
        for column in range(0, COLUMNS, 2):
            st(tile.at(warp.lane, column + warp.id), tid.x.to(f32))
        fence.proxy_async()
        bar.sync()
        with If((warp.id == 0) & elect_one()):
            tma.store(y[0, iteration * COLUMNS], tile)
            tma.commit_group()
            if right:
                tma.wait_group(0, read=True)
        bar.sync()
    with If((warp.id == 0) & elect_one()):
        tma.wait_group(0)
