"""GEMM on datacentre Blackwell: D = A·Bᵀ of 16-bit A (M, K) and B (N, K), summed in float32, a pair of CTAs a tile.

The ladder of `configs`: each level is a small change to the one before it; levels 1 to 5 are here, 6 and up in
`sm100_roles`. The tensor cores of the pair join (cta_group 2): one instruction multiplies 256 × 128 × 16, for which
each CTA supplies 128 rows of A and 64 of the 128 rows of B. Up to level 6 both CTAs bring the same rows of A, so both
compute the same tile: half of the work is thrown away.

Cluster barriers and loads of tensor memory are for whole warps: `warp.sync` gathers one whose threads went apart.
D has ``pitch`` elements between its rows, a multiple of 16 bytes; M, N and K are any size, for TMA reads zeros outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from warpwright.kernels.gemm.sm100.configs import PAIR, GemmConfig
from warpwright.kernels.gemm.sm100.roles import gemm_roles
from warpwright.kernels.gemm.sm100.steps import BOTH, LEADER, grouped, multiply, set_up, store, store_rows, tear_down
from warpwright.lang import (
    Expr,
    Global,
    If,
    Kernel,
    Ring,
    bar,
    bf16,
    cluster,
    clusterid,
    elect_one,
    f32,
    kernel,
    loop,
    mbarrier,
    nclusterid,
    role,
    smem,
    tcgen05,
    tma,
    tmem,
    u32,
    var,
    warp,
)
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["gemm_level1", "gemm_level2", "gemm_ring", "kernel_of"]

M, N, K = 128, 128, 64


@kernel("sm_100a", cluster=PAIR, threads=128)
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
        slots.wait_all_empty()
    done.wait(0)
    warp.sync()
    store(acc, d, row, col, m, n, pitch, out or dtype, both=True)
    tear_down()


@kernel("sm_100a", cluster=PAIR, threads=128)
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
    ring, acc, done = storage(stages, dtype, full=PAIR)
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
        slots.wait_all_empty()
    done.wait(0)
    warp.sync()
    with If(leads):
        store(acc, d, row, col, m, n, pitch, out or dtype)
    tear_down()


@kernel("sm_100a", cluster=PAIR, threads=128)
def gemm_ring(
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
    staged: bool = False,
    group: int = 0,
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
) -> None:
    """Two roles with a loop each: `load` runs up to ``stages`` k-blocks ahead of `mma`. The leader stores.

    With ``staged`` the tile leaves through the memory of the ring, which nobody uses when the products are complete.
    With ``group`` clusters are persistent: phases go on from tile to tile, and a barrier of the CTA between two tiles
    keeps `mma` from sums that are still read, `load` from memory that rows still lie in, and everyone in one phase.

    role   warps  moves                                            waits for     signals
    loads  0      A, B: global -> ring `ab`                        ab.empty      ab.full of the leader
    mma    1      ring of both CTAs -> tensor memory (leader)      ab.full       ab.empty, done (both CTAs)
    store  0-3    tensor memory -> registers (-> ring) -> D        done
    """
    ring, acc, done = storage(stages, dtype, full=PAIR)
    set_up(ring, done)
    leads, written = cluster.rank == LEADER, out or dtype
    slots, filled, parity = ring.producer(), ring.consumer(), var(u32, 0)

    def output_tiles() -> Iterator[tuple[Expr, Expr]]:
        if not group:
            yield output_tile(tiles_n)
            return
        tiles_m = (m + (M - 1)) // M
        for number in loop(clusterid.x, tiles_m * tiles_n, nclusterid.x):
            down, along = grouped(number, tiles_m, tiles_n, group)
            yield down * M, along * N
            meet_before_next_tile()
            parity.set(parity ^ 1)

    def compute(row: Expr, col: Expr) -> None:

        @role(warp=0, elect=True)
        def loads() -> None:
            for k in loop(tiles_k):
                load(next(slots), a, b, row, col, k)

        @role(warp=1, elect=True, when=leads)
        def mma() -> None:
            for k in loop(tiles_k):
                slot = next(filled)
                slot.full.wait()
                multiply(acc, slot, k)
                tcgen05.commit(slot.empty, cta_group=2, multicast=BOTH)
            tcgen05.commit(done, cta_group=2, multicast=BOTH)

        done.wait(parity)
        warp.sync()
        with If(leads):
            if staged:
                store_rows(acc, d, over(ring, smem.tile(written, (M, N))), row, col, m, n, pitch)
            else:
                store(acc, d, row, col, m, n, pitch, written)

    for row, col in output_tiles():
        compute(row, col)

    @role(warp=0, elect=True)
    def drain() -> None:
        slots.wait_all_empty()

    tear_down()


KERNELS = {"level1": gemm_level1, "level2": gemm_level2, "ring": gemm_ring, "roles": gemm_roles}


@cache
def kernel_of(config: GemmConfig) -> Kernel:
    """The kernel of a configuration; configure ``dtype`` (bf16, f16) and ``out`` (bf16, f16, f32; None: ``dtype``)."""
    found = KERNELS[config.kernel]
    return found.configure(**{name: value for name, value in config.keywords.items() if name in found.config})


def storage(stages: int, dtype: type[Scalar], full: int) -> tuple[Ring, tmem.TmemTile, mbarrier]:
    """The ring of A and B (this CTA's share), the accumulator, and the barrier that says it is complete."""
    a = smem.tile(dtype, (M, K), swizzle=128)
    b = smem.tile(dtype, (N // 2, K), swizzle=128)
    ring = Ring(stages, full=full, empty=1, name="ab", a=a, b=b)
    return ring, tmem.tile(f32, (M, N), cta_group=2), mbarrier(1, name="done")


def output_tile(tiles_n: Expr) -> tuple[Expr, Expr]:
    """First row and column of this pair's tile of D."""
    return cluster.id // tiles_n * M, cluster.id % tiles_n * N


def over(ring: Ring, tile: Tile) -> Tile:
    """``tile`` in the memory of the ring's stages."""
    return tile.placed(None, ring.place.known()[1])


def meet_before_next_tile() -> None:
    """All threads of the CTA have read the sums, and what they wrote into the ring's memory."""
    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()


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
