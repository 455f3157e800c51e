"""The GEMM by mma.sync: D = A·Bᵀ of A (M, K) and B (N, K) of 16-bit or 8-bit floats, for consumer Blackwell.

A warp loads A and B by TMA into a ring; the other warps load fragments of both by ldmatrix and multiply them. Sums are
in registers. An operand may also lie in memory as its transpose, (K, M) or (K, N): ``majors`` names the axis that is
contiguous in memory, "k" or "mn" ("mn" for 16-bit types alone), which ldmatrix.trans reads. M, N and K are any size:
TMA reads zeros outside A and B and writes nothing outside D.

The kernel needs TMA and mma.sync alone, so it also runs on Hopper, compiled for sm_90a.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90.kernel import Matrix, init_and_sync, k_blocks, load_part, rasterize, split_batch
from warpwright.kernels.gemm.sm120.configs import CONFIGS, Config
from warpwright.kernels.gemm.sm120.steps import (
    clear_sums,
    multiply_block,
    operand_ring,
    store_blocks,
    store_tile,
    warp_position,
)
from warpwright.kernels.tiles import atom
from warpwright.lang import Expr, If, bf16, elect_one, f32, fence, kernel, loop, mma, role, tma, u32, u64, warp
from warpwright.types import Scalar

__all__ = ["gemm"]


@kernel("sm_120a", threads=288)
def gemm(
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
    config: Config = CONFIGS["128x128"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """CTAs are persistent and walk the tiles of D in groups of rows of tiles, so that operands are reused in L2.

    ``batched`` names the operands, of "abd", that have a matrix for each of ``batches``. The parameters from
    ``columns`` on are those of ``epilogue``.

    role      warps  moves                                     waits for             signals
    multiply  0-     ring -> registers -> blocks of D -> D     ring.full, own block  ring.empty
    load      last   A, B: global -> ring                      ring.empty            ring.full
    """
    (tile_m, tile_n), consumers = config.tile, config.consumers
    ring = operand_ring(config, consumers, majors, (dtype, b_dtype or dtype))
    blocks = store_blocks(config, out)
    init_and_sync(ring, (1, 1), (a, b, d))

    def output_tiles() -> Iterator[tuple[Matrix, Expr, Expr]]:
        for below, col in rasterize(tiles_m * batches if batched else tiles_m, tiles_n, config.group):
            at, row = split_batch(below, tiles_m, batched)
            yield at, row * tile_m, col * tile_n

    @role(warp=consumers, elect=True)
    def load() -> None:
        slots = ring.producer()
        for at, row, col in output_tiles():
            for step in loop(*k_blocks(config.slices, at, tiles_k)):
                slot, k = next(slots), step * atom(dtype)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                load_part(slot.a, a, majors[0], at["a"], row, k, slot.full)
                load_part(slot.b, b, majors[1], at["b"], col, k, slot.full)

    @role(warps=range(consumers))
    def multiply() -> None:
        place, leader, slots = warp_position(config), elect_one(), ring.consumer()
        sums = [[mma.accumulator(f32) for _ in range(tile_n // config.warps[1] // 8)] for _ in place.strips]
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
        for at, row, col in output_tiles():
            clear_sums(sums)
            for _ in loop(*k_blocks(config.slices, at, tiles_k)):
                slot = next(slots)
                slot.full.wait()
                multiply_block(sums, slot, place, majors, config.ahead)
                # This warp's ldmatrix precede the next copy to the slot, which is of the async proxy.
                fence.proxy_async()
                warp.sync()
                with If(leader):
                    slot.empty.arrive()
            store_tile(sums, d, blocks, place, at["d"], row, col, leader, finish, config.matrices)
            if not config.overlap:
                with If(leader):
                    tma.wait_group(0)
                warp.sync()
        with If(leader):
            tma.wait_group(0, read=True)
