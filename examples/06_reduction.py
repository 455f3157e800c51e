"""06: a reduction. The lanes of a warp add by shuffles, the warps of a CTA through shared memory, and the CTAs by one
atomic addition each (`red`). The order of the atomic additions, hence the rounding, is not fixed.
"""

from __future__ import annotations

import numpy as np

import warpwright as ww
from warpwright.lang import Global, If, bar, ctaid, f32, kernel, ld, loop, nctaid, red, shfl, smem, tid, u32, var, warp

THREADS, VECTOR, BATCH = 256, 4, 4  # 16 bytes a load, four loads of each thread a block
BLOCK = THREADS * VECTOR * BATCH


@kernel("sm_100a", threads=THREADS)
def add_up(x: Global[f32], total: Global[f32], count: u32) -> None:
    """``count`` is a multiple of BLOCK; the CTAs take blocks in turn, with all loads of a block in flight at once."""
    own = var(f32, 0.0)
    for first in loop(ctaid.x * BLOCK, count, nctaid.x * BLOCK):
        places = [first + (tid.x + i * THREADS) * VECTOR for i in range(BATCH)]
        for values in [ld(x + place, vec=VECTOR) for place in places]:
            for value in values:
                own += value

    parts = smem.array(f32, THREADS // 32)
    for distance in (16, 8, 4, 2, 1):
        own += shfl.bfly(own, distance)
    with If(warp.lane == 0):
        parts[warp.id] = own
    bar.sync()
    with If(tid.x == 0):
        whole = var(f32, 0.0)
        for i in range(THREADS // 32):
            whole += parts[i]
        red.add(total, whole)


def main() -> None:
    x = np.random.default_rng(0).standard_normal(25 * BLOCK).astype(np.float32)
    total = np.zeros(1, np.float32)
    ww.launch(add_up, grid=8, args=[x, total, x.size])
    exact = x.astype(np.float64)
    assert abs(total[0] - exact.sum()) < 1e-6 * np.abs(exact).sum()
    print(f"verified: the sum of {x.size} elements by 8 CTAs of {THREADS} threads")


if __name__ == "__main__":
    main()
