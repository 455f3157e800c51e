"""The steps that the Hopper attention backward of `sm90_backward` is made of: what is seen, tiles, products, stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.steps import STRIP, WARP_ROWS, WARPS, K, add, free, score
from warpwright.kernels.tiles import PACKED, clear, part, store_rows_to_smem, window
from warpwright.lang import (
    Expr,
    Global,
    If,
    Pointer,
    Ring,
    Var,
    b32,
    bar,
    elect_one,
    ex2,
    f32,
    fence,
    fma,
    ld,
    max,
    mbarrier,
    min,
    pack,
    s32,
    select,
    shfl,
    smem,
    st,
    stmatrix,
    tid,
    tma,
    u32,
    unpack,
    var,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Cursor, Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "LOG2E",
    "Memory",
    "Seen",
    "Strip",
    "Walk",
    "load_panels",
    "load_rows",
    "meet",
    "memory_of",
    "packed",
    "products",
    "put_transposed",
    "slot_of",
]

LOG2E = 1.4426950408889634
ROW = 256
FOUR = 4
STAGES = 2
CONSUMERS = 2
ALL = 1  # the named barrier of both warpgroups
NEVER = 1 << 30  # a query that no head has


@dataclass(frozen=True)
class Seen:
    """Which queries see a key: key j is seen by queries j - ``end`` + 1 to j - ``begin``, where these are given."""

    q_len: Expr
    kv_len: Expr
    begin: Expr | None
    end: Expr | None
    tile: tuple[int, int]

    def tiles(self, key: Any) -> tuple[Any, Any]:
        """The first tile of queries that see the keys from ``key`` on, and the number of tiles, at least one."""
        queries, keys = self.tile
        last = (self.q_len - 1) // queries
        if self.begin is not None:
            last = clamped((key + (keys - 1)).to(s32) - self.begin, self.q_len) // queries
        if self.end is None:
            return 0, last + 1
        first = min(clamped(key.to(s32) - self.end + 1, self.q_len) // queries, last)
        return first, last + 1 - first

    def hidden(self, row: Any, key: Any) -> Any:
        """Whether some of the queries from ``row`` on do not see some of the 64 keys from ``key`` on."""
        last, found = key + (STRIP - 1), key + STRIP > self.kv_len
        if self.end is not None:
            found |= last.to(s32) - row.to(s32) >= self.end
        if self.begin is not None:
            found |= key.to(s32) - (row + (self.tile[0] - 1)).to(s32) < self.begin
        return found

    def hide(self, scores: Fragment, row: Any, key: Any) -> None:
        """-inf where queries from ``row`` on do not see this thread's keys, ``key`` and 8 behind it."""
        left = (row + warp.lane % 4 * 2).to(s32)
        firsts, stops = zip(*(self._range(key + 8 * which, left) for which in (0, 1)), strict=True)
        for v, register in enumerate(scores.regs):
            column, which = 8 * (v >> 2) + (v & 1), v >> 1 & 1
            inside = firsts[which] <= column
            if self.begin is not None:
                inside &= stops[which] > column
            register.set(select(inside, register, float("-inf")))

    def _range(self, key: Any, left: Any) -> tuple[Any, Any]:
        """The first query that sees ``key`` and the one behind the last, counted from ``left``."""
        first = key.to(s32) - self.end + 1 - left if self.end is not None else -left
        stop = key.to(s32) - self.begin + 1 - left if self.begin is not None else None
        return select(key < self.kv_len, first, NEVER), stop


@dataclass(frozen=True)
class Walk:
    """The tiles of queries from ``first`` on, ``count`` of them, again and again, beginning at ``start``; ``tile`` is
    the one at hand."""

    first: Any
    count: Any
    start: Any
    tile: Any = None

    def begin(self) -> Walk:
        """At the start."""
        return replace(self, tile=var(u32, self.start))

    def advance(self) -> None:
        """One tile on; from the last to the first."""
        last = self.first + self.count - 1
        self.tile.set(select(self.tile == last, self.first, self.tile + 1))


def clamped(query: Any, q_len: Any) -> Any:
    """A query (s32) of a head, u32."""
    return min(max(query, 0), (q_len - 1).to(s32)).to(u32)


@dataclass(frozen=True)
class Memory:
    """Shared memory of a CTA: K and V with their barrier, rings of Q and dO, two of dS, and sums of dQ on their way.

    ``stats`` are what is known of each query in the stages of Q, and in those of dO.
    """

    k: Tile
    v: Tile
    kv: mbarrier
    q: Ring
    do: Ring
    stats: tuple[Tile, Tile]
    ds: Tile
    sums: Ring

    @property
    def rings(self) -> tuple[Ring, ...]:
        """Those with barriers."""
        return self.q, self.do, self.sums


def memory_of(tile: tuple[int, int], head_dim: int, dtype: type[Scalar]) -> Memory:
    """Shared memory for ``tile`` (queries, keys). The stages of ``sums`` are the warpgroups."""
    queries, keys = tile
    some = smem.tile(dtype, (queries, head_dim), swizzle=128)
    rows = queries * head_dim // ROW // CONSUMERS
    return Memory(
        k=smem.tile(dtype, (keys, head_dim), swizzle=128),
        v=smem.tile(dtype, (keys, head_dim), swizzle=128),
        kv=mbarrier(1, name="kv_full"),
        q=Ring(STAGES, empty=CONSUMERS, name="q", rows=some),
        do=Ring(STAGES, empty=CONSUMERS, name="do", rows=some),
        stats=(smem.tile(f32, (STAGES, queries)), smem.tile(f32, (STAGES, queries))),
        ds=smem.tile(dtype, (STAGES * queries, keys), swizzle=128),
        sums=Ring(CONSUMERS, full=WARPS, name="sums", sums=smem.tile(f32, (rows, ROW))),
    )


def load_panels(tile: Tile, source: tma.Map[Scalar], place: tuple[Any, ...], full: mbarrier) -> None:
    """A tile from row ``place`` of a head on: a box a panel."""
    *before, row = place
    for column in range(0, tile.shape[1], PANEL):
        tma.load(tile[:, column : column + PANEL], source[(*before, row, column)], full)


def load_rows(cursor: Cursor, source: tma.Map[Scalar], place: tuple[Any, ...], stats: Tile, known: Global[Any]) -> None:
    """Fill the next slot with rows of a head, and ``stats`` with what is ``known`` of each."""
    slot = next(cursor)
    slot.empty.wait()
    own = part(stats, slot.stage, 1, "k")
    slot.full.arrive_expect_tx(slot.nbytes + own.nbytes)
    load_panels(slot.rows, source, place, slot.full)
    tma.copy(own.address, known.address, own.nbytes, slot.full)


def products(first: Pointer[Any], second: Pointer[Any], dtype: type[Scalar]) -> list[Any]:
    """The products of 8 neighbouring elements of two rows, f32."""
    pairs = zip(ld(first.cast(b32), vec=FOUR), ld(second.cast(b32), vec=FOUR), strict=True)
    halves = [zip(unpack(x, dtype), unpack(y, dtype), strict=True) for x, y in pairs]
    return [x.to(f32) * y.to(f32) for each in halves for x, y in each]


def packed(dtype: type[Scalar], values: Sequence[Any]) -> list[Any]:
    """Pairs of f32 rounded to ``dtype``, b32."""
    word = PACKED[dtype]
    return [pack(word, low, high).bitcast(b32) for low, high in zip(values[::2], values[1::2], strict=True)]


def put_transposed(tile: Tile, words: Sequence[Any], row: Any, column: Any) -> None:
    """A warp's 16 rows of a fragment, packed, as columns of ``tile`` from ``column`` on, rows from ``row`` on.

    Two words are 16 columns of 8 rows of the tile.
    """
    lane = warp.lane
    corner = tile.at(lane % 8 + lane // 16 * 8 + row, lane // 8 % 2 * 8 + column)
    for start in range(0, len(words), FOUR):
        some = words[start : start + FOUR]
        stmatrix(corner + start // 2 * 8 * PANEL, some, trans=True)


class Strip:
    """What one of the two warpgroups holds: 64 keys of the CTA's, their gradients, and a share of the sums of dQ.

    Scores and all that follows from them are transposed, (keys, queries), so that weights are A of the products that
    sum up dV and dK without a way through shared memory. Each method is a part of the work, emitted where it is called.
    """

    def __init__(self, memory: Memory, seen: Seen, key: Any, walk: Walk, scale: Any, chained: bool) -> None:
        self.memory, self.seen, self.scale, self.chained = memory, seen, scale, chained
        self.own, self.one, self.number = shfl.idx(warp.id // WARPS - 1, 0), elect_one(), warp.id - WARPS
        self.leads = self.one & (warp.id % WARPS == 0)
        queries, head_dim = memory.q.members["rows"].shape
        self.dtype, self.queries = memory.k.dtype, queries
        self.key, self.at = key, walk.begin()
        self.scores, self.slopes = (wgmma.accumulator(f32, (STRIP, queries)) for _ in range(2))
        self.by_k, self.by_v = (wgmma.accumulator(f32, (STRIP, head_dim)) for _ in range(2))
        self.by_q = wgmma.accumulator(f32, (STRIP, queries * head_dim // (CONSUMERS * STRIP)))
        self.weights, self.held = ([var(b32, 0) for _ in range(queries // 4)] for _ in range(2))
        self.cuts = (0, queries // 2 // K * K, queries)
        clear(self.by_k, self.by_v)

    def begin_scores(self, slot: Slot) -> None:
        """Begin Sᵀ = K·Qᵀ."""
        slot.full.wait()
        score(self.scores, self.memory.k, self.own, slot.rows)

    def begin_slopes(self, slot: Slot) -> None:
        """Begin dPᵀ = V·dOᵀ."""
        slot.full.wait()
        score(self.slopes, self.memory.v, self.own, slot.rows)

    def weigh(self, stats: Tile) -> None:
        """Scores become weights: P = 2 to the power of (scaled score - log-sum-exp), 0 where hidden."""
        row, key = self.at.tile * self.queries, self.key + self.number * WARP_ROWS + warp.lane // 4
        with If(self.seen.hidden(row, self.key + self.own * STRIP)):
            self.seen.hide(self.scores, row, key)
        for v, shift in enumerate(of_columns(stats, self.queries)):
            register = self.scores.regs[v]
            register.set(ex2(fma(register, self.scale, shift)))

    def differ(self, columns: slice, means: Sequence[Any], ds: Tile) -> None:
        """Some columns of P and of dSᵀ = Pᵀ ∘ (dPᵀ - mean), rounded: A of the next products; dS also in ``ds``."""
        some, words = (slice(columns.start // each, columns.stop // each) for each in (2, 4))
        weights, slopes = self.scores.regs[some], self.slopes.regs[some]
        hold(self.weights[words], packed(self.dtype, weights))
        triples = zip(weights, slopes, means[some], strict=True)
        hold(self.held[words], packed(self.dtype, [weight * (slope - middle) for weight, slope, middle in triples]))
        put_transposed(ds, self.held[words], columns.start, self.number * WARP_ROWS)

    def begin_sums(self, ds: Tile) -> None:
        """Begin this warpgroup's share of dQᵀ = Kᵀ·dSᵀ: 64 columns of K, or half of the queries."""
        k, rows = self.memory.k, self.by_q.shape[1]
        k, ds = (part(k, self.own, PANEL, "mn"), ds) if rows == self.queries else (k, part(ds, self.own, rows, "k"))
        wgmma.fence()
        for kk in range(0, k.shape[0], K):
            wgmma.mma(self.by_q, window(k, kk, "mn"), window(ds, kk, "k"), accumulate=kk > 0)
        wgmma.commit_group()

    def pass_sums(self, slot: Slot) -> None:
        """The share of dQᵀ to the role that adds it up, in the order of the fragment: float4 by float4, thread by
        thread."""
        slot.empty.wait()
        corner = slot.sums.at(0, tid.x % (32 * WARPS) * FOUR)
        for start in range(0, len(self.by_q.regs), FOUR):
            st(corner + start * 32 * WARPS, *self.by_q.regs[start : start + FOUR])
        fence.proxy_async()
        warp.sync()
        with If(self.one):
            slot.full.arrive()

    def step(self, number: Any, more: bool) -> None:
        """One tile of queries, whose scores are done; with ``more`` those of the next one are begun."""
        memory, turn = self.memory, number % STAGES
        slot_q, slot_do = (slot_of(ring, number) for ring in (memory.q, memory.do))
        shifts, means = (part(stats, turn, 1, "k") for stats in memory.stats)
        ds = part(memory.ds, turn, self.queries, "k")
        if not self.chained:
            wgmma.wait_group(0)
        self.begin_slopes(slot_do)
        self.weigh(shifts)
        wgmma.wait_group(0)
        with If(self.leads & (number > 0)):
            slot_of(memory.q, number + 1).empty.arrive()
        middles = of_columns(means, self.queries)
        for left, right in zip(self.cuts, self.cuts[1:], strict=False):
            self.differ(slice(left, right), middles, ds)
            add(self.by_v, self.weights[left // 4 : right // 4], slot_do.rows[left:right, :], True)
        fence.proxy_async()
        if more:
            self.begin_scores(slot_of(memory.q, number + 1))
        meet()
        wgmma.wait_group(1 if more else 0)
        free(slot_do, self.leads)
        self.begin_sums(ds)
        add(self.by_k, self.held, slot_q.rows, True)
        wgmma.wait_group(1)
        self.pass_sums(Slot(memory.sums, self.own, turn))
        self.at.advance()

    def put_out(self, tile: Tile, sums: Fragment, target: tma.Map[Scalar], place: tuple[Any, ...], factor: Any) -> None:
        """Gradients of this warp's 16 keys, times ``factor``, through its rows of ``tile``."""
        strip, (*before, row) = part(tile, self.number, WARP_ROWS, "k"), place
        values = [value * factor for value in sums.regs] if factor is not None else sums.regs
        for left in range(0, tile.shape[1], PANEL):
            store_rows_to_smem(strip[:, left : left + PANEL], values[left // 2 : (left + PANEL) // 2], True)
        fence.proxy_async()
        warp.sync()
        with If(self.one):
            for left in range(0, tile.shape[1], PANEL):
                corner = target[(*before, row + self.number * WARP_ROWS, left)]
                tma.store(corner, strip[:, left : left + PANEL])
            tma.commit_group()


def meet() -> None:
    """Both warpgroups."""
    bar.sync(ALL, CONSUMERS * WARPS * 32)


def slot_of(ring: Ring, number: Any) -> Slot:
    """The slot of the ``number``-th filling: one counter for all rings takes fewer registers than their cursors."""
    return Slot(ring, number % STAGES, number // STAGES % 2)


def of_columns(stats: Tile, columns: int) -> list[Any]:
    """For each element of a fragment (64, columns) the number of its column."""
    corner, found = stats.at(0, warp.lane % 4 * 2), []
    for column in range(0, columns, 8):
        found += list(ld(corner + column, vec=2)) * 2
    return found


def hold(registers: Sequence[Var], values: Sequence[Any]) -> None:
    """Values into registers that keep their names."""
    for register, value in zip(registers, values, strict=True):
        register.set(value)
