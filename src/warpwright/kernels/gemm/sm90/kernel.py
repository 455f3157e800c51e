"""GEMM on Hopper: D = A·Bᵀ of A (M, K) and B (N, K) of 16-bit or 8-bit floats, summed by wgmma.

A cluster of ``share`` = (along M, along N) CTAs computes neighbouring tiles. CTAs side by side along M have the same
columns of D, hence the same rows of B: each loads a part of them and multicasts it to the others; along N the same
holds for A. An operand may also lie in memory as its transpose, (K, M) or (K, N): ``majors`` names the axis that runs
through memory, "k" or "mn" (of 16-bit types).

Consumer warpgroups own strips of 64 rows of the tile and never wait for one another, only for the ring: while one
stores its strip, another multiplies, as far ahead as the ring is deep. M, N and K are any size, for TMA reads zeros
outside and writes nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90.plan import HopperConfig
from warpwright.kernels.gemm.sm90.steps import (
    EVICT_FIRST,
    STORES,
    STRIP,
    accumulate,
    free,
    give,
    in_batch,
    load_part,
    masks,
    meet,
    multiply_block,
    operands,
    peers,
    place,
    promote,
    release,
    rotated,
    set_up,
    store,
    take,
    walk,
)
from warpwright.kernels.tiles import ROW_BYTES, WARP_ROWS, WARPS, atom, clear
from warpwright.lang import (
    Expr,
    If,
    Kernel,
    bf16,
    clusterid,
    elect_one,
    f32,
    kernel,
    loop,
    role,
    select,
    setmaxnreg,
    shfl,
    smem,
    tid,
    tma,
    u32,
    u64,
    warp,
    wgmma,
)
from warpwright.types import Scalar

__all__ = ["gemm", "gemm_one_loop", "gemm_split", "kernel_of"]

REGISTERS = {2: (40, 232), 3: (32, 160)}


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
    tile: tuple[int, int] = (128, 128),
    stages: int = 1,
    share: tuple[int, int] = (1, 1),
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
    cluster: int = 1,
) -> None:
    """One warpgroup, one loop: load ``stages`` - 1 k-blocks ahead, multiply, wait for the products. A tile a CTA.

    step      warps  moves                                     waits for         signals
    load      0      A, B: global -> ring (of sharing CTAs)    ring.empty        ring.full
    multiply  0-3    ring -> registers                         ring.full         ring.empty (of sharing CTAs)
    store     0-3    registers -> blocks of D -> D             own block
    """
    ring = operands(tile, 1, stages, sum(share) - 1, majors, (dtype, b_dtype or dtype))
    blocks = smem.tile(out, (WARPS * STORES * WARP_ROWS, ROW_BYTES // out.nbytes))
    set_up(ring, share, (a, b, d))
    where, down, across = place(share), (tiles_n + (share[1] - 1)) // share[1], (tiles_m + (share[0] - 1)) // share[0]
    at, row_of_clusters = in_batch(clusterid.x // down, across, batched)
    row = (row_of_clusters * share[0] + where[0]) * tile[0]
    col = (clusterid.x % down * share[1] + where[1]) * tile[1]
    sums = [wgmma.accumulator(f32, (STRIP, tile[1])) for _ in range(tile[0] // STRIP)]
    slots, filled, ranks = ring.producer(), ring.consumer(), masks(share)
    peer, shares, one = *peers(share), elect_one()
    loads = (warp.id == 0) & one

    def fill(step: Expr) -> None:
        with If(loads & (step < tiles_k)):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            k = step * atom(dtype)
            load_part(slot.a, a, majors[0], at["a"], row, k, slot.full, where[1], share[1], ranks[0])
            load_part(slot.b, b, majors[1], at["b"], col, k, slot.full, where[0], share[0], ranks[1])

    for ahead in loop(stages - 1):
        fill(ahead)
    for k in loop(tiles_k):
        fill(k + (stages - 1))
        warp.sync()
        slot = next(filled)
        slot.full.wait()
        multiply_block(sums, slot, 0, k > 0, majors)
        wgmma.wait_group(0)
        release(slot, peer, shares)
    with If(loads):
        slots.wait_all_empty()
    warp.sync()
    finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
    for i, acc in enumerate(sums):
        store(acc, d, blocks, warp.id, at["d"], row + i * STRIP, col, one, finish, matrices=False)
    with If(one):
        tma.wait_group(0, read=True)


@kernel("sm_90a", cluster=2, threads=384)
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
    tile: tuple[int, int] = (128, 256),
    depth: int = 1,
    stages: int = 4,
    consumers: int = 2,
    share: tuple[int, int] = (2, 1),
    group: int = 8,
    rotate: bool = False,
    once: str = "",
    promoted: int = 0,
    partials: int = 1,
    overlap: bool = True,
    matrices: bool = True,
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
    cluster: int = 2,
    threads: int = 384,
) -> None:
    """Persistent: each cluster walks the tiles of D in groups of ``group`` rows of tiles, so that they meet in L2.

    A stage holds ``depth`` · 128 bytes of K. For FP8 the tensor core sums up 128 of K for ``promoted`` columns of D,
    in ``partials`` sets of registers in turn; these sums are added up in float32. With ``rotate`` clusters start at
    different places along K; ``once`` names the operands ("b") that are read only once, so that they displace nothing
    in L2. The ladder's lower levels do without ``overlap`` of a tile's stores with the next tile, and without
    ``matrices`` (stmatrix, swizzled blocks).

    role      warps  moves                                     waits for             signals
    load      0      A, B: global -> ring (of sharing CTAs)    ring.empty            ring.full
    multiply  4-     ring -> registers -> blocks of D -> D     ring.full, own block  ring.empty (of sharing CTAs)
    """
    tile_m, tile_n = tile
    strips = tile_m // STRIP // consumers
    ring = operands(tile, depth, stages, consumers * (sum(share) - 1), majors, (dtype, b_dtype or dtype))
    rows = consumers * WARPS * STORES * WARP_ROWS
    blocks = smem.tile(out, (rows, ROW_BYTES // out.nbytes), swizzle=128 if matrices else 0)
    set_up(ring, share, (a, b, d))
    place_m, place_n = place(share)
    hints = [EVICT_FIRST if name in once else None for name in "ab"]

    def output_tiles() -> Iterator[tuple[dict[str, tuple[Expr, ...]], Expr, Expr]]:
        across, down = (tiles_m + (share[0] - 1)) // share[0], (tiles_n + (share[1] - 1)) // share[1]
        for below, col in walk(across * batches if batched else across, down, group):
            at, row = in_batch(below, across, batched)
            yield at, (row * share[0] + place_m) * tile_m, (col * share[1] + place_n) * tile_n

    @role(warps=range(WARPS), when=consumers > 1)
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        slots, (same_row, same_column) = ring.producer(), masks(share)
        for at, row, col in output_tiles():
            for step in loop(tiles_k):
                k = (rotated(step, tiles_k) if rotate else step) * (atom(dtype) * depth)
                slot = next(slots)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                load_part(slot.a, a, majors[0], at["a"], row, k, slot.full, place_n, share[1], same_row, hints[0])
                load_part(slot.b, b, majors[1], at["b"], col, k, slot.full, place_m, share[0], same_column, hints[1])
        slots.wait_all_empty()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        if consumers > 1:
            setmaxnreg.inc(REGISTERS[consumers][1])
        first = shfl.idx(warp.id // WARPS - 1, 0) * strips
        sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(strips)]
        slots, used = ring.consumer(), ring.consumer()
        peer, shares, stores = *peers(share), elect_one()
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)

        def read(slot: Any) -> None:
            release(slot, peer, shares)

        for at, row, col in output_tiles():
            if promoted:
                promote(sums, (promoted, partials), first, 0, tiles_k, slots, read)
            else:
                accumulate(sums, first, 0, tiles_k, slots, used, majors, read)
            for i, acc in enumerate(sums):
                top = row + (first + i) * STRIP
                store(acc, d, blocks, warp.id - WARPS, at["d"], top, col, stores, finish, matrices=matrices)
            if not overlap:
                with If(stores):
                    tma.wait_group(0)
                warp.sync()
        with If(stores):
            tma.wait_group(0, read=True)


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
    tile: tuple[int, int] = (64, 64),
    depth: int = 2,
    stages: int = 5,
    consumers: int = 1,
    split: int = 4,
    once: str = "",
    promoted: int = 0,
    partials: int = 1,
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
    cluster: int = 4,
    threads: int = 256,
) -> None:
    """For few tiles and a long K: the CTAs of a cluster share out the K of one tile, then its strips of 16 rows.

    The sums of a strip go to the CTA that owns it, which adds them up in the order of their CTAs and stores the strip.

    role      warps  moves                                             waits for              signals
    load      0      A, B: global -> ring                              ring.empty             ring.full
    multiply  4-     ring -> registers -> `parts` of the strip's CTA   ring.full              ring.empty
    sum_up    4-     registers, `parts` -> blocks of D -> D            the cluster's barrier
    """
    strips = consumers * WARPS
    owned = -(-strips // split)
    ring = operands(tile, depth, stages, consumers, majors, (dtype, b_dtype or dtype))
    width = min(tile[1], ROW_BYTES // out.nbytes)
    blocks = smem.tile(out, (owned * STORES * WARP_ROWS, width), swizzle=width * out.nbytes)
    parts = smem.array(f32, (split - 1) * owned * WARP_ROWS * tile[1])
    set_up(ring, (1, split), (a, b, d))
    rank, _ = place((split, 1))
    acc = wgmma.accumulator(f32, (STRIP, tile[1]))
    at, across = in_batch(clusterid.x // tiles_n, tiles_m, batched)
    row, col = across * tile[0], clusterid.x % tiles_n * tile[1]
    first, last = rank * tiles_k // split, (rank + 1) * tiles_k // split
    hints = [EVICT_FIRST if name in once else None for name in "ab"]
    strip = warp.id - WARPS
    owner, own = strip // owned, strip % owned

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for step in loop(first, last):
            slot, k = next(slots), step * (atom(dtype) * depth)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            load_part(slot.a, a, majors[0], at["a"], row, k, slot.full, 0, 1, None, hints[0])
            load_part(slot.b, b, majors[1], at["b"], col, k, slot.full, 0, 1, None, hints[1])

    @role(warps=range(WARPS, WARPS + strips))
    def multiply() -> None:
        leads, group = tid.x % (WARPS * 32) == 0, shfl.idx(strip // WARPS, 0) if consumers > 1 else 0
        slots, used = ring.consumer(), ring.consumer()

        def read(slot: Any) -> None:
            free(slot, leads)

        if promoted:
            promote([acc], (promoted, partials), group, first, last, slots, read)
        else:
            clear(acc)
            accumulate([acc], group, first, last, slots, used, majors, read)
        with If(rank != owner):
            give(acc, parts, owner, select(rank > owner, rank - 1, rank) * owned + own)

    meet()

    @role(warps=range(WARPS, WARPS + strips), when=rank == owner)
    def sum_up() -> None:
        for number in range(split - 1):
            take(acc, parts, number * owned + own)
        one = elect_one()
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
        top = row + owner * (owned * WARP_ROWS)
        store(acc, d, blocks, own, at["d"], top, col, one, finish, matrices=True)
        with If(one):
            tma.wait_group(0, read=True)


KERNELS = {"ring": gemm, "loop": gemm_one_loop, "split": gemm_split}


@cache
def kernel_of(config: HopperConfig) -> Kernel:
    """The kernel of a configuration; configure ``majors``, ``dtype`` (bf16, f16) and ``out`` (bf16, f16, f32)."""
    found = KERNELS[config.kernel]
    return found.configure(**{name: value for name, value in config.keywords.items() if name in found.config})
