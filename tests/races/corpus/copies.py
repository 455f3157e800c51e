"""Mistakes with copies: TMA in tiles, in bulk and to several CTAs, `cp.async`, and `st.async`.

``wrong`` names the mistake; without it the kernel is correct.
"""

from __future__ import annotations

from tests.races.parts import in_cta, initialise, next_rank, start
from warpwright.lang import (
    Global,
    If,
    bar,
    cp_async,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    smem,
    st,
    tid,
    tma,
    u32,
    warp,
)
from warpwright.lang import cluster as ctas
from warpwright.lang.context import current
from warpwright.lang.trace import addr

ROWS, COLUMNS = 8, 32
DELTAS = {"fewer": -16, "more": 16}


@kernel("sm_90a", threads=64)
def load_tile(x: tma.Map[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """Threads read a tile of TMA: too early, or they overwrite it, or the bytes are not those of the copy."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    if wrong == "init_unfenced":
        with If(tid.x == 0):
            full.init()
        ctas.sync()
    else:
        start(full)
    with If((warp.id == 0) & elect_one()):
        full.arrive_expect_tx(tile.nbytes + DELTAS.get(wrong, 0))
        tma.load(tile, x[0, 0], full)
    if wrong == "overwritten":
        tile.at(warp.id, warp.lane)[0] = 1.0
    if wrong not in ("early", "left"):
        full.wait(0)
    if wrong != "left":
        ld(tile.at(warp.lane // 4, 0), vec=4)
        full.wait(0)


@kernel("sm_90a", threads=64)
def load_bytes(x: Global[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """As `load_tile`, with a bulk copy."""
    words, full = smem.array(f32, 256, align=128), mbarrier(1, name="full")
    start(full)
    with If((warp.id == 0) & elect_one()):
        full.arrive_expect_tx(1024 + DELTAS.get(wrong, 0))
        tma.copy(words.address, x.address, 1024, full)
    if wrong == "overwritten":
        words[tid.x] = 1.0
    if wrong not in ("early", "left"):
        full.wait(0)
    if wrong != "left":
        ld(words + 4 * tid.x, vec=4)
        full.wait(0)


@kernel("sm_90a", threads=64)
def load_all(x: tma.Map[f32], *, cluster: int = 2, wrong: str = "") -> None:
    """One CTA loads a tile for all CTAs of the cluster, twice."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    ranks = (1 << cluster) - 1
    initialise(full)
    if wrong != "entry":
        ctas.sync()
    for phase in range(2):
        with If((warp.id == 0) & elect_one()):
            full.arrive_expect_tx(tile.nbytes + DELTAS.get(wrong, 0))
            with If(ctas.rank == 0):
                tma.load(tile, x[0, 0], full, multicast=1 if wrong == "alone" else ranks)
        if wrong == "overwritten":
            tile.at(warp.id, warp.lane)[0] = 1.0
        if wrong != "early":
            full.wait(phase)
        ld(tile.at(warp.lane // 4, 0), vec=4)
        full.wait(phase)
        fence.proxy_async()
        if wrong != "reused":
            ctas.sync()
    ctas.sync()


@kernel("sm_90a", threads=64)
def load_two(x: tma.Map[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """Two loads, each with its tile and its mbarrier."""
    tiles = [smem.tile(f32, (ROWS, COLUMNS)) for _ in range(2)]
    full = mbarrier.array(2, name="full")
    start(*full)
    for number in range(2):
        with If((warp.id == 0) & elect_one()):
            full[number].arrive_expect_tx(tiles[0].nbytes)
            tma.load(tiles[0 if wrong == "one_tile" else number], x[0, 0], full[number])
    if wrong != "first":
        full[0].wait(0)
    if wrong != "second":
        full[1].wait(0)
    ld(tiles[0].at(warp.lane // 4, 0), vec=4)
    ld(tiles[1 if wrong != "one_tile" else 0].at(warp.lane // 4, 4), vec=4)
    for each in full:
        each.wait(0)


@kernel("sm_90a", threads=64)
def load_after_store(x: tma.Map[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """Threads write a tile, and then TMA overwrites it."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    start(full)
    tile.at(warp.id, warp.lane)[0] = 1.0
    if wrong not in ("unfenced", "late"):
        fence.proxy_async()
    if wrong != "unsynced":
        bar.sync()
    with If((warp.id == 0) & elect_one()):
        if wrong == "late":
            fence.proxy_async()
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    full.wait(0)
    ld(tile.at(warp.lane // 4, 0), vec=4)


@kernel("sm_90a", threads=64)
def store_tiles(y: tma.Map[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """TMA stores two tiles, and threads write them again."""
    tiles = [smem.tile(f32, (ROWS, COLUMNS)) for _ in range(2)]
    for tile in tiles:
        for row in range(0, ROWS, 2):
            tile.at(row + warp.id, warp.lane)[0] = 1.0
    if wrong != "unfenced":
        fence.proxy_async()
    if wrong != "unsynced":
        bar.sync()
    with If((warp.id == 0) & elect_one()):
        for number, tile in enumerate(tiles):
            first_row = 0 if wrong == "same_box" else ctaid.x * ROWS
            tma.store(y[first_row, 0 if wrong == "twice" else number * COLUMNS], tile)
            if wrong != "uncommitted":
                tma.commit_group()
        if wrong == "empty":
            tma.commit_group()
        if wrong != "reused":
            tma.wait_group({"pending": 1, "empty": 2}.get(wrong, 0), read=True)
    bar.sync()
    tiles[1].at(warp.id, warp.lane)[0] = 2.0
    with If((warp.id == 0) & elect_one()):
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=64)
def store_bytes(y: Global[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """A bulk copy from shared memory, which threads write again; then its thread reads the result."""
    words = smem.array(f32, 64, align=128)
    mine = y + ctaid.x * 64
    words[tid.x] = 1.0
    if wrong != "unfenced":
        fence.proxy_async()
    bar.sync()
    with If((warp.id == 0) & elect_one()):
        tma.copy(mine.address, words.address, 256)
        tma.commit_group()
        if wrong != "reused":
            tma.wait_group(0, read=wrong == "read_back")
            ld(mine)
    bar.sync()
    words[63 - tid.x] = 2.0
    with If((warp.id == 0) & elect_one()):
        tma.wait_group(0)


@kernel("sm_90a", threads=64)
def waits_of_others(y: tma.Map[f32], *, cluster: int = 1, wrong: str = "") -> None:
    """One thread stores by TMA; another waits for its own groups, of which it has none, and overwrites the tile."""
    tile, stored = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="stored")
    start(stored)
    with If(warp.id == 0):
        for row in range(ROWS):
            tile.at(row, warp.lane)[0] = 1.0
        fence.proxy_async()
        warp.sync()
    with If(tid.x == 0):
        tma.store(y[ctaid.x * ROWS, 0], tile)
        tma.commit_group()
        if not wrong:
            tma.wait_group(0, read=True)
        stored.arrive()
    with If(warp.id == 1):
        stored.wait(0)
        tma.wait_group(0)
        tile.at(0, warp.lane)[0] = 2.0
    with If(tid.x == 0):
        tma.wait_group(0)


@kernel("sm_90a", threads=64)
def copy_stages(x: Global[u32], *, cluster: int = 1, wrong: str = "") -> None:
    """Each thread copies to two stages with `cp.async`; its neighbours read the first."""
    stages = [smem.array(u32, 256) for _ in range(2)]
    for stage in stages:
        cp_async.copy(stage + tid.x * 4, x + tid.x * 4)
        if wrong != "uncommitted":
            cp_async.commit_group()
    if wrong == "overwritten":
        stages[0][tid.x * 4] = 1
    if wrong == "source":
        x[ctaid.x * 256 + tid.x * 4] = 1
    if wrong == "copied_again":
        cp_async.copy(stages[0] + tid.x * 4, x + tid.x * 4)
    if wrong != "unawaited":
        cp_async.wait_group(1 if wrong in ("", "other_stage", "unsynced") else 2 if wrong == "deep" else 0)
    if wrong != "unsynced":
        bar.sync()
    ld(stages[1 if wrong == "other_stage" else 0] + 4 * (63 - tid.x), vec=4)
    cp_async.wait_group(0)


@kernel("sm_90a", threads=64)
def copy_loop(x: Global[u32], tiles: u32, *, cluster: int = 1, wrong: str = "") -> None:
    """A pipeline of `cp.async` with two stages; a thread that is ahead overwrites what its neighbour still reads."""
    stages = smem.array(u32, 512)
    for number in loop(tiles):
        cp_async.copy(stages + ((number & 1) * 256 + tid.x * 4), x + tid.x * 4)
        cp_async.commit_group()
        cp_async.wait_group(0)
        bar.sync()
        ld(stages + ((number & 1) * 256 + 4 * (63 - tid.x)), vec=4)
        if not wrong:
            bar.sync()
        stages[(number & 1) * 256 + tid.x * 4] = number


@kernel("sm_90a", threads=64)
def copy_for_others(x: Global[u32], *, cluster: int = 1, wrong: str = "") -> None:
    """A warp copies with `cp.async` and signals another one, which overwrites what was copied."""
    words, full = smem.array(u32, 128), mbarrier(32, name="full")
    start(full)
    with If(warp.id == 0):
        cp_async.copy(words + tid.x * 4, x + tid.x * 4)
        cp_async.commit_group()
        if not wrong:
            cp_async.wait_group(0)
        full.arrive()
    with If(warp.id == 1):
        full.wait(0)
        words[warp.lane] = 1
    cp_async.wait_group(0)


@kernel("sm_90a", threads=32)
def store_async(x: Global[u32], *, cluster: int = 2, wrong: str = "") -> None:
    """Each CTA sends words to the next one with `st.async`, which counts their bytes there."""
    words, full = smem.array(u32, 32), mbarrier(1, name="full")
    initialise(full)
    if wrong != "entry":
        ctas.sync()
    with If(elect_one()):
        full.arrive_expect_tx(128 + DELTAS.get(wrong, 0))
    there, barrier = in_cta(next_rank(), words) + tid.x, full.at(next_rank())
    opcode = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32"
    current().emit(opcode, addr(there.address), tid.x, barrier.operand)
    if wrong != "early":
        full.wait(0)
    ld(words + tid.x)
    full.wait(0)
    ctas.sync()
    st(x + (ctaid.x * 32 + tid.x), ld(words + tid.x))
