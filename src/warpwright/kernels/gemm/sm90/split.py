"""Split-K inside a cluster, for few tiles and a long K."""

from __future__ import annotations

from typing import Any

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90.configs import CONFIGS, STORES, STRIP, Config
from warpwright.kernels.gemm.sm90.fp8 import mainloop_fp8
from warpwright.kernels.gemm.sm90.kernel import (
    EVICT_FIRST,
    cta_position,
    init_and_sync,
    load_part,
    mainloop,
    operand_ring,
    split_batch,
)
from warpwright.kernels.gemm.sm90.store import store_strip
from warpwright.kernels.gemm.sm90.sums import add_sums, store_sums, sums_offset
from warpwright.kernels.tiles import ROW_BYTES, WARP_ROWS, WARPS, atom, clear
from warpwright.lang import (
    Expr,
    If,
    Pointer,
    Shared,
    bf16,
    cluster,
    clusterid,
    elect_one,
    f32,
    kernel,
    loop,
    role,
    select,
    shfl,
    smem,
    tid,
    tma,
    u32,
    u64,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.types import Scalar

__all__ = ["gemm_split"]


@kernel("sm_90a", cluster=4, threads=256)
def gemm_split(
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
    config: Config = CONFIGS["64x64 split 4"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """The CTAs of a cluster share the K of one tile; then each owns some of the tile's strips of 16 rows.

    The partial sums of a strip go to the CTA that owns it. That CTA adds them in the order of the ranks and stores the
    strip.

    role      warps  moves                                             waits for              signals
    load      0      A, B: global -> ring                              ring.empty             ring.full
    multiply  4-     ring -> registers -> `parts` of the strip's CTA   ring.full              ring.empty
    sum_up    4-     registers, `parts` -> blocks of D -> D            cluster.sync
    """
    (tile_m, tile_n), split = config.tile, config.split
    strips = config.consumers * WARPS
    owned = -(-strips // split)
    ring = operand_ring(config, config.consumers, majors, (dtype, b_dtype or dtype))
    width = min(tile_n, ROW_BYTES // out.nbytes)
    blocks = smem.tile(out, (owned * STORES * WARP_ROWS, width), swizzle=width * out.nbytes)
    parts = smem.array(f32, (split - 1) * owned * WARP_ROWS * tile_n)
    init_and_sync(ring, (1, split), (a, b, d))
    rank, _ = cta_position((split, 1))
    acc = wgmma.accumulator(f32, (STRIP, tile_n))
    at, across = split_batch(clusterid.x // tiles_n, tiles_m, batched)
    row, col = across * tile_m, clusterid.x % tiles_n * tile_n
    first, last = rank * tiles_k // split, (rank + 1) * tiles_k // split
    hints = [EVICT_FIRST if name in config.once else None for name in "ab"]
    strip = warp.id - WARPS
    owner, own = strip // owned, strip % owned

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for step in loop(first, last):
            slot, k = next(slots), step * (atom(dtype) * config.depth)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            load_part(slot.a, a, majors[0], at["a"], row, k, slot.full, hint=hints[0])
            load_part(slot.b, b, majors[1], at["b"], col, k, slot.full, hint=hints[1])

    @role(warps=range(WARPS, WARPS + strips))
    def multiply() -> None:
        leads, group = tid.x % (WARPS * 32) == 0, shfl.idx(strip // WARPS, 0) if config.consumers > 1 else 0
        slots, completed = ring.consumer(), ring.consumer()
        if not config.promoted:
            clear(acc)
        for slot in (
            mainloop_fp8([acc], config, group, first, last, slots)
            if config.promoted
            else mainloop([acc], group, first, last, slots, completed, majors)
        ):
            with If(leads):
                slot.empty.arrive()
        with If(rank != owner):
            send_sums(acc, parts, owner, select(rank > owner, rank - 1, rank) * owned + own)

    # The weak stores of `send_sums` to another CTA precede the loads of `add_sums` there: barrier.cluster.arrive has
    # release and wait has acquire semantics at cluster scope, and each thread arrives after its stores and loads after
    # its wait (PTX ISA 9.1 section 9.7.13.3). After that no CTA accesses another CTA's memory: each may exit.
    cluster.sync()

    @role(warps=range(WARPS, WARPS + strips), when=rank == owner)
    def sum_up() -> None:
        for number in range(split - 1):
            add_sums(acc, parts + sums_offset(acc, number * owned + own, f32))
        one = elect_one()
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
        top = row + owner * (owned * WARP_ROWS)
        store_strip(acc, d, blocks, own, at["d"], top, col, one, finish, True)
        with If(one):
            tma.wait_group(0, read=True)


def send_sums(acc: Fragment, parts: Shared[Any], owner: Expr, number: Expr) -> None:
    """Store this warp's sums to entry ``number`` of ``parts`` in CTA ``owner``."""
    there: Pointer[Any] = Pointer(f32, cluster.map(parts.address, owner), 0, "shared::cluster")
    store_sums(acc, there + sums_offset(acc, number, f32))
