"""05: the first MMA. TMA loads A and B into shared memory, tcgen05.mma accumulates D in tensor memory, and each warp
loads its own 32 rows of D into registers. Only `tcgen05.commit` signals at an mbarrier that the MMAs are complete."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.lang import (
    Global,
    bar,
    bf16,
    f32,
    fence,
    kernel,
    mbarrier,
    role,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
)

M, N, K = 128, 64, 64


@kernel("sm_100a", threads=128)
def multiply(a: tma.Map[bf16], b: tma.Map[bf16], d: Global[f32]) -> None:
    a_tile, b_tile = smem.tile(bf16, (M, K), swizzle=128), smem.tile(bf16, (N, K), swizzle=128)
    acc = tmem.tile(f32, (M, N))
    loaded, multiplied = mbarrier(1, name="loaded"), mbarrier(1, name="multiplied")

    @role(warp=0, elect=True)
    def init() -> None:
        loaded.init()
        multiplied.init()
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
    def load_and_multiply() -> None:
        loaded.arrive_expect_tx(a_tile.nbytes + b_tile.nbytes)
        tma.load(a_tile, a[0, 0], loaded)
        tma.load(b_tile, b[0, 0], loaded)
        loaded.wait(0)
        for k in range(0, K, 16):  # one MMA multiplies 16 columns of K; the first overwrites D
            tcgen05.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=k > 0)
        tcgen05.commit(multiplied)

    multiplied.wait(0)
    tcgen05.fence_after_thread_sync()
    row = tcgen05.ld(acc)
    tcgen05.wait_ld()
    for column in range(0, N, 4):
        st(d + tid.x * N + column, *row[column : column + 4])

    tcgen05.fence_before_thread_sync()
    bar.sync()

    @role(warp=1)
    def free() -> None:
        tmem.dealloc()


def main() -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, K)).astype(ml_dtypes.bfloat16) for rows in (M, N))
    d = np.zeros((M, N), np.float32)
    ww.launch(multiply, grid=1, args=[a, b, d])
    error = np.abs(d - a.astype(np.float64) @ b.astype(np.float64).T).max()
    assert error < 1e-4
    print(f"verified: {M} × {N} × {K}, largest difference from float64 {error:.1e}")


if __name__ == "__main__":
    main()
