"""Mistakes with `cp.async`, whose copies are in flight until the issuing thread waits for them, or an mbarrier counts
them.
"""

from __future__ import annotations

from warpwright.lang import (
    Global,
    If,
    bar,
    cp_async,
    f32,
    fence,
    kernel,
    mbarrier,
    role,
    smem,
    tid,
    tma,
    u32,
    warp,
)
from warpwright.lang.context import current


@kernel("sm_90a", threads=64)
def one_group_early(x: Global[u32], y: Global[u32], *, right: bool = False) -> None:
    """Two groups are committed, and the thread waits for one: the count is that of a pipeline with another depth."""
    buffer = smem.array(u32, 512)
    for stage in range(2):
        cp_async.copy(buffer + (tid.x * 4 + 256 * stage), x + (tid.x * 4 + 256 * stage))
        cp_async.commit_group()
    cp_async.wait_group(0 if right else 1)
    bar.sync()
    y[tid.x] = buffer[256 + 63 - tid.x]


@kernel("sm_90a", threads=64)
def signals_early(x: Global[u32], y: Global[u32], *, right: bool = False) -> None:
    """The producer arrives when it has issued its copies, not when they are complete."""
    buffer, full = smem.array(u32, 128), mbarrier(32, name="full")
    with If(tid.x == 0):
        full.init()
    bar.sync()

    @role(warp=0)
    def produce() -> None:
        cp_async.copy(buffer + tid.x * 4, x + tid.x * 4)
        if right:
            cp_async.arrive(full)
        else:
            full.arrive()

    @role(warp=1)
    def consume() -> None:
        full.wait(0)
        y[warp.lane] = buffer[warp.lane]


@kernel("sm_90a", threads=64)
def late_copy(x: Global[u32], y: Global[u32], *, right: bool = False) -> None:
    """An arrival covers the copies before it; a copy issued after the arrival is not covered."""
    buffer, full = smem.array(u32, 256), mbarrier(32, name="full")
    with If(tid.x == 0):
        full.init()
    bar.sync()

    @role(warp=0)
    def produce() -> None:
        cp_async.copy(buffer + tid.x * 4, x + tid.x * 4)
        if not right:
            cp_async.arrive(full)
        cp_async.copy(buffer + (tid.x * 4 + 128), x + (tid.x * 4 + 128))
        if right:
            cp_async.arrive(full)

    @role(warp=1)
    def consume() -> None:
        full.wait(0)
        y[warp.lane] = buffer[128 + warp.lane]


@kernel("sm_90a", threads=64)
def counts_itself(x: Global[u32], y: Global[u32], *, right: bool = False) -> None:
    """Without .noinc the arrival adds to the pending count of the phase; here the count includes it already."""
    buffer, full = smem.array(u32, 128), mbarrier(32, name="full")
    with If(tid.x == 0):
        full.init()
    bar.sync()
    with If(warp.id == 0):
        cp_async.copy(buffer + tid.x * 4, x + tid.x * 4)
        how = ".noinc" if right else ""
        current().emit(f"cp.async.mbarrier.arrive{how}.shared::cta.b64", full.operand)
    full.wait(0)
    y[tid.x] = buffer[63 - tid.x]


@kernel("sm_90a", threads=64)
def waits_before(x: Global[u32], y: Global[u32], *, right: bool = False) -> None:
    """A wait for all copies comes before the last of them is issued."""
    buffer = smem.array(u32, 256)
    if not right:
        current().emit("cp.async.wait_all")
    cp_async.copy(buffer + tid.x * 4, x + tid.x * 4)
    if right:
        current().emit("cp.async.wait_all")
    bar.sync()
    y[tid.x] = buffer[63 - tid.x]


@kernel("sm_90a", threads=32)
def fences_before(x: Global[f32], y: tma.Map[f32], *, right: bool = False) -> None:
    """The proxy fence comes before the copies are complete, so TMA need not see them."""
    tile = smem.tile(f32, (4, 32))
    cp_async.copy(tile.at(0, 0) + tid.x * 4, x + tid.x * 4)
    cp_async.commit_group()
    if not right:
        fence.proxy_async()
    cp_async.wait_group(0)
    if right:
        fence.proxy_async()
    warp.sync()
    with If(tid.x == 0):
        tma.store(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)
