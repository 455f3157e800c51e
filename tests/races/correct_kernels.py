"""Kernels that look wrong and are correct: every finding in them is a false positive."""

from __future__ import annotations

from tests.races.parts import initialise, load_operands
from warpwright.lang import (
    Global,
    If,
    atom,
    bar,
    bf16,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    mbarrier,
    red,
    smem,
    st,
    tid,
    tma,
    u32,
    warp,
    wgmma,
)

ROWS, COLUMNS = 32, 32


@kernel("sm_90a", threads=64)
def loads_and_stores(x: tma.Map[f32], y: tma.Map[f32]) -> None:
    """A wait alone orders reads after a load; parity 1 of a fresh mbarrier passes; threads and TMA read the same memory
    without synchronisation."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    initialise(full)
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


@kernel("sm_90a", threads=128)
def chained_wgmma(a: tma.Map[bf16], b: tma.Map[bf16], d: Global[f32]) -> None:
    """wgmma of one shape into one accumulator need no fence between them, also in separate groups; nvcc copies
    accumulator registers after the fence."""
    a_tile, b_tile = load_operands(a, b)
    acc = wgmma.accumulator(f32, (64, 64))
    wgmma.fence()
    for register in acc.regs:
        register.set(0.0)
    for k in range(0, 64, 16):
        wgmma.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=True)
        wgmma.commit_group()
    wgmma.wait_group(0)
    d[tid.x] = acc.regs[0]


@kernel("sm_90a", threads=64)
def padded_rows(x: Global[f32]) -> None:
    """A row of three numbers is read as four; no thread writes or uses the fourth."""
    rows = smem.array(f32, 64 * 4)
    for column in range(3):
        rows[4 * tid.x + column] = tid.x.to(f32)
    bar.sync()
    a, b, c, _ = ld(rows + 4 * (63 - tid.x), vec=4)
    x[tid.x] = a + b + c


@kernel("sm_90a", threads=20)
def clipped_box(y: tma.Map[f32]) -> None:
    """The rows of a box outside the array are not stored; no thread has written them."""
    tile = smem.tile(f32, (ROWS, COLUMNS))
    for column in range(COLUMNS):
        st(tile.at(tid.x, column), tid.x.to(f32))
    fence.proxy_async()
    bar.sync()
    with If(tid.x == 0):
        tma.store(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=64)
def count_atomically(x: Global[u32]) -> None:
    """Atomic operations of many threads on one word, and on a word that the first of them writes."""
    count = smem.array(u32, 4)
    with If(tid.x == 0):
        count[0] = 0
    bar.sync()
    atom.add(count, 1)
    red.add(count, 1)
    atom.exch(count + 1, tid.x)
    atom.exch(count + 1, tid.x)
    bar.sync()
    x[tid.x] = count[0]
