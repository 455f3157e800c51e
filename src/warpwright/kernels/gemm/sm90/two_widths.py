"""GEMM for Hopper whose last round has narrower tiles, so that every CTA multiplies for as long as the others.

The upper rows of tiles have the tile of the configuration. The rows below have tiles of ``config.last`` columns: as
many tiles as CTAs still need one. At 4096 × 4096, 512 tiles of 128 × 256 take four rounds on 132 SMs; 384 of them and
144 of 128 × 232 take three rounds and one that is a tenth shorter. In a pair the CTAs have neighbouring rows of tiles
and the same columns, so that each loads a half of B for both.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90.configs import CONFIGS, STORES, STRIP, Config
from warpwright.kernels.gemm.sm90.fp8 import mainloop_fp8
from warpwright.kernels.gemm.sm90.kernel import (
    EVICT_FIRST,
    REGISTERS,
    clusters_of,
    cta_position,
    fill_ring,
    init_and_sync,
    load_part,
    mainloop,
    multicast_masks,
    operand_ring,
    rasterize,
    signal_target,
)
from warpwright.kernels.gemm.sm90.store import DelayedTile, store_strip
from warpwright.kernels.tiles import PACKED, ROW_BYTES, WARP_ROWS, WARPS, atom, part
from warpwright.lang import (
    Expr,
    If,
    Ring,
    bf16,
    clusterid,
    elect_one,
    f32,
    kernel,
    loop,
    min,
    nclusterid,
    role,
    setmaxnreg,
    shfl,
    smem,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.types import Scalar

__all__ = ["gemm_two_widths", "init_and_fill", "load_tiles", "narrow_tiles", "wide_tiles"]


@kernel("sm_90a", threads=384)
def gemm_two_widths(
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
    narrow_b: tma.Map[Scalar],
    narrow_d: tma.Map[Scalar],
    wide_m: u32,
    narrow_n: u32,
    *,
    config: Config = CONFIGS["128x256 two widths"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """The parameters are those of `gemm` for one matrix, so ``batched`` is empty; then B and D once more, in boxes of
    narrow tiles; ``wide_m`` of the ``tiles_m`` rows of tiles have wide tiles, the others ``narrow_n`` narrow ones each.
    Every CTA has a wide tile.

    role      warps  moves                                     waits for             signals
    load      0      A, B: global -> ring (of sharing CTAs)    ring.empty            ring.full
    multiply  4-     ring -> registers -> blocks of D -> D     ring.full, own block  ring.empty (of sharing CTAs)
    """
    (tile_m, tile_n), consumers, last = config.tile, config.consumers, config.last
    strips = tile_m // STRIP // consumers
    ring = operand_ring(config, consumers * config.share[0], majors, (dtype, b_dtype or dtype))
    blocks = smem.tile(out, (consumers * WARPS * STORES * WARP_ROWS, ROW_BYTES // out.nbytes), swizzle=128)
    tiles = wide_m, tiles_n, tiles_m, narrow_n
    init_and_fill(ring, config, (a, b, d), majors, (wide_m, tiles_n, tiles_k, batches))

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        load_tiles(ring, config, (a, b, narrow_b), majors, tiles, tiles_k)

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        peer, shares, stores = *signal_target(config.share), elect_one()
        first = shfl.idx(warp.id // WARPS - 1, 0) * strips
        sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(strips)]
        narrow_sums = [replace(acc, shape=(STRIP, last), regs=acc.regs[: last // 2]) for acc in sums]
        slots, completed, own = ring.consumer(), ring.consumer(), warp.id - WARPS
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
        delays = config.delayed and out in PACKED and epilogue.activation in ("", "relu")
        delayed = DelayedTile(sums, blocks, 2) if delays else None
        store_due = partial(delayed.store_due, d, own, stores) if delayed else None

        def multiply_tile(sums: list[Fragment]) -> None:
            """Multiply the k-blocks of a tile; the tile before is stored meanwhile."""
            promoted = builtins.min(config.promoted, sums[0].shape[1])
            for slot in (
                mainloop_fp8(sums, replace(config, promoted=promoted), first, 0, tiles_k, slots)
                if promoted
                else mainloop(sums, first, 0, tiles_k, slots, completed, majors, store_due)
            ):
                with If(shares):
                    slot.empty.at(peer).arrive(scope="cta")

        for row, col in wide_tiles(config, *tiles):
            multiply_tile(sums)
            if delayed:
                delayed.keep(sums, (row + first * STRIP, col), finish)
            for i, acc in enumerate(sums if delayed is None else ()):
                store_strip(acc, d, blocks, own, (), row + (first + i) * STRIP, col, stores, finish, True)
        for row, col in narrow_tiles(config, *tiles):
            multiply_tile(narrow_sums)
            for i, acc in enumerate(narrow_sums):
                top = row + (first + i) * STRIP
                store_strip(acc, d, blocks, own, (), top, col, stores, finish, True, narrow_d)
        if delayed:
            delayed.store(d, own, stores)
        with If(stores):
            tma.wait_group(0, read=True)


def init_and_fill(
    ring: Ring,
    config: Config,
    maps: tuple[tma.Map[Scalar], tma.Map[Scalar], tma.Map[Scalar]],
    majors: tuple[str, str],
    tiles: tuple[Expr, Expr, Expr, Expr],
) -> None:
    """`init_and_sync` of a CTA that fills the ring for its first wide tile before it synchronises with others."""
    early = partial(fill_ring, ring, config, maps[:2], majors, tiles, "", cache_hints(config))
    init_and_sync(ring, config.share, maps, early)


def cache_hints(config: Config) -> list[int | None]:
    """Returns the L2 policies of A and of B."""
    return [EVICT_FIRST if name in config.once else None for name in "ab"]


def load_tiles(
    ring: Ring,
    config: Config,
    maps: tuple[tma.Map[Scalar], tma.Map[Scalar], tma.Map[Scalar]],
    majors: tuple[str, str],
    tiles: tuple[Expr, Expr, Expr, Expr],
    tiles_k: Expr,
) -> None:
    """Load the k-blocks of this CTA's tiles, after those that `init_and_fill` has loaded. ``maps`` are those of A, of B
    and of B in boxes of narrow tiles; ``tiles`` are the arguments of `wide_tiles`."""
    (a, b, narrow_b), hints, k_columns = maps, cache_hints(config), atom(ring.tiles[0].dtype) * config.depth
    parts = cta_position(config.share)[0], config.share[0], multicast_masks(config.share)[1]
    slots, filled = ring.producer(), var(u32, min(tiles_k, config.stages))
    for _ in loop(filled):
        next(slots)
    for row, col in wide_tiles(config, *tiles):
        for k in loop(filled, tiles_k):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            load_part(slot.a, a, majors[0], (), row, k * k_columns, slot.full, hint=hints[0])
            load_part(slot.b, b, majors[1], (), col, k * k_columns, slot.full, parts, hints[1])
        filled.set(0)
    for row, col in narrow_tiles(config, *tiles):
        for k in loop(tiles_k):
            slot = next(slots)
            narrow = part(slot.b, 0, config.last, majors[1])
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.a.nbytes + narrow.nbytes)
            load_part(slot.a, a, majors[0], (), row, k * k_columns, slot.full, hint=hints[0])
            load_part(narrow, narrow_b, majors[1], (), col, k * k_columns, slot.full, parts, hints[1])
    slots.wait_all_empty()


def wide_tiles(
    config: Config, wide_m: Expr, tiles_n: Expr, tiles_m: Expr, narrow_n: Expr, own: Expr | None = None
) -> Iterator[tuple[Expr, Expr]]:
    """Yields the first row and column of this CTA's wide tiles.

    ``wide_m`` of ``tiles_m`` rows of tiles have ``tiles_n`` wide tiles, the others ``narrow_n`` narrow ones. ``own`` is
    0 or 1 where two warpgroups take the CTA's tiles in turn.
    """
    start, turns = (None, 1) if own is None else (clusterid.x + own * nclusterid.x, 2)
    for row, col in rasterize(clusters_of(wide_m, config.share[0]), tiles_n, config.group, start, turns):
        yield first_row(row, config), col * config.tile[1]


def narrow_tiles(
    config: Config, wide_m: Expr, tiles_n: Expr, tiles_m: Expr, narrow_n: Expr, own: Expr | None = None
) -> Iterator[tuple[Expr, Expr]]:
    """Yields the first row and column of this CTA's narrow tiles, whose numbers follow on those of the wide ones."""
    if not config.last:
        return
    wide_rows, narrow_rows = (clusters_of(rows, config.share[0]) for rows in (wide_m, tiles_m - wide_m))
    wide = wide_rows * tiles_n
    before = (wide + (nclusterid.x - 1) - clusterid.x) // nclusterid.x  # wide tiles of this CTA
    later = before if own is None else before + ((own ^ before) & 1)
    start, turns = clusterid.x + later * nclusterid.x - wide, 1 if own is None else 2
    for row, col in rasterize(narrow_rows, narrow_n, config.group, start, turns):
        yield first_row(wide_rows + row, config), col * config.last


def first_row(clusters: Expr, config: Config) -> Any:
    """Returns the first row of D of this CTA's tile, in the row of clusters after ``clusters`` others."""
    return (clusters * config.share[0] + cta_position(config.share)[0]) * config.tile[0]
