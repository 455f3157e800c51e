"""Steps of the Hopper attention backward: the mask, tiles of queries, shared memory, and the consumer warpgroups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.backward_extent import Extent
from warpwright.kernels.attention.sm90.backward_plan import ROW, BackwardConfig
from warpwright.kernels.attention.sm90.plan import STRIP, WARPGROUP
from warpwright.kernels.attention.sm90.softmax import HALVES
from warpwright.kernels.attention.sm90.steps import K, hide, issue_rs, issue_ss, panel
from warpwright.kernels.tiles import PACKED, WARP_ROWS, WARPS, clear, part, store_rows_to_smem, window
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
    loop,
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
    "CONSUMERS",
    "CONSUMER_BARRIER",
    "FOUR",
    "LANES",
    "BackwardConsumer",
    "BackwardScores",
    "Inputs",
    "Memory",
    "QueryMask",
    "load_panels",
    "load_rows_when_empty",
    "multiply_elements",
    "of_columns",
    "pack_pairs",
    "set_registers",
    "slot_at",
    "store_and_commit",
    "store_sums",
    "store_transposed",
]

FOUR, LANES = 4, 32
STAGES = 2
CONSUMERS = 2
CONSUMER_BARRIER = 1, CONSUMERS * WARPGROUP  # the named barrier of both consumers: its number and threads
NEVER = 1 << 30  # beyond the last query of any head


@dataclass(frozen=True)
class QueryMask:
    """Which queries see a key: queries j - ``end`` + 1 to j - ``begin`` see key j, where these bounds are given."""

    q_len: Expr
    kv_len: Expr
    begin: Expr | None
    end: Expr | None
    tile: tuple[int, int]

    @staticmethod
    def of(extent: Extent, bounds: tuple[bool, bool], tile: tuple[int, int]) -> QueryMask:
        """Returns the mask of an extent; ``bounds``: whether it has a ``begin`` and an ``end``."""
        begin, end = (bound if given else None for bound, given in zip((extent.begin, extent.end), bounds, strict=True))
        return QueryMask(extent.masked_len, extent.kv_len, begin, end, tile)

    def tiles(self, key: Any) -> tuple[Any, Any]:
        """Returns the first tile of queries that see the keys from ``key`` on, and the number of tiles, 1 or more."""
        queries, keys = self.tile
        last = (self.q_len - 1) // queries
        if self.begin is not None:
            last = clamp((key + (keys - 1)).to(s32) - self.begin, self.q_len) // queries
        if self.end is None:
            return 0, last + 1
        first = min(clamp(key.to(s32) - self.end + 1, self.q_len) // queries, last)
        return first, last + 1 - first

    def hidden(self, row: Any, key: Any) -> Any:
        """Returns whether some query of the tile at ``row`` does not see some of the 64 keys from ``key`` on."""
        last, found = key + (STRIP - 1), key + STRIP > self.kv_len
        if self.end is not None:
            found |= last.to(s32) - row.to(s32) >= self.end
        if self.begin is not None:
            found |= key.to(s32) - (row + (self.tile[0] - 1)).to(s32) < self.begin
        return found

    def apply(self, scores: Sequence[Var], row: Any, key: Any) -> None:
        """Set scores, a fragment, to -inf where queries from ``row`` on do not see the thread's keys ``key`` and
        ``key`` + 8."""
        left = (row + warp.lane % 4 * 2).to(s32)
        hide_columns(scores, [self._range(key + 8 * half, left) for half in HALVES])

    def _range(self, key: Any, left: Any) -> tuple[Any, Any]:
        """Returns the first query that sees ``key`` and the one after the last, relative to ``left``."""
        first = key.to(s32) - self.end + 1 - left if self.end is not None else -left
        stop = key.to(s32) - self.begin + 1 - left if self.begin is not None else None
        return select(key < self.kv_len, first, NEVER), stop


def hide_columns(scores: Sequence[Var], ranges: Sequence[tuple[Any, Any]]) -> None:
    """Set a fragment of scores to -inf in the columns before the first and from the stop of its row's range on, as
    `hide` with each of this thread's two rows."""
    masked = list(scores)
    for half, (first, stop) in enumerate(ranges):
        hide(masked, half, first, stop)
    for register, score in zip(scores, masked, strict=True):
        register.set(score)


def clamp(query: Any, q_len: Any) -> Any:
    """Returns a query (s32) clamped to those of a head, u32."""
    return min(max(query, 0), (q_len - 1).to(s32)).to(u32)


@dataclass(frozen=True)
class Inputs:
    """Inputs in the shared memory of a CTA: K and V with their barrier, and rings of Q and dO.

    ``stats`` are the shifts of the queries in the stages of Q, and the means of the queries in the stages of dO. The
    stages of Q have ``items`` too: the first query of the tile, its head, and whether a mask function cuts it.
    """

    k: Tile
    v: Tile
    kv: mbarrier
    q: Ring
    do: Ring
    stats: tuple[Tile, Tile]
    items: Tile


@dataclass(frozen=True)
class Memory(Inputs):
    """Shared memory of a CTA: the inputs, two tiles of dS, and a ring of dQ parts.

    The A operand of dQ has 64 columns of K. Of 96 columns each consumer has 48, so each panel of K has the 48 of a
    consumer and 16 more, which are zeros or those of the other consumer; what the last warp has of dQ is not stored.
    """

    ds: Tile
    sums: Ring

    @property
    def dk(self) -> Tile:
        """The tile through which dK leaves, in the memory of K."""
        return replace(self.v, place=self.k.place)

    @property
    def rings(self) -> tuple[Ring, ...]:
        """The three rings."""
        return self.q, self.do, self.sums

    @staticmethod
    def of(config: BackwardConfig, dtype: type[Scalar]) -> Memory:
        """Returns the shared memory of a configuration. Each consumer has a stage of ``sums``."""
        queries, keys = config.tile
        span = panel(config.head_dim) * dtype.nbytes
        rows = smem.tile(dtype, (queries, config.head_dim), swizzle=span)
        part_of_dq = config.sum_rows // CONSUMERS, ROW
        small = smem.tile(f32, (STAGES, queries)), smem.tile(f32, (STAGES, queries)), smem.tile(u32, (STAGES, FOUR))
        for each in small:
            each.place.known()  # allocated before the tiles, whose alignment would leave gaps between them
        return Memory(
            k=smem.tile(dtype, (keys, config.key_columns), swizzle=128),
            v=smem.tile(dtype, (keys, config.head_dim), swizzle=span),
            kv=mbarrier(1, name="kv_full"),
            q=Ring(STAGES, empty=CONSUMERS, name="q", rows=rows),
            do=Ring(STAGES, empty=CONSUMERS, name="do", rows=rows),
            stats=small[:2],
            ds=smem.tile(dtype, (STAGES * queries, keys), swizzle=128),
            sums=Ring(CONSUMERS, full=WARPS, name="sums", sums=smem.tile(f32, part_of_dq)),
            items=small[2],
        )


def load_panels(
    tile: Tile, source: tma.Map[Scalar], place: tuple[Any, ...], full: mbarrier, apart: int | None = None
) -> None:
    """Issue the TMA loads of a tile, a box a panel, from ``place`` (…, row) on; they complete ``full``. The panels are
    ``apart`` columns apart in a row, by default their width."""
    (*before, row), width = place, tile.span // tile.dtype.nbytes
    count, apart = tile.shape[1] // width, apart or width
    if count > 2:  # ptxas spills registers of a warp that has 24 if more loads are unrolled
        for number in loop(count, unroll=False):
            tma.load(part(tile, number, width, "mn"), source[(*before, row, number * apart)], full)
        return
    for left in range(count):
        corner = source[(*before, row, left * apart)]
        tma.load(tile[:, left * width : (left + 1) * width], corner, full)


def load_rows_when_empty(
    cursor: Cursor,
    source: tma.Map[Scalar],
    place: tuple[Any, ...],
    stats: Tile,
    row_stats: Global[Any],
    items: Tile | None = None,
    item: Sequence[Any] = (),
) -> None:
    """Wait for the next empty slot and load rows of a head, with ``row_stats`` to its row of ``stats`` and the words of
    ``item`` to that of ``items``, which the full barrier publishes too."""
    slot = next(cursor)
    slot.empty.wait()
    if items is not None:
        st(items.at(slot.stage, 0), *item)
    own = part(stats, slot.stage, 1, "k")
    slot.full.arrive_expect_tx(slot.nbytes + own.nbytes)
    load_panels(slot.rows, source, place, slot.full)
    tma.copy(own.address, row_stats.address, own.nbytes, slot.full)


def multiply_elements(first: Pointer[Any], second: Pointer[Any], dtype: type[Scalar]) -> list[Any]:
    """Returns the elementwise products of 8 neighbouring elements of two rows, f32."""
    pairs = zip(ld(first.cast(b32), vec=FOUR), ld(second.cast(b32), vec=FOUR), strict=True)
    halves = [zip(unpack(x, dtype), unpack(y, dtype), strict=True) for x, y in pairs]
    return [x.to(f32) * y.to(f32) for each in halves for x, y in each]


def pack_pairs(values: Sequence[Any], dtype: type[Scalar]) -> list[Any]:
    """Returns pairs of f32, rounded to ``dtype`` and packed, b32."""
    word = PACKED[dtype]
    return [pack(word, low, high).bitcast(b32) for low, high in zip(values[::2], values[1::2], strict=True)]


def store_transposed(tile: Tile, words: Sequence[Any], row: Any, column: Any) -> None:
    """Store a warp's 16 rows of a packed fragment as columns of ``tile`` from ``column`` on, rows from ``row`` on.

    Two words are 16 columns of 8 rows of the tile.
    """
    lane = warp.lane
    corner = tile.at(lane % 8 + lane // 16 * 8 + row, lane // 8 % 2 * 8 + column)
    for start in range(0, len(words), FOUR):
        some = words[start : start + FOUR]
        stmatrix(corner + start // 2 * 8 * (tile.span // tile.dtype.nbytes), some, trans=True)


class BackwardScores:
    """The scores of a consumer warpgroup, transposed: 64 keys and a tile of queries from ``row`` on; then the weights.

    ``own`` is the number of these keys among the CTA's, and ``number`` that of the 16 keys of this warp.
    """

    own: Any
    number: Any

    def __init__(self, inputs: Inputs, mask: QueryMask, key: Any, scale: Any, queries: int) -> None:
        self.inputs, self.mask, self.key, self.scale = inputs, mask, key, scale
        self.dtype, self.queries, self.row = inputs.k.dtype, queries, var(u32, 0)
        self.scores = wgmma.accumulator(f32, (STRIP, queries))

    def wait_and_issue_scores(self, slot: Slot) -> None:
        """Wait for Q in ``slot``, then issue Sᵀ = K·Qᵀ."""
        slot.full.wait()
        self.row.set(ld(self.inputs.items.at(slot.stage, 0)))
        issue_scores(self.scores, self.inputs.k, self.own, slot.rows)

    def apply_mask(self) -> None:
        """Set scores to -inf where a query does not see this thread's keys."""
        with If(self.mask.hidden(self.row, self.key + self.own * STRIP)):
            self.mask.apply(self.scores.regs, self.row, self.key + self.number * WARP_ROWS + warp.lane // 4)

    def compute_weights(self, stage: Any) -> None:
        """Replace the scores of the tile in ``stage`` by the weights P = 2^(scaled score - log-sum-exp), 0 where
        masked."""
        self.apply_mask()
        for register, shift in zip(self.scores.regs, self.of_queries(0, stage), strict=True):
            register.set(ex2(fma(register, self.scale, shift)))

    def of_queries(self, which: int, stage: Any) -> Iterator[Any]:
        """Yields the shift (0) or the mean (1) of its query for each score of the tile in ``stage``."""
        return of_columns(part(self.inputs.stats[which], stage, 1, "k"), self.queries)


class BackwardConsumer(BackwardScores):
    """A consumer warpgroup: 64 keys of the CTA's, their gradients dK and dV in registers, and a part of dQ.

    The scores, and P, dP and dS after them, are transposed: (keys, queries). So Pᵀ and dSᵀ are A operands of the wgmmas
    of dV and dK without a detour through shared memory. A method that issues a wgmma group leaves it in flight; the
    ``wait_group`` stands where the result is used.
    """

    def __init__(self, memory: Memory, mask: QueryMask, key: Any, scale: Any, config: BackwardConfig) -> None:
        self.memory, self.early, self.crowded = memory, config.early, config.crowded
        self.own, self.one, self.number = shfl.idx(warp.id // WARPS - 1, 0), elect_one(), warp.id - WARPS
        self.leader = self.one & (warp.id % WARPS == 0)
        queries, head_dim = config.tile[0], config.head_dim
        super().__init__(memory, mask, key, scale, queries)
        self.dp = wgmma.accumulator(f32, (STRIP, queries))
        self.dk, self.dv = (wgmma.accumulator(f32, (STRIP, head_dim)) for _ in range(2))
        part_of_dq = STRIP, queries // CONSUMERS if head_dim == STRIP else queries
        self.dq = self.dp if config.crowded else wgmma.accumulator(f32, part_of_dq)
        self.dq_warps = config.dq_warps
        self.weights, self.ds = ([var(b32, 0) for _ in range(queries // 4)] for _ in range(2))
        clear(self.dk, self.dv)

    def wait_and_issue_dp(self, slot: Slot) -> None:
        """Wait for dO in ``slot``, then issue dPᵀ = V·dOᵀ."""
        slot.full.wait()
        issue_ss(self.dp, self.memory.v, self.own, slot.rows)

    def compute_ds(self, columns: slice, means: Iterator[Any], ds: Tile) -> None:
        """Round some columns of Pᵀ and of dSᵀ for the next wgmmas; store dS also to ``ds``."""
        some, words = (slice(columns.start // each, columns.stop // each) for each in (2, 4))
        mean_of_column = list(islice(means, some.stop - some.start))
        set_registers(self.weights[words], pack_pairs(self.scores.regs[some], self.dtype))
        set_registers(self.ds[words], pack_pairs(self.score_gradients(some, mean_of_column), self.dtype))
        store_transposed(ds, self.ds[words], columns.start, self.number * WARP_ROWS)

    def score_gradients(self, some: slice, mean_of_column: Sequence[Any]) -> list[Any]:
        """Returns dSᵀ = Pᵀ ∘ (dPᵀ - mean) of ``some`` elements."""
        triples = zip(self.scores.regs[some], self.dp.regs[some], mean_of_column, strict=True)
        return [p * (each - mean) for p, each, mean in triples]

    def issue_dq(self, ds: Tile) -> None:
        """Issue this warpgroup's part of dQᵀ = Kᵀ·dSᵀ: a panel of K, or half of the queries."""
        k, rows = self.memory.k, self.dq.shape[1]
        k, ds = (part(k, self.own, PANEL, "mn"), ds) if rows == self.queries else (k, part(ds, self.own, rows, "k"))
        wgmma.fence()
        for kk in range(0, k.shape[0], K):
            wgmma.mma(self.dq, window(k, kk, "mn"), window(ds, kk, "k"), accumulate=kk > 0)
        wgmma.commit_group()

    def issue_scores_and_dp(self, number: Any) -> None:
        """Wait for a tile of queries, and issue its S and its dP; S is there."""
        self.wait_and_issue_scores(slot_at(self.memory.q, number))
        self.wait_and_issue_dp(slot_at(self.memory.do, number))
        wgmma.wait_group(1)

    def step(self, number: Any, more: bool) -> None:
        """Compute the gradients of a tile of queries; ``more``: another one follows.

        The fewer wgmmas wait in the queue of the tensor cores, the sooner the other consumer has what it waits for.
        """
        memory, stage = self.memory, number % STAGES
        slot_q, slot_do = (slot_at(ring, number) for ring in (memory.q, memory.do))
        ds, means = part(memory.ds, stage, self.queries, "k"), self.of_queries(1, stage)
        if not self.early:
            self.issue_scores_and_dp(number)
        self.compute_weights(stage)
        # dP is there.
        wgmma.wait_group(0)
        for some in self.parts():
            for column in range(some.start, some.stop, K):
                self.compute_ds(slice(column, column + K), means, ds)
            issue_rs(self.dv, self.weights[some.start // 4 : some.stop // 4], slot_do.rows[some, :], True)
        fence.proxy_async()
        # Both consumers stored their keys of dS.
        bar.sync(*CONSUMER_BARRIER)
        # dV is there, and no longer reads its slot of dO.
        wgmma.wait_group(0)
        if more:
            with If(self.leader):
                slot_do.empty.arrive()
        self.issue_dq(ds)
        queued = self.early or self.crowded
        if queued:
            issue_rs(self.dk, self.ds, slot_q.rows, True)
        # dQ is there.
        wgmma.wait_group(1 if queued else 0)
        if not queued:
            issue_rs(self.dk, self.ds, slot_q.rows, True)
        self.store_dq(stage)
        if more and self.early:
            self.wait_and_issue_scores(slot_at(memory.q, number + 1))
        # dK is there, and no longer reads its slot of Q.
        wgmma.wait_group(1 if more and self.early else 0)
        if more:
            with If(self.leader):
                slot_q.empty.arrive()
        if more and self.early:
            self.wait_and_issue_dp(slot_at(memory.do, number + 1))
            wgmma.wait_group(1)

    def parts(self) -> list[slice]:
        """Returns the columns of dS after which a part of dV is issued: all of them, each half, or if registers are few
        32 at a time."""
        half = self.queries // 2 // K * K
        starts = (0,) if self.early else range(0, self.queries, 2 * K) if self.crowded else (0, half)
        return [slice(*ends) for ends in pairwise((*starts, self.queries))]

    def store_dq(self, stage: Any) -> None:
        """Store the part of dQ for the role `save`."""
        store_sums(Slot(self.memory.sums, self.own, stage), self.dq.regs, self.one, self.dq_warps)


def issue_scores(acc: Fragment, k: Tile, strip: Any, q: Tile) -> None:
    """Issue Sᵀ = K·Qᵀ as one wgmma group, K the 64 keys with number ``strip``; its panels may have more columns than
    those of their part of Q's."""
    rows, apart = part(k, strip, STRIP, "k"), q.shape[1] * PANEL // k.shape[1]
    wgmma.fence()
    for column in range(0, q.shape[1], K):
        left = window(rows, column // apart * PANEL + column % apart, "k")
        wgmma.mma(acc, left, window(q, column, "k"), accumulate=column > 0)
    wgmma.commit_group()


def store_sums(slot: Slot, values: Sequence[Any], one: Any, warps: int = WARPS) -> None:
    """Wait for the empty ``slot`` and store registers of dQ to it for the role `save`, those of the first ``warps``
    warps in the order of the fragment: float4 by float4, thread by thread."""
    slot.empty.wait()
    corner = slot.sums.at(0, tid.x % WARPGROUP * FOUR)
    with If(warp.id % WARPS < warps) if warps < WARPS else nullcontext():
        for start in range(0, len(values), FOUR):
            st(corner + start * (warps * LANES), *values[start : start + FOUR])
    fence.proxy_async()
    warp.sync()
    with If(one):
        slot.full.arrive()


def store_and_commit(
    tile: Tile, acc: Fragment, target: tma.Map[Scalar], place: tuple[Any, ...], factor: Any, number: Any, one: Any
) -> None:
    """Store the gradients of 16 keys, those of warp ``number``, times ``factor``, through rows of ``tile``, and commit
    them in the thread ``one``."""
    strip, (*before, row), width = part(tile, number, WARP_ROWS, "k"), place, tile.span // tile.dtype.nbytes
    values = [value * factor for value in acc.regs] if factor is not None else acc.regs
    for left in range(0, tile.shape[1], width):
        store_rows_to_smem(strip[:, left : left + width], values[left // 2 : (left + width) // 2], True)
    fence.proxy_async()
    warp.sync()
    with If(one):
        for left in range(0, tile.shape[1], width):
            corner = target[(*before, row + number * WARP_ROWS, left)]
            tma.store(corner, strip[:, left : left + width])
        tma.commit_group()


def slot_at(ring: Ring, number: Any) -> Slot:
    """Returns the ``number``-th slot of a ring: one counter for all rings takes fewer registers than their cursors."""
    return Slot(ring, number % ring.stages, number // ring.stages % 2)


def of_columns(stats: Tile, columns: int) -> Iterator[Any]:
    """Yields the statistic of its column for each element of a fragment (64, ``columns``), loaded 16 columns at a
    time."""
    corner = stats.at(0, warp.lane % 4 * 2)
    for left in range(0, columns, K):
        pairs = [ld(corner + column, vec=2) for column in range(left, left + K, 8)]
        yield from (value for pair in pairs for value in (*pair, *pair))


def set_registers(registers: Sequence[Var], values: Sequence[Any]) -> None:
    """Set each register to its value."""
    for register, value in zip(registers, values, strict=True):
        register.set(value)
