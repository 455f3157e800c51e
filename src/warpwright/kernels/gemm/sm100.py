"""GEMM on datacentre Blackwell: D = A·Bᵀ of 16-bit A (M, K) and B (N, K), summed in float32, a pair of CTAs a tile.

The ladder of `configs`: each level is a small change to the one before it. In all three the tensor cores of the pair
join (cta_group 2): one instruction multiplies 256 × 128 × 16, for which each CTA supplies 128 rows of A and 64 of the
128 rows of B. Both CTAs bring the same rows of A, so both compute the same tile: half of the work is thrown away.

Cluster barriers and loads of tensor memory are for whole warps: `warp.sync` gathers one whose threads went apart.
D has ``pitch`` elements between its rows, a multiple of 16 bytes; M, N and K are any size, for TMA reads zeros outside.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from warpwright.kernels.gemm.configs import CLUSTER, GemmConfig
from warpwright.lang import (
    Expr,
    Global,
    If,
    Kernel,
    Ring,
    bf16,
    bf16x2,
    cluster,
    elect_one,
    f16,
    f16x2,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    pack,
    role,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    u64,
    warp,
)
from warpwright.types import Scalar

__all__ = ["gemm_level1", "gemm_level2", "gemm_level3", "kernel_of"]

M, N, K = 128, 128, 64
UMMA_K = 16
LEADER = 0
BOTH = 0b11
PACKED = {bf16: bf16x2, f16: f16x2}
LOADED_COLUMNS = 32


@kernel("sm_100a", cluster=CLUSTER, threads=128)
def gemm_level1(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: Global[Scalar],
    m: u32,
    n: u32,
    pitch: u32,
    tiles_n: u32,
    tiles_k: u32,
    *,
    stages: int = 1,
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
) -> None:
    """One stage in one loop, and in every k-block the cluster meets before the leader multiplies. Both CTAs store.

    step   warps  moves                                        waits for                   signals
    load   0      A, B: global -> ring                         ring.empty                  ring.full
    mma    1      ring of both CTAs -> tensor memory (leader)  ring.full, cluster barrier  ring.empty, done (both CTAs)
    store  0-3    tensor memory -> registers -> D              done
    """
    ring, acc, done = storage(stages, dtype, full=1)
    set_up(ring, done)
    row, col = output_tile(tiles_n)
    rank, one = cluster.rank, elect_one()
    loads, multiplies = (warp.id == 0) & one, (rank == LEADER) & (warp.id == 1) & one
    slots = ring.producer()
    for k in loop(tiles_k):
        slot = next(slots)
        with If(loads):
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.a, a[row, k * K], slot.full)
            tma.load(slot.b, b[col + rank * (N // 2), k * K], slot.full)
            slot.full.wait()
        warp.sync()
        cluster.sync()
        with If(multiplies):
            tcgen05.fence_after_thread_sync()
            multiply(acc, slot, k)
            tcgen05.commit(slot.empty, cta_group=2, multicast=BOTH)
    with If(multiplies):
        tcgen05.commit(done, cta_group=2, multicast=BOTH)
    with If(loads):
        slots.drain()
    done.wait(0)
    warp.sync()
    store(acc, d, row, col, m, n, pitch, out or dtype)
    tear_down()


@kernel("sm_100a", cluster=CLUSTER, threads=128)
def gemm_level2(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: Global[Scalar],
    m: u32,
    n: u32,
    pitch: u32,
    tiles_n: u32,
    tiles_k: u32,
    *,
    stages: int = 2,
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
) -> None:
    """Full and empty barriers, no cluster barrier in the loop, still one loop: only the peer runs ahead. Leader stores.

    The leader's load thread waits for full, too, as published. Threads without work in the loop must not: nobody waits
    for them, so the ring could lap them and the parity that they wait for would mean another phase.

    step   warps  moves                                            waits for     signals
    load   0      A, B: global -> ring                             ring.empty    ring.full of the leader
    mma    1      ring of both CTAs -> tensor memory (leader)      ring.full     ring.empty, done (both CTAs)
    store  0-3    tensor memory -> registers -> D (leader)         done
    """
    ring, acc, done = storage(stages, dtype, full=CLUSTER)
    set_up(ring, done)
    row, col = output_tile(tiles_n)
    leads, one = cluster.rank == LEADER, elect_one()
    loads, multiplies = (warp.id == 0) & one, leads & (warp.id == 1) & one
    slots = ring.producer()
    for k in loop(tiles_k):
        slot = next(slots)
        with If(loads):
            load(slot, a, b, row, col, k)
        with If(leads & (loads | multiplies)):
            slot.full.wait()
        with If(multiplies):
            multiply(acc, slot, k)
            tcgen05.commit(slot.empty, cta_group=2, multicast=BOTH)
    with If(multiplies):
        tcgen05.commit(done, cta_group=2, multicast=BOTH)
    with If(loads):
        slots.drain()
    done.wait(0)
    warp.sync()
    with If(leads):
        store(acc, d, row, col, m, n, pitch, out or dtype)
    tear_down()


@kernel("sm_100a", cluster=CLUSTER, threads=128)
def gemm_level3(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: Global[Scalar],
    m: u32,
    n: u32,
    pitch: u32,
    tiles_n: u32,
    tiles_k: u32,
    *,
    stages: int = 8,
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
) -> None:
    """Two roles with a loop each: `load` runs up to ``stages`` k-blocks ahead of `mma`. The leader stores.

    role   warps  moves                                            waits for     signals
    load   0      A, B: global -> ring                             ring.empty    ring.full of the leader
    mma    1      ring of both CTAs -> tensor memory (leader)      ring.full     ring.empty, done (both CTAs)
    store  0-3    tensor memory -> registers -> D (leader)         done
    """
    ring, acc, done = storage(stages, dtype, full=CLUSTER)
    set_up(ring, done)
    row, col = output_tile(tiles_n)
    leads = cluster.rank == LEADER

    @role(warp=0, elect=True)
    def loads() -> None:
        slots = ring.producer()
        for k in loop(tiles_k):
            load(next(slots), a, b, row, col, k)
        slots.drain()

    @role(warp=1, elect=True, when=leads)
    def mma() -> None:
        slots = ring.consumer()
        for k in loop(tiles_k):
            slot = next(slots)
            slot.full.wait()
            multiply(acc, slot, k)
            tcgen05.commit(slot.empty, cta_group=2, multicast=BOTH)
        tcgen05.commit(done, cta_group=2, multicast=BOTH)

    done.wait(0)
    warp.sync()
    with If(leads):
        store(acc, d, row, col, m, n, pitch, out or dtype)
    tear_down()


KERNELS = {1: gemm_level1, 2: gemm_level2, 3: gemm_level3}


@cache
def kernel_of(config: GemmConfig) -> Kernel:
    """The kernel of a level; configure ``dtype`` (bf16, f16) and ``out`` (bf16, f16, f32; None: as ``dtype``)."""
    return KERNELS[config.level].configure(stages=config.stages)


def storage(stages: int, dtype: type[Scalar], full: int) -> tuple[Ring, tmem.TmemTile, mbarrier]:
    """The ring of A and B (this CTA's share), the accumulator, and the barrier that says it is complete."""
    a = smem.tile(dtype, (M, K), swizzle=128)
    b = smem.tile(dtype, (N // 2, K), swizzle=128)
    ring = Ring(stages, full=full, empty=1, name="ab", a=a, b=b)
    return ring, tmem.tile(f32, (M, N), cta_group=2), mbarrier(1, name="done")


def set_up(ring: Ring, done: mbarrier) -> None:
    """Barriers and tensor memory, in this order: the peer must be alive when the pair allocates."""

    @role(warp=0, elect=True)
    def init() -> None:
        ring.init()
        done.init()
        fence.mbarrier_init()

    cluster.sync()

    @role(warp=2)
    def alloc() -> None:
        tmem.alloc()
        tcgen05.relinquish_alloc_permit(cta_group=2)

    tcgen05.fence_before_thread_sync()
    cluster.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()


def output_tile(tiles_n: Expr) -> tuple[Expr, Expr]:
    """First row and column of this pair's tile of D."""
    return cluster.id // tiles_n * M, cluster.id % tiles_n * N


def load(slot: Any, a: tma.Map[Scalar], b: tma.Map[Scalar], row: Expr, col: Expr, k: Expr) -> None:
    """Fill a slot of this CTA; arrivals and bytes of both CTAs count at the leader's barrier."""
    rank, full = cluster.rank, slot.full.at(LEADER)
    slot.empty.wait()
    with If(rank == LEADER):
        slot.full.arrive_expect_tx(slot.nbytes)
    with If(rank != LEADER):
        full.arrive_expect_tx(slot.nbytes)
    tma.load(slot.a, a[row, k * K], full, cta_group=2)
    tma.load(slot.b, b[col + rank * (N // 2), k * K], full, cta_group=2)


def multiply(acc: tmem.TmemTile, slot: Any, k: Expr) -> None:
    """One k-block: four instructions, of which the first of all overwrites the accumulator."""
    for kk in range(0, K, UMMA_K):
        window = slice(kk, kk + UMMA_K)
        tcgen05.mma(acc, slot.a[:, window], slot.b[:, window], accumulate=(k > 0) | (kk > 0), cta_group=2)


def store(
    acc: tmem.TmemTile, d: Global[Scalar], row: Expr, col: Expr, m: Expr, n: Expr, pitch: Expr, out: type[Scalar]
) -> None:
    """Tensor memory to D, a row a thread, 16 bytes at a time. Whole warps load; only the stores are predicated."""
    tcgen05.fence_after_thread_sync()
    row, left, word = row + tid.x, n - col, PACKED.get(out, f32)
    line = d.cast(out) + row.to(u64) * pitch.to(u64) + col
    for first in range(0, N, LOADED_COLUMNS):
        words = tcgen05.ld(acc[:, first : first + LOADED_COLUMNS])
        tcgen05.wait_ld()
        if out is not f32:
            words = [pack(word, *words[i : i + 2]) for i in range(0, LOADED_COLUMNS, 2)]
        for i in range(0, len(words), 4):
            column = first + i * word.nbytes // out.nbytes
            with If((row < m) & (left > column)):
                st((line + column).cast(word), *words[i : i + 4])


def tear_down() -> None:
    """Both CTAs have read tensor memory and heard every arrival; then the columns go back."""
    tcgen05.fence_before_thread_sync()
    cluster.sync()

    @role(warp=2)
    def free() -> None:
        tmem.dealloc()
