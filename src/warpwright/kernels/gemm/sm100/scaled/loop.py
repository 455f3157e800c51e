"""Level 1 of the block-scaled Blackwell GEMM: one CTA, one stage, one loop."""

from __future__ import annotations

from functools import cache
from typing import Any

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.formats import FORMATS, Format
from warpwright.kernels.gemm.sm100.configs import LANES
from warpwright.kernels.gemm.sm100.scaled.configs import LEVELS, Config
from warpwright.kernels.gemm.sm100.scaled.kernel import scaled_gemm
from warpwright.kernels.gemm.sm100.scaled.quantizing import output_blocks, store_output
from warpwright.kernels.gemm.sm100.scaled.steps import claim_factors, load_stage, multiply_scaled, operand_ring
from warpwright.kernels.gemm.sm100.setup import init_alloc_sync, sync_dealloc
from warpwright.lang import (
    If,
    Kernel,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    kernel,
    loop,
    tcgen05,
    tma,
    tmem,
    u32,
    u64,
    warp,
)
from warpwright.types import Scalar

__all__ = ["kernel_of", "scaled_loop"]


@kernel("sm_100a", threads=128)
def scaled_loop(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    sfa: tma.Map[Scalar],
    sfb: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    columns: u32,
    bias: u64,
    scale_a: u64,
    scale_b: u64,
    alpha: f32,
    *sfd: Any,
    config: Config = LEVELS[1],
    formats: tuple[Format, Format] = (FORMATS["mxfp8"], FORMATS["mxfp8"]),
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
    output: Format | None = None,
) -> None:
    """Every k-block is loaded, then multiplied, then waited for; a CTA computes one tile.

    step   warps  moves                                               waits for    signals
    load   0      A, B, scale factors: global -> stage                bar.sync     ab.full
    mma    1      scale factors -> tensor memory; stage -> `sums`     ab.full      ab.empty
    store  0-3    `sums` -> registers -> blocks -> D                  ab.empty
    """
    (tile_m, tile_n), format, one = config.tile, formats[0], elect_one()
    ab, sums, factors = operand_ring(config, formats), tmem.tile(f32, (LANES, tile_n)), claim_factors(config, format)
    blocks = output_blocks(config, out, output)
    init_alloc_sync(ab, maps=(a, b, sfa, sfb, d), ctas=1)
    row, col, slots = ctaid.x // tiles_n * tile_m, ctaid.x % tiles_n * tile_n, ab.consumer()
    for step in loop(tiles_k):
        slot = next(slots)
        with If((warp.id == 0) & one):
            slot.full.arrive_expect_tx(slot.nbytes)
            load_stage(slot, (a, b, sfa, sfb), row, col, 0, step, slot.full, 1)
        with If((warp.id == 1) & one):
            slot.full.wait()
            multiply_scaled(sums, slot, factors, col, step > 0, format, 1)
            tcgen05.commit(slot.empty)
        ab.empty[0].wait(slot.phase)  # the phase that this commit completes: the tile may be loaded or stored
        bar.sync()  # no thread may miss a phase of the only stage
    tcgen05.fence_after_thread_sync()
    finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns, row=output is not None)
    for _ in store_output(sums, d, blocks, sfd, row, col, lambda x, left: finish(x, col + left), output):
        pass  # no other tile waits for these sums
    tma.wait_group(0, read=True)
    sync_dealloc(1)


KERNELS = {"loop": scaled_loop, "roles": scaled_gemm}


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of ``config``; configure ``formats`` of A and B, ``out`` (bf16, f16, f32) and ``epilogue``.

    If ``config`` quantizes, the format of D is ``output`` in place of ``out``, and the address of its scale factors and
    its extents are more parameters.
    """
    shape = kernel("sm_100a", cluster=config.cluster, threads=config.threads)
    found = shape(KERNELS[config.kernel].function).configure(config=config)
    return found.with_params(sfd=u64, rows=u32, width=u32) if config.quantizes else found
