"""Levels 1 and 2 of the Hopper ladder: one warpgroup and one loop that loads and multiplies."""

from __future__ import annotations

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90.configs import LEVELS, STORES, STRIP, Config
from warpwright.kernels.gemm.sm90.kernel import (
    clusters_of,
    cta_position,
    init_and_sync,
    load_part,
    multicast_masks,
    multiply_block,
    operand_ring,
    signal_target,
    split_batch,
)
from warpwright.kernels.gemm.sm90.store import store_strip
from warpwright.kernels.tiles import ROW_BYTES, WARP_ROWS, WARPS, atom
from warpwright.lang import (
    Expr,
    If,
    bf16,
    clusterid,
    elect_one,
    f32,
    kernel,
    loop,
    smem,
    tma,
    u32,
    u64,
    warp,
    wgmma,
)
from warpwright.types import Scalar

__all__ = ["gemm_one_loop"]


@kernel("sm_90a", threads=128)
def gemm_one_loop(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    batches: u32,
    columns: u32,
    bias: u64,
    scale_a: u64,
    scale_b: u64,
    alpha: f32,
    *,
    config: Config = LEVELS[1],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """One tile a CTA: load ``stages`` - 1 k-blocks ahead, multiply one, wait for its wgmmas.

    step      warps  moves                                     waits for         signals
    load      0      A, B: global -> ring (of sharing CTAs)    ring.empty        ring.full
    multiply  0-3    ring -> registers                         ring.full         ring.empty (of sharing CTAs)
    store     0-3    registers -> blocks of D -> D             own block
    """
    (tile_m, tile_n), share = config.tile, config.share
    ring = operand_ring(config, sum(share) - 1, majors, (dtype, b_dtype or dtype))
    blocks = smem.tile(out, (WARPS * STORES * WARP_ROWS, ROW_BYTES // out.nbytes))
    init_and_sync(ring, share, (a, b, d))
    place_m, place_n = cta_position(share)
    down, across = clusters_of(tiles_n, share[1]), clusters_of(tiles_m, share[0])
    at, row_of_clusters = split_batch(clusterid.x // down, across, batched)
    row = (row_of_clusters * share[0] + place_m) * tile_m
    col = (clusterid.x % down * share[1] + place_n) * tile_n
    sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(tile_m // STRIP)]
    slots, loaded, (same_row, same_column) = ring.producer(), ring.consumer(), multicast_masks(share)
    peer, shares, one = *signal_target(share), elect_one()
    loads = (warp.id == 0) & one

    def wait_and_load(step: Expr) -> None:
        with If(loads & (step < tiles_k)):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            k = step * atom(dtype)
            load_part(slot.a, a, majors[0], at["a"], row, k, slot.full, (place_n, share[1], same_row))
            load_part(slot.b, b, majors[1], at["b"], col, k, slot.full, (place_m, share[0], same_column))

    for ahead in loop(config.stages - 1):
        wait_and_load(ahead)
    for k in loop(tiles_k):
        wait_and_load(k + (config.stages - 1))
        warp.sync()
        slot = next(loaded)
        slot.full.wait()
        multiply_block(sums, slot, 0, k > 0, majors)
        wgmma.wait_group(0)
        with If(shares):
            slot.empty.at(peer).arrive(scope="cta")
    with If(loads):
        slots.wait_all_empty()
    warp.sync()
    finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
    for i, acc in enumerate(sums):
        store_strip(acc, d, blocks, warp.id, at["d"], row + i * STRIP, col, one, finish, False)
    with If(one):
        tma.wait_group(0, read=True)
