"""Kernels that modify tensor maps; they are correct if every option is true."""

from __future__ import annotations

from tests.races.parts import initialise
from warpwright.lang import (
    Global,
    If,
    Pointer,
    bar,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    mbarrier,
    smem,
    st,
    tensormap,
    tid,
    tma,
    u32,
    warp,
)

ROWS, COLUMNS = 8, 32
WORDS = 32  # of a map


@kernel("sm_90a", threads=32)
def modify_map(
    x: tma.Map[f32],
    other: Global[f32],
    map: Global[u32],
    y: Global[f32],
    *,
    published: bool = True,
    acquired: bool = True,
    waited: bool = True,
) -> None:
    """A tensor map is copied to shared memory, modified, published and used; then it is modified again."""
    buffer, tile = smem.array(u32, WORDS, align=128), smem.tile(f32, (ROWS, COLUMNS))
    full = mbarrier(1, name="full")
    initialise(full)
    buffer[tid.x] = ld(Pointer(u32, x.address) + tid.x)
    warp.sync()
    with If(elect_one()):
        tensormap.replace(buffer, "global_address", other.address)
    warp.sync()
    if published:
        tensormap.cp_fenceproxy(map, buffer)
    else:
        map[tid.x] = buffer[tid.x]
    warp.sync()
    with If(elect_one()):
        if acquired:
            fence.proxy_tensormap_acquire(map)
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x.at(map.address)[0, 0], full)
    if waited:
        full.wait(0)
        warp.sync()
    with If(elect_one()):
        tensormap.replace(map, "global_dim", 4, 1)
    if not waited:
        full.wait(0)
    for row in range(ROWS):
        y[row * COLUMNS + tid.x] = tile.at(row, tid.x)[0]


@kernel("sm_90a", threads=64)
def pass_map(
    x: tma.Map[f32], map: Global[u32], y: Global[f32], *, released: bool = True, acquired: bool = True
) -> None:
    """One warp reduces a tensor map in global memory to two rows, the other copies with it."""
    tile, full = smem.tile(f32, (ROWS, COLUMNS)), mbarrier(1, name="full")
    initialise(full)
    with If(warp.id == 0):
        st(map + tid.x, ld(Pointer(u32, x.address) + tid.x))
        warp.sync()
        with If(tid.x == 0):
            tensormap.replace(map, "global_dim", 2, 1)
            if released:
                fence.proxy_tensormap_release()
    bar.sync()
    with If(warp.id == 1):
        with If(tid.x == 32):
            if acquired:
                fence.proxy_tensormap_acquire(map)
            full.arrive_expect_tx(tile.nbytes)
            tma.load(tile, x.at(map.address)[0, 0], full)
        full.wait(0)
        for row in range(ROWS):
            y[row * COLUMNS + warp.lane] = tile.at(row, warp.lane)[0]
