"""GEMM on datacentre Blackwell with a warp for each role: levels 6 to 10 of the ladder of `configs`.

Clusters are persistent, and each role walks the same tiles in a loop of its own: while the epilogue stores a tile, the
tensor cores compute the next one into another part of tensor memory, and the load warp runs ahead of both.

A cluster is one pair of CTAs or more. A pair multiplies 256 rows of A, of which each CTA has its own 128, by all rows
of B, of which each CTA has half. ``dual`` pairs have two blocks of rows, so two tiles. A last cluster may reach over
the edge of D: its loads read zeros, and its stores write nothing outside D.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warpwright.kernels.gemm.sm100.configs import LANES, LEVELS, PAIR, WARPS, Config
from warpwright.kernels.gemm.sm100.launch_control import WORK_STAGES, launched_clusters, schedule_clusters
from warpwright.kernels.gemm.sm100.setup import init_alloc_sync, sync_dealloc
from warpwright.kernels.gemm.sm100.steps import (
    BOTH,
    cluster_masks,
    load_part,
    multiply,
    rasterize,
    store_boxes,
    throttle,
)
from warpwright.kernels.tiles import shift_mask
from warpwright.lang import (
    Expr,
    If,
    Ring,
    bf16,
    cluster_ctaid,
    clusterid,
    elect_one,
    f32,
    kernel,
    loop,
    mbarrier,
    min,
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
from warpwright.types import Scalar

__all__ = ["gemm_roles"]


@kernel("sm_100a", cluster=PAIR, threads=256)
def gemm_roles(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    *,
    config: Config = LEVELS[10],
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
) -> None:
    """``tiles_m`` × ``tiles_n`` are areas of D that a cluster computes.

    role      warps  moves                                          waits for            signals
    load      0      A, B: global -> ring `ab` of sharing CTAs      ab.empty             ab.full (leader)
    mma       1      ring `ab` -> `acc` in tensor memory (leader)   ab.full, acc.empty   ab.empty, acc.full
    schedule  3      clusters not started -> ring `work`            work.empty           work.full
    epilogue  4-7    `acc` -> registers -> blocks -> D              acc.full             acc.empty (leader)
    """
    (tile_m, tile_n, _), depth, share = config.tile, config.tile[2] * config.merge, config.share
    pairs, writers, dynamic = share[0] * share[1], PAIR if config.dual else 1, config.scheduler == "clc"
    a_tile, b_tile = (smem.tile(dtype, (rows, depth), swizzle=128) for rows in (tile_m, tile_n // PAIR))
    waves = tile_m // LANES if config.stagger else 1  # parts of a tile with an accumulator of their own
    sums = tmem.tile(f32, (LANES, tile_m // LANES * tile_n // waves), cta_group=2)
    ab = Ring(config.stages // config.merge, full=1, empty=pairs, name="ab", a=a_tile, b=b_tile)
    acc = Ring(config.accumulators * waves, full=1, empty=writers * WARPS, name="acc", d=sums)
    work = Ring(WORK_STAGES, empty=pairs * (PAIR + 1 + writers * WARPS), name="work", response=smem.tile(u32, (1, 4)))
    written = out or dtype
    blocks = smem.tile(written, (config.boxes * LANES, config.box[1] // written.nbytes), swizzle=config.swizzle)
    throttles = [mbarrier(1, name="throttle")] if config.throttle < 100 else []
    init_alloc_sync(ab, acc, *([work] if dynamic else []), *throttles, maps=(a, b, d))
    rank = cluster_ctaid.x
    half = rank % PAIR
    leader = rank - half
    along_m, along_n, same_a, same_b = cluster_masks(rank, share)
    storing = shift_mask(BOTH if config.dual else 1, leader)

    def output_tiles(signals: Any = True) -> Iterator[tuple[Expr, Expr]]:
        """First row and column of this CTA's tiles, one after the other: the same in every role."""
        static = loop(clusterid.x, tiles_m * tiles_n, nclusterid.x)
        for number in launched_clusters(work, signals) if dynamic else static:
            down, along = rasterize(number, tiles_m, tiles_n, config.group)
            block = (down * share[0] + along_m) * writers + (half if config.dual else 0)
            yield block * tile_m, (along * share[1] + along_n) * tile_n

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ab.producer()
        for row, col in output_tiles():
            for k in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                with If(half == 0):
                    slot.full.arrive_expect_tx(PAIR * slot.nbytes)
                full = slot.full.at(leader)
                load_part(slot.a, a, row, k * depth, full, along_n, share[1], same_a)
                load_part(slot.b, b, col + half * (tile_n // PAIR), k * depth, full, along_m, share[0], same_b)
        slots.wait_all_empty()

    @role(warp=1, elect=True, when=half == 0)
    def mma() -> None:
        last, first, tiles = ab.consumer(), ab.consumer(), acc.producer()  # of a tile's last wave, of its first
        parity, lead = var(u32, 0), min(config.stagger, ab.stages)

        def commit_empty(slot: Any) -> None:
            tcgen05.commit(slot.empty, cta_group=2, multicast=(1 << PAIR * pairs) - 1)
            for complete in throttles:
                throttle(complete, parity, config)

        def multiply_wave(slots: Any, result: Any, start: Any, stop: Any, wave: int | None) -> None:
            for k in loop(start, stop):
                slot = next(slots)
                slot.full.wait()
                multiply(result.d, slot, k, wave)
                if wave != 0:
                    commit_empty(slot)

        for _ in output_tiles():
            if waves == 1:
                result = next(tiles)
                result.empty.wait()
                tcgen05.fence_after_thread_sync()
                multiply_wave(last, result, 0, tiles_k, None)
                tcgen05.commit(result.full, cta_group=2, multicast=storing)
                continue
            # At a tile's begin and end the first wave is `lead` k-blocks ahead. Its sums are complete early, and the
            # epilogue reads them while the second wave ends; then it reads the second wave's while the first wave of
            # the next tile begins. So the tensor cores never wait, though a tile takes all of tensor memory.
            head = min(tiles_k, lead)
            middle = tiles_k - min(tiles_k - head, lead)
            upper, lower = next(tiles), next(tiles)
            for slots, result, wave in ((first, upper, 0), (last, lower, 1)):
                result.empty.wait()
                tcgen05.fence_after_thread_sync()
                multiply_wave(slots, result, 0, head, wave)
            for k in loop(head, middle):
                slot, _ = next(last), next(first)
                slot.full.wait()
                multiply(upper.d, slot, k, 0)
                multiply(lower.d, slot, k, 1)
                commit_empty(slot)
            for slots, result, wave in ((first, upper, 0), (last, lower, 1)):
                multiply_wave(slots, result, middle, tiles_k, wave)
                tcgen05.commit(result.full, cta_group=2, multicast=storing)

    @role(warp=3, when=(rank == 0) if dynamic else False)
    def schedule() -> None:
        schedule_clusters(work)

    @role(warps=range(WARPS, 2 * WARPS), when=True if config.dual else half == 0)
    def epilogue() -> None:
        tiles, one = acc.consumer(), elect_one()
        for row, col in output_tiles(one):
            for wave in range(waves):
                result = next(tiles)
                empty = result.empty.at(leader)
                result.full.wait()
                tcgen05.fence_after_thread_sync()
                for moment in store_boxes(result.d, d, blocks, (), row + wave * LANES, col, config):
                    if moment == ("read" if config.early else "stored"):
                        tcgen05.fence_before_thread_sync()
                        warp.sync()
                        with If(one):
                            empty.arrive()
        tma.wait_group(0, read=True)

    sync_dealloc()
