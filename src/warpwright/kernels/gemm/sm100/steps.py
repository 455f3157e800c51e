"""The steps of the Blackwell GEMMs: rasterization, loads, multiplication, stores."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import Any

from warpwright.kernels.gemm.epilogue import Finish
from warpwright.kernels.gemm.sm100.configs import LANES, PAIR, SM_FLOPS, Config
from warpwright.kernels.tiles import (
    PACKED,
    WARP_ROWS,
    WARPS,
    WGMMA_BYTES,
    atom,
    pack_neighbours,
    part,
    shift_mask,
    store_rows_to_smem,
    window,
)
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    bar,
    clock64,
    elect_one,
    f32,
    fence,
    ld,
    loop,
    mbarrier,
    min,
    select,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    u64,
    unpack,
    warp,
)
from warpwright.lang.control import Var
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "BOTH",
    "LEADER",
    "UMMA_K",
    "add_words",
    "cluster_masks",
    "columns_from",
    "load_operand",
    "load_part",
    "multiply",
    "multiply_block",
    "rasterize",
    "rasterize_pairs",
    "store",
    "store_boxes",
    "store_column",
    "store_columns",
    "store_fragments",
    "store_rows",
    "store_sums",
    "throttle",
]

UMMA_K = 16
LEADER = 0
BOTH = 0b11
ATOM = 64
WARP_SIZE = 32
LOADED_COLUMNS = 32
PUBLISHED_COLUMNS = 4  # of a load of levels 1 to 5
STORE_BARRIER = 1


def rasterize(number: Expr, across: Expr, down: Expr, group: int) -> tuple[Expr, Expr]:
    """Row and column of tile ``number`` of ``across`` × ``down``: down the rows of a group, then along it.

    Tiles that are computed at the same time form a block, so that their operands are reused in L2.
    """
    first = number // (down * group) * group
    rows, inside = min(across - first, group), number % (down * group)
    return first + inside % rows, inside // rows


def rasterize_pairs(number: Expr, across: Expr, down: Expr, group: int) -> tuple[Expr, Expr]:
    """`rasterize`; with fewer rows than ``group`` the tiles run along the columns of a group, then down it.

    Pairs are placed on the eight GPCs in turn, so with eight rows or columns side by side the pairs of a GPC read the
    same part of one operand at the same time. Parts that several GPCs read at the same time come more slowly from
    device memory: with few rows B, the larger operand, must not be read so.
    """
    few = across < group
    left, right = rasterize(number, select(few, down, across), select(few, across, down), group)
    return select(few, right, left), select(few, left, right)


def multiply(acc: tmem.TmemTile, slot: Any, k: Expr, wave: int | None = None) -> None:
    """Issue the MMAs of one slot for every wave of 128 rows or one. The first k-block overwrites ``acc``."""
    rows, columns = slot.a.shape
    chosen = range(rows // LANES) if wave is None else [wave]
    width = acc.shape[1] // len(chosen)
    for kk in range(0, columns, UMMA_K):
        window = slice(kk, kk + UMMA_K)
        for place, number in enumerate(chosen):
            sums = acc[:, place * width : (place + 1) * width]
            own = slot.a[number * LANES : (number + 1) * LANES, window]
            tcgen05.mma(sums, own, slot.b[:, window], accumulate=(k > 0) | (kk > 0), cta_group=2)


def multiply_block(acc: tmem.TmemTile, slot: Any, more: Expr, wave: int, majors: tuple[str, str], ctas: int) -> None:
    """Issue the MMAs of one slot for the 128 rows of ``wave``; without ``more`` the first overwrites ``acc``."""
    own = part(slot.a, wave, LANES, majors[0])
    for kk in range(0, slot.a.shape[1 if majors[0] == "k" else 0], WGMMA_BYTES // slot.a.dtype.nbytes):
        left, right = window(own, kk, majors[0]), window(slot.b, kk, majors[1])
        tcgen05.mma(acc, left, right, accumulate=True if kk else more, cta_group=ctas)


def load_operand(
    tile: Tile,
    source: tma.Map[Scalar],
    major: str,
    matrix: tuple[Expr, ...],
    row: Any,
    k: Expr,
    full: Any,
    ctas: int,
    *,
    multicast: int | None = None,
) -> None:
    """Load an operand's tile, a box for each panel of 128 bytes; ``full`` may be the barrier of a pair's leader, with
    ``multicast`` it is that of each CTA of the mask."""
    top, left = (row, k) if major == "k" else (k, row)
    for column in range(0, tile.shape[1], atom(tile.dtype)):
        panel, corner = tile[:, column : column + atom(tile.dtype)], source[(*matrix, top, left + column)]
        tma.load(panel, corner, full, cta_group=ctas if ctas > 1 else None, multicast=multicast)


def load_part(
    tile: Tile, source: tma.Map[Scalar], row: Any, k: Expr, full: Any, index: Any, count: int, ranks: Any
) -> None:
    """Load part ``index`` of ``count`` of an operand into the CTAs of the mask ``ranks``, 64 columns a box."""
    rows = tile.shape[0] // count
    own, first = (part(tile, index, rows, "k"), row + index * rows) if count > 1 else (tile, row)
    for column in range(0, tile.shape[1], ATOM):
        box = own[:, column : column + ATOM]
        tma.load(box, source[first, k + column], full, cta_group=2, multicast=ranks if count > 1 else None)


def cluster_masks(rank: Expr, share: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Position of this CTA's pair in the cluster along M and N, and masks of the CTAs with the same A, the same B.

    The masks name the CTAs with the same rank in their pair: pairs side by side along N have the same rows of A, along
    M the same rows of B.
    """
    pair, half = rank // PAIR, rank % PAIR
    along_m, along_n = pair % share[0] if share[0] > 1 else 0, pair // share[0] if share[1] > 1 else 0
    same_a = shift_mask(sum(1 << PAIR * share[0] * i for i in range(share[1])), half + along_m * PAIR)
    same_b = shift_mask(sum(1 << PAIR * i for i in range(share[0])), half + along_n * (PAIR * share[0]))
    return along_m, along_n, same_a, same_b


def throttle(complete: mbarrier, parity: Var, config: Config) -> None:
    """Wait for the MMAs of a slot, then idle, so that the tensor cores work ``config.throttle`` % of the time."""
    m, n, k = config.tile
    busy = 2 * m * n * k * config.merge // SM_FLOPS
    tcgen05.commit(complete, cta_group=2)
    complete.wait(parity)
    parity.set(parity ^ 1)
    start, idle = clock64(), busy * (100 - config.throttle) // config.throttle
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
    published: bool = False,
) -> None:
    """Tensor memory to D, a row a thread, 16 bytes at a time. Whole warps load; only the stores are predicated.

    If ``both`` CTAs store the same tile, the stores are relaxed: unordered weak stores are a data race even of equal
    values (PTX ISA 9.1 section 8.7.1). As ``published``, a store has one element.
    """
    sem, scope = ("relaxed", "cluster") if both else ("", "")
    tcgen05.fence_after_thread_sync()
    row, left = row + tid.x, n - col
    line = d.cast(out) + row.to(u64) * pitch.to(u64) + col
    if published:
        for at in loop(0, acc.shape[1], PUBLISHED_COLUMNS):
            words = tcgen05.ld(acc[:, :PUBLISHED_COLUMNS].at_shift(at))
            tcgen05.wait_ld()
            for i, word in enumerate(words):
                place, element = line + (at + i), word.to(out)
                with If((row < m) & (left > at + i)):
                    st(place, element, sem=sem, scope=scope)
        return
    for first in range(0, acc.shape[1], LOADED_COLUMNS):
        words = tcgen05.ld(acc[:, first : first + LOADED_COLUMNS])
        tcgen05.wait_ld()
        words = pack_neighbours(words, out)
        for i in range(0, len(words), 4):
            column = first + i * LOADED_COLUMNS // len(words)
            with If((row < m) & (left > column)):
                st((line + column).cast(words[i].type), *words[i : i + 4], sem=sem, scope=scope)


def store_to_block(acc: tmem.TmemTile, block: Tile, row: Expr, columns: int) -> None:
    """Store this thread's row of ``acc`` to row ``row`` of ``block``, 16 bytes at a time; a load has ``columns``."""
    for first in range(0, acc.shape[1], columns):
        words = tcgen05.ld(acc[:, first : first + columns])
        tcgen05.wait_ld()
        words = pack_neighbours(words, block.dtype)
        for i in range(0, len(words), 4):
            corner = block.at(row, first + i * columns // len(words))
            st(corner.cast(words[i].type), *words[i : i + 4])


def store_rows(
    acc: tmem.TmemTile,
    d: Global[Scalar],
    tile: Tile,
    row: Expr,
    col: Expr,
    m: Expr,
    n: Expr,
    pitch: Expr,
    *,
    published: bool = False,
) -> None:
    """Tensor memory to D through ``tile``: each warp stores its 32 rows, one row after the other.

    A lane stores four elements. Rows of D begin at multiples of 16 bytes, so no vector crosses the end of a row. As
    ``published``, a load of tensor memory has 4 columns, and the four warps store four neighbouring rows at a time.
    """
    tcgen05.fence_after_thread_sync()
    store_to_block(acc, tile, tid.x, PUBLISHED_COLUMNS if published else LOADED_COLUMNS)
    if published:
        bar.sync()
    else:
        warp.sync()
    column, word = warp.lane * 4, PACKED.get(tile.dtype, f32)
    for i in loop(WARP_SIZE):
        line = i * WARPS + warp.id if published else warp.id * WARP_SIZE + i
        words = ld(tile.at(line, column).cast(word), vec=4 * tile.dtype.nbytes // word.nbytes)
        place = d.cast(tile.dtype) + (row + line).to(u64) * pitch.to(u64) + (col + column)
        with If((row + line < m) & (col + column < n)):
            st(place.cast(word), *words)
    if not published:
        fence.proxy_async()


def store_boxes(
    acc: tmem.TmemTile,
    d: tma.Map[Scalar],
    blocks: Tile,
    matrix: tuple[Expr, ...],
    row: Expr,
    col: Expr,
    config: Config,
) -> Iterator[str]:
    """Tensor memory to D, box by box: registers, a block of shared memory, a TMA store.

    Yields "read" once all of ``acc`` is in registers and "stored" after the last TMA store. A box of 32 rows belongs to
    one warp; for larger boxes the four warps of the epilogue synchronise twice a box. ``acc`` has waves of 128 rows
    side by side, each as wide as the tile. Blocks are used in turn: one is written while TMA reads another.
    """
    (box, _), width = config.box, config.tile[1]
    own, stages = tid.x % LANES // box if box < LANES else 0, blocks.shape[0] // LANES
    stores = elect_one() if box < LANES else tid.x == LANES
    lefts = range(0, acc.shape[1], blocks.shape[1])
    newer = stages - 1 if len(lefts) % stages == 0 else 0
    for number, left in enumerate(lefts):
        block = part(blocks, own * stages + number % stages, box, "k")
        with If(stores):  # TMA has read this block's last contents
            tma.wait_group(newer, read=True)
        sync_store_warps(box)
        store_to_block(acc[:, left : left + blocks.shape[1]], block, tid.x % box, config.columns)
        if left == lefts[-1]:
            yield "read"
        fence.proxy_async()
        sync_store_warps(box)
        with If(stores):
            tma.store(d[(*matrix, row + left // width * LANES + own * box, col + left % width)], block)
            tma.commit_group()
    yield "stored"


def store_fragments(
    acc: tmem.TmemTile,
    d: tma.Map[Scalar],
    blocks: Tile,
    matrix: tuple[Expr, ...],
    row: Expr,
    col: Expr,
    finish: Finish,
    relu: bool,
    *,
    first: Any = 0,
    early: int = 0,
    more: Sequence[tmem.TmemTile] = (),
    late: int = 0,
) -> Iterator[str]:
    """Tensor memory to D, box by box: fragments of 16 rows, ``finish``, a block of shared memory, a TMA store.

    A thread has two columns of each eight, in the layout of wgmma's sums, so it needs a quarter of the bias; with a row
    to a thread, reading the bias takes as much of shared memory as a fifth of the mma. The next load from tensor memory
    is in flight while the epilogue works. Yields "read" once all of ``acc`` is in registers, or with ``early`` so many
    columns. ``first``, 0 or a run-time value, is the column of ``acc`` where the store begins; after the last column
    follows column 0. The sums of ``more`` are added. With ``late`` no store is in flight before, and it yields "late"
    before it loads the sums from that column on.
    """
    own, stores, width = tid.x % LANES // WARP_SIZE, elect_one(), blocks.shape[1]
    stages, lefts = blocks.shape[0] // LANES, range(0, acc.shape[1], width)
    halves = [(left, half) for left in lefts for half in (0, 1)]
    last = halves[(early or acc.shape[1]) // width * 2 - 1]

    def column(left: int) -> Any:
        return (first + left) % acc.shape[1] if isinstance(first, Expr) else left

    def load(left: int, half: int) -> list[list[Expr]]:
        parts = [columns_from(each, column(left), width) for each in (acc, *more)]
        return [tcgen05.ld(each, "16x256b", half=half) for each in parts]

    loaded = load(*halves[0])
    for number, (left, half) in enumerate(halves):
        box = number // 2
        block = part(blocks, own * stages + box % stages, WARP_SIZE, "k")
        if half == 0 and (box >= stages or not late):
            # stores since the one from this block, which is of the tile before if the box is one of the first
            newer = stages - 1 if box >= stages else box + (len(lefts) - 1 - box) % stages
            with If(stores):  # TMA has read this block's last contents
                tma.wait_group(newer, read=True)
            warp.sync()
        tcgen05.wait_ld()
        sums = add_words(loaded[0], loaded[1:])
        if (left, half) == last:
            yield "read"
        following = halves[number + 1 : number + 2]
        if following and following != [(late, 0)]:
            loaded = load(*following[0])
        rows = part(block, half, WARP_ROWS, "k")
        store_rows_to_smem(rows, finish(sums, column(left)), block.dtype in PACKED, relu=relu)
        if half == 1:
            fence.proxy_async()
            warp.sync()
            with If(stores):
                tma.store(d[(*matrix, row + own * WARP_SIZE, col + column(left))], block)
                tma.commit_group()
        if following == [(late, 0)]:
            yield "late"
            loaded = load(*following[0])


def add_words(words: list[Expr], others: list[list[Expr]]) -> list[Expr]:
    """Returns ``words`` plus those of each list in ``others``, in their order."""
    for each in others:
        words = [word + other for word, other in zip(words, each, strict=True)]
    return words


def columns_from(acc: tmem.TmemTile, first: Any, width: int) -> tmem.TmemTile:
    """Returns ``width`` columns of ``acc`` from column ``first`` on, which may be a run-time value."""
    if not isinstance(first, Expr):
        return acc[:, first : first + width]
    return acc[:, :width].at_shift(first if acc.shift is None else acc.shift + first)


def store_columns(
    acc: tmem.TmemTile,
    d: tma.Map[Scalar],
    blocks: Tile,
    matrix: tuple[Expr, ...],
    row: Expr,
    col: Expr,
    finish: Finish,
) -> Iterator[str]:
    """Tensor memory that has Dᵀ to D: a thread has a column of D, a warp stores boxes of 32 columns and up to 32 rows.

    A warp's blocks are used in turn: one is written while TMA reads another. Yields "read" once all of ``acc`` is in
    registers.
    """
    own, stores, height = tid.x % LANES // WARP_SIZE, elect_one(), builtins.min(acc.shape[1], LOADED_COLUMNS)
    stages, lefts = blocks.shape[0] // (WARPS * height), range(0, acc.shape[1], height)
    newer = stages - 1 if len(lefts) % stages == 0 else 0
    for number, first in enumerate(lefts):
        block = part(blocks, own * stages + number % stages, height, "k")
        with If(stores):  # TMA has read this block's last contents
            tma.wait_group(newer, read=True)
        warp.sync()
        words = tcgen05.ld(acc[:, first : first + height])
        tcgen05.wait_ld()
        if first == lefts[-1]:
            yield "read"
        store_column(block, finish(words, first))
        fence.proxy_async()
        warp.sync()
        with If(stores):
            tma.store(d[(*matrix, col + first, row + own * WARP_SIZE)], block)
            tma.commit_group()


def store_column(block: Tile, words: list[Expr], *, relu: bool = False) -> None:
    """Store a lane's ``words`` to its column of ``block``, in the block's type; ``relu`` as in `store_rows_to_smem`."""
    elements = words
    if block.dtype in PACKED:
        pairs = pack_neighbours(words, block.dtype, relu=relu)
        elements = [half for pair in pairs for half in unpack(pair, block.dtype)]
    corner = block.at(0, warp.lane)
    for i, element in enumerate(elements):
        st(corner + i * block.shape[1], element)


def store_sums(
    acc: tmem.TmemTile,
    parts: Global[Scalar],
    _: Tile,
    matrix: tuple[Expr, ...],
    row: Expr,
    col: Expr,
    finish: Finish,
    *,
    height: Expr,
    width: Expr,
) -> Iterator[str]:
    """Tensor memory that has Dᵀ to partial sums, by stores of threads: a warp stores 32 columns of a row of D at once.

    Two cycles for such a line of 128 bytes are half of what a TMA store takes. The partial sums of a slice are
    (``height``, ``width``), whole tiles, so no store is outside. Yields "read" once all of ``acc`` is in registers.
    """
    (number,) = matrix
    place = parts + ((number * height + col) * width + row + tid.x % LANES)
    loads = builtins.min(acc.shape[1], LOADED_COLUMNS)
    loaded = tcgen05.ld(acc[:, :loads])
    for after in range(loads, acc.shape[1] + 1, loads):
        tcgen05.wait_ld()
        words = loaded
        if after < acc.shape[1]:  # in flight while these are stored
            loaded = tcgen05.ld(acc[:, after : after + loads])
        else:
            yield "read"
        for word in words:
            st(place, word)
            place += width


def sync_store_warps(rows: int) -> None:
    """Synchronise the threads that write a block of ``rows`` rows: a warp, or the four warps of the epilogue."""
    warp.sync()
    if rows == LANES:
        bar.sync(STORE_BARRIER, LANES)
