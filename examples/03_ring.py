"""03: a pipeline. One role loads ahead into a ring of stages, another consumes; full and empty mbarriers join them.

Each role has a cursor with the stage and the phase; `next(slots)` is the only place where they advance.
"""

from __future__ import annotations

import numpy as np

import warpwright as ww
from warpwright.lang import (
    Global,
    If,
    Ring,
    bar,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    role,
    smem,
    tid,
    tma,
    u32,
    var,
    warp,
)

ROWS, COLUMNS, STAGES = 32, 32, 4


@kernel("sm_100a", threads=64)
def row_sums(x: tma.Map[f32], sums: Global[f32], tiles: u32, *, stages: int = STAGES) -> None:
    """role   warps  moves                      waits for   signals
    load   0      x: global -> ring          empty       full
    add    1      ring -> one sum a thread   full        empty
    """
    ring = Ring(stages, full=1, empty=32, name="rows", x=smem.tile(f32, (ROWS, COLUMNS), swizzle=128))
    with If((warp.id == 0) & elect_one()):
        ring.init()
        fence.mbarrier_init()
    bar.sync()
    row = ctaid.x * ROWS

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for k in loop(tiles):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.x, x[row, k * COLUMNS], slot.full)

    @role(warp=1)
    def add() -> None:
        total = var(f32, 0.0)
        slots = ring.consumer()
        for _ in loop(tiles):
            slot = next(slots)
            slot.full.wait()
            for column in range(0, COLUMNS, 4):
                for value in ld(slot.x.at(warp.lane, column), vec=4):
                    total += value
            fence.proxy_async()  # orders these threads' reads before TMA's next write to the stage
            slot.empty.arrive()
        sums[row + (tid.x - 32)] = total


def main() -> None:
    x = np.random.default_rng(0).standard_normal((96, 1000)).astype(np.float32)
    sums = np.zeros(96, np.float32)
    tiles = -(-x.shape[1] // COLUMNS)  # the last box reaches past the array and reads zeros there
    ww.launch(row_sums, grid=3, args=[x, sums, tiles])
    assert np.allclose(sums, x.astype(np.float64).sum(axis=1), rtol=1e-5, atol=1e-4)
    print(f"verified: {x.shape[0]} row sums over {tiles} tiles, {STAGES} of them in flight")


if __name__ == "__main__":
    main()
