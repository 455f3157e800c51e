"""Kernels that use the memory of a peer GPU: stores, loads, TMA in both directions, reductions, flags."""

from __future__ import annotations

from warpwright.lang import (
    Break,
    Global,
    If,
    Ring,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    nctaid,
    role,
    smem,
    st,
    tid,
    tma,
    u32,
    var,
    warp,
)
from warpwright.types import Scalar

THREADS = 1024
VECTORS = 4  # of 16 bytes, that a thread has in flight
CHUNK = THREADS * VECTORS * 16  # bytes that a CTA moves in a round
ROWS, ROW_BYTES = 128, 128
TILE = ROWS * ROW_BYTES  # bytes of a TMA box
POLLS = 1 << 21  # of a flag, before a thread stops waiting: about 2 s


@kernel("sm_90a", threads=THREADS)
def write_words(target: Global[u32], chunks: u32, value: u32) -> None:
    """Store ``value`` to every word, 16 bytes an instruction."""
    for chunk in loop(ctaid.x, chunks, nctaid.x):
        for i in range(VECTORS):
            st(target + (chunk * (CHUNK // 4) + (tid.x + i * THREADS) * 4), value, value, value, value)


@kernel("sm_90a", threads=THREADS)
def read_words(source: Global[u32], chunks: u32, sums: Global[u32]) -> None:
    """Load every word, 16 bytes an instruction; each thread writes its sum."""
    total = var(u32, 0)
    for chunk in loop(ctaid.x, chunks, nctaid.x):
        first = source + chunk * (CHUNK // 4)
        for words in [ld(first + (tid.x + i * THREADS) * 4, vec=4) for i in range(VECTORS)]:
            for word in words:
                total += word
    sums[ctaid.x * THREADS + tid.x] = total


@kernel("sm_90a", threads=ROWS)
def write_tiles(target: tma.Map[Scalar], tiles: u32, *, dtype: type[Scalar] = f32, add: bool = False, flight: int = 8):
    """Store a tile of ones to every box, or add it to the box; ``flight`` stores are in flight."""
    columns = ROW_BYTES // dtype.nbytes
    tile = smem.tile(dtype, (ROWS, columns), swizzle=128)
    for column in range(0, columns, 4):
        st(tile.at(tid.x, column), *[1.0] * 4)
    fence.proxy_async()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        for k in loop(ctaid.x, tiles, nctaid.x):
            (tma.reduce if add else tma.store)(target[k * ROWS, 0], tile)
            tma.commit_group()
            tma.wait_group(flight - 1)
        tma.wait_group(0)


@kernel("sm_90a", threads=64)
def read_tiles(source: tma.Map[bf16], tiles: u32, sums: Global[u32], *, flight: int = 12) -> None:
    """Load every box; a CTA writes the sum of the first words of its boxes."""
    ring = Ring(flight, full=1, empty=1, tile=smem.tile(bf16, (ROWS, ROW_BYTES // 2), swizzle=128))
    with If((warp.id == 0) & elect_one()):
        ring.init()
        fence.mbarrier_init()
    bar.sync()

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for k in loop(ctaid.x, tiles, nctaid.x):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.tile, source[k * ROWS, 0], slot.full)

    @role(warp=1, elect=True)
    def add() -> None:
        slots, total = ring.consumer(), var(u32, 0)
        for _ in loop(ctaid.x, tiles, nctaid.x):
            slot = next(slots)
            slot.full.wait()
            total += ld(slot.tile.at(0, 0).cast(u32))
            fence.proxy_async()
            slot.empty.arrive()
        sums[ctaid.x] = total


@kernel("sm_90a", threads=32)
def exchange(own: Global[u32], peer: Global[u32], base: u32, rounds: u32, leads: u32, met: Global[u32]) -> None:
    """Flags to and fro: the leader writes the flag at ``peer`` and waits for its own; the other GPU answers.

    ``met`` receives the rounds that ended. A thread that waits in vain leaves.
    """
    with If(tid.x == 0):
        count = var(u32, 0)
        for i in loop(rounds):
            flag, polls = base + i, var(u32, 0)
            with If(leads == 1):
                st(peer, flag, sem="release", scope="sys")
            for _ in loop():
                seen = ld(own, sem="acquire", scope="sys")
                polls += 1
                Break(when=(seen == flag) | (polls > POLLS))
            Break(when=polls > POLLS)
            with If(leads == 0):
                st(peer, flag, sem="release", scope="sys")
            count += 1
        met[0] = count


@kernel("sm_90a", threads=32)
def chase(source: Global[u32], rounds: u32, end: Global[u32]) -> None:
    """Dependent loads of one thread over zeros: each address is the value of the load before."""
    with If(tid.x == 0):
        index = var(u32, 0)
        for _ in loop(rounds):
            index.set(ld(source + index, sem="relaxed", scope="sys"))
        end[0] = index
