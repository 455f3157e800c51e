"""Small kernels that the launch tests share."""

from __future__ import annotations

from warpwright.lang import (
    Global,
    If,
    bar,
    bf16,
    cluster,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    mbarrier,
    smem,
    tid,
    tma,
    u32,
    warp,
)

THREADS = 128
ROWS, COLUMNS = 64, 64


@kernel("sm_90a", threads=THREADS)
def saxpy(alpha: f32, x: Global[f32], y: Global[f32], n: u32) -> None:
    i = ctaid.x * THREADS + tid.x
    with If(i < n):
        y[i] = alpha * x[i] + y[i]


@kernel("sm_90a", threads=THREADS)
def copy(x: tma.Map[bf16], y: tma.Map[bf16]) -> None:
    tile = smem.tile(bf16, (ROWS, COLUMNS), swizzle=128)
    full = mbarrier(1, name="full")
    one = (warp.id == 0) & elect_one()
    with If(one):
        full.init()
        fence.mbarrier_init()
    bar.sync()
    with If(one):
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[ctaid.y * ROWS, ctaid.x * COLUMNS], full)
    full.wait(0)
    with If(one):
        tma.store(y[ctaid.y * ROWS, ctaid.x * COLUMNS], tile)
        tma.commit_group()
        tma.wait_group(0)


@kernel("sm_90a", threads=32, cluster=16)  # more CTAs than a portable cluster has
def ranks(out: Global[u32]) -> None:
    with If(tid.x == 0):
        out[ctaid.x] = cluster.rank


@kernel("sm_90a", threads=THREADS)
def large(out: Global[u32], *, count=50_000) -> None:
    """Use the last of ``count`` words of shared memory."""
    words = smem.array(u32, count)
    with If(tid.x == 0):
        words[count - 1] = ctaid.x + 77
        out[ctaid.x] = words[count - 1]
