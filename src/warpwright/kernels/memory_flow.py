"""The smallest kernel that uses every memory: global → shared → tensor memory → registers → shared → global."""

from __future__ import annotations

from typing import Any

from warpwright.lang import (
    bar,
    f16,
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
from warpwright.layout.tensor_map import TensorMap

__all__ = ["K", "M", "N", "arguments", "memory_flow"]

M, N, K = 128, 128, 64
UMMA_K = 16
VECTOR = 4


@kernel("sm_100a", threads=128)
def memory_flow(a: tma.Map[f16], b: tma.Map[f16], d: tma.Map[f32]) -> None:
    """D = A·Bᵀ, 128 × 128 × 64, float16 in, float32 out, one CTA.

    step  threads      moves                                         waits for    signals
    1     one          A, B: global -> shared (TMA)                               loaded
    2     one          shared -> tensor memory (four mma)            loaded       multiplied
    3     all          tensor memory -> registers, a row a thread    multiplied
    4     all, one     registers -> shared; shared -> global (TMA)   bar          bulk group
    """
    a_tile, b_tile = (smem.tile(f16, (rows, K), swizzle=128) for rows in (M, N))
    d_tile = smem.tile(f32, (M, N))
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
    def load() -> None:
        loaded.arrive_expect_tx(a_tile.nbytes + b_tile.nbytes)
        tma.load(a_tile, a[0, 0], loaded)
        tma.load(b_tile, b[0, 0], loaded)

    loaded.wait(0)

    @role(warp=0, elect=True)
    def mma() -> None:
        for k in range(0, K, UMMA_K):
            tcgen05.mma(acc, a_tile[:, k : k + UMMA_K], b_tile[:, k : k + UMMA_K], accumulate=k > 0)
        tcgen05.commit(multiplied)

    multiplied.wait(0)
    tcgen05.fence_after_thread_sync()
    row = [value for column in range(0, N, 32) for value in tcgen05.ld(acc[:, column : column + 32])]
    tcgen05.wait_ld()

    line = d_tile.at(tid.x, 0)
    for column in range(0, N, VECTOR):
        st(line + column, *row[column : column + VECTOR])
    fence.proxy_async()
    tcgen05.fence_before_thread_sync()
    bar.sync()

    @role(warp=0, elect=True)
    def store() -> None:
        tma.store(d[0, 0], d_tile)
        tma.commit_group()
        tma.wait_group(0)

    @role(warp=1)
    def free() -> None:
        tmem.dealloc()


def arguments(a: Any, b: Any, d: Any) -> list[TensorMap]:
    """Returns the arguments for float16 ``a`` (128, 64) and ``b`` (128, 64) and float32 ``d`` (128, 128).

    Raises UsageError for arrays that no tensor map can describe.
    """
    return [TensorMap(a, (M, K), swizzle=128), TensorMap(b, (N, K), swizzle=128), TensorMap(d, (M, N))]
