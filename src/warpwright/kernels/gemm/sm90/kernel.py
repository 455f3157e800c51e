"""The default GEMM on Hopper: D = A·Bᵀ of A (M, K) and B (N, K) of 16-bit or 8-bit floats, accumulated by wgmma.

A cluster of ``share`` = (along M, along N) CTAs computes neighbouring tiles. CTAs side by side along M have the same
columns of D, hence the same rows of B: each loads a part of them and multicasts it to the others; along N the same
holds for A. An operand may also lie in memory as its transpose, (K, M) or (K, N): ``majors`` names the axis that is
contiguous in memory, "k" or "mn" ("mn" for 16-bit types alone).

Consumer warpgroups own strips of 64 rows of the tile and synchronise with the ring alone, never with one another: one
runs its epilogue while another multiplies, as far ahead as the ring is deep. M, N and K are any size: TMA reads zeros
outside A and B and writes nothing outside D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.sm90.configs import CONFIGS, STORES, STRIP, Config
from warpwright.kernels.gemm.sm90.fp8 import mainloop_fp8
from warpwright.kernels.gemm.sm90.store import DelayedTile, store_strip
from warpwright.kernels.tiles import (
    PACKED,
    ROW_BYTES,
    WARP_ROWS,
    WARPS,
    WGMMA_BYTES,
    atom,
    part,
    shift_mask,
    strip_of,
    window,
)
from warpwright.lang import (
    Break,
    Expr,
    If,
    Ring,
    bar,
    bf16,
    cluster,
    clusterid,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    min,
    nclusterid,
    role,
    select,
    setmaxnreg,
    shfl,
    smem,
    tid,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "EVICT_FIRST",
    "Matrix",
    "clusters_of",
    "cta_position",
    "gemm",
    "grouped_tile",
    "init_and_sync",
    "k_blocks",
    "load_part",
    "mainloop",
    "multicast_masks",
    "multiply_block",
    "operand_ring",
    "rasterize",
    "signal_target",
    "split_batch",
]

REGISTERS = {2: (40, 232), 3: (32, 160)}  # by the number of consumers: of a loading thread, of a consuming thread
EVICT_FIRST = 0x12F0000000000000
Matrix = dict[str, tuple[Expr, ...]]  # for a, b and d: the leading coordinates of a matrix in a batch


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
    config: Config = CONFIGS["128x256"],
    batched: str = "",
    majors: tuple[str, str] = ("k", "k"),
    dtype: type[Scalar] = bf16,
    b_dtype: type[Scalar] | None = None,
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """Clusters are persistent and walk the tiles of D in groups of rows of tiles, so that operands are reused in L2.

    ``batched`` names the operands, of "abd", that have a matrix for each of ``batches``. The parameters from
    ``columns`` on are those of ``epilogue``.

    role      warps  moves                                     waits for             signals
    load      0      A, B: global -> ring (of sharing CTAs)    ring.empty            ring.full
    multiply  4-     ring -> registers -> blocks of D -> D     ring.full, own block  ring.empty (of sharing CTAs)
    """
    (tile_m, tile_n), share, consumers = config.tile, config.share, config.consumers
    strips = tile_m // STRIP // consumers  # of a consumer warpgroup
    ring = operand_ring(config, consumers * (sum(share) - 1), majors, (dtype, b_dtype or dtype))
    rows = consumers * WARPS * STORES * WARP_ROWS
    blocks = smem.tile(out, (rows, ROW_BYTES // out.nbytes), swizzle=128 if config.matrices else 0)
    hints = [EVICT_FIRST if name in config.once else None for name in "ab"]
    tiles = tiles_m, tiles_n, tiles_k, batches
    early = partial(fill_ring, ring, config, (a, b), majors, tiles, batched, hints) if config.early else None
    init_and_sync(ring, share, (a, b, d), early)
    place_m, place_n = cta_position(share)

    def output_tiles() -> Iterator[tuple[Matrix, Expr, Expr]]:
        across, down = clusters_of(tiles_m, share[0]), clusters_of(tiles_n, share[1])
        for below, col in rasterize(across * batches if batched else across, down, config.group):
            at, row = split_batch(below, across, batched)
            yield at, (row * share[0] + place_m) * tile_m, (col * share[1] + place_n) * tile_n

    @role(warps=range(WARPS), when=consumers > 1)
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        slots, (same_row, same_col) = ring.producer(), multicast_masks(share)
        filled = var(u32, min(tiles_k, config.stages)) if config.early else None
        for _ in loop(filled) if filled is not None else ():
            next(slots)
        for at, row, col in output_tiles():
            start, stop = k_blocks(config.slices, at, tiles_k)
            for step in loop(start if filled is None else filled, stop):
                k = (rotate(step, tiles_k) if config.rotate else step) * (atom(dtype) * config.depth)
                slot = next(slots)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                load_part(slot.a, a, majors[0], at["a"], row, k, slot.full, (place_n, share[1], same_row), hints[0])
                load_part(slot.b, b, majors[1], at["b"], col, k, slot.full, (place_m, share[0], same_col), hints[1])
            if filled is not None:
                filled.set(0)
        slots.wait_all_empty()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        if consumers > 1:
            setmaxnreg.inc(REGISTERS[consumers][1])
        first = shfl.idx(warp.id // WARPS - 1, 0) * strips
        sums = [wgmma.accumulator(f32, (STRIP, tile_n)) for _ in range(strips)]
        slots, completed = ring.consumer(), ring.consumer()
        peer, shares, stores = *signal_target(share), elect_one()
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
        few = epilogue.activation in ("", "relu")  # GELU and SiLU need the registers
        delays = config.delayed and out in PACKED and few
        delayed = DelayedTile(sums, blocks, 2 + ("d" in batched)) if delays else None
        store_due = partial(delayed.store_due, d, warp.id - WARPS, stores) if delayed else None
        for at, row, col in output_tiles():
            ks = k_blocks(config.slices, at, tiles_k)
            for slot in (
                mainloop_fp8(sums, config, first, *ks, slots)
                if config.promoted
                else mainloop(sums, first, *ks, slots, completed, majors, store_due)
            ):
                with If(shares):
                    slot.empty.at(peer).arrive(scope="cta")
            if delayed:
                delayed.keep(sums, (*at["d"], row + first * STRIP, col), finish)
            for i, acc in enumerate(sums if delayed is None else ()):
                top = row + (first + i) * STRIP
                store_strip(acc, d, blocks, warp.id - WARPS, at["d"], top, col, stores, finish, config.matrices)
            if not config.overlap:
                with If(stores):
                    tma.wait_group(0)
                warp.sync()
        if delayed:
            delayed.store(d, warp.id - WARPS, stores)
        with If(stores):
            tma.wait_group(0, read=True)


# Set-up: the ring, the CTA's place in its cluster, its tiles.


def operand_ring(
    config: Config, arrivals: int, majors: tuple[str, str], dtypes: tuple[type[Scalar], type[Scalar]]
) -> Ring:
    """The ring of A and B: tiles of (rows, K), or (K, rows) for major "mn"; K is ``config.depth`` atoms."""
    k = atom(dtypes[0]) * config.depth
    extents = config.rows or config.tile[0], config.tile[1]
    shapes = [(rows, k) if major == "k" else (k, rows) for rows, major in zip(extents, majors, strict=True)]
    a, b = (smem.tile(dtype, shape, swizzle=128) for dtype, shape in zip(dtypes, shapes, strict=True))
    return Ring(config.stages, full=1, empty=arrivals, name="ab", a=a, b=b)


def init_and_sync(
    ring: Ring,
    share: tuple[int, int],
    maps: tuple[tma.Map[Scalar], ...],
    early: Callable[[], None] | None = None,
) -> None:
    """Initialise the mbarriers, and synchronise the cluster: they are ready in every CTA before the first load.

    ``early`` issues loads into this CTA alone, before the cluster has synchronised.
    """

    @role(warp=0, elect=True)
    def init() -> None:
        before = maps[:-1] if early else ()  # the maps of the operands, which the first loads read
        for each in before:
            tma.prefetch_map(each)
        ring.init()
        fence.mbarrier_init()
        if early:
            early()
        for each in maps[len(before) :]:
            tma.prefetch_map(each)

    if share == (1, 1):
        bar.sync()
    else:
        cluster.arrive("relaxed")
        cluster.wait()


def cta_position(share: tuple[int, int]) -> tuple[Any, Any]:
    """Position of this CTA in its cluster along M and along N; 0 along an axis of one CTA."""
    rank = cluster.rank
    return rank % share[0] if share[0] > 1 else 0, rank // share[0] if share[1] > 1 else 0


def multicast_masks(share: tuple[int, int]) -> tuple[Any, Any]:
    """Masks of the CTAs with this CTA's rows of A, and of those with its rows of B."""
    place_m, place_n = cta_position(share)
    same_row, same_col = sum(1 << share[0] * i for i in range(share[1])), (1 << share[0]) - 1
    return shift_mask(same_row, place_m), shift_mask(same_col, place_n * share[0])


def signal_target(share: tuple[int, int]) -> tuple[Expr, Expr]:
    """The CTA whose empty barrier this thread of a warpgroup signals, and whether that CTA loads into this one."""
    peer = tid.x % (WARPS * 32)
    place_m, place_n = cta_position(share)
    related = (peer % share[0] == place_m) | (peer // share[0] == place_n)
    return peer, (peer < share[0] * share[1]) & related


def rasterize(
    across: Expr, down: Expr, group: Expr | int, start: Expr | None = None, turns: int = 1
) -> Iterator[tuple[Expr, Expr]]:
    """Rows and columns of this cluster's share of ``across`` × ``down`` tiles: down the rows of a group, then along.

    Cluster i takes tiles i, or ``start``, and every one that is ``turns`` times the number of clusters further. No
    division by a run-time value precedes the first load: groups are counted, and only a last group of fewer rows
    divides.
    """
    within, first, whole = var(u32, clusterid.x if start is None else start), var(u32, 0), down * group
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
        within += nclusterid.x * turns if turns > 1 else nclusterid.x


def clusters_of(tiles: Expr, share: int) -> Expr:
    """Returns how many clusters cover ``tiles`` along an axis where each has ``share`` tiles."""
    return (tiles + (share - 1)) // share


def grouped_tile(number: Expr, across: Expr, down: Expr, group: int) -> tuple[Expr, Expr]:
    """Returns row and column of tile ``number`` of ``across`` × ``down``: down the rows of a group, then along."""
    first = number // (down * group) * group
    rows, within = min(across - first, group), number % (down * group)
    return first + within % rows, within // rows


def split_batch(row: Expr, across: Expr, batched: str) -> tuple[Matrix, Expr]:
    """The matrix of a batch, and the row in it, of ``row``: rows of clusters are counted through the whole batch.

    A matrix has ``across`` rows of clusters. Operands that ``batched`` does not name have no leading coordinate.
    """
    if not batched:
        return dict.fromkeys("abd", ()), row
    number = row // across
    return {name: (number,) if name in batched else () for name in "abd"}, row - number * across


def k_blocks(slices: int, at: Matrix, tiles_k: Expr) -> tuple[Any, Expr]:
    """The first k-block of a tile and the end of its k-blocks: of all of K, or of the slice whose sums are ``at["d"]``.

    No slice is empty: there are at most as many slices as k-blocks.
    """
    if slices == 1:
        return 0, tiles_k
    (number,) = at["d"]
    return number * tiles_k // slices, (number + 1) * tiles_k // slices


# Load.


def fill_ring(
    ring: Ring,
    config: Config,
    operands: tuple[tma.Map[Scalar], tma.Map[Scalar]],
    majors: tuple[str, str],
    tiles: tuple[Expr, Expr, Expr, Expr],
    batched: str,
    hints: list[int | None],
) -> None:
    """Load the first k-blocks of the first tile, as many as the ring has stages, without multicast.

    ``tiles`` counts tiles along M and N, k-blocks, and batches.
    """
    (tiles_m, tiles_n, tiles_k, batches), share, slots = tiles, config.share, ring.producer()
    across, down = clusters_of(tiles_m, share[0]), clusters_of(tiles_n, share[1])
    below, right = grouped_tile(clusterid.x, across * batches if batched else across, down, config.group)
    at, row = split_batch(below, across, batched)
    place = cta_position(share)
    corner = [(number * share[i] + place[i]) * config.tile[i] for i, number in enumerate((row, right))]
    for step in loop(min(tiles_k, config.stages)):
        slot = next(slots)
        k = step * (atom(slot.a.dtype) * config.depth)
        slot.full.arrive_expect_tx(slot.nbytes)
        for i, (tile, source) in enumerate(zip((slot.a, slot.b), operands, strict=True)):
            for piece in range(share[1 - i]):
                where, parts = at["ab"[i]], (piece, share[1 - i], None)
                load_part(tile, source, majors[i], where, corner[i], k, slot.full, parts, hints[i])


def rotate(step: Expr, steps: Expr) -> Any:
    """``step`` of ``steps`` k-blocks, shifted by cluster: fewer clusters read one memory channel at a time."""
    later = step + clusterid.x * steps // nclusterid.x
    return select(later >= steps, later - steps, later)


def load_part(
    tile: Tile,
    source: tma.Map[Scalar],
    major: str,
    matrix: tuple[Expr, ...],
    row: Expr,
    k: Expr,
    full: mbarrier,
    multicast: tuple[Any, int, Any] = (0, 1, None),
    hint: int | None = None,
) -> None:
    """Load an operand's tile, one box a panel.

    ``multicast`` = (index, count, mask): part ``index`` of ``count`` of the tile, into all CTAs of ``mask``; None: this
    CTA.
    """
    index, count, ranks = multicast
    rows = tile.shape[0 if major == "k" else 1] // count
    own, first = part(tile, index, rows, major), row + index * rows
    top, left = (first, k) if major == "k" else (k, first)
    for column in range(0, own.shape[1], atom(tile.dtype)):
        panel, corner = own[:, column : column + atom(tile.dtype)], source[(*matrix, top, left + column)]
        tma.load(panel, corner, full, multicast=ranks if count > 1 else None, cache_hint=hint)


# Multiply.


def mainloop(
    sums: list[Fragment],
    first: Any,
    start: Any,
    stop: Expr,
    slots: Cursor,
    completed: Cursor,
    majors: tuple[str, str],
    meanwhile: Callable[[Expr, Any, Expr], None] | None = None,
    issued: Callable[[], None] | None = None,
) -> Iterator[Any]:
    """Accumulate k-blocks ``start`` to ``stop``: wait for each slot, yield it once its wgmmas are complete.

    That is when the next k-block is in flight, so that the tensor core is never idle: ``completed`` runs one slot after
    ``slots``. ``sums`` are the strips from ``first`` on. ``meanwhile`` is called with k, ``start`` and ``stop`` when
    the wgmmas of k-block k are issued; ``issued`` when those of all k-blocks are.
    """
    for k in loop(start, stop):
        slot = next(slots)
        slot.full.wait()
        multiply_block(sums, slot, first, k > start, majors)
        if meanwhile:
            meanwhile(k, start, stop)
        wgmma.wait_group(1)
        with If(k > start):
            yield next(completed)
    if issued:
        issued()
    wgmma.wait_group(0)
    with If(stop > start):
        yield next(completed)


def multiply_block(sums: list[Fragment], slot: Any, first: Any, more: Expr, majors: tuple[str, str]) -> None:
    """Issue the wgmmas of a k-block for the strips from ``first`` on; without ``more`` they overwrite the sums."""
    columns = slot.a.shape[1 if majors[0] == "k" else 0]
    rows = part(slot.b, 0, sums[0].shape[1], majors[1])
    wgmma.fence()
    for i, acc in enumerate(sums):
        strip = strip_of(slot.a, first + i, STRIP, majors[0])
        for kk in range(0, columns, WGMMA_BYTES // slot.a.dtype.nbytes):
            left, right = window(strip, kk, majors[0]), window(rows, kk, majors[1])
            wgmma.mma(acc, left, right, accumulate=more | (kk > 0))
    wgmma.commit_group()
