"""The steps that the Hopper attention for few queries is made of: shares of tiles, and parts that are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm90.decode_plan import AT_ONCE, Q_STAGES, QUAD
from warpwright.kernels.attention.sm90.plan import WARPGROUP
from warpwright.kernels.attention.sm90.steps import (
    HALVES,
    LN2,
    LOWEST,
    STRIP,
    WARP_ROWS,
    WARPS,
    Mask,
    Rings,
    Work,
    free,
    panel,
)
from warpwright.kernels.attention.sm90.warpgroup import Warpgroup
from warpwright.kernels.tiles import PACKED
from warpwright.lang import (
    Expr,
    Global,
    If,
    Pointer,
    Ring,
    Shared,
    atom,
    bar,
    ctaid,
    ex2,
    f32,
    fma,
    ld,
    lg2,
    loop,
    max,
    min,
    pack,
    rcp,
    select,
    smem,
    st,
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
from warpwright.types import Scalar

__all__ = [
    "Output",
    "Packed",
    "Share",
    "Tiles",
    "Workspace",
    "load_queries",
    "publish",
    "put_together",
    "rings_of",
    "shares",
]

WORDS = 8  # of an item, as the loader says it
MEET = 1  # a named barrier
Merged = tuple[Any, Any, Sequence[Any]]  # shift, sum of weights, sums of a row


def rings_of(keys: int, head_dim: int, stages: int, dtype: type[Scalar]) -> Rings:
    """The rings of a CTA: ``stages`` of K and V. O leaves from registers, so it has no ring of its own."""
    swizzle = panel(head_dim) * dtype.nbytes
    queries, block = (smem.tile(dtype, (rows, head_dim), swizzle=swizzle) for rows in (STRIP, keys))
    of_q = Ring(Q_STAGES, name="q", q=queries)
    work = Ring(2, empty=WARPS, name="work", item=smem.tile(u32, (1, WORDS)))
    work.place.known()  # beside the barriers, not behind the tiles, which begin at multiples of 1024 bytes
    return Rings(
        work=work,
        q=of_q,
        o=of_q,
        k=Ring(stages, name="k", k=block),
        v=Ring(stages, name="v", v=block),
    )


@dataclass(frozen=True)
class Tile:
    """``heads`` heads of Q from ``head`` on, which is number ``member`` in the group of head ``kv_head`` of K and V,
    and the queries from ``row`` on: they see ``blocks`` blocks of keys from ``first`` on."""

    batch: Expr
    kv_head: Expr
    head: Expr
    member: Expr
    heads: Expr
    row: Expr
    first: Any
    blocks: Expr


@dataclass(frozen=True)
class Tiles:
    """``total`` tiles: of each batch, each of ``kv_heads`` heads of K and V, as many of the ``group`` heads of Q that
    share it as find room, and each of ``strips`` strips of ``places`` queries. Those that share keys are neighbours.

    In a row they are cut into equal shares, one for each of ``ctas`` CTAs, at whole blocks of keys. A tile is ``ctas``
    long and a share ``total``: so the n-th tile begins at n · ctas, the share of CTA c at c · total.
    """

    total: Expr
    strips: Expr
    kv_heads: Expr
    group: Expr
    ctas: Expr
    places: int
    mask: Mask

    def at(self, number: Expr) -> Tile:
        """The ``number``-th tile."""
        room = STRIP // self.places
        rest, row = number // self.strips, number % self.strips * self.places
        across = (self.group + (room - 1)) // room
        of, member = rest // across, rest % across * room
        batch, kv_head = of // self.kv_heads, of % self.kv_heads
        head, heads = kv_head * self.group + member, min(self.group - member, room)
        return Tile(batch, kv_head, head, member, heads, row, *self.mask.blocks(row, self.places))

    def owners(self, number: Expr, blocks: Expr) -> tuple[Expr, Expr, Expr]:
        """Of a tile of so many ``blocks``: the CTA whose share it begins in; the CTA that has its first part, which is
        the next one where that share ends with less than a block of it; and the number of its parts, each by the CTA
        behind the one before."""
        left = number * self.ctas
        holder = left // self.total
        reach = min((holder + 1) * self.total - left, self.ctas)
        lead = select(reach * blocks < self.ctas, holder + 1, holder)
        return holder, lead, (left + (self.ctas - 1)) // self.total + 1 - lead

    def slot(self, cta: Expr, number: Expr) -> Expr:
        """Where ``cta`` leaves its part of a tile: in the first of its two slots if its share begins with that part.
        There is at most one other part that is not a whole tile, the last one."""
        found: Expr = select(cta * self.total < number * self.ctas, cta * 2 + 1, cta * 2)
        return found


@dataclass(frozen=True)
class Share:
    """What a CTA does of ``tile``, the ``number``-th: ``count`` blocks of keys from ``first`` on."""

    number: Expr
    tile: Tile
    first: Expr
    count: Expr

    @property
    def words(self) -> tuple[Expr, ...]:
        """What the warpgroup is told."""
        tile = self.tile
        return (tile.row, tile.head, self.first, self.count, tile.blocks, self.number, tile.batch, tile.heads)


def shares(tiles: Tiles) -> Iterator[Share]:
    """This CTA's parts of tiles, where they have a block of keys."""
    ctas = tiles.ctas
    begin = ctaid.x * tiles.total
    end = begin + tiles.total
    for number in loop(begin // ctas, (end + (ctas - 1)) // ctas):
        left, tile = number * ctas, tiles.at(number)
        start = (max(begin, left) - left) * tile.blocks // ctas
        stop = (min(end, left + ctas) - left) * tile.blocks // ctas
        with If(stop > start):
            yield Share(number, tile, start + tile.first, stop - start)


def load_queries(cursor: Cursor, source: tma.Map[Scalar], places: int, *place: Any) -> None:
    """Fill the next slot with ``places`` queries of each of the heads that begin at ``place``: (batch, head of K and V,
    number in its group, query). What lies behind the last head or query is zero."""
    slot = next(cursor)
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    width = panel(slot.q.shape[1])
    for column in range(0, slot.q.shape[1], width):
        each = slot.q[:, column : column + width]
        box = smem.tile(each.dtype, (STRIP // places, places, width), swizzle=each.swizzle)
        base, start = each.place.known()
        tma.load(box.placed(base, start + each.offset), source[(*place, column)], slot.full)


def publish(items: Cursor, words: Sequence[Any]) -> None:
    """Tell the warpgroup what comes next."""
    slot = next(items)
    slot.empty.wait()
    for first in range(0, WORDS, QUAD):
        st(slot.item.at(0, first), *words[first : first + QUAD])
    slot.full.arrive()


class Packed(Warpgroup):
    """The only warpgroup of a CTA, whose rows are ``places`` queries of each of several heads."""

    def __init__(self, rings: Rings, mask: Mask, scale: Expr, places: int) -> None:
        super().__init__(rings, mask, scale, 1, in_turn=False, together=True, at=Work.begin(True))
        self.places, self.apart = places, 8 % places

    @property
    def row(self) -> Any:
        """The first query of this thread's two rows."""
        return self.at.row + (self.strip * WARP_ROWS + warp.lane // 4) % self.places

    def part(self, words: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Sums of the blocks of keys that ``words`` name; gives the shifts and totals of two rows."""
        self.go_to(words[:4])
        self.begin_scores()
        self.first_weights()
        self.blocks()
        free(next(self.of_q), self.leads)
        self.last_values()
        found = self.rows.begin()
        wgmma.wait_group(0)
        free(next(self.of_v), self.leads)
        return found


@dataclass(frozen=True)
class Workspace:
    """Where CTAs leave parts of tiles, two slots each: ``rows`` rows of ``columns`` sums; behind all of them the
    shift and the sum of weights of each row. ``counters`` of parts are 0 where nobody counts."""

    counters: Pointer[u32]
    sums: Pointer[f32]
    pairs: Pointer[f32]
    rows: Expr
    columns: int

    @staticmethod
    def at(address: Expr, reserve: Expr, ctas: Expr, rows: Expr, columns: int) -> Workspace:
        """From ``address`` on, ``reserve`` counters first."""
        counters: Pointer[u32] = Global(u32, address)
        sums = (counters + reserve).cast(f32)
        return Workspace(counters, sums, sums + ctas * 2 * rows * columns, rows, columns)

    def put(self, acc: Fragment, slot: Expr, shifts: Sequence[Any], totals: Sequence[Any]) -> None:
        """Leave what this thread has of two rows."""
        for which in HALVES:
            row = own_row(which)
            with If(row < self.rows):
                at = slot * self.rows + row
                mine = self.sums + (at * self.columns + warp.lane % 4 * 2)
                for left in range(0, self.columns, 8):
                    st(mine + left, *acc.regs[left // 2 + 2 * which :][:2])
                with If(warp.lane % 4 == 0):
                    st(self.pairs + at * 2, shifts[which], totals[which])

    def is_last(self, slot: Expr, parts: Expr, flag: Shared[u32]) -> Expr:
        """Whether this CTA leaves the last of a tile's ``parts``, the first of which has ``slot``, whose counter then
        goes back to 0.

        The barrier brings the stores of all threads before the atomic operation of one, which releases them at GPU
        scope and acquires what those of other CTAs released (PTX ISA 9.1 sections 8.7 to 8.9).
        """
        bar.sync(MEET, WARPGROUP)
        with If(tid.x % WARPGROUP == 0):
            flag[0] = atom.inc(self.counters + slot, parts - 1, sem="acq_rel", scope="gpu")
        bar.sync(MEET, WARPGROUP)
        last: Expr = flag[0] == parts - 1
        return last

    def merged(self, slots: Callable[[Any], Any], parts: Expr, row: Expr, column: Expr) -> Merged:
        """Of a row over all parts in their order: greatest shift, sum of weights, four neighbouring sums."""
        greatest, total, sums = var(f32, LOWEST), var(f32, 0.0), [var(f32, 0.0) for _ in range(QUAD)]
        for begun in loop(0, parts, AT_ONCE):
            places = [slots(min(begun + i, parts - 1)) * self.rows + row for i in range(AT_ONCE)]
            pairs = [ld(self.pairs + at * 2, vec=2) for at in places]
            values = [ld(self.sums + (at * self.columns + column), vec=QUAD) for at in places]
            warp.sync()  # or ptxas may put off reads until their values are used: several latencies, not one
            new = greatest.to(f32)
            for shift, _ in pairs:
                new = max(new, shift)
            factor = ex2(greatest - new)
            for register in (total, *sums):
                register.set(register * factor)
            for i, (shift, weights) in enumerate(pairs):
                weight, there = ex2(shift - new), begun + i < parts
                for register, value in zip((total, *sums), (weights, *values[i]), strict=True):
                    register.set(fma(weight, select(there, value, 0.0), register))
            greatest.set(new)
        return greatest, total, sums


@dataclass(frozen=True)
class Output:
    """Where results go: O of ``columns`` columns, with the elements from batch to batch, head to head and row to row
    (u64), and the log-sum-exp (batch, heads, q_len), unless its address is 0."""

    o: Pointer[Any]
    steps: tuple[Expr, Expr, Expr]
    columns: Expr
    lse: Expr
    heads: Expr
    q_len: Expr

    def put(self, batch: Expr, head: Expr, row: Expr, place: Any, merged: Merged, wide: int, one: Any) -> None:
        """Elements of a row from column ``place`` on, ``wide`` at a time every eight columns; with ``one`` also its
        log-sum-exp. A row without weights becomes 0."""
        greatest, total, sums = merged
        factor, word = select(total == 0.0, total, rcp(total)), PACKED[self.o.dtype]
        start = sum(each.to(u64) * step for each, step in zip((batch, head, row), self.steps, strict=True))
        for number, first in enumerate(range(0, len(sums), wide)):
            with If(place + 8 * number < self.columns):
                pairs = [pack(word, *(x * factor for x in sums[i : i + 2])) for i in range(first, first + wide, 2)]
                st((self.o + start + place + 8 * number).cast(word), *pairs)
        with If((self.lse != 0) & one):
            logs: Pointer[f32] = Global(f32, self.lse) + (batch * self.heads + head) * self.q_len
            logs[row] = (greatest + lg2(total)) * LN2

    def put_tile(self, acc: Fragment, words: Sequence[Any], places: int, shifts: Any, totals: Any) -> None:
        """What this thread has of two rows of a whole tile."""
        row, head, *_, batch, heads = words
        for which in HALVES:
            at = own_row(which)
            query, sums = row + at % places, [x for i, x in enumerate(acc.regs) if i >> 1 & 1 == which]
            with If((at // places < heads) & (query < self.q_len)):
                merged = shifts[which], totals[which], sums
                self.put(batch, head + at // places, query, warp.lane % 4 * 2, merged, 2, warp.lane % 4 == 0)


def put_together(out: Output, space: Workspace, tiles: Tiles, words: Sequence[Any], parts: Any, item: Expr) -> None:
    """Four columns of a row, the ``item``-th of the tile that ``words`` tell of; ``parts`` as `Tiles.owners` does."""
    row, head, *_, number, batch, heads = words
    _, lead, count = parts
    at, column = item // (space.columns // QUAD), item % (space.columns // QUAD) * QUAD
    query, own = row + at % tiles.places, min(at, space.rows - 1)
    merged = space.merged(lambda part: tiles.slot(lead + part, number), count, own, column)
    with If((at // tiles.places < heads) & (query < out.q_len)):
        out.put(batch, head + at // tiles.places, query, column, merged, QUAD, column == 0)


def own_row(which: int) -> Expr:
    """The first or second of this thread's rows of the tile."""
    row: Expr = (warp.id - WARPS) * WARP_ROWS + warp.lane // 4 + 8 * which
    return row
