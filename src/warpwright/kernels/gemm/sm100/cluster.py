"""GEMM of a few rows on datacentre Blackwell: the slices of K of a tile are a cluster, which adds its partial sums.

Each CTA multiplies one slice of K of a tile of Dᵀ, as `gemm.gemm` does if swapped, and owns some of the tile's columns,
which are rows of D. The CTAs of a cluster exchange the sums of columns through device memory, in practice L2: threads
store 62 bytes a cycle there, 21 to another CTA's shared memory. An mbarrier of the owner says that a piece of its
columns is there, so there is no second launch.
"""

from __future__ import annotations

from dataclasses import replace

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue, factor
from warpwright.kernels.gemm.sm90.kernel import k_blocks, split_batch
from warpwright.kernels.gemm.sm100.gemm import load_shifts
from warpwright.kernels.gemm.sm100.pieces import (
    Pieces,
    barrier_at,
    load_sums,
    multiply_half,
    store_block,
    store_words,
)
from warpwright.kernels.gemm.sm100.setup import init_alloc_sync_early, operand_ring, wait_dealloc_early
from warpwright.kernels.gemm.sm100.steps import add_words, columns_from, load_operand, multiply_block
from warpwright.kernels.gemm.sm100.tilings import CLUSTER_WARPS, LANES, TILINGS, WARPS, Tiling
from warpwright.kernels.tiles import PACKED, atom, part
from warpwright.lang import (
    Expr,
    Global,
    If,
    bf16,
    cluster_ctaid,
    clusterid,
    elect_one,
    f32,
    kernel,
    loop,
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
    warp,
)
from warpwright.types import Scalar

__all__ = ["gemm_cluster"]


@kernel("sm_100a", cluster=4, threads=32 * (WARPS + CLUSTER_WARPS))
def gemm_cluster(
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
    parts: Global[f32],
    *,
    config: Tiling = TILINGS["swapped 128x256, cluster of 4 slices"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """A cluster computes one tile of Dᵀ; the parameters are those of `gemm.gemm` for a swapped ``config``.

    ``parts`` has tile_n × 128 partial sums of each CTA.

    role   warps  moves                                         waits for    signals
    load   0      A, B: global -> ring `ab`                     ab.empty     ab.full
    mma    1      ring `ab` -> `sums`, then `ends`              ab.full      ab.empty, done
    store  4-11   columns of other CTAs -> `parts`              done         given (of their owners)
                  own columns + `parts` of the others -> D      given, done  read
    free   2      frees tensor memory                           read

    A tile has two halves of its columns. The last k-blocks are multiplied with one half, then with the other, in which
    this CTA owns columns: the epilogue stores sums of the first half while those of the second are completed. Only mma
    of one shape are ordered as they are issued, so the mma of halves have accumulators of their own, `ends`.
    Tiles of the same rows of A begin their slice at different k-blocks: if all read a block of A at the same time, all
    wait for device memory; now one does, and the others find the block in L2.
    """
    (tile_m, tile_n), slices, k = config.tile, config.slices, atom(dtype) * config.depth
    rows, pieces, groups = config.piece, config.pieces, CLUSTER_WARPS // WARPS
    turns = -(-pieces // (slices * groups))  # of a warp to add a piece
    ab = operand_ring(config, majors, dtype, b_dtype)
    sums, ends = (tmem.tile(f32, (LANES, tile_n)) for _ in range(2))
    done, read = mbarrier.array(2, name="done"), mbarrier(CLUSTER_WARPS, name="read")
    given = mbarrier.array(-(-pieces // slices), (slices - 1) * WARPS, name="given")
    init_alloc_sync_early(ab, *done, *given, read, maps=(a, b, d), ctas=1, cluster_ctas=slices, threads=config.threads)
    blocks = smem.tile(out, (CLUSTER_WARPS * turns * rows, 32)).placed(None, ab.place.known()[1])  # after the last mma
    number = cluster_ctaid.x
    along, below = clusterid.x // (tiles_m * batches), clusterid.x % (tiles_m * batches)
    at, across = split_batch(below, tiles_m, batched)
    row, col = across * tile_m, along * tile_n
    begin, end = k_blocks(slices, {"d": (number,)}, tiles_k)
    apart = end - min(end - begin - 1, config.stagger)  # from here on the halves are multiplied one after the other
    mine = Pieces(parts, number, config)

    @role(warp=0, elect=True)
    def load() -> None:
        slots, later = ab.producer(), begin + across * (end - begin) // tiles_m
        for place in loop(end - begin):
            slot, further = next(slots), later + place
            step = further - select(further < end, 0, end - begin)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            load_operand(slot.a, a, majors[0], at["a"], row, step * k, slot.full, 1)
            load_operand(slot.b, b, majors[1], at["b"], col, step * k, slot.full, 1)

    @role(warp=1, elect=True)
    def mma() -> None:
        tmem.open()
        slots, again = ab.consumer(), ab.consumer()
        for step in loop(begin, apart):
            slot, _ = next(slots), next(again)
            slot.full.wait()
            multiply_block(sums, slot, step > begin, 0, majors, 1)
            tcgen05.commit(slot.empty)
        for turn, cursor in enumerate((slots, again)):
            side = mine.half(turn)
            half_of_ends = columns_from(ends, side * (tile_n // 2), tile_n // 2)
            for step in loop(apart, end):
                slot = next(cursor)  # no load follows into it
                if turn == 0:
                    slot.full.wait()
                multiply_half(half_of_ends, slot, side, step > apart, majors)
            tcgen05.commit(done[turn])

    @role(warps=range(WARPS, WARPS + CLUSTER_WARPS))
    def store() -> None:
        tmem.open()
        own, group, one = warp.id % WARPS, warp.id // WARPS - 1, elect_one()
        scale = factor(alpha, scale_a, scale_b) if epilogue.scaled else None
        shifts = load_shifts(Global(epilogue.bias, bias), config, row, col, columns) if epilogue.bias else None
        relu = epilogue.activation == "relu" and out in PACKED  # by the rounding to 16 bits
        before = replace(epilogue, activation="") if relu else epilogue
        first, last = mine.owned(number)

        for turn in range(1 if slices == 2 else 2):  # of two CTAs, each owns one half
            side = mine.half(turn)
            done[turn].wait(0)
            tcgen05.fence_after_thread_sync()
            for i in range(0, pieces // 2, groups):
                piece = side * (pieces // 2) + i + group
                owner, index = mine.owner(piece)
                with If(owner != number):
                    store_words(mine.place(number, piece), load_sums((sums, ends), piece * rows, rows))
                    warp.sync()
                    with If(one):
                        barrier_at(given, index).at(owner).arrive()

        def load_own(piece: Expr) -> list[Expr]:
            return load_sums((sums, ends), min(piece, last - 1) * rows, rows)

        def load_others(piece: Expr) -> list[list[Expr]]:
            barrier_at(given, min(piece, last - 1) - first).wait(0, scope="cluster")
            return mine.load_others(min(piece, last - 1))

        if slices == 2:
            done[1].wait(0)
            tcgen05.fence_after_thread_sync()
        words = load_own(first + group)  # complete before those of the others come
        others = load_others(first + group)
        for turn in range(turns):
            piece, loaded = first + turn * groups + group, others
            if turn:
                words = load_own(piece)
            if turn + 1 < turns:  # in flight while these are added
                others = load_others(piece + groups)
            else:
                tcgen05.fence_before_thread_sync()
                warp.sync()
                with If(one):
                    read.arrive()  # this warp reads no more of tensor memory
            with If(piece < last):
                results = before.apply(add_words(words, loaded), scale, shifts)
                block = part(blocks, (turn * groups + group) * WARPS + own, rows, "k")
                store_block(d[(*at["d"], col + piece * rows, row + own * 32)], block, results, one, relu=relu)
        with If(one):
            tma.commit_group()

    wait_dealloc_early(read)

    @role(warps=range(WARPS, WARPS + CLUSTER_WARPS))
    def drain() -> None:
        tma.wait_group(0, read=True)
