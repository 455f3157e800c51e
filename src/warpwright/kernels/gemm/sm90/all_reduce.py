"""GEMM and all-reduce in one Hopper kernel, without multicast: each rank of a node has a part of K and all of D.

The kernel is that of GEMM and reduce-scatter; the owner of a tile stores its sum on all ranks. A flag tells each of
them, and a rank ends its call when it has all tiles.
"""

from __future__ import annotations

from warpwright.kernels.gemm.sm90.configs import Config
from warpwright.kernels.gemm.sm90.reduce_scatter import ALONE, sum_over_ranks
from warpwright.kernels.node import Limit
from warpwright.lang import Global, Peers, bf16, f32, kernel, tma, u32, u64
from warpwright.types import Scalar

__all__ = ["gemm_all_reduce"]


@kernel("sm_90a", threads=384)
def gemm_all_reduce(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.PeerMaps[Scalar],
    partials: Peers[Scalar],
    arrived: Peers[u32],
    begun: Peers[u32],
    calls: Global[u32],
    stored: Peers[u32],
    report: Global[u32],
    limit_ns: u64,
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    scale_a: u64,
    scale_b: u64,
    alpha: f32,
    *,
    config: Config = ALONE,
    dtype: type[Scalar] = bf16,
    out: type[Scalar] = bf16,
    partial: type[Scalar] = f32,
) -> None:
    """The parameters are those of `gemm_reduce_scatter`, but ``d`` is (ranks, rows, N) on every rank, and ``stored``
    has on every rank a flag for each tile of D, 0 before the first call.

    role      warps  moves                                        waits for                signals
    load      0      A, B -> ring                                 ring.empty               ring.full
    signal    1      nothing                                      begun, arrived, used;    begun, granted, arrived,
                                                                  at the end stored        stored
    multiply  4-     ring -> registers -> entry of the owner      ring.full, granted       ring.empty, used
                     ring -> registers + entries -> blocks of D   ring.full, granted       ring.empty, used
                     -> D of all ranks
    """
    sum_over_ranks(
        a, b, d, partials, arrived, begun, calls, stored, Limit(report, limit_ns), (tiles_m, tiles_n, tiles_k),
        (alpha, scale_a, scale_b), config=config, dtype=dtype, out=out, partial=partial,
    )  # fmt: skip
