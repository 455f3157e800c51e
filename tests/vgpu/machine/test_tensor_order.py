"""tcgen05 operations that are in order without a fence stay in order, however the engine queues them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from warpwright.lang import (
    Global,
    bar,
    bf16,
    f32,
    fence,
    kernel,
    ld,
    mbarrier,
    role,
    smem,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u64,
)
from warpwright.layout import SmemDescriptor
from warpwright.run.launch import launch

M, N, K, COPIED = 128, 32, 64, 8
CORE, GROUP = 128, 256  # bytes of a core matrix of C; bytes between groups of 8 rows


@kernel("sm_100a", threads=128)
def accumulate_on_copy(a: tma.Map[bf16], b: tma.Map[bf16], c: Global[f32], d: Global[f32]) -> None:
    """D = C + A·Bᵀ in the first columns: tcgen05.cp copies C to tensor memory, and tcgen05.mma follows at once."""
    a_tile, b_tile = smem.tile(bf16, (M, K), swizzle=128), smem.tile(bf16, (N, K), swizzle=128)
    source = smem.array(f32, M * COPIED, align=128)
    acc = tmem.tile(f32, (M, N))
    loaded, done = mbarrier(1, name="loaded"), mbarrier(1, name="done")

    @role(warp=0, elect=True)
    def init() -> None:
        loaded.init()
        done.init()
        fence.mbarrier_init()

    @role(warp=1)
    def alloc() -> None:
        tmem.alloc()

    row = source + tid.x // 8 * (GROUP // 4) + tid.x % 8 * 4
    for half in range(2):
        st(row + half * (CORE // 4), *ld(c + tid.x * COPIED + half * 4, vec=4))
    fence.proxy_async()
    tcgen05.fence_before_thread_sync()
    bar.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()

    @role(warp=0, elect=True)
    def work() -> None:
        loaded.arrive_expect_tx(a_tile.nbytes + b_tile.nbytes)
        tma.load(a_tile, a[0, 0], loaded)
        tma.load(b_tile, b[0, 0], loaded)
        loaded.wait(0)
        fields = SmemDescriptor(start=0, lbo=CORE, sbo=GROUP, swizzle=0).encode()
        tcgen05.cp(acc, ((source.address >> 4) & 0x3FFF).to(u64) + fields, "128x256b")
        for k in range(0, K, 16):
            tcgen05.mma(acc, a_tile[:, k : k + 16], b_tile[:, k : k + 16], accumulate=True)
        tcgen05.commit(done)

    done.wait(0)
    tcgen05.fence_after_thread_sync()
    line = tcgen05.ld(acc)
    tcgen05.wait_ld()
    for column in range(0, COPIED, 4):
        st(d + tid.x * COPIED + column, *line[column : column + 4])
    tcgen05.fence_before_thread_sync()
    bar.sync()

    @role(warp=1)
    def free() -> None:
        tmem.dealloc()


def test_product_follows_the_copy_of_its_accumulator() -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, K)).astype(ml_dtypes.bfloat16) for rows in (M, N))
    c, d = random.standard_normal((M, COPIED)).astype(np.float32), np.full((M, COPIED), np.nan, np.float32)
    launch(accumulate_on_copy, grid=1, args=[a, b, c, d])
    expected = c + a.astype(np.float64) @ b[:COPIED].astype(np.float64).T
    np.testing.assert_allclose(d, expected, rtol=1e-5, atol=1e-5)
