"""The smallest kernel that breaks each rule; with ``right`` the same kernel is correct."""

from __future__ import annotations

from tests.races.parts import initialise, load_operands
from warpwright.lang import (
    Global,
    If,
    Pointer,
    Ring,
    bar,
    bf16,
    cluster,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    role,
    shfl,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    var,
    warp,
    wgmma,
)

ROWS, COLUMNS = 32, 32


@kernel("sm_90a", threads=64)
def neighbours(x: Global[u32], *, right: bool = False) -> None:
    """Every thread reads a word that a thread of the other warp has written."""
    buffer = smem.array(u32, 64)
    buffer[63 - tid.x] = 0
    bar.sync()
    buffer[tid.x] = tid.x
    if right:
        bar.sync()
    x[tid.x] = buffer[63 - tid.x]


@kernel("sm_90a", threads=64)
def fault_in_first_cta(x: Global[u32]) -> None:
    """The first CTA stores outside every allocation; in the others two warps race."""
    buffer = smem.array(u32, 64)
    with If(ctaid.x == 0):
        x[1 << 20] = 0
    buffer[tid.x] = tid.x
    x[tid.x] = buffer[63 - tid.x]


@kernel("sm_90a", threads=128)
def staggered_arrival(x: Global[u32], *, right: bool = False) -> None:
    """One warp has exited, and lanes of another warp arrive at the barrier one after the other."""
    buffer = smem.array(u32, 96)

    @role(warps=range(3))
    def meet() -> None:
        buffer[tid.x] = tid.x
        with If(tid.x == 0):
            bar.sync(0)
        with If(tid.x > 0):
            bar.sync(0)
        value = buffer[95 - tid.x]
        if right:
            bar.sync(1, 96)
        buffer[tid.x] = value
        x[tid.x] = value


@kernel("sm_90a", threads=32)
def store_box(y: tma.Map[f32], *, right: bool = False) -> None:
    """TMA stores a box that threads have written."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for column in range(COLUMNS):
        st(tile.at(warp.lane, column), tid.x.to(f32))
    if right:
        fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        tma.store(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=32)
def exit_before_store(y: tma.Map[f32], *, right: bool = False) -> None:
    """The CTA exits while TMA reads its shared memory."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for column in range(COLUMNS):
        st(tile.at(warp.lane, column), tid.x.to(f32))
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        tma.store(y[0, 0], tile)
        tma.commit_group()
        if right:
            tma.wait_group(0, read=True)


@kernel("sm_90a", threads=64)
def wait_before_init(x: tma.Map[f32], *, right: bool = False) -> None:
    """The other warp waits on an mbarrier that may not be initialised yet."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If((warp.id == 0) & elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    if right:
        bar.sync()
    full.wait(0)


@kernel("sm_90a", threads=64)
def refill(x: tma.Map[f32], tiles: u32, *, right: bool = False) -> None:
    """TMA refills a stage; the threads' reads of it are not ordered before the refill."""
    ring = Ring(2, full=1, empty=32, name="rows", x=smem.tile(f32, (ROWS, COLUMNS)))
    initialise(ring)
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for k in loop(tiles):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.x, x[0, k * COLUMNS], slot.full)

    @role(warp=1)
    def read() -> None:
        slots = ring.consumer()
        for _ in loop(tiles):
            slot = next(slots)
            slot.full.wait()
            ld(slot.x.at(warp.lane, 0), vec=4)
            if right:
                fence.proxy_async()
            slot.empty.arrive()


@kernel("sm_90a", threads=96)
def lapped_waiter(tiles: u32, *, right: bool = False) -> None:
    """Two warps wait for a phase, but the next phase waits for only one of them."""
    ring = Ring(1, full=1, empty=2 if right else 1, name="turn", x=smem.tile(f32, (ROWS, COLUMNS)))
    with If((warp.id == 0) & elect_one()):
        ring.init()
    bar.sync()

    @role(warp=0, elect=True)
    def signal() -> None:
        slots = ring.producer()
        for _ in loop(tiles):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive()

    @role(warps=range(1, 3))
    def watch() -> None:
        slots = ring.consumer()
        for _ in loop(tiles):
            slot = next(slots)
            slot.full.wait()
            warp.sync()
            with If(elect_one() if right else elect_one() & (warp.id == 1)):
                slot.empty.arrive()


@kernel("sm_90a", threads=32)
def unwritten_read(x: Global[u32], *, right: bool = False) -> None:
    """Threads read shared memory that no thread has written."""
    buffer = smem.array(u32, 32)
    if right:
        buffer[tid.x] = tid.x
    x[tid.x] = buffer[tid.x]


@kernel("sm_90a", cluster=2, threads=32)
def peer(x: Global[u32], *, right: bool = False) -> None:
    """A CTA reads the shared memory of another CTA, which may have exited."""
    buffer = smem.array(u32, 32)
    buffer[tid.x] = tid.x
    cluster.sync()
    other = cluster.map(buffer.address, cluster.rank ^ 1)
    x[cluster.rank * 32 + tid.x] = ld(Pointer(u32, other, space="shared::cluster") + tid.x)
    if right:
        cluster.sync()


@kernel("sm_90a", cluster=2, threads=64)
def one_warp(x: Global[u32], *, right: bool = False) -> None:
    """A peer read by one warp; the other warp exits at once, so that no barrier waits for it."""
    buffer = smem.array(u32, 32)
    with If(warp.id == 0):
        buffer[tid.x] = tid.x
        cluster.sync()
        other = cluster.map(buffer.address, cluster.rank ^ 1)
        x[cluster.rank * 32 + tid.x] = ld(Pointer(u32, other, space="shared::cluster") + tid.x)
        if right:
            cluster.sync()


@kernel("sm_90a", threads=128)
def accumulators(
    a: tma.Map[bf16], b: tma.Map[bf16], d: Global[f32], *, fenced: bool = True, waited: bool = True
) -> None:
    """A wgmma whose accumulators are zeroed before and read after it."""
    a_tile, b_tile = load_operands(a, b)
    acc = wgmma.accumulator(f32, (64, 64))
    for register in acc.regs:
        register.set(0.0)
    if fenced:
        wgmma.fence()
    for k in range(0, 64, 16):
        wgmma.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=True)
    wgmma.commit_group()
    if waited:
        wgmma.wait_group(0)
    for i, register in enumerate(acc.regs):
        st(d + (tid.x * len(acc.regs) + i), register)
    if not waited:
        wgmma.wait_group(0)


@kernel("sm_100a", threads=128)
def tensor_memory(a: tma.Map[bf16], b: tma.Map[bf16], d: Global[f32], *, right: bool = False) -> None:
    """A tcgen05.mma whose accumulator other warps load."""
    a_tile, b_tile = smem.tile(bf16, (128, 64), swizzle=128), smem.tile(bf16, (64, 64), swizzle=128)
    acc = tmem.tile(f32, (128, 64))
    loaded, multiplied = mbarrier(1, name="loaded"), mbarrier(1, name="multiplied")
    initialise(loaded, multiplied)

    @role(warp=1)
    def alloc() -> None:
        tmem.alloc()

    bar.sync()
    tmem.open()

    @role(warp=0, elect=True)
    def multiply() -> None:
        loaded.arrive_expect_tx(a_tile.nbytes + b_tile.nbytes)
        tma.load(a_tile, a[0, 0], loaded)
        tma.load(b_tile, b[0, 0], loaded)
        loaded.wait(0)
        for k in range(0, 64, 16):
            tcgen05.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=k > 0)
        tcgen05.commit(multiplied)

    multiplied.wait(0)
    if right:
        tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(acc)
    tcgen05.wait_ld()
    for column in range(0, 64, 4):
        st(d + tid.x * 64 + column, *row[column : column + 4])
    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()

    @role(warp=1)
    def free() -> None:
        tmem.dealloc()


@kernel("sm_90a", threads=32)
def half_warp(x: Global[u32], *, right: bool = False) -> None:
    """Half of the lanes sum up, and name all lanes."""
    with If(warp.lane < 16):
        value = var(u32, warp.lane)
        for step in (8, 4, 2, 1) if right else (16, 8, 4, 2, 1):
            value.set(value + shfl.down(value, step, width=16 if right else 32, mask=0xFFFF))
        x[warp.lane] = value
