"""The steps that the Hopper attention of `sm90` is made of: tiles, loads, scores, softmax, stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.plan import STRIP
from warpwright.kernels.tiles import PACKED, part, store_rows_to_smem, window
from warpwright.lang import (
    Expr,
    Global,
    If,
    Ring,
    Var,
    b32,
    bar,
    ex2,
    f32,
    fence,
    fma,
    ld,
    lg2,
    max,
    mbarrier,
    min,
    pack,
    role,
    s32,
    select,
    shfl,
    smem,
    tma,
    u32,
    var,
    vote,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "HALVES",
    "LN2",
    "LOWEST",
    "STRIP",
    "WARPS",
    "WARP_ROWS",
    "Mask",
    "Rings",
    "Rows",
    "Turns",
    "Weighed",
    "Work",
    "add",
    "free",
    "load_tile",
    "panel",
    "put_rows",
    "reduced",
    "rescale",
    "rings_of",
    "score",
    "seen",
    "set_up",
    "softmax",
    "store_tile",
    "take",
    "weights",
    "write_lse",
]

WARP_ROWS = 16
WARPS = 4
K = 16
HALVES = (0, 1)
CHAINS = 2
TURN = 1  # the first of the named barriers, one a warpgroup
LOWEST = -3.4028234663852886e38
BELOW = 8.0  # powers of 2 that a shift may be below the greatest score of its row
LN2 = 0.6931471805599453
Weighed = tuple[list[Any], list[Any], list[tuple[Any, tuple[int, ...]]]]  # what `softmax` gives


class Rings(NamedTuple):
    """What the roles pass on: items of `work`, Q, K, V, and O in the slots of Q, whose ring ``o`` only has barriers."""

    work: Ring
    q: Ring
    o: Ring
    k: Ring
    v: Ring


def rings_of(
    tile: tuple[int, int], head_dim: int, stages: int, q_stages: int, dtype: type[Scalar], words: int = 4
) -> Rings:
    """The rings of a CTA: ``stages`` of K and V, ``q_stages`` of Q; panels as wide as fits ``head_dim``; items of so
    many ``words``, four at a time."""
    queries, keys = tile
    consumers, swizzle = queries // STRIP, panel(head_dim) * dtype.nbytes
    tiles = [smem.tile(dtype, (rows, head_dim), swizzle=swizzle) for rows in (queries, keys, keys)]
    return Rings(
        work=Ring(2, empty=consumers * WARPS + 1, name="work", item=smem.tile(u32, (1, words))),
        q=Ring(q_stages, name="q", q=tiles[0]),
        o=Ring(q_stages, full=consumers * WARPS, name="o"),
        k=Ring(stages, empty=consumers, name="k", k=tiles[1]),
        v=Ring(stages, empty=consumers, name="v", v=tiles[2]),
    )


def panel(head_dim: int) -> int:
    """Columns of a panel: 64 (rows of 128 bytes), or 32 where they fit better."""
    return PANEL if head_dim % PANEL == 0 else PANEL // 2


def set_up(rings: Iterable[Ring], maps: Sequence[tma.Map[Scalar]]) -> None:
    """Barriers ready before anyone waits."""

    @role(warp=0, elect=True)
    def init() -> None:
        for ring in rings:
            ring.init()
        fence.mbarrier_init()
        for each in maps:
            tma.prefetch_map(each)

    bar.sync()


class Turns:
    """Whose turn it is to issue products: warpgroup ``own`` of ``count`` waits for the one before it.

    One computes its softmax while another multiplies. Without ``kept`` nobody waits.
    """

    def __init__(self, count: int, kept: bool) -> None:
        self.own = shfl.idx(warp.id // WARPS - 1, 0)
        self.kept = kept
        self.following = select(self.own == count - 1, self.own * 0, self.own + 1)
        if kept:
            with If(self.own == count - 1):
                bar.arrive(TURN, 2 * 128)

    def wait(self) -> None:
        """Until it is this warpgroup's turn."""
        if self.kept:
            bar.sync(self.own + TURN, 2 * 128)

    def pass_on(self) -> None:
        """To the next warpgroup."""
        if self.kept:
            bar.arrive(self.following + TURN, 2 * 128)


@dataclass(frozen=True)
class Mask:
    """Which of ``kv_len`` keys a query sees: query i those from ``begin`` + i on, up to ``end`` + i, where given.

    ``begin`` and ``end`` (s32) are those of query 0.
    """

    kv_len: Expr
    begin: Expr | None
    end: Expr | None
    keys: int

    def first(self, row: Any) -> Any:
        """The first key (u32) that query ``row`` sees, kv_len where it sees none."""
        return None if self.begin is None else clamped(row.to(s32) + self.begin, 0, self.kv_len)

    def stop(self, row: Any) -> Any:
        """The key (u32) after the last one that query ``row`` sees, 0 where it sees none."""
        return self.kv_len if self.end is None else clamped(row.to(s32) + self.end, 0, self.kv_len)

    def blocks(self, row: Any, queries: int) -> tuple[Any, Any]:
        """The first block of keys that the queries from ``row`` on see, and the number of blocks, at least one."""
        stop = max(self.stop(row + (queries - 1)), 1)
        last = (stop - 1) // self.keys
        if self.begin is None:
            return 0, last + 1
        first = min(self.first(row) // self.keys, last)
        return first, last + 1 - first

    def runs(self, row: Any, first: Any, count: Any) -> list[tuple[bool, Any]]:
        """The blocks after the last one, from right to left: (whether some keys are hidden, where the run ends).

        Ends count blocks from the last one. The strip of queries begins at ``row``.
        """
        stop, whole = first + count, 1
        ends: list[tuple[bool, Any]] = []
        if self.end is not None:
            whole = max(stop - min(max(self.stop(row) // self.keys, first), stop - 1), 1)
            ends.append((True, whole))
        if self.begin is not None:
            hidden = min((self.first(row + (STRIP - 1)) + (self.keys - 1)) // self.keys, stop - 1)
            ends.append((False, max(stop - max(hidden, first), whole)))
        return [*ends, (self.begin is not None, count)]


def clamped(key: Any, least: int, most: Any) -> Any:
    """A key (s32) between ``least`` and ``most``, u32."""
    return min(max(key, least), most.to(s32)).to(u32)


@dataclass(frozen=True)
class Work:
    """The tile at hand: its first query, its head among those of all batches, its first block of keys and their number.

    There is no block after the last tile. Without a left bound the first block is always 0.
    """

    row: Any
    head: Any
    first: Any
    count: Any

    @staticmethod
    def begin(bounded: bool) -> Work:
        """A tile to be set; ``bounded``: with a left bound."""
        return Work(var(u32, 0), var(u32, 0), var(u32, 0) if bounded else 0, var(u32, 0))

    def logs(self, lse: Expr, q_len: Any) -> Any:
        """Where the log-sum-exp of the first of ``q_len`` queries of the head is."""
        return Global(f32, lse) + self.head * q_len

    def set(self, words: Sequence[Any]) -> None:
        """Go on to another tile."""
        for register, word in zip((self.row, self.head, self.first, self.count), words, strict=True):
            if isinstance(register, Var):
                register.set(word)


def take(items: Cursor, one: Expr | None = None) -> tuple[Any, ...]:
    """What the loader says of the next tile: to a warp with its thread ``one``, or to a single thread."""
    item = next(items)
    item.full.wait()
    words = tuple(word for first in range(0, item.item.shape[1], 4) for word in ld(item.item.at(0, first), vec=4))
    if one is None:
        item.empty.arrive()
    else:
        warp.sync()
        free(item, one)
    return words


class Rows:
    """What a thread knows of its two rows: the greatest score so far, scaled; the ``shift`` that weights are relative
    to; and its part of the sum of weights.

    A row that has seen no finite score has the lowest number as its greatest, so that no difference is of infinities.
    """

    def __init__(self) -> None:
        self.greatest, self.shift = ([var(f32, LOWEST) for _ in HALVES] for _ in range(2))
        self.total = [var(f32, 0.0) for _ in HALVES]

    def move(self, which: int, own: Expr, moves: Expr) -> Expr:
        """To a block whose greatest score, scaled, is ``own``; gives the factor of the row's earlier weights.

        Where the row ``moves``, its shift becomes ``own``, but stays within `BELOW` of the greatest score so far: what
        was summed up before may grow by that power of 2, and no more.
        """
        greatest, shift, total = self.greatest[which], self.shift[which], self.total[which]
        new = select(moves, max(own, greatest - BELOW), shift)
        factor = ex2(shift - new)
        greatest.set(max(greatest, own))
        shift.set(new)
        total *= factor
        return factor

    def begin(self) -> tuple[list[Any], list[Any]]:
        """Forget the rows; gives the shifts and the sums that they had."""
        shifts = [shift.to(f32) for shift in self.shift]
        totals = [quad(lambda a, b: a + b, total) for total in self.total]
        for greatest, shift, total in zip(self.greatest, self.shift, self.total, strict=True):
            greatest.set(LOWEST)
            shift.set(LOWEST)
            total.set(0.0)
        return shifts, totals


def load_tile(cursor: Cursor, name: str, source: tma.Map[Scalar], *place: Any) -> None:
    """Fill the next slot with the rows that begin at ``place``, the coordinates before the column: a box a panel."""
    slot = next(cursor)
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    tile: Tile = getattr(slot, name)
    width = panel(tile.shape[1])
    for column in range(0, tile.shape[1], width):
        tma.load(tile[:, column : column + width], source[(*place, column)], slot.full)


def store_tile(tile: Tile, target: tma.Map[Scalar], *place: Any) -> None:
    """Begin to store the rows that begin at ``place``, the coordinates before the column: a box a panel, one group."""
    width = panel(tile.shape[1])
    for column in range(0, tile.shape[1], width):
        tma.store(target[(*place, column)], tile[:, column : column + width])
    tma.commit_group()


def score(scores: Fragment, q: Tile, own: Any, k: Tile) -> None:
    """Begin ``scores`` = Q·Kᵀ of the ``own``-th strip of Q."""
    strip = part(q, own, STRIP, "k")
    wgmma.fence()
    for kk in range(0, k.shape[1], K):
        wgmma.mma(scores, window(strip, kk, "k"), window(k, kk, "k"), accumulate=kk > 0)
    wgmma.commit_group()


def add(sums: Fragment, held: Sequence[Any], v: Tile, more: Any) -> None:
    """Begin to add P·V to ``sums``, P in the registers ``held``; without ``more`` it overwrites them."""
    wgmma.fence()
    for number, kk in enumerate(range(0, v.shape[0], K)):
        p = wgmma.left(v.dtype, held[4 * number : 4 * number + 4])
        wgmma.mma(sums, p, window(v, kk, "mn"), accumulate=True if number else more)
    wgmma.commit_group()


def reduced(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """All values as one, by chains side by side: one alone would wait for each of its steps."""
    ends = []
    for chain in (values[i::CHAINS] for i in range(CHAINS)):
        end = chain[0]
        for value in chain[1:]:
            end = combine(end, value)
        ends.append(end)
    return combine(*ends)


def quad(combine: Callable[[Any, Any], Any], value: Any) -> Any:
    """Combined over the four lanes that share a row."""
    for distance in (1, 2):
        value = combine(value, shfl.bfly(value, distance))
    return value


def of_row(values: Sequence[Any], which: int) -> list[Any]:
    """This thread's elements of the first or second of its two rows."""
    return [value for v, value in enumerate(values) if v >> 1 & 1 == which]


def seen(mask: Mask, values: Sequence[Any], row: Any, block: Any, apart: int = 8) -> list[Any]:
    """Scores of a block of keys that begins at ``block``, -inf where this thread's two rows see no key: those of the
    queries ``row`` and ``row`` + ``apart``."""
    left = (block + warp.lane % 4 * 2).to(s32)
    stops = [mask.stop(row + apart * which).to(s32) - left for which in HALVES]
    firsts = [mask.first(row + apart * which).to(s32) - left for which in HALVES] if mask.begin is not None else None
    found = []
    for v, value in enumerate(values):
        column, which = 8 * (v >> 2) + (v & 1), v >> 1 & 1
        inside = stops[which] > column
        found.append(select(inside & (firsts[which] <= column) if firsts else inside, value, float("-inf")))
    return found


def softmax(values: Sequence[Any], rows: Rows, scale: Any, together: bool) -> Weighed:
    """The weights of a block's keys, element by element; the factor of each row's earlier weights; and which are not 1.

    These are preds of the warp, each with the halves of its rows that it is for: both ``together``, or one by one. They
    hold where a score exceeds all that its row had before. Then sums are rescaled, so all of these rows may as well
    move on to the greatest scores of this block: each has a weight of exactly 1, which no rounding touches, and the
    next ones are just below 1, where a step is small beside them. docs/performance.md has what that is worth, and what
    rescaling more or less would be.
    """
    greatest = [reduced(max, of_row(values, which)) * scale for which in HALVES]
    growth = [new > old for new, old in zip(greatest, rows.greatest, strict=True)]
    parts: list[tuple[Any, tuple[int, ...]]] = [(growth[0] | growth[1], HALVES)]
    if not together:
        parts = [(each, (which,)) for which, each in enumerate(growth)]
    grown = [(vote.any(each), halves) for each, halves in parts]
    factors = [rows.move(which, quad(max, greatest[which]), moves) for moves, halves in grown for which in halves]
    minus = [-shift for shift in rows.shift]
    weighted: list[Any] = [ex2(fma(value, scale, minus[v >> 1 & 1])) for v, value in enumerate(values)]
    for which, total in enumerate(rows.total):
        total += reduced(lambda a, b: a + b, of_row(weighted, which))
    return weighted, factors, grown


def weights(dtype: type[Scalar], held: Sequence[Var], values: Sequence[Any]) -> None:
    """P rounded to ``dtype``, as A of the next products."""
    for register, low, high in zip(held, values[::2], values[1::2], strict=True):
        register.set(pack(PACKED[dtype], low, high).bitcast(b32))


def rescale(sums: Fragment, factors: Sequence[Any], halves: Sequence[int] = HALVES) -> None:
    """Each row of ``sums`` times its factor, of the first or second rows of threads, or both."""
    for v, register in enumerate(sums.regs):
        if v >> 1 & 1 in halves:
            register.set(register * factors[v >> 1 & 1])


def free(slot: Any, leads: Expr) -> None:
    """One thread of a warp or warpgroup says that it has read a slot."""
    with If(leads):
        slot.empty.arrive()


def put_rows(sums: Fragment, tile: Tile, index: Any, full: mbarrier, one: Expr) -> None:
    """This warp's 16 rows of ``sums`` into the ``index``-th of the tile of Q, for the role that stores.

    Its scores have been computed, so nobody reads these rows of Q any more.
    """
    strip = part(tile, index, WARP_ROWS, "k")
    width = panel(tile.shape[1])
    for left in range(0, tile.shape[1], width):
        store_rows_to_smem(strip[:, left : left + width], sums.regs[left // 2 : (left + width) // 2], True)
    fence.proxy_async()
    warp.sync()
    with If(one):
        full.arrive()


def write_lse(lse: Global[Any], row: Any, q_len: Any, shifts: Sequence[Any], totals: Sequence[Any]) -> None:
    """The log-sum-exp of this thread's rows ``row`` and ``row`` + 8, once a quad."""
    for which, (shift, total) in enumerate(zip(shifts, totals, strict=True)):
        at = row + 8 * which
        with If((at < q_len) & (warp.lane % 4 == 0)):
            lse[at] = (shift + lg2(total)) * LN2
