"""Kernels that share global memory between threads and between clusters; with ``right`` they are correct."""

from __future__ import annotations

from typing import Any

from tests.races.parts import initialise
from warpwright.lang import (
    Break,
    Global,
    If,
    atom,
    bar,
    cluster,
    cp_async,
    ctaid,
    elect_one,
    f32,
    fence,
    griddepcontrol,
    kernel,
    ld,
    loop,
    mbarrier,
    nctaid,
    red,
    smem,
    st,
    tid,
    tma,
    u32,
    var,
    warp,
)

ROWS, COLUMNS = 8, 32


def spin_until(pointer: Any, value: Any, **how: str) -> None:
    """Spin until memory has a value."""
    for _ in loop():
        Break(when=ld(pointer, **how) == value)


@kernel("sm_90a", threads=64)
def neighbours(x: Global[u32], y: Global[u32], *, right: bool = False) -> None:
    """Every thread reads a word that a thread of the other warp has written."""
    x[tid.x] = tid.x
    if right:
        bar.sync()
    y[tid.x] = x[63 - tid.x]


@kernel("sm_90a", threads=64)
def read_only_load(x: Global[u32], y: Global[u32], *, right: bool = False) -> None:
    """One warp reads with ld.global.nc what the other warp has written."""
    x[tid.x] = tid.x
    bar.sync()
    y[tid.x] = ld(x + (63 - tid.x), nc=not right)


@kernel("sm_90a", cluster=2, threads=32)
def pair(x: Global[u32], y: Global[u32], *, right: bool = False) -> None:
    """Every CTA reads what the other CTA of its cluster has written."""
    x[ctaid.x * 32 + tid.x] = tid.x
    if right:
        cluster.sync()
    y[ctaid.x * 32 + tid.x] = x[(ctaid.x ^ 1) * 32 + tid.x]


@kernel("sm_90a", threads=32)
def same_address(x: Global[u32], *, right: bool = False) -> None:
    """All CTAs write to one address."""
    x[ctaid.x * 32 + tid.x if right else tid.x] = ctaid.x


@kernel("sm_90a", threads=32)
def parts(x: Global[u32], *, right: bool = False) -> None:
    """A vector store writes four words; the last belongs to another CTA."""
    with If(ctaid.x == 0):
        st(x + tid.x * 4, *[tid.x] * 4)
    with If(ctaid.x == 1):
        x[tid.x * 4 + (128 if right else 3)] = 7


@kernel("sm_90a", threads=32)
def mixed_increments(x: Global[u32], *, right: bool = False) -> None:
    """All CTAs increment a counter; one of them without an atomic operation."""
    with If((ctaid.x > 0) | right):
        red.add(x, 1)
    if not right:
        with If((ctaid.x == 0) & (tid.x == 0)):
            x[0] = x[0] + 1


@kernel("sm_90a", threads=32)
def publish_by_flag(
    x: Global[u32],
    y: Global[u32],
    flag: Global[u32],
    *,
    store: str = "release.gpu",
    load: str = "acquire.gpu",
    before: str = "",
    after: str = "",
) -> None:
    """One CTA publishes data to the other by a flag; ``before`` and ``after`` are the scopes of fences around it."""
    with If((ctaid.x == 1) & (tid.x == 0)):
        x[0] = 5
        _fence(before)
        st(flag, 1, **_how(store))
    with If((ctaid.x == 0) & (tid.x == 0)):
        spin_until(flag, 1, **_how(load))
        _fence(after)
        y[0] = x[0]


def _how(words: str) -> dict[str, str]:
    return dict(zip(("sem", "scope"), words.split("."), strict=False))


def _fence(scope: str) -> None:
    if scope:
        fence.acq_rel(scope)  # type: ignore[arg-type]


@kernel("sm_90a", threads=64)
def last_block(
    x: Global[u32], y: Global[u32], count: Global[u32], *, fenced: bool = True, together: bool = True
) -> None:
    """The last CTA sums what all CTAs have written, as in the CUDA samples."""
    last = smem.array(u32, 1)
    x[ctaid.x * 64 + tid.x] = tid.x
    if fenced:
        fence.sc("gpu")
    if together:
        bar.sync()
    with If(tid.x == 0):
        last[0] = (atom.add(count, 1) == nctaid.x - 1).to(u32)
    bar.sync()
    with If(last[0] == 1):
        total = var(u32, 0)
        for each in loop(nctaid.x):
            total.set(total + x[each * 64 + tid.x])
        y[tid.x] = total


@kernel("sm_90a", threads=64)
def reset_counter(count: Global[u32], *, right: bool = False) -> None:
    """The last CTA that increments a counter resets it, as in the CUDA samples; wrong: the first one does."""
    old = smem.array(u32, 1)
    with If(tid.x == 0):
        fence.sc("gpu")
        old[0] = atom.add(count, 1)
    bar.sync()
    with If((tid.x == 5) & (old[0] == (nctaid.x - 1 if right else 0))):
        count[0] = 0


@kernel("sm_90a", threads=64)
def grid_barrier(
    x: Global[u32], y: Global[u32], count: Global[u32], *, before: bool = True, after: bool = True
) -> None:
    """All CTAs synchronise, then read what the next CTA has written."""
    x[ctaid.x * 64 + tid.x] = tid.x
    bar.sync()
    with If(tid.x == 0):
        if before:
            fence.acq_rel("gpu")
        red.add(count, 1)
        spin_until(count, nctaid.x, sem="relaxed", scope="gpu")
        if after:
            fence.acq_rel("gpu")
    bar.sync()
    other = (ctaid.x + 1) % nctaid.x
    y[ctaid.x * 64 + tid.x] = x[other * 64 + tid.x]


@kernel("sm_90a", threads=32)
def sum_under_lock(x: Global[u32], lock: Global[u32], *, right: bool = False) -> None:
    """Every CTA adds to a sum under a lock."""
    with If(tid.x == 0):
        for _ in loop():
            Break(when=atom.cas(lock, 0, 1, sem="acquire", scope="gpu") == 0)
        x[0] = x[0] + 1
        st(lock, 0, sem="release" if right else "relaxed", scope="gpu")


@kernel("sm_90a", threads=32)
def boxes(y: tma.Map[f32], *, right: bool = False) -> None:
    """CTAs store boxes that share a row."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for row in range(ROWS):
        st(tile.at(row, warp.lane), tid.x.to(f32))
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        tma.store(y[ctaid.x * (ROWS if right else ROWS - 1), 0], tile)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=32)
def sums(y: tma.Map[f32], *, right: bool = False) -> None:
    """CTAs reduce boxes to one address; the first CTA stores instead."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for row in range(ROWS):
        st(tile.at(row, warp.lane), tid.x.to(f32))
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        with If((ctaid.x > 0) | right):
            tma.reduce(y[0, 0], tile)
        if not right:
            with If(ctaid.x == 0):
                tma.store(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=32)
def sums_of_both(y: tma.Map[f32], x: Global[f32], *, right: bool = False) -> None:
    """One CTA reduces by TMA, the other by atomic operations: each is atomic only with its own kind."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for row in range(ROWS):
        st(tile.at(row, warp.lane), tid.x.to(f32))
    fence.proxy_async()
    warp.sync()
    with If((ctaid.x == 0) & elect_one()):
        tma.reduce(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)
    with If(ctaid.x == 1):
        red.add(x + (tid.x + (ROWS * COLUMNS if right else 0)), 1.0)


@kernel("sm_90a", threads=32)
def read_after_store(y: tma.Map[f32], x: Global[f32], z: Global[f32], *, right: bool = False) -> None:
    """The thread that issued a TMA store reads the result after cp.async.bulk.wait_group, with or without .read."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for row in range(ROWS):
        st(tile.at(row, warp.lane), tid.x.to(f32))
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        tma.store(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0, read=not right)
        z[0] = x[0]


@kernel("sm_90a", threads=32)
def write_under_load(y: tma.Map[f32], x: Global[f32], *, right: bool = False) -> None:
    """Threads write the memory that TMA loads."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    initialise(full)
    for row in range(ROWS):
        x[row * COLUMNS + tid.x] = tid.x.to(f32)
    if right:
        fence.proxy_async("global")
    warp.sync()
    with If(elect_one()):
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, y[0, 0], full)
    full.wait(0)


@kernel("sm_90a", threads=32)
def overwrite_box(y: tma.Map[f32], x: Global[f32], *, right: bool = False) -> None:
    """A box is overwritten while TMA loads it."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    initialise(full)
    warp.sync()
    with If(elect_one()):
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, y[0, 0], full)
    if right:
        full.wait(0)
    x[tid.x] = 1.0
    if not right:
        full.wait(0)


@kernel("sm_90a", threads=32)
def copy_rows(x: Global[u32], *, right: bool = False) -> None:
    """Two CTAs copy rows of 128 bytes; the second starts 16 bytes too early."""
    row = smem.array(u32, 32)
    row[tid.x] = tid.x
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        tma.copy((x + ctaid.x * (32 if right else 28)).address, row.address, 128)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=32)
def lanes_copy(x: Global[u32], *, right: bool = False) -> None:
    """Each thread overwrites memory that its neighbour's cp.async still reads."""
    buffer = smem.array(u32, 32)
    cp_async.copy(buffer + tid.x, x + tid.x, 4)
    cp_async.commit_group()
    if right:
        cp_async.wait_group(0)
        warp.sync()
    x[31 - tid.x] = 1
    if not right:
        cp_async.wait_group(0)


@kernel("sm_90a", threads=64)
def dependent_launch(x: Global[u32], y: Global[u32], *, first: bool = True, synced: bool = True) -> None:
    """The second of two overlapping launches; one thread waits for the first launch, and all synchronise."""
    with If(tid.x == 0):
        if first:
            griddepcontrol.wait()
    if synced:
        bar.sync()
    y[tid.x] = x[tid.x]
    if not first:
        griddepcontrol.wait()


@kernel("sm_90a", threads=32)
def dependent_copy(x: tma.Map[f32], y: Global[f32], *, first: bool = True) -> None:
    """TMA loads memory that an earlier launch writes."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        if first:
            griddepcontrol.wait()
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    warp.sync()
    full.wait(0)
    y[tid.x] = tile.at(0, tid.x)[0]
    if not first:
        griddepcontrol.wait()


@kernel("sm_90a", threads=32)
def relay_flags(x: Global[u32], y: Global[u32], flags: Global[u32], *, right: bool = False) -> None:
    """The second CTA publishes to the third what the first published to it; without acquire, it publishes only its own
    writes."""
    gpu = "gpu"
    with If((ctaid.x == 0) & (tid.x == 0)):
        x[0] = 5
        st(flags, 1, sem="release", scope=gpu)
    with If((ctaid.x == 1) & (tid.x == 0)):
        spin_until(flags, 1, sem="acquire" if right else "relaxed", scope=gpu)
        st(flags + 1, 1, sem="release", scope=gpu)
    with If((ctaid.x == 2) & (tid.x == 0)):
        spin_until(flags + 1, 1, sem="acquire", scope=gpu)
        y[0] = x[0]


@kernel("sm_90a", threads=32)
def tickets(x: Global[u32], y: Global[u32], count: Global[u32], *, right: bool = False) -> None:
    """The CTA with the last ticket reads what all CTAs wrote: each atomic operation reads the previous one's value; a
    plain store breaks the chain."""
    with If(tid.x == 0):
        x[ctaid.x] = ctaid.x
        if not right:
            with If(ctaid.x == 2):
                st(count, ld(count, sem="relaxed", scope="gpu"), sem="relaxed", scope="gpu")
        with If(atom.add(count, 1, sem="acq_rel", scope="gpu") == nctaid.x - 1):
            for each in range(4):
                y[each] = x[each]


@kernel("sm_90a", threads=32)
def load_in_other_cta(
    y: tma.Map[f32], x: Global[f32], flag: Global[u32], *, fenced: str = "writer", space: str = "global"
) -> None:
    """One CTA writes, the other loads by TMA; a proxy fence is before or after the flag."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    with If(ctaid.x == 1):
        for row in range(ROWS):
            x[row * COLUMNS + tid.x] = tid.x.to(f32)
        if fenced == "writer":
            fence.proxy_async(space)  # type: ignore[arg-type]
        warp.sync()
        with If(tid.x == 0):
            st(flag, 1, sem="release", scope="gpu")
    with If((ctaid.x == 0) & (tid.x == 0)):
        full.init()
        fence.mbarrier_init()
        spin_until(flag, 1, sem="acquire", scope="gpu")
        if fenced == "reader":
            fence.proxy_async(space)  # type: ignore[arg-type]
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, y[0, 0], full)
        full.wait(0)
