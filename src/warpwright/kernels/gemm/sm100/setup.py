"""The set-up and the end of the Blackwell GEMMs: mbarriers, tensor memory, and the barriers around both."""

from __future__ import annotations

from warpwright.kernels.gemm.sm100.configs import PAIR
from warpwright.kernels.gemm.sm100.tilings import Tiling
from warpwright.kernels.tiles import atom
from warpwright.lang import Ring, bar, cluster, fence, mbarrier, role, smem, tcgen05, tma, tmem
from warpwright.types import Scalar

__all__ = [
    "alloc_sync_early", "init_alloc_sync", "init_alloc_sync_early", "init_barriers", "operand_ring", "sync_dealloc",
    "sync_dealloc_early", "wait_dealloc_early",
]  # fmt: skip

WARP_SIZE = 32
ALLOC_BARRIER = 2
ROLE_THREADS = 256  # of the kernel whose warp 0 loads


def init_barriers(*barriers: Ring | mbarrier, maps: tuple[tma.Map[Scalar], ...]) -> None:
    """Initialise the mbarriers and prefetch the tensor maps, by a thread of warp 0."""

    @role(warp=0, elect=True)
    def init() -> None:
        for each in barriers:
            each.init()
        fence.mbarrier_init()
        for map in maps:
            tma.prefetch_map(map)


def init_alloc_sync(
    *barriers: Ring | mbarrier, maps: tuple[tma.Map[Scalar], ...] = (), published: bool = False, ctas: int = PAIR
) -> None:
    """Initialise the mbarriers, synchronise the cluster of ``ctas``, allocate tensor memory, synchronise again.

    ``published``: as levels 1 to 5 of the write-ups do. They allocate while the mbarriers are initialised, without the
    first cluster barrier, and never relinquish the permit to allocate, so no other CTA of the SM allocates before this
    one exits.
    """
    init_barriers(*barriers, maps=maps)
    if not published and ctas > 1:
        cluster.sync()  # the pair allocates together: the peer has started

    @role(warp=2)
    def alloc() -> None:
        tmem.alloc()
        if not published:
            tcgen05.relinquish_alloc_permit(cta_group=ctas)

    tcgen05.fence_before_thread_sync()
    sync_ctas(ctas)
    tcgen05.fence_after_thread_sync()
    tmem.open()


def operand_ring(
    config: Tiling, majors: tuple[str, str], dtype: type[Scalar], b_dtype: type[Scalar] | None = None
) -> Ring:
    """Returns the ring of one CTA's tiles of A and B, each as its matrix is in memory."""
    (tile_m, tile_n), k = config.tile, atom(dtype) * config.depth
    own_n = tile_n // config.ctas
    a = smem.tile(dtype, (tile_m, k) if majors[0] == "k" else (k, tile_m), swizzle=128)
    b = smem.tile(b_dtype or dtype, (own_n, k) if majors[1] == "k" else (k, own_n), swizzle=128)
    return Ring(config.stages, full=1, empty=1, name="ab", a=a, b=b)


def sync_ctas(ctas: int) -> None:
    """``cluster.sync()`` of a pair, ``bar.sync()`` of a CTA alone."""
    if ctas > 1:
        cluster.sync()
    else:
        bar.sync()


def init_alloc_sync_early(
    *barriers: Ring | mbarrier,
    maps: tuple[tma.Map[Scalar], ...] = (),
    ctas: int = PAIR,
    cluster_ctas: int | None = None,
    threads: int = ROLE_THREADS,
) -> None:
    """Initialise the mbarriers and allocate tensor memory; warp 0, which loads, does not wait for tensor memory.

    Warp 0 arrives at the barrier after the allocation and goes on. In a cluster its warp 0 executes the wait of that
    cluster barrier in `sync_dealloc_early` or `wait_dealloc_early`. ``cluster_ctas``: CTAs of the cluster, if more than
    the ``ctas`` that multiply together. Each role that uses tensor memory calls ``tmem.open()``.
    """
    init_barriers(*barriers, maps=maps)
    if ctas > 1:  # the pair allocates together: the peer has started; fence.mbarrier_init has released the mbarriers
        cluster.arrive("relaxed")
        cluster.wait()
    alloc_sync_early(ctas, threads, clustered=(cluster_ctas or ctas) > 1)


def alloc_sync_early(ctas: int, threads: int = ROLE_THREADS, *, clustered: bool = False) -> None:
    """Allocate tensor memory and synchronise the CTA, or the cluster if ``clustered``; warp 0 does not wait, as in
    `init_alloc_sync_early`."""

    @role(warp=2)
    def alloc() -> None:
        tmem.alloc()
        tcgen05.relinquish_alloc_permit(cta_group=ctas)

    @role(warp=0)
    def arrive() -> None:
        if clustered:
            cluster.arrive("relaxed")
        else:
            bar.arrive(ALLOC_BARRIER, threads)

    @role(warps=range(1, threads // WARP_SIZE))
    def sync() -> None:
        tcgen05.fence_before_thread_sync()
        if clustered:
            cluster.sync()
        else:
            bar.sync(ALLOC_BARRIER, threads)
        tcgen05.fence_after_thread_sync()


def sync_dealloc_early(ctas: int) -> None:
    """`sync_dealloc` after `init_alloc_sync_early`."""
    if ctas > 1:

        @role(warp=0)
        def wait() -> None:
            cluster.wait()

    tcgen05.fence_before_thread_sync()
    sync_ctas(ctas)

    @role(warp=2)
    def free() -> None:
        tmem.open()
        tmem.dealloc()


def wait_dealloc_early(read: mbarrier) -> None:
    """Warp 2 waits for ``read``, which completes when no warp of the CTA reads tensor memory any more, and frees it.

    Follows `init_alloc_sync_early` of a cluster like `sync_dealloc_early`, without a barrier of all threads.
    """

    @role(warp=0)
    def wait() -> None:
        cluster.wait()

    @role(warp=2)
    def dealloc() -> None:
        read.wait(0)
        tcgen05.fence_after_thread_sync()
        tmem.open()
        tmem.dealloc()


def sync_dealloc(ctas: int = PAIR) -> None:
    """Synchronise the CTAs that multiply together, so that both have read tensor memory and no arrival is in flight;
    deallocate."""
    tcgen05.fence_before_thread_sync()
    sync_ctas(ctas)

    @role(warp=2)
    def free() -> None:
        tmem.dealloc()
