"""What the kernels of this folder share: the beginning and the end of a kernel, and memory of other CTAs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpwright.lang import (
    Expr,
    Global,
    If,
    Pointer,
    Ring,
    bar,
    bf16,
    elect_one,
    f32,
    fence,
    mbarrier,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    warp,
)
from warpwright.lang import cluster as ctas

__all__ = [
    "ONES", "allocate_columns", "fill", "free_columns", "in_cta", "initialise", "load_operands", "next_rank", "prepare",
    "start", "store_first_sum", "sync_tensor_core",
]  # fmt: skip

ONES = 0x3F803F80  # two 1.0 of bf16


def initialise(*barriers: mbarrier | Ring) -> None:
    """One thread initialises mbarriers, for copies and other CTAs too."""
    with If((warp.id == 0) & elect_one()):
        for barrier in barriers:
            barrier.init()
        fence.mbarrier_init()


def start(*barriers: mbarrier | Ring) -> None:
    """Initialise mbarriers, then synchronise the cluster."""
    initialise(*barriers)
    ctas.sync()


def next_rank() -> Expr:
    """Returns the rank of the next CTA of the cluster: of this CTA if the cluster has one."""
    return (ctas.rank + 1) % ctas.size


def in_cta(rank: Expr, words: Pointer[Any]) -> Pointer[Any]:
    """Returns the memory at the same offset in another CTA of the cluster."""
    return Pointer(words.dtype, ctas.map(words.address, rank), space="shared::cluster")


def load_operands(a: tma.Map[bf16], b: tma.Map[bf16]) -> tuple[smem.Tile, smem.Tile]:
    """Returns two operands of a wgmma, which TMA has loaded."""
    tiles, full = [smem.tile(bf16, (64, 64), swizzle=128) for _ in range(2)], mbarrier(1, name="full")
    with If((warp.id == 0) & elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(2 * tiles[0].nbytes)
        for tile, source in zip(tiles, (a, b), strict=True):
            tma.load(tile, source[0, 0], full)
    bar.sync()
    full.wait(0)
    return tiles[0], tiles[1]


def fill(tile: smem.Tile, threads: int = 128) -> None:
    """All threads write ones to a tile of bf16."""
    words = tile.nbytes // 4 // threads
    place = Pointer(u32, tile.address, space="shared::cta") + tid.x * words
    for word in range(words):
        st(place + word, ONES)


def allocate_columns() -> None:
    """The second warp allocates the tensor memory of the kernel."""
    with If(warp.id == 1):
        tmem.alloc()


def prepare(operands: Sequence[smem.Tile], *barriers: mbarrier, fenced: bool = True) -> None:
    """Initialise mbarriers, write operands of the tensor core, allocate tensor memory and read its address."""
    if barriers:
        initialise(*barriers)
    allocate_columns()
    for operand in operands:
        fill(operand)
    if fenced:
        fence.proxy_async()
    tcgen05.fence_before_thread_sync()
    ctas.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()


def sync_tensor_core() -> None:
    """Synchronise the CTA, and order the operations on tensor memory before and after."""
    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()


def free_columns() -> None:
    """The second warp frees the tensor memory when all threads have used it."""
    sync_tensor_core()
    with If(warp.id == 1):
        tmem.dealloc()


def store_first_sum(d: Global[f32], acc: tmem.TmemTile, done: mbarrier) -> None:
    """Wait for the tensor core, store a sum of each row, and free tensor memory."""
    done.wait(0)
    tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(acc)
    tcgen05.wait_ld()
    d[tid.x] = row[0]
    free_columns()
