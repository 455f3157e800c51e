"""GEMM on datacentre Blackwell with three roles: levels 6 to 10 of the ladder of `configs`.

Clusters are persistent, and each role walks the same tiles in a loop of its own: while the epilogue stores a tile, the
tensor cores compute the next one into another part of tensor memory, and the loads run ahead of both.

A cluster is one pair of CTAs or more. The pair's products are 256 rows of A, of which each CTA has its own 128, times
all rows of B, of which each CTA has half. ``dual`` pairs have two blocks of rows, so two tiles; where a last cluster
reaches over the edge of D, its loads read zeros and its stores leave them out, so any number of tiles will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from warpwright.kernels.gemm.sm100.configs import LANES, PAIR, WARPS
from warpwright.kernels.gemm.sm100.steps import (
    BOTH,
    grouped,
    hold_back,
    load_part,
    multiply,
    multiply_staggered,
    next_tiles,
    offer_tiles,
    release,
    set_up,
    sharing,
    store_boxes,
    tear_down,
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
    nclusterid,
    role,
    smem,
    tcgen05,
    tma,
    tmem,
    u32,
    var,
)
from warpwright.types import Scalar

__all__ = ["gemm_roles"]

WORK_STAGES = 2


@kernel("sm_100a", cluster=PAIR, threads=256)
def gemm_roles(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    *,
    tile: tuple[int, int, int] = (128, 256, 64),
    stages: int = 6,
    merge: int = 1,
    share: tuple[int, int] = (1, 1),
    dual: bool = True,
    stagger: int = 0,
    group: int = 8,
    scheduler: str = "static",
    throttle: int = 100,
    accumulators: int = 2,
    box: tuple[int, int] = (32, 128),
    boxes: int = 2,
    swizzle: int = 128,
    early: bool = True,
    columns: int = 32,
    dtype: type[Scalar] = bf16,
    out: type[Scalar] | None = None,
    cluster: int = PAIR,
) -> None:
    """``tiles_m`` × ``tiles_n`` are areas of D that a cluster computes; the configuration is `configs.GemmConfig`'s.

    role      warps  moves                                          waits for            signals
    load      0      A, B: global -> ring `ab` of sharing CTAs      ab.empty             ab.full (leader)
    mma       1      ring `ab` -> `acc` in tensor memory (leader)   ab.full, acc.empty   ab.empty, acc.full
    schedule  3      clusters not started -> ring `work`            work.empty           work.full
    epilogue  4-7    `acc` -> registers -> blocks -> D              acc.full             acc.empty (leader)
    """
    tile_m, tile_n, depth = tile[0], tile[1], tile[2] * merge
    pairs, writers = share[0] * share[1], PAIR if dual else 1
    a_tile, b_tile = (smem.tile(dtype, (rows, depth), swizzle=128) for rows in (tile_m, tile_n // PAIR))
    parts = tile_m // LANES if stagger else 1
    sums = tmem.tile(f32, (LANES, tile_m // LANES * tile_n // parts), cta_group=2)
    ab = Ring(stages // merge, full=1, empty=pairs, name="ab", a=a_tile, b=b_tile)
    acc = Ring(accumulators * parts, full=1, empty=writers * WARPS, name="acc", d=sums)
    work = Ring(WORK_STAGES, empty=pairs * (PAIR + 1 + writers * WARPS), name="work", response=smem.tile(u32, (1, 4)))
    written = out or dtype
    blocks = smem.tile(written, (boxes * LANES, box[1] // written.nbytes), swizzle=swizzle)
    dynamic = scheduler == "clc"
    paused = [mbarrier(1, name="throttle")] if throttle < 100 else []
    set_up(ab, acc, *([work] if dynamic else []), *paused, maps=(a, b, d))
    rank = cluster_ctaid.x
    half = rank % PAIR
    leader = rank - half
    along_m, along_n, same_a, same_b = sharing(rank, share)
    pair = shift_mask(BOTH if dual else 1, leader)

    def output_tiles(tells: Any = True) -> Iterator[tuple[Expr, Expr]]:
        """First row and column of this CTA's tiles, one after the other: the same in every role."""
        static = loop(clusterid.x, tiles_m * tiles_n, nclusterid.x)
        for number in next_tiles(work, tells) if dynamic else static:
            down, along = grouped(number, tiles_m, tiles_n, group)
            block = (down * share[0] + along_m) * writers + (half if dual else 0)
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
        slots, ahead, tiles = ab.consumer(), ab.consumer(), acc.producer()
        parity = var(u32, 0)

        def free(slot: Any) -> None:
            tcgen05.commit(slot.empty, cta_group=2, multicast=(1 << PAIR * pairs) - 1)
            for done in paused:
                hold_back(done, parity, throttle, (tile_m, tile_n, depth))

        for _ in output_tiles():
            if stagger:
                multiply_staggered(slots, ahead, tiles, tiles_k, min(stagger, ab.stages), free, pair)
                continue
            result = next(tiles)
            result.empty.wait()
            tcgen05.fence_after_thread_sync()
            for k in loop(tiles_k):
                slot = next(slots)
                slot.full.wait()
                multiply(result.d, slot, k)
                free(slot)
            tcgen05.commit(result.full, cta_group=2, multicast=pair)

    @role(warp=3, when=(rank == 0) if dynamic else False)
    def schedule() -> None:
        offer_tiles(work)

    @role(warps=range(WARPS, 2 * WARPS), when=True if dual else half == 0)
    def epilogue() -> None:
        tiles, tells = acc.consumer(), elect_one()
        for row, col in output_tiles(tells):
            for part in range(parts):
                result = next(tiles)
                read = partial(release, result.empty.at(leader), tells)
                result.full.wait()
                tcgen05.fence_after_thread_sync()
                place = {"box": box[0], "width": tile_n, "columns": columns}
                store_boxes(result.d, d, blocks, row + part * LANES, col, **place, read=read if early else None)
                if not early:
                    read()
        tma.wait_group(0, read=True)

    tear_down()
