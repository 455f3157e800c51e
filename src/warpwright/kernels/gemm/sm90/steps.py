"""The steps that the Hopper GEMMs of `sm90` are made of: tiles and clusters, loads, products, stores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from warpwright.kernels.gemm.epilogue import Finish
from warpwright.kernels.tiles import (
    PACKED,
    WARP_ROWS,
    WARPS,
    WGMMA_BYTES,
    atom,
    clear,
    part,
    shift_mask,
    store_rows_to_smem,
    window,
)
from warpwright.lang import (
    Break,
    Expr,
    If,
    Pointer,
    Ring,
    Shared,
    bar,
    cluster,
    clusterid,
    f32,
    fence,
    ld,
    loop,
    mbarrier,
    min,
    nclusterid,
    role,
    select,
    smem,
    st,
    tid,
    tma,
    u32,
    var,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "accumulate",
    "add",
    "free",
    "give",
    "in_batch",
    "load_part",
    "masks",
    "meet",
    "multiply_atom",
    "multiply_block",
    "operands",
    "peers",
    "place",
    "place_in",
    "promote",
    "release",
    "rotated",
    "set_up",
    "store",
    "take",
    "walk",
]

STRIP = 64
STORES = 2
EVICT_FIRST = 0x12F0000000000000


def operands(
    tile: tuple[int, int],
    depth: int,
    stages: int,
    arrivals: int,
    majors: tuple[str, str],
    dtypes: tuple[type[Scalar], type[Scalar]],
) -> Ring:
    """The ring of A and B: (rows, K) each, or (K, rows) where rows run through memory, K ``depth`` atoms."""
    k = atom(dtypes[0]) * depth
    shapes = [(rows, k) if major == "k" else (k, rows) for rows, major in zip(tile, majors, strict=True)]
    a, b = (smem.tile(dtype, shape, swizzle=128) for dtype, shape in zip(dtypes, shapes, strict=True))
    return Ring(stages, full=1, empty=arrivals, name="ab", a=a, b=b)


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


def meet() -> None:
    """All threads of the cluster; what they stored before is visible after.

    The weak stores of `give` to another CTA are ordered before the loads of `take` there: barrier.cluster.arrive has
    release and wait has acquire semantics at cluster scope, and each thread arrives after its stores and loads after
    its wait (PTX ISA 9.1 section 9.7.13.3). Later no CTA touches another's memory, so each may exit when it likes.
    """
    cluster.sync()


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


def in_batch(row: Expr, across: Expr, batched: str) -> tuple[dict[str, tuple[Expr, ...]], Expr]:
    """Row of clusters ``row`` where the matrices of a batch stand one below the other, ``across`` rows each: its row in
    its matrix, and for each map the leading coordinates: the number of the matrix for those that ``batched`` names."""
    if not batched:
        return dict.fromkeys("abd", ()), row
    number = row // across
    return {name: (number,) if name in batched else () for name in "abd"}, row - number * across


def rotated(step: Expr, steps: Expr) -> Expr:
    """``step`` of a round of ``steps`` that each cluster begins elsewhere: fewer of them read one memory channel."""
    later = step + clusterid.x * steps // nclusterid.x
    chosen: Expr = select(later >= steps, later - steps, later)
    return chosen


def load_part(
    tile: Tile,
    source: tma.Map[Scalar],
    major: str,
    matrix: tuple[Expr, ...],
    row: Expr,
    k: Expr,
    full: mbarrier,
    index: Any,
    count: int,
    ranks: Any,
    hint: int | None = None,
) -> None:
    """Load the ``index``-th of ``count`` parts of an operand, in all CTAs of the mask ``ranks``: a box a panel.

    ``matrix`` is the operand's place in a batch.
    """
    rows = tile.shape[0 if major == "k" else 1] // count
    own, first = part(tile, index, rows, major), row + index * rows
    top, left = (first, k) if major == "k" else (k, first)
    for column in range(0, own.shape[1], atom(tile.dtype)):
        panel, corner = own[:, column : column + atom(tile.dtype)], source[(*matrix, top, left + column)]
        tma.load(panel, corner, full, multicast=ranks if count > 1 else None, cache_hint=hint)


def accumulate(
    sums: list[Fragment],
    first: Any,
    start: Any,
    stop: Expr,
    slots: Cursor,
    used: Cursor,
    majors: tuple[str, str],
    free: Callable[[Any], None],
) -> None:
    """The k-blocks from ``start`` to ``stop`` of the strips from ``first`` on; ``used`` follows ``slots`` by one.

    A slot is freed when the products of the next one are under way, so that the tensor cores never run dry.
    """
    for k in loop(start, stop):
        slot = next(slots)
        slot.full.wait()
        multiply_block(sums, slot, first, k > start, majors)
        wgmma.wait_group(1)
        with If(k > start):
            free(next(used))
    wgmma.wait_group(0)
    with If(stop > start):
        free(next(used))


def multiply_block(sums: list[Fragment], slot: Any, first: Any, more: Expr, majors: tuple[str, str]) -> None:
    """Add a k-block to the sums of the strips from ``first`` on, later; without ``more`` it overwrites them."""
    columns = slot.a.shape[1 if majors[0] == "k" else 0]
    wgmma.fence()
    for i, acc in enumerate(sums):
        strip = part(slot.a, first + i, STRIP, majors[0])
        for kk in range(0, columns, WGMMA_BYTES // slot.a.dtype.nbytes):
            left, right = window(strip, kk, majors[0]), window(slot.b, kk, majors[1])
            wgmma.mma(acc, left, right, accumulate=more | (kk > 0))
    wgmma.commit_group()


def promote(
    sums: list[Fragment],
    partial: tuple[int, int],
    first: Any,
    start: Any,
    stop: Expr,
    slots: Cursor,
    free: Callable[[Any], None],
) -> None:
    """`accumulate` for FP8, whose tensor core sums up in 14 bits: 128 of K at a time, then in float32.

    ``partial`` says for how many columns of D at a time, and how many of these sums are under way while one is added;
    other warpgroups multiply meanwhile too. None is under way from one slot to the next: there ptxas would serialise.
    """
    width, ways = partial
    some = [wgmma.accumulator(f32, (STRIP, width)) for _ in range(ways)]
    clear(*sums)
    for _ in loop(start, stop):
        slot = next(slots)
        slot.full.wait()
        columns = range(0, slot.a.shape[1], atom(slot.a.dtype))
        jobs = list(product(range(len(sums)), range(0, sums[0].shape[1], width), columns))
        begun: deque[tuple[int, int, Fragment]] = deque()
        for number, (i, left, k) in enumerate(jobs):
            multiply_atom(some[number % ways], part(slot.a, first + i, STRIP, "k"), slot.b[left : left + width, :], k)
            begun.append((i, left, some[number % ways]))
            last = number == len(jobs) - 1
            while len(begun) > (0 if last else ways - 1):
                done = begun.popleft()
                wgmma.wait_group(len(begun))
                if last and not begun:
                    free(slot)
                add(sums[done[0]], *done[1:])


def multiply_atom(acc: Fragment, strip: Tile, rows: Tile, k: int) -> None:
    """Begin ``acc`` = the products of 128 bytes of K, from column ``k`` on."""
    wgmma.fence()
    for kk in range(k, k + atom(strip.dtype), WGMMA_BYTES // strip.dtype.nbytes):
        wgmma.mma(acc, window(strip, kk, "k"), window(rows, kk, "k"), accumulate=kk > k)
    wgmma.commit_group()


def add(acc: Fragment, left: int, some: Fragment) -> None:
    """Add sums to those of ``acc`` from column ``left`` on."""
    for total, value in zip(acc.regs[left // 2 :], some.regs, strict=False):
        total.set(total + value)


def free(slot: Any, leads: Expr) -> None:
    """One thread of the warpgroup tells this CTA that a slot has been read."""
    with If(leads):
        slot.empty.arrive()


def masks(share: tuple[int, int]) -> tuple[Any, Any]:
    """The ranks that share this CTA's rows of A, and those that share its rows of B, as bits."""
    place_m, place_n = place(share)
    same_row, same_column = sum(1 << share[0] * i for i in range(share[1])), (1 << share[0]) - 1
    return shift_mask(same_row, place_m), shift_mask(same_column, place_n * share[0])


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


def give(acc: Fragment, parts: Shared[Any], owner: Expr, number: Expr) -> None:
    """This warp's sums to CTA ``owner``, four at a time, threads side by side."""
    there = Pointer(f32, cluster.map(parts.address, owner), 0, "shared::cluster") + place_in(acc, number)
    for i in range(0, len(acc.regs), 4):
        st(there + i * 32, *acc.regs[i : i + 4])


def take(acc: Fragment, parts: Shared[Any], number: Expr) -> None:
    """Add the sums of a warp that another CTA gave."""
    mine = parts + place_in(acc, number)
    for i in range(0, len(acc.regs), 4):
        for register, value in zip(acc.regs[i : i + 4], ld(mine + i * 32, vec=4), strict=True):
            register.set(register + value)


def place_in(acc: Fragment, number: Any) -> Any:
    """Where this thread's first four sums stand in the ``number``-th of `parts`."""
    return number * (len(acc.regs) * 32) + warp.lane * 4


def store(
    acc: Fragment,
    d: tma.Map[Scalar],
    blocks: Tile,
    own: Expr,
    matrix: tuple[Expr, ...],
    row: Expr,
    col: Expr,
    stores: Expr,
    finish: Finish,
    *,
    matrices: bool,
) -> None:
    """A strip, finished, to D: each warp puts its 16 rows into a block of 128 bytes a row and hands it to TMA.

    ``own`` is the warp's number among those that store; it has two blocks, so one is written while TMA reads the other.
    A strip begins with the first, which an odd number of blocks also ended with: then that one must have been read.
    """
    columns = blocks.shape[1]
    lefts = range(0, acc.shape[1], columns)
    for number, left in enumerate(lefts):
        block = part(blocks, own * STORES + number % STORES, WARP_ROWS, "k")
        values = finish(acc.regs[left // 2 : (left + columns) // 2], col + left)
        with If(stores):
            tma.wait_group(STORES - 1 if number or len(lefts) % STORES == 0 else 0, read=True)
        warp.sync()
        store_rows_to_smem(block, values, matrices and blocks.dtype in PACKED)
        fence.proxy_async()
        warp.sync()
        with If(stores):
            tma.store(d[(*matrix, row + own % WARPS * WARP_ROWS, col + left)], block)
            tma.commit_group()
