"""02: TMA. One thread loads a whole tile; the tile's bytes complete an mbarrier, and all threads wait for it.

A store has two more rules. Every thread that wrote shared memory fences (`fence.proxy_async`), because TMA reads
through the async proxy. One thread commits its stores as a group and waits for the group.
"""

from __future__ import annotations

import numpy as np

import warpwright as ww
from warpwright.lang import If, bar, elect_one, f32, fence, kernel, ld, mbarrier, smem, st, tid, tma, warp

ROWS, COLUMNS = 128, 32


@kernel("sm_100a", threads=ROWS)
def double(x: tma.Map[f32], y: tma.Map[f32]) -> None:
    tile = smem.tile(f32, (ROWS, COLUMNS), swizzle=128)
    full = mbarrier(1, name="full")
    one = (warp.id == 0) & elect_one()
    with If(one):
        full.init()
        fence.mbarrier_init()
    bar.sync()

    with If(one):
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    full.wait(0)

    for column in range(0, COLUMNS, 4):  # Python's range: unrolled, 16 bytes at a time
        place = tile.at(tid.x, column)
        st(place, *(value * 2.0 for value in ld(place, vec=4)))

    fence.proxy_async()
    bar.sync()
    with If(one):
        tma.store(y[0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((100, COLUMNS)).astype(np.float32)
    y = np.zeros_like(x)
    ww.launch(double, grid=1, args=[x, y])  # of the box's 128 rows, 28 are outside: zeros in, nothing out
    assert np.array_equal(y, 2 * x)
    print(f"verified: a {x.shape[0]} × {x.shape[1]} array doubled through a swizzled tile of {ROWS} × {COLUMNS}")


if __name__ == "__main__":
    main()
