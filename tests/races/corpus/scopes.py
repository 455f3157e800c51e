"""Mistakes in who knows what: lanes of a warp, scopes, proxies, and what an arrival or a wait covers.

``wrong`` names the mistake; without it the kernel is correct.
"""

from __future__ import annotations

from tests.races.parts import in_cta, initialise, next_rank, start
from warpwright.lang import (
    Break,
    Global,
    If,
    b128,
    bar,
    clusterlaunchcontrol,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    pred,
    red,
    smem,
    tid,
    tma,
    u32,
    warp,
)
from warpwright.lang import cluster as ctas
from warpwright.lang.context import current
from warpwright.lang.trace import addr

ROWS, COLUMNS = 8, 32


@kernel("sm_90a", threads=64)
def lanes(*, cluster: int = 1, wrong: str = "") -> None:
    """One lane writes words of the next CTA and another arrives; one lane waits there and another reads: a barrier of
    each warp connects them."""
    words, full = smem.array(u32, 4), mbarrier(1, name="full")
    start(full)
    with If(warp.id == 0):
        with If(warp.lane == 1):
            in_cta(next_rank(), words)[0] = 7
        if wrong == "partial":
            with If((warp.lane == 0) | (warp.lane == 2)):
                warp.sync(5)
        elif wrong != "writer":
            warp.sync()
        with If(warp.lane == 0):
            full.at(next_rank()).arrive()
    with If(warp.id == 1):
        with If(warp.lane == 0):
            full.wait(0, scope="cluster")
        if wrong != "reader":
            warp.sync()
        with If(warp.lane == 1):
            ld(words)
    ctas.sync()


@kernel("sm_90a", threads=64)
def load_lane(x: tma.Map[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """One lane waits for a load of TMA; another lane of its warp, or another warp, reads the tile."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    start(full)
    with If(tid.x == 0):
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
        full.wait(0)
    if wrong != "lane":
        warp.sync()
    if wrong not in ("lane", "warp"):
        bar.sync()
    with If(tid.x == (1 if wrong == "lane" else 32)):
        ld(tile.at(0, 0), vec=4)


@kernel("sm_90a", threads=64)
def relaxed_mbarrier(*, cluster: int = 1, wrong: str = "") -> None:
    """A warp hands words over by an mbarrier; the arrival does not release them, or the wait does not acquire them."""
    words, full = smem.array(u32, 32), mbarrier(32, name="full")
    start(full)
    with If(warp.id == 0):
        in_cta(next_rank(), words)[warp.lane] = 1
        order = "relaxed" if wrong == "arrive" else "release"
        opcode = f"mbarrier.arrive.{order}.cluster.shared::cluster.b64"
        current().emit(opcode, "_", full.at(next_rank()).operand)
    with If(warp.id == 1):
        order = "relaxed" if wrong == "wait" else "acquire"
        opcode = f"mbarrier.try_wait.parity.{order}.cluster.shared::cta.b64"
        for _ in loop():
            Break(when=current().result(opcode, pred, full.operand, 0))
        ld(words + (31 - warp.lane))
    ctas.sync()


@kernel("sm_90a", threads=32)
def fence_space(y: Global[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """Threads write words that a bulk copy reads; the proxy fence names another space, or comes before the write."""
    words = smem.array(f32, 32, align=128)
    if wrong == "early":
        fence.proxy_async()
    words[tid.x] = 1.0
    if wrong != "early":
        fence.proxy_async("global" if wrong == "global" else "shared::cta")
    warp.sync()
    with If(elect_one()):
        tma.copy((y + ctaid.x * 32).address, words.address, 128)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=32)
def load_written(x: tma.Map[f32], y: Global[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """Each CTA writes a row of global memory, and TMA of the next CTA loads it."""
    tile, full = smem.tile(f32, (1, COLUMNS)), mbarrier(1, name="full")
    initialise(full)
    y[ctas.rank * COLUMNS + tid.x] = 1.0
    if wrong != "unfenced":
        fence.proxy_async("shared::cta" if wrong == "shared" else "global")
    if wrong != "unsynced":
        ctas.sync()
    with If(elect_one()):
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[next_rank(), 0], full)
    full.wait(0)
    ctas.sync()


@kernel("sm_90a", threads=32)
def publish_store(y: Global[u32], *, cluster: int = 1, wrong: str = "") -> None:
    """A bulk copy writes global memory, which the next CTA reads after an arrival."""
    words, full = smem.array(u32, 32, align=128), mbarrier(1, name="full")
    words[tid.x] = 7
    fence.proxy_async()
    start(full)
    with If(elect_one()):
        tma.copy((y + ctas.rank * 32).address, words.address, 128)
        tma.commit_group()
        if wrong != "unawaited":
            tma.wait_group(0, read=wrong == "read_only")
        full.at(next_rank()).arrive()
        tma.wait_group(0)
    full.wait(0, scope="cluster")
    ld(y + (((ctas.rank + ctas.size - 1) % ctas.size) * 32 + tid.x))
    ctas.sync()


@kernel("sm_90a", threads=32)
def copy_to_next(*, cluster: int = 2, wrong: str = "") -> None:
    """A bulk copy to the shared memory of the next CTA, whose mbarrier counts the bytes; then its source is reused."""
    source, target = smem.array(u32, 32, align=128), smem.array(u32, 32, align=128)
    full, read = mbarrier(1, name="full"), mbarrier(32, name="read")
    source[tid.x] = tid.x
    if wrong != "unfenced":
        fence.proxy_async()
    initialise(full, read)
    if wrong != "entry":
        ctas.sync()
    with If(elect_one()):
        full.arrive_expect_tx(128)
        opcode = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        there = in_cta(next_rank(), target)
        current().emit(opcode, addr(there.address), addr(source.address), 128, full.at(next_rank()).operand)
    if wrong != "early":
        full.wait(0)
    ld(target + (31 - tid.x))
    full.wait(0)
    if wrong != "exit":
        read.at((ctas.rank + ctas.size - 1) % ctas.size).arrive()
    if wrong not in ("reused", "exit"):
        read.wait(0, scope="cluster")
    if wrong != "exit":
        source[tid.x] = 0
        ctas.sync()


@kernel("sm_90a", threads=32)
def scoped_count(*, cluster: int = 2, wrong: str = "") -> None:
    """The CTAs of a cluster count in the first one's memory, by atomic operations of a scope, or not atomically."""
    count = smem.array(u32, 4)
    with If(tid.x == 0):
        count[0] = 0
    ctas.sync()
    there = in_cta(ctas.rank * 0, count)
    with If(tid.x == 0):
        if wrong == "plain":
            there[0] = there[0] + 1
        else:
            red.add(there, 1, scope="cta" if wrong == "scope" else "cluster")
    if wrong != "unsynced":
        ctas.sync()
    with If(ctas.rank == 0):
        ld(count)
    ctas.sync()


@kernel("sm_90a", threads=64)
def shared_ring(x: tma.Map[f32], tiles: u32, *, cluster: int = 1, wrong: str = "") -> None:
    """The first CTA loads tiles for all CTAs, whose readers release them at its mbarrier."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    full, empty = mbarrier(1, name="full"), mbarrier(32 if wrong == "count" else 32 * cluster, name="empty")
    start(full, empty)
    with If((warp.id == 0) & elect_one()):
        for number in loop(tiles):
            if wrong == "unreleased":
                full.arrive_expect_tx(tile.nbytes)
            with If(ctas.rank == 0):
                if wrong != "unreleased":
                    empty.wait((number & 1) ^ 1, scope="cluster")
                for rank in range(cluster):
                    if wrong != "unreleased":
                        full.at(rank).arrive_expect_tx(tile.nbytes)
                tma.load(tile, x[0, 0], full, multicast=(1 << cluster) - 1)
            if wrong == "unreleased":
                full.wait(number & 1)
    with If(warp.id == 1):
        for number in loop(tiles):
            full.wait(number & 1)
            if wrong == "early":
                empty.at(0).arrive()
            ld(tile.at(warp.lane // 4, 0), vec=4)
            fence.proxy_async()
            if wrong != "early":
                empty.at(ctas.rank if wrong == "local" else 0).arrive()
    warp.sync()
    ctas.sync()


@kernel("sm_100a", threads=32)
def cancel(*, cluster: int = 1, wrong: str = "") -> None:
    """A thread asks for the work of another cluster and reads the response, twice."""
    response, full = smem.array(u32, 4, align=16), mbarrier(1, name="full")
    start(full)
    for phase in range(2):
        with If(elect_one()):
            full.arrive_expect_tx(8 if wrong == "fewer" else 16)
            clusterlaunchcontrol.try_cancel(response.address, full)
        if wrong != "early":
            full.wait(phase)
        clusterlaunchcontrol.is_canceled(ld(response.cast(b128)))
        full.wait(phase)
        if wrong != "unfenced":
            fence.proxy_async()
        if wrong != "unsynced":
            warp.sync()
    ctas.sync()


@kernel("sm_90a", threads=32)
def bad_address(x: Global[u32], offset: u32, *, cluster: int = 1, wrong: str = "", space: str = "shared") -> None:
    """An access outside its allocation, or whose address is no multiple of its size."""
    words = smem.array(u32, 64)
    words[tid.x] = 0
    words[32 + tid.x] = 0
    ctas.sync()
    if space == "cluster":
        place = in_cta(ctas.rank + (offset if wrong else 0), words)
    else:
        place = (words if space == "shared" else x) + (offset if wrong else 0)
    if wrong == "misaligned":
        ld(place, vec=4)
    else:
        ld(place)
    ctas.sync()
