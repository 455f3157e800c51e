"""Levels 1 and 2 of the mma.sync ladder: one loop loads and multiplies."""

from __future__ import annotations

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90.kernel import init_and_sync, load_part, split_batch
from warpwright.kernels.gemm.sm120.configs import LEVELS, Config
from warpwright.kernels.gemm.sm120.steps import multiply_block, operand_ring, store_blocks, store_tile, warp_position
from warpwright.kernels.tiles import atom
from warpwright.lang import Expr, If, bf16, ctaid, elect_one, f32, fence, kernel, loop, mma, tma, u32, u64, warp
from warpwright.types import Scalar

__all__ = ["gemm_one_loop"]


@kernel("sm_120a", threads=256)
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
    """One tile a CTA: load ``stages`` - 1 k-blocks ahead, multiply one, release its slot.

    step      warps  moves                         waits for     signals
    load      0      A, B: global -> ring          ring.empty    ring.full
    multiply  all    ring -> registers             ring.full     ring.empty
    store     all    registers -> blocks -> D      own block
    """
    tile_m, tile_n = config.tile
    ring = operand_ring(config, config.consumers, majors, (dtype, b_dtype or dtype))
    blocks = store_blocks(config, out)
    init_and_sync(ring, (1, 1), (a, b, d))
    at, across = split_batch(ctaid.x // tiles_n, tiles_m, batched)
    row, col = across * tile_m, ctaid.x % tiles_n * tile_n
    place, leader = warp_position(config), elect_one()
    sums = [[mma.accumulator(f32) for _ in range(tile_n // config.warps[1] // 8)] for _ in place.strips]
    slots, loaded, loads = ring.producer(), ring.consumer(), (warp.id == 0) & leader

    def wait_and_load(step: Expr) -> None:
        with If(loads & (step < tiles_k)):
            slot, k = next(slots), step * atom(dtype)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            load_part(slot.a, a, majors[0], at["a"], row, k, slot.full)
            load_part(slot.b, b, majors[1], at["b"], col, k, slot.full)

    for ahead in loop(config.stages - 1):
        wait_and_load(ahead)
    for k in loop(tiles_k):
        wait_and_load(k + (config.stages - 1))
        warp.sync()
        slot = next(loaded)
        slot.full.wait()
        multiply_block(sums, slot, place, majors, config.ahead)
        # This warp's ldmatrix precede the next copy to the slot, which is of the async proxy.
        fence.proxy_async()
        warp.sync()
        with If(leader):
            slot.empty.arrive()
    finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
    store_tile(sums, d, blocks, place, at["d"], row, col, leader, finish, False)
    with If(leader):
        tma.wait_group(0, read=True)
