"""GEMM on datacentre Blackwell: D = A·Bᵀ of 16-bit A (M, K) and B (N, K), summed in float32, a pair of CTAs a tile.

Levels 1 to 5 of the ladder of `configs`; 6 and up are in `kernel`. The tensor cores of the pair work together
(cta_group::2): one instruction multiplies 256 × 128 × 16, for which each CTA supplies 128 rows of A and 64 of the 128
rows of B. Up to level 6 both CTAs load the same rows of A, so both compute the same tile: half of the work is wasted.

Cluster barriers and loads of tensor memory are for whole warps: `warp.sync` reconverges a warp before them. D has
``pitch`` elements between its rows, a multiple of 16 bytes; M, N and K are any size, for TMA reads zeros outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from warpwright.kernels.gemm.sm100.cluster import gemm_cluster
from warpwright.kernels.gemm.sm100.configs import LEVELS, PAIR, Config
from warpwright.kernels.gemm.sm100.gemm import gemm
from warpwright.kernels.gemm.sm100.halves import gemm_halves
from warpwright.kernels.gemm.sm100.kernel import gemm_roles
from warpwright.kernels.gemm.sm100.multicast import gemm_multicast
from warpwright.kernels.gemm.sm100.setup import init_alloc_sync, sync_dealloc
from warpwright.kernels.gemm.sm100.steps import (
    BOTH,
    LEADER,
    multiply,
    rasterize,
    store,
    store_rows,
)
from warpwright.kernels.gemm.sm100.tilings import Tiling
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
    fence,
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
from warpwright.lang.ring import Cursor
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
    config: Config = LEVELS[1],
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
) -> None:
    """One stage in one loop; the cluster synchronises in every k-block before the leader multiplies. Both CTAs store.

    step   warps  moves                                        waits for                   signals
    load   0      A, B: global -> ring                         ring.empty                  ring.full
    mma    1      ring of both CTAs -> tensor memory (leader)  ring.full, cluster barrier  ring.empty, done (both CTAs)
    store  0-3    tensor memory -> registers -> D              done
    """
    ring, acc, done = storage(config.stages, dtype, full=1)
    init_alloc_sync(ring, done, published=config.published)
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
    store(acc, d, row, col, m, n, pitch, out or dtype, both=True, published=config.published)
    sync_dealloc()


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
    config: Config = LEVELS[2],
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
) -> None:
    """Full and empty barriers instead of the cluster barrier, still one loop: only the peer runs ahead. Leader stores.

    The leader's load thread waits for full, too, as published. Threads without work in the loop must not: no slot waits
    for them, so the ring could lap them, and their parity would be that of another phase.

    step   warps  moves                                            waits for     signals
    load   0      A, B: global -> ring                             ring.empty    ring.full of the leader
    mma    1      ring of both CTAs -> tensor memory (leader)      ring.full     ring.empty, done (both CTAs)
    store  0-3    tensor memory -> registers -> D (leader)         done
    """
    ring, acc, done = storage(config.stages, dtype, full=PAIR)
    init_alloc_sync(ring, done, published=config.published)
    row, col = output_tile(tiles_n)
    leads, one = cluster.rank == LEADER, elect_one()
    loads, multiplies = (warp.id == 0) & one, leads & (warp.id == 1) & one
    slots = ring.producer()
    for k in loop(tiles_k):
        slot = next(slots)
        with If(loads):
            wait_and_load(slot, a, b, row, col, k)
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
        store(acc, d, row, col, m, n, pitch, out or dtype, published=config.published)
    sync_dealloc()


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
    config: Config = LEVELS[3],
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
) -> None:
    """Two roles with a loop each: `load` runs up to ``stages`` k-blocks ahead of `mma`. The leader stores.

    With ``config.staged`` the tile leaves through the memory of the ring, which is idle once the MMAs are complete.
    With ``config.group`` clusters are persistent: as published the mbarriers begin anew with each tile, between two
    cluster barriers; else phases continue from tile to tile.

    role   warps  moves                                            waits for     signals
    loads  0      A, B: global -> ring `ab`                        ab.empty      ab.full of the leader
    mma    1      ring of both CTAs -> tensor memory (leader)      ab.full       ab.empty, done (both CTAs)
    store  0-3    tensor memory -> registers (-> ring) -> D        done
    """
    ring, acc, done = storage(config.stages, dtype, full=PAIR)
    init_alloc_sync(ring, done, published=config.published)
    leads, written = cluster.rank == LEADER, out or dtype
    slots, loaded, parity = ring.producer(), ring.consumer(), var(u32, 0)

    def output_tiles() -> Iterator[tuple[Expr, Expr]]:
        if not config.group:
            yield output_tile(tiles_n)
            return
        tiles_m = (m + (M - 1)) // M
        for number in loop(clusterid.x, tiles_m * tiles_n, nclusterid.x):
            down, along = rasterize(number, tiles_m, tiles_n, config.group)
            yield down * M, along * N
            if config.published:
                init_again(slots, loaded, ring, done)
                continue
            # Until here `mma` must not overwrite the sums, nor `load` the rows that the epilogue staged in the ring.
            tcgen05.fence_before_thread_sync()
            bar.sync()
            tcgen05.fence_after_thread_sync()
            parity.set(parity ^ 1)

    def compute(row: Expr, col: Expr) -> None:

        @role(warp=0, elect=True)
        def loads() -> None:
            for k in loop(tiles_k):
                wait_and_load(next(slots), a, b, row, col, k)

        @role(warp=1, elect=True, when=leads)
        def mma() -> None:
            for k in loop(tiles_k):
                slot = next(loaded)
                slot.full.wait()
                multiply(acc, slot, k)
                tcgen05.commit(slot.empty, cta_group=2, multicast=BOTH)
            tcgen05.commit(done, cta_group=2, multicast=BOTH)

        done.wait(parity)
        warp.sync()
        with If(leads):
            if config.staged:
                block = over(ring, smem.tile(written, (M, N)))
                store_rows(acc, d, block, row, col, m, n, pitch, published=config.published)
            else:
                store(acc, d, row, col, m, n, pitch, written, published=config.published)

    for row, col in output_tiles():
        compute(row, col)

    @role(warp=0, elect=True)
    def drain() -> None:
        slots.wait_all_empty()

    sync_dealloc()


KERNELS = {
    "level1": gemm_level1,
    "level2": gemm_level2,
    "ring": gemm_ring,
    "roles": gemm_roles,
    "gemm": gemm,
    "cluster": gemm_cluster,
    "halves": gemm_halves,
    "multicast": gemm_multicast,
}


@cache
def kernel_of(config: Config | Tiling) -> Kernel:
    """Returns the kernel of ``config``; configure ``dtype`` (bf16, f16), ``out`` (bf16, f16, f32; None: ``dtype``), and
    for a `Tiling` ``majors``, ``b_dtype``, ``batched`` and ``epilogue``."""
    shape = kernel("sm_100a", cluster=config.cluster, threads=config.threads)
    found = shape(KERNELS[config.kernel].function).configure(config=config)
    return found.with_params(d=Global[f32]) if isinstance(config, Tiling) and config.direct else found


def storage(stages: int, dtype: type[Scalar], full: int) -> tuple[Ring, tmem.TmemTile, mbarrier]:
    """The ring of this CTA's A and B, the accumulator, and the mbarrier that completes with the accumulator."""
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


def init_again(slots: Cursor, loaded: Cursor, ring: Ring, done: mbarrier) -> None:
    """Initialise the mbarriers between two tiles, and move the cursors to slot 0.

    At the first cluster barrier the sums and the rows in the ring's memory are read, and all arrivals are here. Shared
    memory of an mbarrier must be invalidated before it is initialised again (PTX ISA 9.1 section 9.7.13.15.9).
    """
    barriers = (*ring.full, *ring.empty, done)

    @role(warp=0, elect=True)
    def drain() -> None:
        slots.wait_all_empty()

    fence.proxy_async()
    tcgen05.fence_before_thread_sync()
    cluster.sync()
    tcgen05.fence_after_thread_sync()

    @role(warp=0, elect=True)
    def init() -> None:
        for each in barriers:
            each.inval()
            each.init()
        fence.mbarrier_init()

    cluster.sync()
    for cursor in (slots, loaded):
        cursor.stage.set(0)
        cursor.phase.set(0)


def wait_and_load(slot: Any, a: tma.Map[Scalar], b: tma.Map[Scalar], row: Expr, col: Expr, k: Expr) -> None:
    """Wait for ``slot.empty``, load the slot; arrivals and bytes of both CTAs count at the leader's full barrier."""
    rank, full = cluster.rank, slot.full.at(LEADER)
    slot.empty.wait()
    with If(rank == LEADER):
        slot.full.arrive_expect_tx(slot.nbytes)
    with If(rank != LEADER):
        full.arrive_expect_tx(slot.nbytes)
    tma.load(slot.a, a[row, k * K], full, cta_group=2)
    tma.load(slot.b, b[col + rank * (N // 2), k * K], full, cta_group=2)
