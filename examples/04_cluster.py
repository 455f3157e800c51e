"""04: a cluster. Four CTAs of one GPC access each other's shared memory: one TMA load can write to all of them
(multicast), and a thread can read another CTA's memory (distributed shared memory)."""

from __future__ import annotations

import numpy as np

import warpwright as ww
from warpwright.lang import (
    Global,
    If,
    Pointer,
    cluster,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    mbarrier,
    smem,
    tid,
    tma,
    warp,
)

SIZE, COUNT = 4, 128  # CTAs in the cluster; elements that each of them loads
EVERY = (1 << SIZE) - 1


@kernel("sm_100a", cluster=SIZE, threads=COUNT)
def gather(x: tma.Map[f32], shared_by_all: Global[f32], neighbours: Global[f32]) -> None:
    parts = [smem.tile(f32, (1, COUNT)) for _ in range(SIZE)]
    own = smem.array(f32, COUNT)
    full = mbarrier(1, name="full")
    one = (warp.id == 0) & elect_one()
    with If(one):
        full.init()
        fence.mbarrier_init()
    cluster.sync()

    with If(one):  # each CTA loads a quarter and multicasts it to all four
        full.arrive_expect_tx(sum(part.nbytes for part in parts))
        for rank, part in enumerate(parts):
            with If(cluster.rank == rank):
                tma.load(part, x[0, rank * COUNT], full, multicast=EVERY)
    full.wait(0)
    for rank, part in enumerate(parts):
        shared_by_all[(cluster.rank * SIZE + rank) * COUNT + tid.x] = part.at(0, tid.x)[0]

    own[tid.x] = parts[0].at(0, tid.x)[0] + cluster.rank.to(f32)
    cluster.sync()
    peer = cluster.map(own.address, (cluster.rank + 1) % SIZE)
    neighbours[cluster.rank * COUNT + tid.x] = ld(Pointer(f32, peer, space="shared::cluster") + tid.x)
    cluster.sync()  # no CTA exits while its neighbour may still read its shared memory


def main() -> None:
    x = np.random.default_rng(0).standard_normal((1, SIZE * COUNT)).astype(np.float32)
    shared_by_all = np.zeros((SIZE, SIZE * COUNT), np.float32)
    neighbours = np.zeros((SIZE, COUNT), np.float32)
    ww.launch(gather, grid=SIZE, args=[x, shared_by_all, neighbours])
    next_rank = (np.arange(SIZE, dtype=np.float32)[:, None] + 1) % SIZE
    assert np.array_equal(shared_by_all, np.broadcast_to(x, shared_by_all.shape))
    assert np.array_equal(neighbours, x[:, :COUNT] + next_rank)
    print(
        f"verified: after {SIZE} multicast loads {SIZE} CTAs hold the same {SIZE * COUNT} elements; "
        "each has read its neighbour's"
    )


if __name__ == "__main__":
    main()
