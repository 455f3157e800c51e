"""What the kernels of this folder share: the beginning and the end of a kernel, and memory of other CTAs."""

from __future__ import annotations

from typing import Any

from warpwright.lang import Expr, If, Pointer, bar, elect_one, fence, mbarrier, smem, st, tcgen05, tid, tmem, u32, warp
from warpwright.lang import cluster as ctas

__all__ = ["allocate", "fill", "free", "in_cta", "initialise", "next_rank", "start", "sync_tensor_core"]

ONES = 0x3F803F80  # two 1.0 of bf16


def initialise(*barriers: mbarrier) -> None:
    """One thread initialises mbarriers, for copies and other CTAs too."""
    with If((warp.id == 0) & elect_one()):
        for barrier in barriers:
            barrier.init()
        fence.mbarrier_init()


def start(*barriers: mbarrier) -> None:
    """Initialise mbarriers, then synchronise the cluster."""
    initialise(*barriers)
    ctas.sync()


def next_rank() -> Expr:
    """Returns the rank of the next CTA of the cluster: of this CTA if the cluster has one."""
    return (ctas.rank + 1) % ctas.size


def in_cta(rank: Expr, words: Pointer[Any]) -> Pointer[Any]:
    """Returns the memory at the same offset in another CTA of the cluster."""
    return Pointer(words.dtype, ctas.map(words.address, rank), space="shared::cluster")


def fill(tile: smem.Tile, threads: int = 128) -> None:
    """All threads write ones to a tile of bf16."""
    words = tile.nbytes // 4 // threads
    place = Pointer(u32, tile.address, space="shared::cta") + tid.x * words
    for word in range(words):
        st(place + word, ONES)


def allocate() -> None:
    """The second warp allocates the tensor memory of the kernel."""
    with If(warp.id == 1):
        tmem.alloc()


def sync_tensor_core() -> None:
    """Synchronise the CTA, and order the operations on tensor memory before and after."""
    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()


def free() -> None:
    """The second warp frees the tensor memory when all threads have used it."""
    sync_tensor_core()
    with If(warp.id == 1):
        tmem.dealloc()
