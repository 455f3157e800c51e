"""The block-scaled GEMM on datacentre Blackwell with a warp for each role: levels 2 to 7 of the ladder of `configs`.

D = activation(scale · A·Bᵀ + bias) of A (M, K) and B (N, K) in MXFP8, MXFP4 or NVFP4: each 16 or 32 elements of K of a
row have a scale factor. Scale factors take the way of their operand: TMA loads tiles of 128 rows by 4 blocks to shared
memory, tcgen05.cp copies a tile to four columns of tensor memory, the MMA reads them there. M and N are any size, for
TMA reads zeros outside; a scale factor of the padding must not be NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.formats import FORMATS, Format
from warpwright.kernels.gemm.sm100.configs import LANES, WARPS
from warpwright.kernels.gemm.sm100.launch_control import WORK_STAGES, launched_clusters, schedule_clusters
from warpwright.kernels.gemm.sm100.scaled.configs import LEVELS, Config
from warpwright.kernels.gemm.sm100.scaled.quantizing import output_blocks, store_output
from warpwright.kernels.gemm.sm100.scaled.steps import claim_factors, load_stage, multiply_scaled, operand_ring
from warpwright.kernels.gemm.sm100.setup import init_alloc_sync, sync_dealloc
from warpwright.kernels.gemm.sm100.steps import (
    BOTH,
    rasterize,
)
from warpwright.lang import (
    Expr,
    If,
    Ring,
    bf16,
    cluster_ctaid,
    clusterid,
    elect_one,
    f32,
    kernel,
    loop,
    nclusterid,
    role,
    smem,
    tcgen05,
    tma,
    tmem,
    u32,
    u64,
    warp,
)
from warpwright.types import Scalar

__all__ = ["scaled_gemm"]


@kernel("sm_100a", cluster=2, threads=256)
def scaled_gemm(
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
    config: Config = LEVELS[6],
    formats: tuple[Format, Format] = (FORMATS["mxfp8"], FORMATS["mxfp8"]),
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
    output: Format | None = None,
) -> None:
    """``tiles_m`` × ``tiles_n`` are tiles of clusters; the parameters from ``columns`` on are those of ``epilogue``.
    ``sfd`` are the parameters of the quantizing epilogue, for D in the format ``output``.

    role      warps  moves                                                    waits for            signals
    load      0      A, B, scale factors: global -> ring `ab`                 ab.empty             ab.full (leader)
    mma       1      scale factors -> tensor memory; `ab` -> `acc` (leader)   ab.full, acc.empty   ab.empty, acc.full
    schedule  3      clusters not started -> ring `work`                      work.empty           work.full
    store     4-7    `acc` -> registers -> blocks -> D                        acc.full             acc.empty (leader)
    """
    ctas, (tile_m, tile_n), format = config.ctas, config.tile, formats[0]
    dynamic, both = config.scheduler == "clc", BOTH if ctas > 1 else None
    ab = operand_ring(config, formats)
    sums = tmem.tile(f32, (LANES, config.pitch * (config.accumulators - 1) + tile_n), cta_group=ctas)
    factors = claim_factors(config, format)
    # Accumulators that share columns are one stage: a tile begins when the shared columns of the one before are read.
    acc = Ring(1 if config.shared else config.accumulators, full=1, empty=ctas * WARPS, name="acc")
    work = Ring(WORK_STAGES, empty=ctas * (1 + WARPS) + 1, name="work", response=smem.tile(u32, (1, 4)))
    blocks = output_blocks(config, out, output)
    init_alloc_sync(ab, acc, *([work] if dynamic else []), maps=(a, b, sfa, sfb, d), ctas=ctas)
    half: Any = cluster_ctaid.x if ctas > 1 else 0

    def number_of(result: Any) -> Any:
        return result.phase if config.shared else result.stage

    def accumulator(result: Any) -> tmem.TmemTile:
        return sums[:, :tile_n].at_shift(number_of(result) * config.pitch)

    def output_tiles(signals: Any = True) -> Iterator[tuple[Expr, Expr]]:
        """First row of A and of B of this CTA's tiles, one after the other: the same in every role."""
        static = loop(clusterid.x, tiles_m * tiles_n, nclusterid.x)
        for number in launched_clusters(work, signals) if dynamic else static:
            row, col = rasterize(number, tiles_m, tiles_n, config.group or 1)
            yield (row * ctas + half) * tile_m, col * tile_n

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ab.producer()
        for row, col in output_tiles():
            for step in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                with If(half == 0):
                    slot.full.arrive_expect_tx(ctas * slot.nbytes)
                full = slot.full.at(0) if ctas > 1 else slot.full
                load_stage(slot, (a, b, sfa, sfb), row, col, half, step, full, ctas)
        if ctas > 1:  # no commit of the leader is in flight to the other CTA when that CTA exits
            slots.wait_all_empty()

    @role(warp=1, elect=True, when=half == 0)
    def mma() -> None:
        slots, results = ab.consumer(), acc.producer()
        for _, col in output_tiles():
            result = next(results)
            result.empty.wait()
            tcgen05.fence_after_thread_sync()
            for step in loop(tiles_k):
                slot = next(slots)
                slot.full.wait()
                multiply_scaled(accumulator(result), slot, factors, col, step > 0, format, ctas)
                tcgen05.commit(slot.empty, cta_group=ctas, multicast=both)
            tcgen05.commit(result.full, cta_group=ctas, multicast=both)

    @role(warp=3, when=(half == 0) if dynamic else False)
    def schedule() -> None:
        schedule_clusters(work)

    @role(warps=range(WARPS, 2 * WARPS))
    def store() -> None:
        results, one = acc.consumer(), elect_one()
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns, row=output is not None)

        def finish_at(col: Expr, sums: list[Any], left: Any) -> list[Any]:
            return finish(sums, col + left)

        for row, col in output_tiles(one):
            result = next(results)
            result.full.wait()
            tcgen05.fence_after_thread_sync()
            # The columns that both accumulators have are read first: from then on the next tile may begin.
            first: Any = (1 - number_of(result)) * config.pitch if config.shared else 0
            early = tile_n - config.pitch if config.shared else tile_n
            at = partial(finish_at, col)
            moments = store_output(accumulator(result), d, blocks, sfd, row, col, at, output, first=first, early=early)
            for moment in moments:
                if moment == "read":
                    tcgen05.fence_before_thread_sync()
                    warp.sync()
                    with If(one):
                        (result.empty.at(0) if ctas > 1 else result.empty).arrive()
        tma.wait_group(0, read=True)

    sync_dealloc(ctas)
