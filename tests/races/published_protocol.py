"""Protocol mistakes of real kernels: counts, addresses, barriers of all kinds, and setmaxnreg.

Each is the smallest kernel that has the mistake; with ``right`` the kernel is correct.
"""

from __future__ import annotations

from tests.races.parts import initialise, load_operands, start
from warpwright.lang import (
    Global,
    If,
    bar,
    bf16,
    cluster,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    red,
    role,
    setmaxnreg,
    smem,
    tid,
    tma,
    u32,
    warp,
    wgmma,
)
from warpwright.lang.context import current
from warpwright.lang.ops.descriptor import warpgroup_descriptor
from warpwright.lang.trace import addr

ROWS, COLUMNS = 32, 32


@kernel("sm_90a", threads=32)
def counts_to_zero(arrivals: u32, *, right: bool = False) -> None:
    """A configuration makes the count of an mbarrier zero."""
    ready = mbarrier(1, name="ready")
    with If(elect_one()):
        current().emit("mbarrier.init.shared::cta.b64", ready.operand, 1 if right else arrivals)
    warp.sync()
    with If(elect_one()):
        ready.arrive()
    ready.wait(0)


@kernel("sm_90a", threads=64)
def arrives_too_often(x: Global[u32], *, right: bool = False) -> None:
    """Two arrivals in a phase that expects one."""
    ready, unused = mbarrier(2 if right else 1, name="ready"), mbarrier(1, name="unused")
    with If(tid.x == 0):
        ready.init()
        unused.init()
    bar.sync()
    with If((warp.id == 1) & elect_one()):
        ready.expect_tx(16)
        ready.arrive()
        ready.arrive()
        current().emit("mbarrier.complete_tx.relaxed.cta.shared::cta.b64", ready.operand, 16)
    ready.wait(0)


@kernel("sm_90a", threads=128)
def counts_one_less(x: Global[u32], *, right: bool = False) -> None:
    """Four warps arrive at an mbarrier of count three; a named barrier hides that the phase does not wait for one of
    them."""
    ready, buffer = mbarrier(4 if right else 3, name="ready"), smem.array(u32, 128)
    with If(tid.x == 0):
        ready.init()
    bar.sync()
    buffer[tid.x] = tid.x
    bar.sync()
    with If(elect_one()):
        ready.arrive()
    ready.wait(0)
    x[tid.x] = buffer[127 - tid.x]


@kernel("sm_90a", threads=64)
def arrives_too_seldom(x: Global[u32], *, right: bool = False) -> None:
    """One of two warps does not arrive."""
    ready = mbarrier(2, name="ready")
    with If(tid.x == 0):
        ready.init()
    bar.sync()
    with If(elect_one() & ((warp.id == 0) | (tid.x >= (0 if right else 64)))):
        ready.arrive()
    ready.wait(0)


@kernel("sm_90a", threads=32)
def never_initialised(x: Global[u32], *, right: bool = False) -> None:
    """A thread arrives at memory that is not an mbarrier."""
    ready = mbarrier(32, name="ready")
    if right:
        with If(elect_one()):
            ready.init()
        warp.sync()
    ready.arrive()
    ready.wait(0)


@kernel("sm_90a", cluster=2, threads=32)
def peer_as_own(x: Global[u32], *, right: bool = False) -> None:
    """An operation on this CTA's memory gets the address of the other CTA's mbarrier."""
    ready = mbarrier(1, name="ready")
    start(ready)
    with If(elect_one()):
        other = addr(cluster.map(ready.address, cluster.rank ^ 1))
        how = "release.cluster.shared::cluster" if right else "release.cta.shared::cta"
        current().emit(f"mbarrier.arrive.{how}.b64", "_", other)
    ready.wait(0, scope="cluster")
    cluster.sync()


@kernel("sm_90a", cluster=2, threads=32)
def bytes_for_the_peer(x: tma.Map[f32], *, right: bool = False) -> None:
    """The CTA expects bytes at the other CTA's mbarrier, and its copy counts them at its own."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    start(full)
    with If(elect_one() & (cluster.rank == 0)):
        full.at(0 if right else 1).arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    with If(cluster.rank == 0):
        full.wait(0)
    cluster.sync()


@kernel("sm_90a", threads=32)
def misaligned_bytes(x: Global[u32], nbytes: u32, *, right: bool = False) -> None:
    """A bulk copy whose size is not a multiple of 16."""
    buffer, full = smem.array(u32, 32), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        size = 64 if right else nbytes
        full.arrive_expect_tx(size)
        tma.copy(buffer.address, x.address, size, full)
    warp.sync()
    full.wait(0)


@kernel("sm_90a", threads=64)
def other_count(x: Global[u32], *, right: bool = False) -> None:
    """Two warps arrive at one named barrier with different counts."""
    with If(warp.id == 0):
        bar.sync(1, 64)
    with If(warp.id == 1):
        bar.sync(1, 64 if right else 32)


@kernel("sm_90a", threads=64)
def other_number(x: Global[u32], *, right: bool = False) -> None:
    """Two warps that should synchronise use different named barriers."""
    with If(warp.id == 0):
        bar.sync(1, 64)
    with If(warp.id == 1):
        bar.sync(1 if right else 2, 64)


@kernel("sm_90a", threads=96)
def divergent_barrier(tiles: u32, *, right: bool = False) -> None:
    """The consumers' function contains a barrier of all threads, at which the producer never arrives: the producer
    waits for the stage that the consumers release after that barrier. This is the hang of the attention seed."""
    buffer, full, empty = smem.array(u32, 64), mbarrier(1, name="full"), mbarrier(2, name="empty")
    with If(tid.x == 0):
        full.init()
        empty.init()
    bar.sync()

    @role(warp=0)
    def produce() -> None:
        for tile in loop(tiles):
            empty.wait((tile & 1) ^ 1)
            with If(elect_one()):
                full.arrive()
            bar.sync()

    @role(warps=range(1, 3))
    def consume() -> None:
        for tile in loop(tiles):
            full.wait(tile & 1)
            buffer[tid.x - 32] = tile
            bar.sync(1, 64) if right else bar.sync()
            bar.sync()
            with If(elect_one()):
                empty.arrive()


@kernel("sm_90a", cluster=2, threads=64)
def half_a_cluster(x: Global[u32], *, right: bool = False) -> None:
    """One warp of a CTA does not arrive at the cluster's barrier, and waits for the other warp."""
    with If((cluster.rank == 0) | (warp.id == (warp.id if right else 0))):
        cluster.sync()
    bar.sync()
    cluster.sync()


@kernel("sm_90a", cluster=2, threads=32)
def arrives_again(x: Global[u32], *, right: bool = False) -> None:
    """A thread arrives at the cluster's barrier a second time without a wait in between."""
    cluster.arrive()
    if right:
        cluster.wait()
    cluster.arrive()
    cluster.wait()


@kernel("sm_90a", threads=256)
def registers_differ(x: Global[u32], *, right: bool = False) -> None:
    """The warps of a warpgroup request different numbers of registers."""
    with If(warp.id == 1):
        setmaxnreg.dec(40 if right else 48)
    with If(warp.id != 1):
        setmaxnreg.dec(40)


@kernel("sm_90a", threads=128)
def registers_of_one(x: Global[u32], *, right: bool = False) -> None:
    """One warp of a warpgroup releases registers, the others do not."""
    with If(warp.id < (4 if right else 1)):
        setmaxnreg.dec(40)


@kernel("sm_90a", threads=512)
def registers_missing(x: Global[u32], *, right: bool = False) -> None:
    """Warps request more registers than the others release: 512 threads begin with 128 each."""

    @role(warps=range(4))
    def produce() -> None:
        setmaxnreg.dec(40)

    @role(warps=range(4, 16))
    def consume() -> None:
        setmaxnreg.inc(152 if right else 160)


@kernel("sm_90a", threads=512)
def registers_upwards(x: Global[u32], *, right: bool = False) -> None:
    """setmaxnreg.dec requests more registers than the thread has."""
    setmaxnreg.dec(128 if right else 136)


@kernel("sm_90a", threads=128)
def registers_at_once(x: Global[u32], *, right: bool = False) -> None:
    """A second setmaxnreg before the warpgroup has synchronised after the first."""
    setmaxnreg.dec(128)
    if right:
        bar.sync()
    setmaxnreg.dec(40)


@kernel("sm_90a", threads=128)
def part_of_a_warpgroup(a: tma.Map[bf16], b: tma.Map[bf16], *, right: bool = False) -> None:
    """One warp of a warpgroup issues no wgmma."""
    a_tile, b_tile = load_operands(a, b)
    acc = wgmma.accumulator(f32, (64, 64))
    with If(warp.id < (4 if right else 3)):
        wgmma.fence()
        wgmma.mma(acc, a_tile[:, :16], b_tile[:, :16], accumulate=False)
        wgmma.commit_group()
        wgmma.wait_group(0)


@kernel("sm_90a", threads=128)
def misaligned_descriptor(a: tma.Map[bf16], b: tma.Map[bf16], *, right: bool = False) -> None:
    """An unmasked field of a matrix descriptor overflows into the next field."""
    a_tile, b_tile = load_operands(a, b)
    acc = wgmma.accumulator(f32, (64, 64))
    masked, whole = warpgroup_descriptor(b_tile[:, :16]), 0 if right else 1 << 60
    wgmma.fence()
    opcode = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
    descriptors = warpgroup_descriptor(a_tile[:, :16]), masked | whole
    current().emit(opcode, tuple(acc.regs), *descriptors, 0, 1, 1, 0, 0)
    wgmma.commit_group()
    wgmma.wait_group(0)


@kernel("sm_90a", threads=32)
def misaligned_box(x: tma.Map[f32], *, right: bool = False) -> None:
    """The shared memory address of a TMA load is not a multiple of 128 bytes."""
    tile, full = smem.tile(f32, (2 * ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(4 * ROWS * COLUMNS)
        tma.load(tile.at(0, 0 if right else 4).address, x[0, 0], full)
    warp.sync()
    full.wait(0)


@kernel("sm_90a", threads=64)
def counted_and_read(x: Global[u32], *, right: bool = False, zeroed: bool = True) -> None:
    """A thread reads a sum of atomic operations before all threads have added to it, or no thread has initialised the
    sum."""
    count = smem.array(u32, 4)
    if zeroed:
        with If(tid.x == 0):
            count[0] = 0
    bar.sync()
    red.add(count, 1)
    if right:
        bar.sync()
    x[tid.x] = count[0]


@kernel("sm_90a", threads=64)
def write_after_load(x: tma.Map[f32], y: Global[f32], *, right: bool = False) -> None:
    """A thread's write after it issued a load is not ordered by the load's arrival."""
    tile, scale, full = smem.tile(f32, (ROWS, COLUMNS)), smem.scalar(f32), mbarrier(1, name="full")
    initialise(full)
    bar.sync()
    with If(tid.x == 0):
        if right:
            scale[0] = 2.0
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
        if not right:
            scale[0] = 2.0
    full.wait(0)
    with If(warp.id == 1):
        y[warp.lane] = scale[0]


@kernel("sm_90a", threads=32)
def expected_too_little(x: tma.Map[f32], *, right: bool = False) -> None:
    """The mbarrier expects half of the bytes of the copy."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(tile.nbytes // (1 if right else 2))
        tma.load(tile, x[0, 0], full)
    warp.sync()
    full.wait(0)


@kernel("sm_90a", threads=32)
def expected_by_two(x: tma.Map[f32], *, right: bool = False) -> None:
    """Two operations expect the bytes of one load."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        if not right:
            full.expect_tx(tile.nbytes)
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    warp.sync()
    full.wait(0)


@kernel("sm_90a", cluster=2, threads=32)
def peer_uninitialised(x: Global[u32], *, right: bool = False) -> None:
    """A CTA arrives at the mbarrier of its peer, whose initialisation it need not see."""
    ready = mbarrier(1, name="ready")
    initialise(ready)
    if right:
        cluster.sync()
    else:
        warp.sync()
    with If(elect_one()):
        ready.at(cluster.rank ^ 1).arrive()
    ready.wait(0, scope="cluster")
    cluster.sync()


@kernel("sm_90a", cluster=2, threads=32)
def peer_exited(x: Global[u32], *, right: bool = False) -> None:
    """A CTA arrives at the mbarrier of its peer, where no thread waits: the peer may have exited."""
    ready = mbarrier(1, name="ready")
    start(ready)
    with If(elect_one()):
        ready.at(cluster.rank ^ 1).arrive()
    if right:
        ready.wait(0, scope="cluster")


@kernel("sm_90a", threads=64)
def alternate_warps(count: u32, *, right: bool = False) -> None:
    """One warp arrives at a named barrier in each iteration, where the other waits; it does not wait until the other
    has passed the last round."""

    @role(warp=0)
    def take() -> None:
        for _ in loop(count):
            bar.sync(1, 64)
            if right:
                bar.arrive(2, 64)

    @role(warp=1)
    def give() -> None:
        for _ in loop(count):
            bar.arrive(1, 64)
            if right:
                bar.sync(2, 64)


@kernel("sm_90a", threads=64)
def store_out_of_bounds(x: Global[u32], words: u32, *, right: bool = False) -> None:
    """A store past the end of shared memory."""
    buffer = smem.array(u32, 64)
    buffer[tid.x + (0 if right else words)] = tid.x


@kernel("sm_90a", threads=128)
def unwritten_sums(d: Global[f32], wgmmas: u32, *, right: bool = False) -> None:
    """The thread stores an accumulator that some path never writes."""
    acc = wgmma.accumulator(f32, (64, 8))
    with If(tid.x < (128 if right else wgmmas)):
        for register in acc.regs:
            register.set(0.0)
    d[tid.x] = acc.regs[0]


@kernel("sm_90a", threads=128)
def warps_disagree(a: tma.Map[bf16], b: tma.Map[bf16], *, right: bool = False) -> None:
    """The warps of a warpgroup disagree on scale-d, the flag that adds to the accumulator."""
    a_tile, b_tile = load_operands(a, b)
    acc = wgmma.accumulator(f32, (64, 64))
    wgmma.fence()
    for k in range(0, 32, 16):
        adds = k > 0 if right else warp.id * 16 < k
        wgmma.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=adds)
    wgmma.commit_group()
    wgmma.wait_group(0)


@kernel("sm_90a", threads=32)
def number_as_parity(x: tma.Map[f32], tiles: u32, *, right: bool = False) -> None:
    """The wait gets the number of the phase, not its parity: the third phase has the number 2."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    initialise(full)
    warp.sync()
    for number in loop(tiles):
        with If(elect_one()):
            full.arrive_expect_tx(tile.nbytes)
            tma.load(tile, x[0, 0], full)
        full.wait(number & 1 if right else number)
        warp.sync()
