"""The steps that the Blackwell GEMMs are made of: set-up, tiles, loads, products, the way of a tile to D."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from warpwright.kernels.gemm.sm100.configs import LANES, PAIR, SM_FLOPS
from warpwright.kernels.tiles import PACKED, pack_neighbours, part, shift_mask
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Ring,
    b128,
    bar,
    clock64,
    cluster,
    clusterid,
    clusterlaunchcontrol,
    elect_one,
    f32,
    fence,
    ld,
    loop,
    mbarrier,
    min,
    role,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u32,
    u64,
    var,
    warp,
)
from warpwright.lang.control import Var
from warpwright.lang.ops.mbarrier import RemoteBarrier
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "BOTH",
    "LEADER",
    "UMMA_K",
    "grouped",
    "hold_back",
    "load_part",
    "multiply",
    "multiply_staggered",
    "next_tiles",
    "offer_tiles",
    "release",
    "set_up",
    "sharing",
    "store",
    "store_boxes",
    "store_rows",
    "tear_down",
]

UMMA_K = 16
LEADER = 0
BOTH = 0b11
ATOM = 64
LOADED_COLUMNS = 32
STORE_BARRIER = 1


def set_up(*barriers: Ring | mbarrier, maps: tuple[tma.Map[Scalar], ...] = ()) -> None:
    """Barriers and tensor memory, in this order: the peer must be alive when the pair allocates."""

    @role(warp=0, elect=True)
    def init() -> None:
        for each in barriers:
            each.init()
        fence.mbarrier_init()
        for map in maps:
            tma.prefetch_map(map)

    cluster.sync()

    @role(warp=2)
    def alloc() -> None:
        tmem.alloc()
        tcgen05.relinquish_alloc_permit(cta_group=2)

    tcgen05.fence_before_thread_sync()
    cluster.sync()
    tcgen05.fence_after_thread_sync()
    tmem.open()


def tear_down() -> None:
    """Both CTAs have read tensor memory and heard every arrival; then the columns go back."""
    tcgen05.fence_before_thread_sync()
    cluster.sync()

    @role(warp=2)
    def free() -> None:
        tmem.dealloc()


def grouped(number: Expr, across: Expr, down: Expr, group: int) -> tuple[Expr, Expr]:
    """Row and column of tile ``number`` of ``across`` × ``down``: down the rows of a group, then along it.

    Tiles that are computed at the same time form a block, so that what they load meets in L2.
    """
    first = number // (down * group) * group
    rows, inside = min(across - first, group), number % (down * group)
    return first + inside % rows, inside // rows


def multiply(acc: tmem.TmemTile, slot: Any, k: Expr, wave: int | None = None) -> None:
    """One slot: a wave of 128 rows in each CTA after the other, or one. The first products overwrite the sums."""
    rows, columns = slot.a.shape
    chosen = range(rows // LANES) if wave is None else [wave]
    width = acc.shape[1] // len(chosen)
    for kk in range(0, columns, UMMA_K):
        window = slice(kk, kk + UMMA_K)
        for place, number in enumerate(chosen):
            sums = acc[:, place * width : (place + 1) * width]
            own = slot.a[number * LANES : (number + 1) * LANES, window]
            tcgen05.mma(sums, own, slot.b[:, window], accumulate=(k > 0) | (kk > 0), cta_group=2)


def multiply_staggered(
    slots: Cursor, ahead: Cursor, tiles: Cursor, steps: Expr, lead: int, free: Callable[[Any], None], ranks: Any
) -> None:
    """A tile of two waves, with sums of their own: at its begin and end the first is ``lead`` k-blocks ahead.

    So the first wave's sums are complete early, and are read while the second's last products run; then the second's
    are read while the first wave of the next tile runs. The tensor cores never wait for the epilogue, though one tile
    takes all of tensor memory. ``ahead`` is a cursor of the first wave; the second one frees the slots.
    """
    head = min(steps, lead)
    middle = steps - min(steps - head, lead)
    upper, lower = next(tiles), next(tiles)
    for cursor, sums, wave in ((ahead, upper, 0), (slots, lower, 1)):
        sums.empty.wait()
        tcgen05.fence_after_thread_sync()
        _one_wave(cursor, sums, wave, 0, head, free)
    for k in loop(head, middle):
        slot, _ = next(slots), next(ahead)
        slot.full.wait()
        multiply(upper.d, slot, k, 0)
        multiply(lower.d, slot, k, 1)
        free(slot)
    for cursor, sums, wave in ((ahead, upper, 0), (slots, lower, 1)):
        _one_wave(cursor, sums, wave, middle, steps, free)
        tcgen05.commit(sums.full, cta_group=2, multicast=ranks)


def _one_wave(cursor: Cursor, sums: Any, wave: int, start: Any, stop: Expr, free: Callable[[Any], None]) -> None:
    for k in loop(start, stop):
        slot = next(cursor)
        slot.full.wait()
        multiply(sums.d, slot, k, wave)
        if wave:
            free(slot)


def load_part(
    tile: Tile, source: tma.Map[Scalar], row: Any, k: Expr, full: Any, index: Any, count: int, ranks: Any
) -> None:
    """Load the ``index``-th of ``count`` parts of an operand into the CTAs of the mask ``ranks``, 64 columns a box."""
    rows = tile.shape[0] // count
    own, first = (part(tile, index, rows, "k"), row + index * rows) if count > 1 else (tile, row)
    for column in range(0, tile.shape[1], ATOM):
        box = own[:, column : column + ATOM]
        tma.load(box, source[first, k + column], full, cta_group=2, multicast=ranks if count > 1 else None)


def sharing(rank: Expr, share: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Where this CTA's pair stands among those of the cluster, along M and N, and who loads the same A, the same B.

    The masks name the CTAs of equal place in pairs side by side along N, which have the same rows of A, and along M.
    """
    pair, half = rank // PAIR, rank % PAIR
    along_m, along_n = pair % share[0] if share[0] > 1 else 0, pair // share[0] if share[1] > 1 else 0
    same_a = shift_mask(sum(1 << PAIR * share[0] * i for i in range(share[1])), half + along_m * PAIR)
    same_b = shift_mask(sum(1 << PAIR * i for i in range(share[0])), half + along_n * (PAIR * share[0]))
    return along_m, along_n, same_a, same_b


def hold_back(done: mbarrier, parity: Var, percent: int, tile: tuple[int, int, int]) -> None:
    """Wait for the products of a k-block and idle, so that the tensor cores work ``percent`` of the time at most."""
    m, n, k = tile
    busy = 2 * m * n * k // SM_FLOPS
    tcgen05.commit(done, cta_group=2)
    done.wait(parity)
    parity.set(parity ^ 1)
    start, idle = clock64(), busy * (100 - percent) // percent
    for _ in loop():
        Break(when=clock64() - start >= idle)


def store(
    acc: tmem.TmemTile,
    d: Global[Scalar],
    row: Expr,
    col: Expr,
    m: Expr,
    n: Expr,
    pitch: Expr,
    out: type[Scalar],
    *,
    both: bool = False,
) -> None:
    """Tensor memory to D, a row a thread, 16 bytes at a time. Whole warps load; only the stores are predicated.

    Where ``both`` CTAs store the same tile, they store it strongly: two plain stores that nothing orders are a data
    race, of equal values too (PTX ISA 9.1 section 8.7.1).
    """
    sem, scope = ("relaxed", "cluster") if both else ("", "")
    tcgen05.fence_after_thread_sync()
    row, left = row + tid.x, n - col
    line = d.cast(out) + row.to(u64) * pitch.to(u64) + col
    for first in range(0, acc.shape[1], LOADED_COLUMNS):
        words = tcgen05.ld(acc[:, first : first + LOADED_COLUMNS])
        tcgen05.wait_ld()
        words = pack_neighbours(words, out)
        for i in range(0, len(words), 4):
            column = first + i * LOADED_COLUMNS // len(words)
            with If((row < m) & (left > column)):
                st((line + column).cast(words[i].type), *words[i : i + 4], sem=sem, scope=scope)


def put(acc: tmem.TmemTile, block: Tile, row: Expr, columns: int) -> None:
    """This thread's row of ``acc`` into ``block``, 16 bytes at a time, ``columns`` loaded at a time."""
    for first in range(0, acc.shape[1], columns):
        words = tcgen05.ld(acc[:, first : first + columns])
        tcgen05.wait_ld()
        words = pack_neighbours(words, block.dtype)
        for i in range(0, len(words), 4):
            corner = block.at(row, first + i * columns // len(words))
            st(corner.cast(words[i].type), *words[i : i + 4])


def store_rows(
    acc: tmem.TmemTile, d: Global[Scalar], tile: Tile, row: Expr, col: Expr, m: Expr, n: Expr, pitch: Expr
) -> None:
    """Tensor memory to D through ``tile``: each warp its 32 rows, all lanes side by side in one row after the other.

    A lane stores four elements. Rows of D begin at multiples of 16 bytes, so what begins in a row ends in it.
    """
    tcgen05.fence_after_thread_sync()
    put(acc, tile, tid.x, LOADED_COLUMNS)
    warp.sync()
    column, word, first = warp.lane * 4, PACKED.get(tile.dtype, f32), warp.id * 32
    for i in loop(32):
        line = first + i
        words = ld(tile.at(line, column).cast(word), vec=4 * tile.dtype.nbytes // word.nbytes)
        place = d.cast(tile.dtype) + (row + line).to(u64) * pitch.to(u64) + (col + column)
        with If((row + line < m) & (col + column < n)):
            st(place.cast(word), *words)
    fence.proxy_async()


def store_boxes(
    acc: tmem.TmemTile,
    d: tma.Map[Scalar],
    blocks: Tile,
    row: Expr,
    col: Expr,
    *,
    box: int,
    width: int,
    columns: int,
    read: Callable[[], None] | None,
) -> None:
    """Tensor memory to D, ``box`` rows and the columns of `blocks` at a time: registers, a block, then TMA takes it.

    Boxes of 32 rows belong to a warp, which waits for nobody; for larger ones the warps meet twice a box. ``acc`` holds
    waves of 128 rows and ``width`` columns side by side. ``read`` is called once all of it is in registers.
    """
    own, stages = tid.x % LANES // box if box < LANES else 0, blocks.shape[0] // LANES
    stores = elect_one() if box < LANES else tid.x == LANES
    lefts = range(0, acc.shape[1], blocks.shape[1])
    newer = stages - 1 if len(lefts) % stages == 0 else 0
    for number, left in enumerate(lefts):
        block = part(blocks, own * stages + number % stages, box, "k")
        with If(stores):
            tma.wait_group(newer, read=True)
        meet(box)
        put(acc[:, left : left + blocks.shape[1]], block, tid.x % box, columns)
        if read and left == lefts[-1]:
            read()
        fence.proxy_async()
        meet(box)
        with If(stores):
            tma.store(d[row + left // width * LANES + own * box, col + left % width], block)
            tma.commit_group()


def release(empty: RemoteBarrier, tells: Expr) -> None:
    """This warp has read its part of tensor memory: each thread fences, all meet, one tells."""
    tcgen05.fence_before_thread_sync()
    warp.sync()
    with If(tells):
        empty.arrive()


def meet(rows: int) -> None:
    """The threads that write a block of ``rows`` rows: a warp, or the four of the epilogue."""
    warp.sync()
    if rows == LANES:
        bar.sync(STORE_BARRIER, LANES)


def offer_tiles(work: Ring) -> None:
    """Ask for one cluster after another that has not started, and tell the CTAs of this one, until there is none.

    One warp of the cluster's first CTA. A response is asked for while the tile before it is computed.
    """
    slots, one = work.producer(), elect_one()
    for _ in loop():
        slot = next(slots)
        slot.empty.wait()
        with If(warp.lane < cluster.size):
            slot.full.at(warp.lane).arrive_expect_tx(slot.nbytes)
        warp.sync()
        with If(one):
            clusterlaunchcontrol.try_cancel(slot.response.address, slot.full, multicast=True)
        slot.full.wait()
        reply = ld(slot.response.at(0, 0).cast(b128))
        fence.proxy_async()
        warp.sync()
        Break(when=~clusterlaunchcontrol.is_canceled(reply))


def next_tiles(work: Ring, tells: Any) -> Iterator[Expr]:
    """The cluster's own number, then those of the clusters that it takes over. ``tells``: a warp's thread that says
    when all have read a response; True where a role is one thread."""
    number, slots = var(u32, clusterid.x), work.consumer()
    for _ in loop():
        yield number
        slot = next(slots)
        slot.full.wait()
        reply = ld(slot.response.at(0, 0).cast(b128))
        fence.proxy_async()
        if tells is not True:
            warp.sync()
        with If(tells):
            slot.empty.at(0).arrive()
        Break(when=~clusterlaunchcontrol.is_canceled(reply))
        number.set(clusterlaunchcontrol.first_ctaid(reply) // cluster.size)
