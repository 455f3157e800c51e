"""08: a GEMM of any size, one CTA a tile of 128 × 128. A load warp fills a ring, one thread issues the MMAs of each
full slot, and its last commit lets all four warps store the tile. Edges need no code: TMA reads zeros outside A and B,
and writes nothing outside D.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.lang import (
    Ring,
    bar,
    bf16,
    ctaid,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    role,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
)

M, N, K, STAGES = 128, 128, 64, 4
BLOCK = 32  # columns of D in 128 bytes


@kernel("sm_100a", threads=128)
def gemm(a: tma.Map[bf16], b: tma.Map[bf16], d: tma.Map[f32], tiles_k: u32, *, stages: int = STAGES) -> None:
    """step   warps  moves                                        waits for   signals
    load   0      A, B: global -> ring                         ab.empty    ab.full
    mma    1      ring -> tensor memory                        ab.full     ab.empty, done
    store  0-3    tensor memory -> registers -> blocks -> D    done
    """
    a_tile, b_tile = smem.tile(bf16, (M, K), swizzle=128), smem.tile(bf16, (N, K), swizzle=128)
    ab = Ring(stages, full=1, empty=1, name="ab", a=a_tile, b=b_tile)
    acc, done = tmem.tile(f32, (M, N)), mbarrier(1, name="done")
    blocks = [smem.tile(f32, (M, BLOCK), swizzle=128) for _ in range(0, N, BLOCK)]
    row, col = ctaid.y * M, ctaid.x * N

    @role(warp=0, elect=True)
    def init() -> None:
        ab.init()
        done.init()
        fence.mbarrier_init()

    @role(warp=1)
    def alloc() -> None:
        tmem.alloc()
        tcgen05.relinquish_alloc_permit()

    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ab.producer()
        for k in loop(tiles_k):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.a, a[row, k * K], slot.full)
            tma.load(slot.b, b[col, k * K], slot.full)

    @role(warp=1, elect=True)
    def mma() -> None:
        slots = ab.consumer()
        for k in loop(tiles_k):
            slot = next(slots)
            slot.full.wait()
            for kk in range(0, K, 16):  # the first MMA of the tile overwrites the accumulator
                tcgen05.mma(acc, slot.a[:, kk : kk + 16], slot.b[:, kk : kk + 16], accumulate=(k > 0) | (kk > 0))
            tcgen05.commit(slot.empty)
        tcgen05.commit(done)

    done.wait(0)
    tcgen05.fence_after_thread_sync()
    for number, block in enumerate(blocks):
        values = tcgen05.ld(acc[:, number * BLOCK : (number + 1) * BLOCK])
        tcgen05.wait_ld()
        for i in range(0, BLOCK, 4):
            st(block.at(tid.x, i), *values[i : i + 4])
    fence.proxy_async()
    tcgen05.fence_before_thread_sync()
    bar.sync()

    @role(warp=0, elect=True)
    def store() -> None:
        for number, block in enumerate(blocks):
            tma.store(d[row, col + number * BLOCK], block)
        tma.commit_group()
        tma.wait_group(0)

    @role(warp=1)
    def dealloc() -> None:
        tmem.dealloc()


def main() -> None:
    random = np.random.default_rng(0)
    m, n, k = 200, 136, 520
    a, b = (random.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    d = np.zeros((m, n), np.float32)
    ww.launch(gemm, grid=(-(-n // N), -(-m // M)), args=[a, b, d, -(-k // K)])
    error = np.abs(d - a.astype(np.float64) @ b.astype(np.float64).T).max()
    assert error < 1e-4
    print(f"verified: {m} × {n} × {k}, largest difference from float64 {error:.1e}")


if __name__ == "__main__":
    main()
