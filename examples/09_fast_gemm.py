"""09: the fast GEMM, D = A·Bᵀ in tiles of 512 × 256 a pair of CTAs, as the default kernel of `ww.matmul` computes it.

A tile takes all of tensor memory, in two waves of 256 × 256 with an accumulator each. The first wave is three k-blocks
ahead of the second when a tile begins and when it ends: the epilogue reads the first accumulator while the second wave
ends, and the second accumulator while the next tile begins. So the tensor cores never wait for the epilogue.

role      warps  moves                                     waits for            signals
load      0      A, B: global -> ring `ab`                 ab.empty             ab.full (leader)
mma       1      ring `ab` -> ring `acc`, leader only      ab.full, acc.empty   ab.empty, acc.full
epilogue  4-7    `acc` -> registers -> blocks -> D         acc.full             acc.empty (leader)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.lang import (
    Expr,
    If,
    Ring,
    bf16,
    bf16x2,
    cluster,
    clusterid,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    min,
    nclusterid,
    pack,
    role,
    smem,
    st,
    tcgen05,
    tma,
    tmem,
    u32,
    warp,
)

ROWS, COLS, K = 256, 256, 64  # of one CTA's tile of D; of a k-block
WAVE, BOX = 128, 64  # rows of a wave in each CTA, columns of a TMA store
LEADER, BOTH = 0, 0b11  # of a pair of CTAs
STAGES, LEAD, GROUP = 4, 3, 8  # k-blocks in flight, k-blocks between the waves, rows of tiles walked together


@kernel("sm_100a", cluster=2, threads=256)
def gemm(a: tma.Map[bf16], b: tma.Map[bf16], d: tma.Map[bf16], tiles_m: u32, tiles_n: u32, tiles_k: u32) -> None:
    a_tile, b_tile = smem.tile(bf16, (ROWS, K), swizzle=128), smem.tile(bf16, (COLS // 2, K), swizzle=128)
    ab = Ring(STAGES, full=1, empty=1, name="ab", a=a_tile, b=b_tile)
    acc = Ring(2, full=1, empty=2 * 4, name="acc", d=tmem.tile(f32, (WAVE, COLS), cta_group=2))
    blocks = smem.tile(bf16, (4 * 2 * 32, BOX), swizzle=128)  # two blocks of 32 rows for each warp of the epilogue
    rank, leads = cluster.rank, cluster.rank == LEADER

    def output_tiles() -> Iterator[tuple[Expr, Expr]]:
        """Rasterization: down GROUP rows of tiles, then along, so that operands are reused in L2."""
        for tile in loop(clusterid.x, tiles_m * tiles_n, nclusterid.x):
            first = tile // (tiles_n * GROUP) * GROUP
            rows, inside = min(tiles_m - first, GROUP), tile % (tiles_n * GROUP)
            yield ((first + inside % rows) * 2 + rank) * ROWS, inside // rows * COLS

    @role(warp=0, elect=True)
    def init() -> None:
        ab.init()
        acc.init()
        fence.mbarrier_init()
        for each in (a, b, d):
            tma.prefetch_map(each)

    cluster.sync()

    @role(warp=2)
    def alloc() -> None:
        tmem.alloc()
        tcgen05.relinquish_alloc_permit(cta_group=2)

    tcgen05.fence_before_thread_sync()
    cluster.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ab.producer()
        for row, col in output_tiles():
            for k in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                with If(leads):
                    slot.full.arrive_expect_tx(2 * slot.nbytes)
                tma.load(slot.a, a[row, k * K], slot.full.at(LEADER), cta_group=2)
                tma.load(slot.b, b[col + rank * (COLS // 2), k * K], slot.full.at(LEADER), cta_group=2)
        slots.wait_all_empty()

    @role(warp=1, elect=True, when=leads)
    def mma() -> None:
        ahead, last, results = ab.consumer(), ab.consumer(), acc.producer()  # `last` releases the slots

        def multiply(slot: Any, result: Any, wave: int, k: Expr) -> None:
            for kk in range(0, K, 16):
                rows = slot.a[wave * WAVE : (wave + 1) * WAVE, kk : kk + 16]
                tcgen05.mma(result.d, rows, slot.b[:, kk : kk + 16], accumulate=(k > 0) | (kk > 0), cta_group=2)

        def multiply_wave(slots: Any, result: Any, wave: int, start: Any, stop: Expr) -> None:
            for k in loop(start, stop):
                slot = next(slots)
                slot.full.wait()
                multiply(slot, result, wave, k)
                if wave == 1:
                    tcgen05.commit(slot.empty, cta_group=2, multicast=BOTH)

        for _ in output_tiles():
            head = min(tiles_k, LEAD)
            middle = tiles_k - min(tiles_k - head, LEAD)
            upper, lower = next(results), next(results)
            for wave, (slots, result) in enumerate(((ahead, upper), (last, lower))):
                result.empty.wait()
                tcgen05.fence_after_thread_sync()
                multiply_wave(slots, result, wave, 0, head)
            for k in loop(head, middle):
                slot, _ = next(last), next(ahead)
                slot.full.wait()
                multiply(slot, upper, 0, k)
                multiply(slot, lower, 1, k)
                tcgen05.commit(slot.empty, cta_group=2, multicast=BOTH)
            for wave, (slots, result) in enumerate(((ahead, upper), (last, lower))):
                multiply_wave(slots, result, wave, middle, tiles_k)
                tcgen05.commit(result.full, cta_group=2, multicast=BOTH)

    @role(warps=range(4, 8))
    def epilogue() -> None:
        results, one, own = acc.consumer(), elect_one(), warp.id % 4
        base, offset = blocks.place.known()
        for row, col in output_tiles():
            for wave in range(2):
                result = next(results)
                result.full.wait()
                tcgen05.fence_after_thread_sync()
                for left in range(0, COLS, BOX):
                    block = blocks[:32, :].placed(base + (own * 2 + left // BOX % 2) * (32 * 128), offset)
                    with If(one):
                        tma.wait_group(1, read=True)  # the last store but one has read this block
                    warp.sync()
                    for start in range(left, left + BOX, 32):
                        values = tcgen05.ld(result.d[:, start : start + 32])
                        tcgen05.wait_ld()
                        words = [pack(bf16x2, *values[i : i + 2]) for i in range(0, 32, 2)]
                        for i in range(0, 16, 4):
                            corner = block.at(warp.lane, start - left + 2 * i)
                            st(corner.cast(words[i].type), *words[i : i + 4])
                    if left == COLS - BOX:  # the accumulator is in registers
                        tcgen05.fence_before_thread_sync()
                        warp.sync()
                        with If(one):
                            result.empty.at(LEADER).arrive()
                    fence.proxy_async()
                    warp.sync()
                    with If(one):
                        tma.store(d[row + wave * WAVE + own * 32, col + left], block)
                        tma.commit_group()
        with If(one):
            tma.wait_group(0, read=True)

    tcgen05.fence_before_thread_sync()
    cluster.sync()

    @role(warp=2)
    def dealloc() -> None:
        tmem.dealloc()


def main() -> None:
    random = np.random.default_rng(0)
    m, n, k = 600, 392, 520
    a, b = (random.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    d = np.zeros((m, n), ml_dtypes.bfloat16)
    tiles = [-(-extent // size) for extent, size in ((m, 2 * ROWS), (n, COLS), (k, K))]
    ww.launch(gemm, grid=4, args=[a, b, d, *tiles])  # two pairs of CTAs compute four tiles
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert (np.abs(d.astype(np.float64) - exact) <= 2.0**-8 * np.abs(exact) + 1e-4).all()
    print(f"verified: {m} × {n} × {k}, every element within half a unit in the last place of bfloat16")


if __name__ == "__main__":
    main()
