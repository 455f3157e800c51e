"""Mistakes of warps with roles, which hand data over in shared memory: at more than one CTA, in that of the next CTA.

``wrong`` names the mistake; without it the kernel is correct.
"""

from __future__ import annotations

from tests.races.parts import in_cta, next_rank, start
from warpwright.lang import (
    Break,
    Global,
    If,
    bar,
    ctaid,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    role,
    smem,
    st,
    tid,
    tma,
    u32,
    warp,
)
from warpwright.lang import cluster as ctas

ROWS, COLUMNS = 8, 32


@kernel("sm_90a", threads=64)
def write_then_read(*, cluster: int = 1, wrong: str = "") -> None:
    """A warp writes words of the next CTA and arrives there; the other warp waits and reads."""
    words, full = smem.array(u32, 32), mbarrier(32, name="full")
    start(full)

    @role(warp=0)
    def write() -> None:
        if wrong == "late":
            full.at(next_rank()).arrive()
        in_cta(next_rank(), words)[warp.lane] = warp.lane
        if wrong != "late":
            full.at(next_rank()).arrive(scope="cta" if wrong == "release" else "cluster")

    @role(warp=1)
    def read() -> None:
        if wrong != "unawaited":
            full.wait(1 if wrong == "parity" else 0, scope="cta" if wrong == "acquire" else "cluster")
        ld(words + (31 - warp.lane))

    ctas.sync()


@kernel("sm_90a", threads=64)
def read_then_write(*, cluster: int = 1, wrong: str = "") -> None:
    """A warp reads words of the next CTA and arrives there; the other warp waits and overwrites them."""
    words, read = smem.array(u32, 32), mbarrier(32, name="read")
    with If(warp.id == 0):
        words[warp.lane] = 0
    start(read)

    @role(warp=0)
    def load() -> None:
        ld(in_cta(next_rank(), words) + warp.lane)
        read.at(next_rank()).arrive()

    @role(warp=1)
    def store() -> None:
        if not wrong:
            read.wait(0, scope="cluster")
        words[31 - warp.lane] = 1

    ctas.sync()


@kernel("sm_90a", threads=224)
def two_readers(*, cluster: int = 1, bars: int = 2, widths: tuple[int, ...] = (1, 1, 1), wrong: str = "") -> None:
    """Roles of some warps each: two read words of the next CTA, the third waits for both and overwrites the words."""
    words = smem.array(u32, 128)
    one, two, three = widths
    counts = (32 * one, 32 * two) if bars == 2 else (32 * (one if wrong == "count" else one + two),) * 2
    read = [mbarrier(count, name=f"read{number}") for number, count in enumerate(counts)]
    with If(tid.x < 128):
        words[tid.x] = 0
    start(*read)

    @role(warps=range(one))
    def first() -> None:
        ld(in_cta(next_rank(), words) + tid.x)
        read[0].at(next_rank()).arrive()

    @role(warps=range(one, one + two))
    def second() -> None:
        ld(in_cta(next_rank(), words) + warp.lane)
        read[bars - 1].at(next_rank()).arrive()

    @role(warps=range(one + two, one + two + three))
    def write() -> None:
        for number in range(bars):
            if wrong not in (f"missing{number}", "unawaited"):
                read[number].wait(0, scope="cluster")
        words[tid.x - 32 * (one + two)] = 1

    ctas.sync()


@kernel("sm_90a", threads=96)
def reader_loop(iterations: u32, *, cluster: int = 1, wrong: str = "") -> None:
    """A warp writes words of the next CTA in a loop, for two readers; each signal has its mbarrier, and ``wrong`` is
    the number of one that its role does not wait for."""
    words = smem.array(u32, 32)
    read = [mbarrier(32, name="read0"), mbarrier(32, name="read1")]
    written = [mbarrier(32, name="written0"), mbarrier(32, name="written1")]
    start(*read, *written)
    before = (ctas.rank + ctas.size - 1) % ctas.size

    @role(warp=0)
    def first() -> None:
        for number in loop(iterations):
            if wrong != "2":
                written[0].wait(number & 1, scope="cluster")
            ld(words + warp.lane)
            read[0].at(before).arrive()

    @role(warp=1)
    def second() -> None:
        for number in loop(iterations):
            if wrong != "3":
                written[1].wait(number & 1, scope="cluster")
            ld(words + warp.lane)
            read[1].at(before).arrive()

    @role(warp=2)
    def write() -> None:
        for number in loop(iterations):
            if wrong != "0":
                read[0].wait((number & 1) ^ 1, scope="cluster")
            if wrong != "1":
                read[1].wait((number & 1) ^ 1, scope="cluster")
            in_cta(next_rank(), words)[31 - warp.lane] = number
            written[0].at(next_rank()).arrive()
            written[1].at(next_rank()).arrive()

    ctas.sync()


@kernel("sm_90a", threads=64)
def two_buffers(iterations: u32, *, cluster: int = 1, wrong: str = "") -> None:
    """A warp writes two buffers, with a signal each; the reader takes the second after the first signal."""
    buffers = [smem.array(u32, 32) for _ in range(2)]
    written, read = mbarrier.array(2, 32, name="written"), mbarrier(32, name="read")
    start(*written, read)
    before = (ctas.rank + ctas.size - 1) % ctas.size

    @role(warp=0)
    def write() -> None:
        for number in loop(iterations):
            read.wait((number & 1) ^ 1, scope="cluster")
            for buffer, signal in zip(buffers, written, strict=True):
                in_cta(next_rank(), buffer)[warp.lane] = number
                signal.at(next_rank()).arrive()

    @role(warp=1)
    def load() -> None:
        for number in loop(iterations):
            written[0].wait(number & 1, scope="cluster")
            ld(buffers[1 if wrong else 0] + (31 - warp.lane))
            written[1].wait(number & 1, scope="cluster")
            read.at(before).arrive()

    ctas.sync()


@kernel("sm_90a", threads=128)
def two_producers(iterations: u32, *, cluster: int = 1, wrong: str = "") -> None:
    """Two producers and two consumers share one mbarrier in each direction; ``wrong`` is the consumer that does not
    wait."""
    words, full, empty = smem.array(u32, 64), mbarrier(64, name="full"), mbarrier(64, name="empty")
    start(full, empty)
    before = (ctas.rank + ctas.size - 1) % ctas.size

    @role(warps=range(2))
    def produce() -> None:
        for number in loop(iterations):
            empty.wait((number & 1) ^ 1, scope="cluster")
            in_cta(next_rank(), words)[tid.x] = number
            full.at(next_rank()).arrive()

    @role(warps=(2, 3))
    def consume() -> None:
        for number in loop(iterations):
            with If(warp.id != (int(wrong) if wrong else 0)):
                full.wait(number & 1, scope="cluster")
            ld(words + (tid.x - 64))
            empty.at(before).arrive()

    ctas.sync()


@kernel("sm_90a", threads=64)
def overlapping_slices(*, cluster: int = 1, wrong: str = "") -> None:
    """A warp writes a buffer, the other reads a part of it: they race if the written part overlaps."""
    words, full = smem.array(u32, 64), mbarrier(32, name="full")
    start(full)

    @role(warp=0)
    def write() -> None:
        there = in_cta(next_rank(), words)
        st(there + 2 * warp.lane, 1, 1)
        full.at(next_rank()).arrive()

    @role(warp=1)
    def read() -> None:
        if not wrong:
            full.wait(0, scope="cluster")
        ld(words + (32 + warp.lane))

    ctas.sync()


@kernel("sm_90a", threads=64)
def fenced_store(y: tma.Map[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """A warp writes a tile, another stores it by TMA; ``wrong`` says where the proxy fence is."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(32, name="full")
    start(full)

    @role(warp=0)
    def write() -> None:
        for row in range(ROWS):
            tile.at(row, warp.lane)[0] = 1.0
        if not wrong:
            fence.proxy_async()
        full.arrive()
        if wrong == "after_arrive":
            fence.proxy_async()

    @role(warp=1, elect=True)
    def store() -> None:
        full.wait(0)
        if wrong == "consumer":
            fence.proxy_async()
        tma.store(y[ctaid.x * ROWS, 0], tile)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=64)
def flag(*, cluster: int = 1, wrong: str = "") -> None:
    """A thread publishes words of the next CTA by a flag there; ``wrong`` says which side is too weak."""
    words, flags = smem.array(u32, 4), smem.array(u32, 4)
    with If(tid.x == 0):
        flags[0] = 0
    ctas.sync()
    with If(tid.x == 0):
        in_cta(next_rank(), words)[0] = 7
        scope = "cta" if wrong == "scope" else "cluster"
        st(in_cta(next_rank(), flags), 1, sem="relaxed" if wrong == "store" else "release", scope=scope)
    with If(tid.x == 32):
        for _ in loop():
            Break(when=ld(flags, sem="relaxed" if wrong == "load" else "acquire", scope="cluster") == 1)
        ld(words)
    ctas.sync()


@kernel("sm_90a", threads=32)
def exchange(x: Global[u32], *, cluster: int = 1, wrong: str = "") -> None:
    """Each CTA writes to the next one, and reads from it; ``wrong`` says which barrier of the cluster is missing."""
    words = smem.array(u32, 32)
    if wrong != "entry":
        ctas.sync()
    if wrong == "late":
        ctas.arrive()
    in_cta(next_rank(), words)[warp.lane] = warp.lane
    if wrong == "relaxed":
        ctas.arrive("relaxed")
        ctas.wait()
    elif wrong in ("late", "unarrived"):
        ctas.wait()
    elif wrong == "cta":
        bar.sync()
    else:
        ctas.sync()
    ld(words + (31 - warp.lane))
    ld(in_cta(next_rank(), words) + (31 - warp.lane))
    if wrong == "reused":
        words[31 - warp.lane] = 1
    if wrong != "exit":
        ctas.sync()
    x[ctaid.x * 32 + tid.x] = words[warp.lane]
