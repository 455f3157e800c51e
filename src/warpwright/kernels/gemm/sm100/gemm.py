"""The default GEMM on datacentre Blackwell: one page for one CTA and pairs, 16-bit and 8-bit floats, four layouts.

D = activation(scale · A·Bᵀ + bias) of A (M, K) and B (N, K), each also as its transpose in memory. A CTA's tile has
128 rows, or 256 in two waves. The CTAs of a pair have rows of A of their own and half of the rows of B each. If
``config.swapped``, A and B change places: D's rows are columns of tensor memory, so that a problem of a few rows wastes
no lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any

from warpwright.kernels.gemm.epilogue import GROUP, PLAIN, Epilogue, factor, load_bias
from warpwright.kernels.gemm.sm90.kernel import Matrix, k_blocks, split_batch
from warpwright.kernels.gemm.sm100.setup import init_alloc_sync_early, operand_ring, sync_dealloc_early
from warpwright.kernels.gemm.sm100.steps import (
    BOTH,
    load_operand,
    multiply_block,
    rasterize,
    rasterize_pairs,
    store_columns,
    store_fragments,
    store_sums,
)
from warpwright.kernels.gemm.sm100.tilings import LANES, TILINGS, WARPS, Tiling
from warpwright.kernels.tiles import PACKED, atom
from warpwright.lang import (
    Expr,
    Global,
    If,
    Pointer,
    Ring,
    bf16,
    cluster_ctaid,
    clusterid,
    elect_one,
    f32,
    kernel,
    ld,
    loop,
    min,
    nclusterid,
    role,
    smem,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    u64,
    warp,
)
from warpwright.types import Scalar

__all__ = ["gemm"]


@kernel("sm_100a", cluster=2, threads=256)
def gemm(
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
    config: Tiling = TILINGS["256x256 pair"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """Clusters are persistent and walk the tiles of D in groups of rows of tiles, so that operands are reused in L2.

    ``a`` and ``b`` are the operands in the order of the mma: B and A if ``config.swapped``, and so ``tiles_m``,
    ``tiles_n``, ``majors`` and the element types. ``batched`` names the operands, of "abd", that have a matrix for each
    of ``batches``. The parameters from ``columns`` on are those of ``epilogue``. If ``config.direct``, ``d`` is the
    address of the partial sums.

    role      warps  moves                                         waits for            signals
    load      0      A, B: global -> ring `ab`                     ab.empty             ab.full (leader)
    mma       1      ring `ab` -> `acc` in tensor memory (leader)  ab.full, acc.empty   ab.empty, acc.full
    store     4-7    `acc` -> registers -> blocks -> D             acc.full             acc.empty (leader)
    """
    ctas, (tile_m, tile_n), waves, k = config.ctas, config.tile, config.waves, atom(dtype) * config.depth
    ab = operand_ring(config, majors, dtype, b_dtype)
    sums = tmem.tile(f32, (LANES, tile_n), cta_group=ctas)
    acc = Ring(config.accumulators * waves, full=1, empty=ctas * WARPS, name="acc", d=sums)
    width = 32 if config.swapped else gcd(tile_n, 128 // out.nbytes)  # whole blocks in a tile
    shape = WARPS * (config.block_rows if config.swapped else 2 * 32), width
    swizzle = 0 if config.swapped else width * out.nbytes
    blocks: Any = None if config.direct else smem.tile(out, shape, swizzle=swizzle)
    init_alloc_sync_early(ab, acc, maps=(a, b) if config.direct else (a, b, d), ctas=ctas)
    half: Any = cluster_ctaid.x if ctas > 1 else 0
    both = BOTH if ctas > 1 else None
    order = rasterize_pairs if ctas > 1 else rasterize

    def output_tiles() -> Iterator[tuple[Matrix, Expr, Expr]]:
        """Matrix, first row of A and first row of B of this CTA's tiles: the same in every role."""
        for number in loop(clusterid.x, tiles_m * tiles_n * batches, nclusterid.x):
            below, col = order(number, tiles_m * batches, tiles_n, config.group)
            at, row = split_batch(below, tiles_m, batched)
            yield at, (row * ctas + half) * tile_m, col * tile_n

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ab.producer()
        for at, row, col in output_tiles():
            for step in loop(*k_blocks(config.slices, at, tiles_k)):
                slot = next(slots)
                slot.empty.wait()
                with If(half == 0):
                    slot.full.arrive_expect_tx(ctas * slot.nbytes)
                full = slot.full.at(0) if ctas > 1 else slot.full
                load_operand(slot.a, a, majors[0], at["a"], row, step * k, full, ctas)
                load_operand(slot.b, b, majors[1], at["b"], col + half * (tile_n // ctas), step * k, full, ctas)
        if ctas > 1:  # no commit of the leader is in flight to the other CTA when that CTA exits
            slots.wait_all_empty()

    @role(warp=1, elect=True, when=half == 0)
    def mma() -> None:
        tmem.open()
        last, first, tiles = ab.consumer(), ab.consumer(), acc.producer()  # of a tile's last wave, of its first
        lead = min(config.stagger, ab.stages)

        def multiply_wave(slots: Any, result: Any, start: Any, stop: Any, begin: Any, wave: int) -> None:
            for step in loop(start, stop):
                slot = next(slots)
                slot.full.wait()
                multiply_block(result.d, slot, step > begin, wave, majors, ctas)
                if wave == waves - 1:
                    tcgen05.commit(slot.empty, cta_group=ctas, multicast=both)

        def next_accumulator() -> Any:
            result = next(tiles)
            result.empty.wait()
            tcgen05.fence_after_thread_sync()
            return result

        for at, _, _ in output_tiles():
            begin, end = k_blocks(config.slices, at, tiles_k)
            if waves == 1:
                result = next_accumulator()
                multiply_wave(last, result, begin, end, begin, 0)
                tcgen05.commit(result.full, cta_group=ctas, multicast=both)
                continue
            # At a tile's begin and end the first wave is `lead` k-blocks ahead. Its sums are complete early, and the
            # epilogue reads them while the second wave ends; then it reads the second wave's while the first wave of
            # the next tile begins. So the tensor cores never wait, though a tile takes all of tensor memory.
            head = min(end, begin + lead)
            middle = end - min(end - head, lead)
            upper = next_accumulator()
            multiply_wave(first, upper, begin, head, begin, 0)
            lower = next_accumulator()
            multiply_wave(last, lower, begin, head, begin, 1)
            for step in loop(head, middle):
                slot, _ = next(last), next(first)
                slot.full.wait()
                multiply_block(upper.d, slot, step > begin, 0, majors, ctas)
                multiply_block(lower.d, slot, step > begin, 1, majors, ctas)
                tcgen05.commit(slot.empty, cta_group=ctas, multicast=both)
            multiply_wave(first, upper, middle, end, begin, 0)
            tcgen05.commit(upper.full, cta_group=ctas, multicast=both)
            multiply_wave(last, lower, middle, end, begin, 1)
            tcgen05.commit(lower.full, cta_group=ctas, multicast=both)

    @role(warps=range(WARPS, 2 * WARPS))
    def store() -> None:
        tmem.open()
        tiles, one = acc.consumer(), elect_one()
        shifts: Any = None
        relu = epilogue.activation == "relu" and out in PACKED and not config.swapped  # by the rounding to 16 bits
        before = replace(epilogue, activation="") if relu else epilogue
        store_tile: Any = store_columns if config.swapped else partial(store_fragments, relu=relu)
        if config.direct:
            store_tile = partial(store_sums, height=tiles_n * tile_n, width=tiles_m * (ctas * tile_m))
        scale = factor(alpha, scale_a, scale_b) if epilogue.scaled else None

        def finish(sums: list[Any], left: int) -> list[Any]:
            return before.apply(sums, scale, shifts_of_fragment(shifts, left, len(sums)))

        for at, row, col in output_tiles():
            if epilogue.bias:
                shifts = load_shifts(Global(epilogue.bias, bias), config, row, col, columns)
            for wave in range(waves):
                result = next(tiles)
                result.full.wait()
                tcgen05.fence_after_thread_sync()
                for moment in store_tile(result.d, d, blocks, at["d"], row + wave * LANES, col, finish):
                    if moment == "read":
                        tcgen05.fence_before_thread_sync()
                        warp.sync()
                        with If(one):
                            (result.empty.at(0) if ctas > 1 else result.empty).arrive()

    sync_dealloc_early(ctas)

    @role(warps=range(WARPS, 2 * WARPS), when=not config.direct)
    def drain() -> None:
        tma.wait_group(0, read=True)


def load_shifts(bias: Pointer[Any], config: Tiling, row: Expr, col: Expr, columns: Expr) -> Any:
    """Returns the bias of a thread's row of a swapped tile, else pairs of columns of the tile, one of each `GROUP`."""
    if config.swapped:
        return ld(bias + min(row + tid.x % LANES, columns - 1), nc=True).to(f32)
    return load_bias(bias, col + warp.lane % 4 * 2, config.tile[1] // GROUP, GROUP, columns)


def shifts_of_fragment(shifts: Any, left: int, count: int) -> Any:
    """Returns what to add to ``count`` sums from column ``left`` on; a fragment has two columns of each `GROUP`, two
    rows."""
    if not isinstance(shifts, list):
        return shifts
    return [shifts[left // GROUP + i // 4][i % 2] for i in range(count)]
