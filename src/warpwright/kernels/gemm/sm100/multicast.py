"""GEMM on datacentre Blackwell in one round of tiles whose CTAs multiply alone and share B by multicast.

The two CTAs of a cluster have rows of A of their own and the same rows of B, as a pair of CTAs has. A pair holds half
of B in each CTA, here each has all of it: an mma of one CTA leaves room in shared memory's bandwidth for what TMA
writes, an mma of a pair does not. Each stage takes more shared memory, so fewer k-blocks are on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue, factor
from warpwright.kernels.gemm.sm90.kernel import split_batch
from warpwright.kernels.gemm.sm100.configs import PAIR
from warpwright.kernels.gemm.sm100.gemm import load_shifts, shifts_of_fragment
from warpwright.kernels.gemm.sm100.setup import alloc_sync_early, init_barriers, sync_dealloc_early
from warpwright.kernels.gemm.sm100.steps import BOTH, load_operand, rasterize_pairs, store_fragments
from warpwright.kernels.gemm.sm100.tilings import FIRST, L2_PROMOTION, LANES, ROW_BYTES, TILINGS, WARPS, Tiling
from warpwright.kernels.tiles import PACKED, WGMMA_BYTES, atom, window
from warpwright.lang import (
    Expr,
    Global,
    If,
    Ring,
    bf16,
    cluster,
    cluster_ctaid,
    clusterid,
    f32,
    kernel,
    loop,
    max,
    mbarrier,
    min,
    role,
    select,
    smem,
    tcgen05,
    tma,
    tmem,
    u32,
    u64,
)
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["gemm_multicast"]

HALF_BYTES = ROW_BYTES // 2  # of K in a stage of B, of a row in a block of the epilogue
GPCS = 8


@kernel("sm_100a", cluster=PAIR, threads=256)
def gemm_multicast(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    batches: u32,
    columns: u32,
    bias: u64,
    scale_a: u64,
    scale_b: u64,
    alpha: f32,
    *,
    config: Tiling = TILINGS["128x224 multicast"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """A CTA computes one tile. The parameters are those of `gemm.gemm`.

    role   warps  moves                                                   waits for         signals
    load   0      A -> ring `rows`; half of K of B -> `cols` of both CTAs  rows/cols.empty  rows/cols.full
    mma    1      `rows`, `cols` -> `sums`, then `ends` in tensor memory   rows/cols.full   rows/cols.empty (both), done
    store  4-7    `sums` + `ends` -> registers -> free stages of B -> D    done

    The last k-blocks are multiplied with the first columns, then with the others: the epilogue stores the first ones
    meanwhile. Only mma of one shape are ordered as they are issued, so these have an accumulator of their own, `ends`.
    """
    (tile_m, tile_n), k, half_k = config.tile, atom(dtype), HALF_BYTES // dtype.nbytes
    a_tile = smem.tile(dtype, (tile_m, k) if majors[0] == "k" else (k, tile_m), swizzle=128)
    rows = Ring(config.stages, full=1, empty=1, name="rows", a=a_tile)
    b_shape, b_swizzle = ((tile_n, half_k), HALF_BYTES) if majors[1] == "k" else ((half_k, tile_n), ROW_BYTES)
    b_tile = smem.tile(b_dtype or dtype, b_shape, swizzle=b_swizzle)
    cols = Ring(2 * config.stages, full=1, empty=PAIR, name="cols", b=b_tile)
    sums, ends = (tmem.tile(f32, (LANES, tile_n)) for _ in range(2))
    done = mbarrier.array(2, name="done")
    init_barriers(rows, cols, *done, maps=(a, b, d))
    cluster.arrive("relaxed")  # fence.mbarrier_init has released the mbarriers, of which the peer uses `cols`
    cluster.wait()
    alloc_sync_early(1)
    rank = cluster_ctaid.x
    below, along = rasterize_pairs(clusterid.x, tiles_m * batches, tiles_n, config.group)
    at, across = split_batch(below, tiles_m, batched)
    row, col = (across * PAIR + rank) * tile_m, along * tile_n
    steps = max(tiles_k, 2)  # each accumulator has one at least; beyond K the loads read zeros
    apart = steps - min(steps - 1, config.stagger)  # from here on the first columns come before the others

    def k_blocks() -> Iterator[Expr]:
        """Columns of A and B, k-block by k-block. Clusters of one GPC take the lines of L2 in the same order, those of
        another GPC in another one: a line of A comes from device memory for one of them, and the others find it in L2.
        """
        blocks = L2_PROMOTION // ROW_BYTES  # of a line
        swap, whole = clusterid.x % GPCS * blocks, steps // (GPCS * blocks) * (GPCS * blocks)
        for place in loop(steps):
            yield select(place < whole, place ^ swap, place) * k

    @role(warp=0, elect=True)
    def load() -> None:
        of_a, of_b = rows.producer(), cols.producer()
        for left in k_blocks():
            for half in range(2):
                slot = next(of_b)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                with If(rank == half):
                    load_operand(slot.b, b, majors[1], at["b"], col, left + half * half_k, slot.full, 1, multicast=BOTH)
                if half == 0:
                    slot = next(of_a)
                    slot.empty.wait()
                    slot.full.arrive_expect_tx(slot.nbytes)
                    load_operand(slot.a, a, majors[0], at["a"], row, left, slot.full, 1)
        of_b.wait_all_empty()  # no commit of the peer is in flight to this CTA when it exits

    @role(warp=1, elect=True)
    def mma() -> None:
        tmem.open()
        ahead, after = ((rows.consumer(), cols.consumer()) for _ in range(2))

        def multiply(acc: Any, cursors: Any, first: int, more: Expr, *, waits: bool = True, frees: str = "") -> None:
            """Multiply a k-block with the rows of B from ``first`` on, as many as ``acc`` has columns.

            ``waits`` for the operands, and then ``frees`` the stages of those of "ab"."""
            of_a, of_b = cursors
            left = next(of_a)
            for half in range(2):
                right = next(of_b)
                if waits:
                    for slot in (left, right) if half == 0 else (right,):
                        slot.full.wait()
                own = slice(first, first + acc.shape[1])
                part = right.b[own, :] if majors[1] == "k" else right.b[:, own]
                multiply_part(acc, left.a, part, half * half_k, True if half else more, majors)
                if "b" in frees:
                    tcgen05.commit(right.empty, multicast=BOTH)
            if "a" in frees:
                tcgen05.commit(left.empty)

        for step in loop(apart):
            for cursor in (*after, after[1]):
                next(cursor)
            multiply(sums, ahead, 0, step > 0, frees="ab")
        for step in loop(apart, steps):
            multiply(ends[:, :FIRST], ahead, 0, step > apart)
        tcgen05.commit(done[0])
        for step in loop(apart, steps):
            multiply(ends[:, FIRST:], after, FIRST, step > apart, waits=False, frees="b")
        tcgen05.commit(done[1])

    @role(warps=range(WARPS, 2 * WARPS))
    def store() -> None:
        tmem.open()
        relu = epilogue.activation == "relu" and out in PACKED  # by the rounding to 16 bits
        before = replace(epilogue, activation="") if relu else epilogue
        scale = factor(alpha, scale_a, scale_b) if epilogue.scaled else None
        shifts: Any = load_shifts(Global(epilogue.bias, bias), config, row, col, columns) if epilogue.bias else None

        def finish(values: list[Any], left: int) -> list[Any]:
            return before.apply(values, scale, shifts_of_fragment(shifts, left, len(values)))

        # Two stages of B that no k-block after the first `apart` ones uses: there are at least as many
        height = 2 * cols.stride // (LANES * HALF_BYTES) * LANES
        base, start = cols.place.known()
        free = base + steps % config.stages * (2 * cols.stride)
        blocks = smem.tile(out, (height, HALF_BYTES // out.nbytes), swizzle=HALF_BYTES).placed(free, start)
        done[0].wait(0)
        tcgen05.fence_after_thread_sync()
        for moment in store_fragments(sums, d, blocks, at["d"], row, col, finish, relu, more=[ends], late=FIRST):
            if moment == "late":
                done[1].wait(0)
                tcgen05.fence_after_thread_sync()

    sync_dealloc_early(1)

    @role(warps=range(WARPS, 2 * WARPS))
    def drain() -> None:
        tma.wait_group(0, read=True)


def multiply_part(acc: tmem.TmemTile, a: Tile, b: Tile, first: int, more: Any, majors: tuple[str, str]) -> None:
    """Issue the mma of one CTA for the K that ``b`` has, and ``a`` has from ``first`` on; without ``more`` the first
    mma overwrites ``acc``."""
    for kk in range(0, b.shape[1 if majors[1] == "k" else 0], WGMMA_BYTES // b.dtype.nbytes):
        left, right = window(a, first + kk, majors[0]), window(b, kk, majors[1])
        tcgen05.mma(acc, left, right, accumulate=True if kk else more)
