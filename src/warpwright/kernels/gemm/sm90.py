"""GEMM on Hopper: D = A·Bᵀ of 16-bit A (M, K) and B (N, K), summed in float32 by wgmma.

A cluster of ``share`` = (along M, along N) CTAs computes neighbouring tiles. CTAs side by side along M have the same
columns of D, hence the same rows of B: each loads a part of them and multicasts it to the others; along N the same
holds for A. An operand may also lie in memory as its transpose, (K, M) or (K, N): ``majors`` names the axis that runs
through memory, "k" or "mn".

Consumer warpgroups own strips of 64 rows of the tile and never wait for one another, only for the ring: while one
stores its strip, another multiplies, as far ahead as the ring is deep. M, N and K are any size, for TMA reads zeros
outside and writes nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from warpwright.kernels.gemm.sm90_plan import HopperConfig
from warpwright.lang import (
    Break,
    Expr,
    If,
    Kernel,
    Ring,
    b16,
    bar,
    bf16,
    bf16x2,
    cluster,
    clusterid,
    elect_one,
    f16,
    f16x2,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    min,
    nclusterid,
    pack,
    role,
    select,
    setmaxnreg,
    shfl,
    smem,
    st,
    stmatrix,
    tid,
    tma,
    u16,
    u32,
    var,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["gemm", "gemm_one_loop", "kernel_of"]

ATOM = 64
STRIP = 64
WGMMA_K = 16
WARPS = 4
WARP_ROWS = 16
ROW_BYTES = 128
STORES = 2
REGISTERS = {2: (40, 232), 3: (32, 160)}
PACKED = {bf16: bf16x2, f16: f16x2}
EVICT_FIRST = 0x12F0000000000000


@kernel("sm_90a", threads=128)
def gemm_one_loop(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    *,
    tile: tuple[int, int] = (128, 128),
    stages: int = 1,
    share: tuple[int, int] = (1, 1),
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    out: type[Scalar] = bf16,
    cluster: int = 1,
) -> None:
    """One warpgroup, one loop: load ``stages`` - 1 k-blocks ahead, multiply, wait for the products. A tile a CTA.

    step      warps  moves                                     waits for         signals
    load      0      A, B: global -> ring (of sharing CTAs)    ring.empty        ring.full
    multiply  0-3    ring -> registers                         ring.full         ring.empty (of sharing CTAs)
    store     0-3    registers -> blocks of D -> D             own block
    """
    ring = operands(tile, ATOM, stages, sum(share) - 1, majors, dtype)
    blocks = smem.tile(out, (WARPS * STORES * WARP_ROWS, ROW_BYTES // out.nbytes))
    set_up(ring, share, (a, b, d))
    where, down = place(share), (tiles_n + (share[1] - 1)) // share[1]
    row = (clusterid.x // down * share[0] + where[0]) * tile[0]
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
            load_part(slot.a, a, majors[0], row, step * ATOM, slot.full, where[1], share[1], ranks[0])
            load_part(slot.b, b, majors[1], col, step * ATOM, slot.full, where[0], share[0], ranks[1])

    for ahead in loop(stages - 1):
        fill(ahead)
    for k in loop(tiles_k):
        fill(k + (stages - 1))
        warp.sync()
        slot = next(filled)
        slot.full.wait()
        multiply_block(sums, slot, 0, k, ATOM, majors)
        wgmma.wait_group(0)
        release(slot, peer, shares)
    with If(loads):
        slots.drain()
    warp.sync()
    for i, acc in enumerate(sums):
        store(acc, d, blocks, warp.id, row + i * STRIP, col, one, matrices=False)
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
    *,
    tile: tuple[int, int] = (128, 256),
    depth: int = 1,
    stages: int = 4,
    consumers: int = 2,
    share: tuple[int, int] = (2, 1),
    group: int = 8,
    rotate: bool = False,
    once: str = "",
    overlap: bool = True,
    matrices: bool = True,
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    out: type[Scalar] = bf16,
    cluster: int = 2,
    threads: int = 384,
) -> None:
    """Persistent: each cluster walks the tiles of D in groups of ``group`` rows of tiles, so that they meet in L2.

    A stage holds ``depth`` · 64 columns of K. With ``rotate`` clusters start at different places along K; ``once``
    names the operands ("b") that are read only once, so that they displace nothing in L2. The ladder's lower levels
    do without ``overlap`` of a tile's stores with the next tile, and without ``matrices`` (stmatrix, swizzled blocks).

    role      warps  moves                                     waits for             signals
    load      0      A, B: global -> ring (of sharing CTAs)    ring.empty            ring.full
    multiply  4-     ring -> registers -> blocks of D -> D     ring.full, own block  ring.empty (of sharing CTAs)
    """
    tile_m, tile_n = tile
    strips = tile_m // STRIP // consumers
    ring = operands(tile, ATOM * depth, stages, consumers * (sum(share) - 1), majors, dtype)
    rows = consumers * WARPS * STORES * WARP_ROWS
    blocks = smem.tile(out, (rows, ROW_BYTES // out.nbytes), swizzle=128 if matrices else 0)
    set_up(ring, share, (a, b, d))
    place_m, place_n = place(share)
    hints = [EVICT_FIRST if name in once else None for name in "ab"]

    def output_tiles() -> Iterator[tuple[Expr, Expr]]:
        across, down = (tiles_m + (share[0] - 1)) // share[0], (tiles_n + (share[1] - 1)) // share[1]
        for row, col in walk(across, down, group):
            yield (row * share[0] + place_m) * tile_m, (col * share[1] + place_n) * tile_n

    @role(warps=range(WARPS), when=consumers > 1)
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        slots, (same_row, same_column) = ring.producer(), masks(share)
        for row, col in output_tiles():
            for step in loop(tiles_k):
                k = (rotated(step, tiles_k) if rotate else step) * (ATOM * depth)
                slot = next(slots)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                load_part(slot.a, a, majors[0], row, k, slot.full, place_n, share[1], same_row, hints[0])
                load_part(slot.b, b, majors[1], col, k, slot.full, place_m, share[0], same_column, hints[1])
        slots.drain()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        if consumers > 1:
            setmaxnreg.inc(REGISTERS[consumers][1])
        first = shfl.idx(warp.id // WARPS - 1, 0) * strips
        sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(strips)]
        slots, used = ring.consumer(), ring.consumer()
        peer, shares, stores = *peers(share), elect_one()
        for row, col in output_tiles():
            for k in loop(tiles_k):
                slot = next(slots)
                slot.full.wait()
                multiply_block(sums, slot, first, k, ATOM * depth, majors)
                wgmma.wait_group(1)
                with If(k > 0):
                    release(next(used), peer, shares)
            wgmma.wait_group(0)
            release(next(used), peer, shares)
            for i, acc in enumerate(sums):
                store(acc, d, blocks, warp.id - WARPS, row + (first + i) * STRIP, col, stores, matrices=matrices)
            if not overlap:
                with If(stores):
                    tma.wait_group(0)
                warp.sync()
        with If(stores):
            tma.wait_group(0, read=True)


KERNELS = {True: gemm, False: gemm_one_loop}


@cache
def kernel_of(config: HopperConfig) -> Kernel:
    """The kernel of a configuration; configure ``majors``, ``dtype`` (bf16, f16) and ``out`` (bf16, f16, f32)."""
    found = KERNELS[config.specialised]
    return found.configure(**{name: value for name, value in config.keywords.items() if name in found.config})


def operands(
    tile: tuple[int, int], k: int, stages: int, arrivals: int, majors: tuple[str, str], dtype: type[Scalar]
) -> Ring:
    """The ring of A and B: (rows, k) each, or (k, rows) where rows run through memory."""
    shapes = [(rows, k) if major == "k" else (k, rows) for rows, major in zip(tile, majors, strict=True)]
    a, b = (smem.tile(dtype, shape, swizzle=128) for shape in shapes)
    return Ring(stages, full=1, empty=arrivals, a=a, b=b)


def set_up(ring: Ring, share: tuple[int, int], maps: tuple[tma.Map[Scalar], ...]) -> None:
    """Barriers ready, and every CTA of the cluster alive, before anyone loads."""

    @role(warp=0, elect=True)
    def init() -> None:
        ring.init()
        fence.mbarrier_init()
        for each in maps:
            tma.prefetch_map(each)

    if share == (1, 1):
        bar.sync()
    else:
        cluster.arrive("relaxed")
        cluster.wait()


def place(share: tuple[int, int]) -> tuple[Any, Any]:
    """Where this CTA stands in its cluster, along M and along N; 0 where it has no neighbour."""
    along_m, along_n = share
    rank = cluster.rank
    return rank % along_m if along_m > 1 else 0, rank // along_m if along_n > 1 else 0


def walk(across: Expr, down: Expr, group: int) -> Iterator[tuple[Expr, Expr]]:
    """Rows and columns of this cluster's share of ``across`` × ``down`` tiles: down the rows of a group, then along.

    Every cluster takes each n-th tile. No division by a run-time value in the way to the first load: groups are counted
    off, and only a last group of fewer rows divides.
    """
    within, first, whole = var(u32, clusterid.x), var(u32, 0), down * group
    for _round in loop():
        for _group in loop():
            Break(when=within < whole)
            within -= whole
            first += group
        rows = min(across - first, group)
        Break(when=(first >= across) | (within >= rows * down))
        row, col = var(u32, within % group), var(u32, within // group)
        with If(rows < group):
            row.set(within % rows)
            col.set(within // rows)
        yield first + row, col
        within += nclusterid.x


def rotated(step: Expr, steps: Expr) -> Expr:
    """``step`` of a round of ``steps`` that each cluster begins elsewhere: fewer of them read one memory channel."""
    later = step + clusterid.x * steps // nclusterid.x
    chosen: Expr = select(later >= steps, later - steps, later)
    return chosen


def part(tile: Tile, index: Any, rows: int, major: str) -> Tile:
    """The ``index``-th block of ``rows`` rows of an operand, where ``index`` may be a run-time value."""
    base, start = tile.place.known()
    if major == "k":
        return tile[:rows, :].placed(base + index * (rows * tile.span), start)
    panels = rows * tile.dtype.nbytes // tile.span
    return tile[:, :rows].placed(base + index * (panels * tile.rows * tile.span), start)


def window(tile: Tile, kk: int, major: str) -> Any:
    """Sixteen columns of K of an operand, for one wgmma."""
    inside = slice(kk, kk + WGMMA_K)
    return tile[:, inside] if major == "k" else tile[inside, :].T


def load_part(
    tile: Tile,
    source: tma.Map[Scalar],
    major: str,
    row: Expr,
    k: Expr,
    full: mbarrier,
    index: Any,
    count: int,
    ranks: Any,
    hint: int | None = None,
) -> None:
    """Load the ``index``-th of ``count`` parts of an operand, in all CTAs of the mask ``ranks``: a box a panel."""
    rows = tile.shape[0 if major == "k" else 1] // count
    own, first = part(tile, index, rows, major), row + index * rows
    top, left = (first, k) if major == "k" else (k, first)
    for column in range(0, own.shape[1], ATOM):
        panel = own[:, column : column + ATOM]
        tma.load(panel, source[top, left + column], full, multicast=ranks if count > 1 else None, cache_hint=hint)


def multiply_block(sums: list[Fragment], slot: Any, first: Any, k: Expr, columns: int, majors: tuple[str, str]) -> None:
    """Add a k-block to the sums of the strips from ``first`` on, later; the first k-block of a tile overwrites them."""
    wgmma.fence()
    for i, acc in enumerate(sums):
        strip = part(slot.a, first + i, STRIP, majors[0])
        for kk in range(0, columns, WGMMA_K):
            left, right = window(strip, kk, majors[0]), window(slot.b, kk, majors[1])
            wgmma.mma(acc, left, right, accumulate=(k > 0) | (kk > 0))
    wgmma.commit_group()


def masks(share: tuple[int, int]) -> tuple[Any, Any]:
    """The ranks that share this CTA's rows of A, and those that share its rows of B, as bits."""
    place_m, place_n = place(share)
    same_row, same_column = sum(1 << share[0] * i for i in range(share[1])), (1 << share[0]) - 1
    return shifted(same_row, place_m), shifted(same_column, place_n * share[0])


def shifted(mask: int, by: Any) -> Any:
    """``mask << by`` as a mask of ranks; a Python int where ``by`` is one."""
    return (mask << by).to(u16).bitcast(b16) if isinstance(by, Expr) else mask << by


def peers(share: tuple[int, int]) -> tuple[Expr, Expr]:
    """The CTA that this thread of a warpgroup tells about a released slot, and whether it shares A or B with it."""
    peer = tid.x % (WARPS * 32)
    place_m, place_n = place(share)
    related = (peer % share[0] == place_m) | (peer // share[0] == place_n)
    return peer, (peer < share[0] * share[1]) & related


def release(slot: Any, peer: Expr, shares: Expr) -> None:
    """Tell every CTA that loads into this slot that this warpgroup has read it."""
    with If(shares):
        slot.empty.at(peer).arrive(scope="cta")


def store(
    acc: Fragment,
    d: tma.Map[Scalar],
    blocks: Tile,
    own: Expr,
    row: Expr,
    col: Expr,
    stores: Expr,
    *,
    matrices: bool,
) -> None:
    """A strip to D: each warp puts its 16 rows into a block of 128 bytes a row and hands it to TMA.

    ``own`` is the warp's number among those that store; it has two blocks, so one is written while TMA reads the other.
    """
    columns = blocks.shape[1]
    for number, left in enumerate(range(0, acc.shape[1], columns)):
        block = part(blocks, own * STORES + number % STORES, WARP_ROWS, "k")
        with If(stores):
            tma.wait_group(STORES - 1, read=True)
        warp.sync()
        put(block, acc.regs[left // 2 : (left + columns) // 2], matrices and blocks.dtype in PACKED)
        fence.proxy_async()
        warp.sync()
        with If(stores):
            tma.store(d[row + own % WARPS * WARP_ROWS, col + left], block)
            tma.commit_group()


def put(block: Tile, regs: list[Expr], matrices: bool) -> None:
    """A warp's 16 rows of sums into ``block``: as 8 × 8 matrices of packed elements, or pair by pair."""
    lane, word = warp.lane, PACKED.get(block.dtype)
    pairs = [regs[i : i + 2] for i in range(0, len(regs), 2)]
    packed = [[pack(word, *pair)] for pair in pairs] if word else pairs
    for start in range(0, len(packed), 4):
        column = 4 * start
        if matrices:
            corner = block.at(lane % WARP_ROWS, lane // WARP_ROWS * 8 + column)
            stmatrix(corner, [each for (each,) in packed[start : start + 4]])
            continue
        for i, values in enumerate(packed[start : start + 4]):
            corner = block.at(lane // 4 + i % 2 * 8, lane % 4 * 2 + column + i // 2 * 8)
            st(corner.cast(values[0].type), *values)
