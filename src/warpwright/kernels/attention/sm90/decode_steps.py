"""Steps of the Hopper attention for few queries: shares of tiles, the workspace, and the sum of partial tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from warpwright.kernels.attention.sm90.decode_plan import AT_ONCE, Q_STAGES, QUAD, DecodeConfig
from warpwright.kernels.attention.sm90.forward import Consumer
from warpwright.kernels.attention.sm90.plan import STRIP, WARPGROUP, Config
from warpwright.kernels.attention.sm90.softmax import HALVES, LOWEST
from warpwright.kernels.attention.sm90.steps import LN2, CurrentTile, Mask, Rings, panel
from warpwright.kernels.tiles import PACKED, WARP_ROWS, WARPS
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
    "REGISTERS",
    "WORDS",
    "DecodeConsumer",
    "Output",
    "Share",
    "Tiles",
    "Workspace",
    "combine_parts",
    "load_queries_when_empty",
    "rings_of",
    "shares",
]

WORDS = 8  # of an item
REGISTERS = (56, 200)  # of a thread that loads and of one that computes, where two CTAs share an SM
CONSUMER = 1  # the named barrier of the consumer warpgroup
RowSums = tuple[Any, Any, Sequence[Any]]  # of a row: shift, sum of weights, elements of O before the division


def rings_of(config: DecodeConfig, dtype: type[Scalar], words: int = WORDS) -> Rings:
    """Returns the rings of a CTA; an item of ``work`` has ``words`` words. O leaves from registers, so it has no ring
    of its own."""
    swizzle = panel(config.head_dim) * dtype.nbytes
    queries, block = (smem.tile(dtype, (rows, config.head_dim), swizzle=swizzle) for rows in config.tile)
    of_q = Ring(Q_STAGES, name="q", q=queries)
    work = Ring(2, empty=WARPS, name="work", item=smem.tile(u32, (1, words)))
    work.place.known()  # next to the barriers, not after the tiles, which begin at multiples of 1024 bytes
    return Rings(
        work=work,
        q=of_q,
        o=of_q,
        k=Ring(config.stages, name="k", k=block),
        v=Ring(config.stages, name="v", v=block),
    )


@dataclass(frozen=True)
class Tile:
    """``heads`` heads of Q from ``head`` on, which is number ``member`` in the group of head ``kv_head`` of K and V,
    and the queries from ``row`` on, which see ``blocks`` key blocks from ``first`` on."""

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
    """The ``total`` tiles: for each batch, each of ``kv_heads`` heads of K and V, and each of ``strips`` strips of
    ``places`` queries, as many of the ``group`` heads of Q that share the keys as fit into a tile. Tiles with the same
    keys are neighbours.

    The sequence of all tiles is cut into ``ctas`` equal shares, at whole key blocks. In the unit of these computations
    a tile is ``ctas`` long and a share ``total``: tile n begins at n · ctas, the share of CTA c at c · total.
    """

    total: Expr
    strips: Expr
    kv_heads: Expr
    group: Expr
    ctas: Expr
    places: int
    mask: Mask
    rows: int = STRIP

    def at(self, number: Expr) -> Tile:
        """Returns the ``number``-th tile."""
        room = self.rows // self.places
        rest, row = number // self.strips, number % self.strips * self.places
        across = (self.group + (room - 1)) // room
        of, member = rest // across, rest % across * room
        batch, kv_head = of // self.kv_heads, of % self.kv_heads
        head, heads = kv_head * self.group + member, min(self.group - member, room)
        return Tile(batch, kv_head, head, member, heads, row, *self.mask.blocks(row, self.places))

    def owners(self, number: Expr, blocks: Expr) -> tuple[Expr, Expr, Expr]:
        """Returns the CTA whose share a tile of ``blocks`` key blocks begins in; the CTA that computes the first part,
        which is the next CTA if that share ends with less than a block of the tile; and the number of parts, which
        consecutive CTAs compute."""
        left = number * self.ctas
        holder = left // self.total
        reach = min((holder + 1) * self.total - left, self.ctas)
        lead = select(reach * blocks < self.ctas, holder + 1, holder)
        return holder, lead, (left + (self.ctas - 1)) // self.total + 1 - lead

    def slot(self, cta: Expr, number: Expr) -> Expr:
        """Returns the slot of the workspace for the part of a tile that ``cta`` computes: the first of its two slots if
        its share begins with that part. At most one other part is not a whole tile, the last one."""
        found: Expr = select(cta * self.total < number * self.ctas, cta * 2 + 1, cta * 2)
        return found


@dataclass(frozen=True)
class Share:
    """The part of ``tile``, the ``number``-th, that a CTA computes: ``count`` key blocks from ``first`` on."""

    number: Expr
    tile: Tile
    first: Expr
    count: Expr

    @property
    def words(self) -> tuple[Expr, ...]:
        """The item of the ring `work` as the consumer reads it: eight u32 values."""
        tile = self.tile
        return (tile.row, tile.head, self.first, self.count, tile.blocks, self.number, tile.batch, tile.heads)


def shares(tiles: Tiles) -> Iterator[Share]:
    """Yields this CTA's parts of tiles, those with at least one key block."""
    ctas = tiles.ctas
    begin = ctaid.x * tiles.total
    end = begin + tiles.total
    for number in loop(begin // ctas, (end + (ctas - 1)) // ctas):
        left, tile = number * ctas, tiles.at(number)
        start = (max(begin, left) - left) * tile.blocks // ctas
        stop = (min(end, left + ctas) - left) * tile.blocks // ctas
        with If(stop > start):
            yield Share(number, tile, start + tile.first, stop - start)


def load_queries_when_empty(cursor: Cursor, source: tma.Map[Scalar], places: int, *place: Any) -> None:
    """Wait for the next empty slot and load ``places`` queries of each of the heads that begin at ``place``: (batch,
    head of K and V, number in its group, query). TMA fills rows beyond the last head or query with zeros."""
    slot = next(cursor)
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    width = panel(slot.q.shape[1])
    for column in range(0, slot.q.shape[1], width):
        each = slot.q[:, column : column + width]
        box = smem.tile(each.dtype, (each.shape[0] // places, places, width), swizzle=each.swizzle)
        base, start = each.place.known()
        tma.load(box.placed(base, start + each.offset), source[(*place, column)], slot.full)


class DecodeConsumer(Consumer):
    """The only consumer warpgroup of a CTA; its rows are ``places`` queries of each of several heads."""

    def __init__(
        self, rings: Rings, mask: Mask, scale: Expr, config: DecodeConfig, tile: CurrentTile | None = None
    ) -> None:
        plain = Config(config.head_dim, config.tile, branches=False)
        super().__init__(rings, mask, scale, plain, tile or CurrentTile.of(True))
        self.places, self.apart = config.places, 8 % config.places

    @property
    def row(self) -> Any:
        """The query of the first of this thread's two rows."""
        return self.tile.row + (self.strip * WARP_ROWS + warp.lane // 4) % self.places

    def compute_part(self, words: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Compute O, not divided, over the key blocks of an item; returns the shifts and row sums of two rows."""
        self.tile.set(words)
        self.wait_and_issue_first_scores()
        self.wait_first_scores()
        self.mainloop()
        slot_q = next(self.of_q)
        with If(self.leader):
            slot_q.empty.arrive()
        self.wait_and_issue_values(self.of_v.peek(), self.tile.count > 1)
        shifts, totals = self.softmax.reset()
        wgmma.wait_group(0)
        slot_v = next(self.of_v)
        with If(self.leader):
            slot_v.empty.arrive()
        return shifts, totals


class Slotted(Protocol):
    """Tiles of ``places`` neighbouring queries whose parts have slots in a workspace."""

    @property
    def places(self) -> int: ...

    def slot(self, cta: Any, number: Any) -> Any: ...


@dataclass(frozen=True)
class Workspace:
    """Parts of tiles in global memory, two slots a CTA: ``rows`` rows of ``columns`` sums; after all of these the
    shift and the sum of weights of each row. ``counters`` count the parts of a tile and are 0 between tiles."""

    counters: Pointer[u32]
    sums: Pointer[f32]
    pairs: Pointer[f32]
    rows: Expr
    columns: int

    @staticmethod
    def at(address: Expr, reserve: Expr, ctas: Expr, rows: Expr, columns: int) -> Workspace:
        """Returns the workspace at ``address``, which begins with ``reserve`` counters."""
        counters: Pointer[u32] = Global(u32, address)
        sums = (counters + reserve).cast(f32)
        return Workspace(counters, sums, sums + ctas * 2 * rows * columns, rows, columns)

    def store(self, acc: Fragment, slot: Expr, shifts: Sequence[Any], totals: Sequence[Any]) -> None:
        """Store this thread's elements of two rows of a part."""
        for half in HALVES:
            row = own_row(half)
            with If(row < self.rows):
                at = slot * self.rows + row
                mine = self.sums + (at * self.columns + warp.lane % 4 * 2)
                for left in range(0, self.columns, 8):
                    st(mine + left, *acc.regs[left // 2 + 2 * half :][:2])
                with If(warp.lane % 4 == 0):
                    st(self.pairs + at * 2, shifts[half], totals[half])

    def sync_and_count(self, slot: Expr, parts: Expr, flag: Shared[u32]) -> Expr:
        """Returns whether this CTA stored the last of a tile's ``parts``, the first of which has ``slot``.

        The counter of that slot then wraps to 0. The first ``bar.sync`` orders the stores of all threads before the
        atomic operation of one thread, which releases them at GPU scope and acquires the stores that other CTAs
        released (PTX ISA 9.1 sections 8.7 to 8.9).
        """
        bar.sync(CONSUMER, WARPGROUP)
        with If(tid.x % WARPGROUP == 0):
            flag[0] = atom.inc(self.counters + slot, parts - 1, sem="acq_rel", scope="gpu")
        bar.sync(CONSUMER, WARPGROUP)
        last: Expr = flag[0] == parts - 1
        return last

    def combine(self, slots: Callable[[Any], Any], parts: Expr, row: Expr, column: Expr, at_once: int) -> RowSums:
        """Returns a row combined over all parts, in their order: shift, sum of weights, four neighbouring elements. It
        reads ``at_once`` parts at a time."""
        shift_max, total, sums = var(f32, LOWEST), var(f32, 0.0), [var(f32, 0.0) for _ in range(QUAD)]
        for begun in loop(0, parts, at_once):
            places = [slots(min(begun + i, parts - 1)) * self.rows + row for i in range(at_once)]
            pairs = [ld(self.pairs + at * 2, vec=2) for at in places]
            values = [ld(self.sums + (at * self.columns + column), vec=QUAD) for at in places]
            warp.sync()  # else ptxas may delay reads to the use of their values: several latencies, not one
            new = shift_max.to(f32)
            for shift, _ in pairs:
                new = max(new, shift)
            factor = ex2(shift_max - new)
            for register in (total, *sums):
                register.set(register * factor)
            for i, (shift, weights) in enumerate(pairs):
                weight, there = ex2(shift - new), begun + i < parts
                for register, value in zip((total, *sums), (weights, *values[i]), strict=True):
                    register.set(fma(weight, select(there, value, 0.0), register))
            shift_max.set(new)
        return shift_max, total, sums


@dataclass(frozen=True)
class Output:
    """The results in global memory: O of ``columns`` columns, with its strides of batch, head and row in elements
    (u64), and the log-sum-exp (batch, heads, q_len), unless its address is 0."""

    o: Pointer[Any]
    strides: tuple[Expr, Expr, Expr]
    columns: Any
    lse: Expr
    heads: Expr
    q_len: Expr

    def store_row(self, batch: Expr, head: Expr, row: Expr, place: Any, found: RowSums, wide: int, one: Any) -> None:
        """Store elements of a row from column ``place`` on, ``wide`` at a time every eight columns; where ``one``, a
        pred or a constant, holds also its log-sum-exp. A row without weights becomes 0."""
        shift, total, sums = found
        factor, word = select(total == 0.0, total, rcp(total)), PACKED[self.o.dtype]
        start = sum(each.to(u64) * step for each, step in zip((batch, head, row), self.strides, strict=True))
        to = (self.o + start + place).cast(word)  # outside of the branches, which are then predicates of the stores
        for number, first in enumerate(range(0, len(sums), wide)):
            pairs = [pack(word, *(x * factor for x in sums[i : i + 2])) for i in range(first, first + wide, 2)]
            with If(place + 8 * number < self.columns):
                st(to + 4 * number, *pairs)
        if one is False:
            return
        with If(self.lse != 0 if one is True else (self.lse != 0) & one):
            logs: Pointer[f32] = Global(f32, self.lse) + (batch * self.heads + head) * self.q_len
            logs[row] = (shift + lg2(total)) * LN2

    def store_tile(self, acc: Fragment, words: Sequence[Any], places: int, shifts: Any, totals: Any) -> None:
        """Store this thread's elements of two rows of a whole tile."""
        row, head, *_, batch, heads = words
        for half in HALVES:
            at = own_row(half)
            query, sums = row + at % places, [x for i, x in enumerate(acc.regs) if i >> 1 & 1 == half]
            with If((at // places < heads) & (query < self.q_len)):
                found = shifts[half], totals[half], sums
                self.store_row(batch, head + at // places, query, warp.lane % 4 * 2, found, 2, warp.lane % 4 == 0)


def combine_parts(
    out: Output,
    space: Workspace,
    tiles: Slotted,
    words: Sequence[Any],
    parts: Any,
    item: Expr,
    at_once: int = AT_ONCE,
) -> None:
    """Combine the parts of four columns of a row, the ``item``-th four of a tile; ``parts`` are `Tiles.owners`."""
    row, head, *_, number, batch, heads = words
    _, lead, count = parts
    at, column = item // (space.columns // QUAD), item % (space.columns // QUAD) * QUAD
    query, own = row + at % tiles.places, min(at, space.rows - 1)
    found = space.combine(lambda part: tiles.slot(lead + part, number), count, own, column, at_once)
    with If((at // tiles.places < heads) & (query < out.q_len)):
        out.store_row(batch, head + at // tiles.places, query, column, found, QUAD, column == 0)


def own_row(half: int) -> Expr:
    """Returns the first or second of this thread's rows of the tile."""
    row: Expr = (warp.id - WARPS) * WARP_ROWS + warp.lane // 4 + 8 * half
    return row
