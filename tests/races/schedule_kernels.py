"""Mistakes that the default schedule does not reach; another schedule of the same threads does."""

from __future__ import annotations

from warpwright.lang import (
    Break,
    Global,
    If,
    atom,
    bar,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    red,
    role,
    smem,
    st,
    tid,
    tma,
    u32,
    warp,
)

ROWS, COLUMNS = 32, 32


@kernel("sm_90a", threads=64)
def skip_wait(x: Global[u32], *, right: bool = False) -> None:
    """The second warp waits for the first warp's values unless it runs first: then it reads without a wait."""
    buffer, arrivals, full = smem.array(u32, 32), smem.array(u32, 32), mbarrier(32, name="full")
    with If(tid.x == 0):
        full.init()
    with If(warp.id == 0):
        arrivals[warp.lane] = 0
    bar.sync()

    @role(warp=0)
    def write() -> None:
        atom.add(arrivals + warp.lane, 1)
        buffer[warp.lane] = warp.lane
        full.arrive()

    @role(warp=1)
    def read() -> None:
        order = atom.add(arrivals + warp.lane, 1)
        full.wait(0 if right else 1 - order)
        x[warp.lane] = buffer[warp.lane]


@kernel("sm_90a", threads=32)
def skip_arrival(x: tma.Map[f32], *, right: bool = False) -> None:
    """A thread skips its arrival if its copy completes before the thread tests it."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    full, seen = mbarrier(1, name="full"), mbarrier(1, name="seen")
    with If(elect_one()):
        full.init()
        seen.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
        with If(~full.test_wait(0) | right):
            seen.arrive()
        full.wait(0)
        seen.wait(0)


@kernel("sm_90a", threads=64)
def out_of_order(x: tma.Map[f32], *, right: bool = False) -> None:
    """Two copies complete on one mbarrier, a phase each; nothing orders the first before the second."""
    first, second = smem.tile(f32, (ROWS, COLUMNS)), smem.tile(f32, (ROWS, COLUMNS))
    full, used = mbarrier(1, name="full"), mbarrier(32, name="used")
    with If(tid.x == 0):
        full.init()
        used.init()
        fence.mbarrier_init()
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        full.arrive_expect_tx(first.nbytes)
        tma.load(first, x[0, 0], full)
        if not right:
            tma.load(second, x[0, 0], full)
        full.wait(0)
        used.wait(0)
        full.arrive_expect_tx(second.nbytes)
        if right:
            tma.load(second, x[0, 0], full)
        full.wait(1)

    @role(warp=1)
    def read() -> None:
        full.wait(0)
        ld(first.at(warp.lane, 0), vec=4)
        used.arrive()


@kernel("sm_90a", threads=96)
def slow_waiter(iterations: u32, *, right: bool = False) -> None:
    """Two warps wait for each phase; nothing waits for one of them, which may wait after the next phase completes."""
    full, empty = mbarrier(1, name="full"), mbarrier(2 if right else 1, name="empty")
    with If(tid.x == 0):
        full.init()
        empty.init()
    bar.sync()

    @role(warp=0, elect=True)
    def signal() -> None:
        for iteration in loop(iterations):
            empty.wait((iteration & 1) ^ 1)
            full.arrive()

    @role(warps=(1, 2), elect=True)
    def watch() -> None:
        for iteration in loop(iterations):
            full.wait(iteration & 1)
            with If((warp.id == 1) | right):
                empty.arrive()


@kernel("sm_90a", threads=32)
def store_for_ever(iterations: u32) -> None:
    """A warp stores 40 times in each iteration."""
    words = smem.array(u32, 40 * 32)
    for _ in loop(iterations):
        for place in range(40):
            words[32 * place + tid.x] = place


@kernel("sm_90a", threads=64)
def order_dependent_store(x: Global[u32]) -> None:
    """The second of two warps stores; the default schedule runs one order only."""
    arrivals = smem.array(u32, 1)
    with If(tid.x == 0):
        arrivals[0] = 0
    bar.sync()

    @role(warp=0, elect=True)
    def early() -> None:
        with If(atom.add(arrivals, 1) == 1):
            st(x, 1)
            st(x + 1, 1)

    @role(warp=1, elect=True)
    def late() -> None:
        with If(atom.add(arrivals, 1) == 1):
            st(x, 2)
            st(x + 1, 2)


@kernel("sm_90a", threads=32)
def shared_counter(x: Global[u32], *, right: bool = False) -> None:
    """Each CTA increments a counter twice; a CTA that sees another's increment in between skips an arrival."""
    start, done = mbarrier(1, name="start"), mbarrier(1, name="done")
    with If(elect_one()):
        start.init()
        done.init()
        first = atom.add(x, 1)
        start.arrive()
        second = atom.add(x, 1)
        with If((second == first + 1) | right):
            done.arrive()
        done.wait(0)


@kernel("sm_90a", threads=64)
def crossed_locks(x: Global[u32], *, right: bool = False) -> None:
    """Two warps acquire two locks, each the other one first."""
    locks = smem.array(u32, 2)
    with If(tid.x < 2):
        locks[tid.x] = 0
    bar.sync()

    def acquire(lock: int) -> None:
        for _ in loop():
            old = atom.cas(locks + lock, 0, 1, sem="relaxed", scope="cta")
            fence.acq_rel("cta")
            Break(when=old == 0)

    def add(first: int, second: int) -> None:
        acquire(first)
        acquire(second)
        x[0] = x[0] + 1
        st(locks + second, 0, sem="release", scope="cta")
        st(locks + first, 0, sem="release", scope="cta")

    @role(warp=0, elect=True)
    def one() -> None:
        add(0, 1)

    @role(warp=1, elect=True)
    def two() -> None:
        add(0, 1) if right else add(1, 0)


@kernel("sm_90a", threads=96)
def counted(x: Global[u32], *, numbers: bool = False) -> None:
    """Two warps add to a word, and with ``numbers`` use its value; another warp waits for both."""
    arrivals = smem.array(u32, 1)
    with If(tid.x == 0):
        arrivals[0] = 0
    bar.sync()

    @role(warps=(0, 1), elect=True)
    def add() -> None:
        if numbers:
            x[1 + warp.id] = atom.add(arrivals, 1)
        else:
            red.add(arrivals, 1)

    @role(warp=2, elect=True)
    def wait() -> None:
        for _ in loop():
            Break(when=ld(arrivals, sem="relaxed", scope="cta") == 2)
        x[0] = 2


@kernel("sm_90a", threads=64)
def increment(x: Global[u32]) -> None:
    """Every thread increments a counter."""
    x[tid.x] = x[tid.x] + 1
