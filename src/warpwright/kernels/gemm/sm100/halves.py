"""GEMM on datacentre Blackwell whose last round of tiles is cut into halves, for problems that leave it half empty.

The tiles of whole rounds are those of `gemm.gemm`. If fewer tiles are left than half of the pairs, a whole round for
them would leave most SMs idle, so each is computed as two tiles of half its columns, by two pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from warpwright.kernels.gemm.epilogue import GROUP, PLAIN, Epilogue, factor, load_bias
from warpwright.kernels.gemm.sm90.kernel import Matrix, split_batch
from warpwright.kernels.gemm.sm100.configs import PAIR
from warpwright.kernels.gemm.sm100.gemm import shifts_of_fragment
from warpwright.kernels.gemm.sm100.pieces import multiply_half
from warpwright.kernels.gemm.sm100.setup import init_alloc_sync_early, operand_ring, sync_dealloc_early
from warpwright.kernels.gemm.sm100.steps import (
    BOTH,
    columns_from,
    load_operand,
    multiply_block,
    rasterize_pairs,
    store_fragments,
)
from warpwright.kernels.gemm.sm100.tilings import LANES, TILINGS, WARPS, Tiling
from warpwright.kernels.tiles import PACKED, atom, part
from warpwright.lang import (
    Else,
    Expr,
    Global,
    If,
    Ring,
    bf16,
    cluster_ctaid,
    clusterid,
    cvt,
    elect_one,
    f32,
    kernel,
    loop,
    nclusterid,
    role,
    select,
    smem,
    tcgen05,
    tma,
    tmem,
    u32,
    u64,
    warp,
)
from warpwright.types import Scalar

__all__ = ["gemm_halves"]


@kernel("sm_100a", cluster=PAIR, threads=256)
def gemm_halves(
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
    whole: u32,
    *,
    config: Tiling = TILINGS["128x256 pair, halves"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """Pairs are persistent: the first ``whole`` tiles have all columns of ``config``, then come the halves of others.

    The other parameters are those of `gemm.gemm`.

    role      warps  moves                                         waits for            signals
    load      0      A, B: global -> ring `ab`                     ab.empty             ab.full (leader)
    mma       1      ring `ab` -> `acc` in tensor memory (leader)  ab.full, acc.empty   ab.empty, acc.full
    store     4-7    `acc` -> registers -> blocks -> D             acc.full             acc.empty (leader)
    """
    (tile_m, tile_n), k = config.tile, atom(dtype) * config.depth
    half_n, own_n = tile_n // 2, tile_n // 2 // PAIR  # columns of half a tile, rows of B of them in a CTA
    ab = operand_ring(config, majors, dtype, b_dtype)
    sums = tmem.tile(f32, (LANES, tile_n), cta_group=2)
    acc = Ring(config.accumulators, full=1, empty=PAIR * WARPS, name="acc", d=sums)
    blocks = smem.tile(out, (WARPS * 2 * 32, 128 // out.nbytes), swizzle=128)
    init_alloc_sync_early(ab, acc, maps=(a, b, d))
    rank = cluster_ctaid.x

    def output_tiles() -> Iterator[tuple[Matrix, Expr, Expr, Expr]]:
        """Matrix, first row of A, first column of D and halves of columns, 1 or 2, of the tiles of this pair."""
        for number in loop(clusterid.x, 2 * (tiles_m * tiles_n * batches) - whole, nclusterid.x):
            is_whole, beyond = number < whole, number - whole
            tile = select(is_whole, number, whole + beyond // 2)
            below, col = rasterize_pairs(tile, tiles_m * batches, tiles_n, config.group)
            at, row = split_batch(below, tiles_m, batched)
            left = col * tile_n + select(is_whole, 0, beyond % 2 * half_n)
            yield at, (row * PAIR + rank) * tile_m, left, select(is_whole, cvt(2, u32), 1)

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ab.producer()
        for at, row, col, halves in output_tiles():
            first = col + rank * halves * own_n  # row of B
            for step in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                with If(rank == 0):
                    slot.full.arrive_expect_tx(PAIR * (slot.a.nbytes + halves * (slot.b.nbytes // 2)))
                full = slot.full.at(0)
                load_operand(slot.a, a, majors[0], at["a"], row, step * k, full, PAIR)
                upper, lower = (part(slot.b, i, own_n, majors[1]) for i in range(2))
                load_operand(upper, b, majors[1], at["b"], first, step * k, full, PAIR)
                with If(halves == 2):
                    load_operand(lower, b, majors[1], at["b"], first + own_n, step * k, full, PAIR)
        slots.wait_all_empty()  # no commit of the leader is in flight to the other CTA when that CTA exits

    @role(warp=1, elect=True, when=rank == 0)
    def mma() -> None:
        tmem.open()
        slots, tiles = ab.consumer(), acc.producer()
        for _, _, _, halves in output_tiles():
            result = next(tiles)
            result.empty.wait()
            tcgen05.fence_after_thread_sync()
            for step in loop(tiles_k):
                slot = next(slots)
                slot.full.wait()
                with If(halves == 2):
                    multiply_block(result.d, slot, step > 0, 0, majors, PAIR)
                with Else():
                    multiply_half(result.d[:, :half_n], slot, 0, step > 0, majors, PAIR)
                tcgen05.commit(slot.empty, cta_group=2, multicast=BOTH)
            tcgen05.commit(result.full, cta_group=2, multicast=BOTH)

    @role(warps=range(WARPS, 2 * WARPS))
    def store() -> None:
        tmem.open()
        tiles, one = acc.consumer(), elect_one()
        relu = epilogue.activation == "relu" and out in PACKED  # by the rounding to 16 bits
        before = replace(epilogue, activation="") if relu else epilogue
        scale = factor(alpha, scale_a, scale_b) if epilogue.scaled else None
        shifts = None

        def finish(sums: list[Any], left: int) -> list[Any]:
            return before.apply(sums, scale, shifts_of_fragment(shifts, left, len(sums)))

        for at, row, col, halves in output_tiles():
            result = next(tiles)
            for half in loop(halves):
                left = half * half_n
                if epilogue.bias:
                    first = col + left + warp.lane % 4 * 2
                    shifts = load_bias(Global(epilogue.bias, bias), first, half_n // GROUP, GROUP, columns)
                result.full.wait()
                tcgen05.fence_after_thread_sync()
                sums_of_half = columns_from(result.d, left, half_n)
                for moment in store_fragments(sums_of_half, d, blocks, at["d"], row, col + left, finish, relu):
                    if moment == "read":
                        tcgen05.fence_before_thread_sync()
                        warp.sync()
                        with If(one & (half == halves - 1)):  # all of the accumulator is in registers
                            result.empty.at(0).arrive()

    sync_dealloc_early(PAIR)

    @role(warps=range(WARPS, 2 * WARPS))
    def drain() -> None:
        tma.wait_group(0, read=True)
