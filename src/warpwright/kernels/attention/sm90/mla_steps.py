"""Steps of the Hopper decoding of multi-head latent attention: its rings, the warpgroup of scores, those of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from warpwright.kernels.attention.sm90.decode_steps import Output, Workspace
from warpwright.kernels.attention.sm90.mla_plan import MlaConfig
from warpwright.kernels.attention.sm90.plan import STRIP
from warpwright.kernels.attention.sm90.softmax import HALVES, OnlineSoftmax, of_row
from warpwright.kernels.attention.sm90.steps import CurrentTile, K, apply_mask, pack_weights, read_item, rescale
from warpwright.kernels.tiles import WARP_ROWS, WARPS, Blocks, part, window
from warpwright.lang import (
    Expr,
    If,
    Ring,
    b32,
    elect_one,
    f32,
    fence,
    ld,
    loop,
    shfl,
    smem,
    st,
    stmatrix,
    u32,
    var,
    vote,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["HALF", "MlaRings", "Scores", "Values", "store_part", "store_tile"]

VALUE_GROUPS = 2  # warpgroups that share the columns of O
HALF = 256  # columns of O of each
WIDTH = 128  # columns of an accumulator: with 512 threads ptxas lets an instruction have at most 128 registers
FRAGMENT = 4  # registers of 64 × 16 elements of Q
PAIR = 2  # words of a row in the ring of sums: shift and sum of weights


class MlaRings(NamedTuple):
    """The rings between the roles: items of ``work``, Q, latent rows, weights P with the factors of earlier sums, and
    at the end of a part the shift and the sum of weights of each row."""

    work: Ring
    q: Ring
    rows: Ring
    weights: Ring
    sums: Ring

    @staticmethod
    def of(config: MlaConfig, dtype: type[Scalar], words: int) -> MlaRings:
        """Returns the rings of a CTA; an item of ``work`` has ``words`` words."""
        q, rows = (smem.tile(dtype, (count, config.latent), swizzle=128) for count in config.tile)
        weights = smem.tile(dtype, (STRIP, config.keys), swizzle=config.keys * dtype.nbytes)
        factors, pairs = (smem.tile(f32, (1, count * STRIP)) for count in (1, PAIR))
        readers = VALUE_GROUPS * WARPS
        rings = MlaRings(
            work=Ring(2, empty=WARPS + readers, name="work", item=smem.tile(u32, (1, words))),
            q=Ring(1, empty=WARPS, name="q", q=q),
            rows=Ring(config.stages, empty=1 + VALUE_GROUPS, name="rows", rows=rows),
            weights=Ring(config.weight_stages, full=WARPS, empty=readers, name="weights", p=weights, factors=factors),
            sums=Ring(1, full=WARPS, empty=readers, name="sums", pairs=pairs),
        )
        for small in (rings.work, rings.sums):
            small.place.known()  # next to the barriers, not after tiles, which begin at multiples of 1024 bytes
        return rings


def own_rows() -> list[Any]:
    """Returns this thread's two rows of the tile."""
    return [warp.id % WARPS * WARP_ROWS + warp.lane // 4 + 8 * half for half in HALVES]


class Consumer:
    """What the warpgroups of scores and of values have in common."""

    def __init__(self, rings: MlaRings, config: MlaConfig) -> None:
        self.config, self.one = config, elect_one()
        self.leader = self.one & (warp.id % WARPS == 0)
        self.items, self.of_rows = rings.work.consumer(), rings.rows.consumer()
        self.dtype = rings.rows.members["rows"].dtype

    def read_item_and_arrive_empty(self, item: Slot) -> tuple[Any, ...]:
        """Returns the words of an item, whose full barrier the caller waited for, and arrives on its empty barrier."""
        words = read_item(item)
        self.arrive_empty(item)
        return words

    def arrive_empty(self, slot: Slot) -> None:
        """Arrive on the empty barrier of a slot that this warp has read, one thread for its warp."""
        warp.sync()
        with If(self.one):
            slot.empty.arrive()


class Scores(Consumer):
    """The warpgroup of scores: 64 rows of queries, with the softmax state of two rows in each thread.

    QKᵀ of a block is in flight while the values of the block before it are multiplied; its softmax runs during the rest
    of that. P is rounded, packed in registers and stored once its slot is empty.
    """

    def __init__(self, rings: MlaRings, scale: Expr, config: MlaConfig, tile: CurrentTile, mask: Any) -> None:
        super().__init__(rings, config)
        self.scale, self.tile, self.mask, self.apart = scale, tile, mask, 8 % config.places
        self.of_q, self.to_weights, self.to_sums = rings.q.consumer(), rings.weights.producer(), rings.sums.producer()
        self.scores, self.softmax = wgmma.accumulator(f32, (STRIP, config.keys)), OnlineSoftmax()
        self.own_q = [var(b32, 0) for _ in range(FRAGMENT * config.q_steps)]
        self.weights = [var(b32, 0) for _ in range(len(self.scores.regs) // 2)]
        self.factors = [var(f32, 1.0) for _ in HALVES]

    @property
    def row(self) -> Any:
        """The query of the first of this thread's two rows."""
        return self.tile.row + own_rows()[0] % self.config.places

    def compute_part(self, words: Sequence[Any]) -> None:
        """Compute the weights of all key blocks of an item, from right to left, then the sums of its rows."""
        self.tile.set(words)
        q = self.of_q.peek()
        q.full.wait()
        self.load_queries(q)
        slot = next(self.of_rows)
        self.wait_and_issue_scores(q, slot)
        self.finish_block(slot, True, 0)
        start: Any = 1
        for masked, stop in self.mask.runs(self.tile.row, self.tile.first, self.tile.count):
            for number in loop(start, stop):
                slot = next(self.of_rows)
                self.wait_and_issue_scores(q, slot)
                ready = self.store_weights_when_empty()
                # The first half of QKᵀ is done: PV of the block before comes after the second half, during the softmax.
                wgmma.wait_group(1)
                self.arrive_full(ready)
                self.finish_block(slot, masked, number)
            start = stop
        next(self.of_q)
        self.arrive_empty(q)
        self.arrive_full(self.store_weights_when_empty())
        self.store_sums_when_empty()

    def load_queries(self, q: Slot) -> None:
        """Load the first columns of Q into registers: wgmma then reads half as many bytes of shared memory."""
        blocks = Blocks(q.q, own_rows()[0] - warp.lane // 4 + warp.lane % WARP_ROWS, warp.lane // WARP_ROWS)
        for number in range(self.config.q_steps):
            found = blocks.load(0, K * number)
            for register, value in zip(self.own_q[FRAGMENT * number :], found, strict=False):
                register.set(value)
        fence.proxy_async()  # before TMA writes the next Q to this slot

    def wait_and_issue_scores(self, q: Slot, slot: Slot) -> None:
        """Wait for the latent rows in ``slot``, then issue QKᵀ as two wgmma groups, each with half of the columns."""
        slot.full.wait()
        steps = range(0, self.config.latent, K)
        early = len(steps) // 2
        wgmma.fence()
        for number, kk in enumerate(steps):
            if number == early:
                wgmma.commit_group()
            left: Any = window(q.q, kk, "k")
            if number < self.config.q_steps:
                left = wgmma.left(self.dtype, self.own_q[FRAGMENT * number :][:FRAGMENT])
            wgmma.mma(self.scores, left, window(slot.rows, kk, "k"), accumulate=number > 0)
        wgmma.commit_group()

    def finish_block(self, slot: Slot, masked: bool, number: Any) -> None:
        """Wait for the scores of the ``number``-th block, counted from the last one, arrive on empty of its rows, and
        compute its weights."""
        wgmma.wait_group(0)
        with If(self.leader):
            slot.empty.arrive()
        scores: list[Any] = self.scores.regs
        if masked:
            block = (self.tile.first + self.tile.count - 1 - number) * self.config.keys
            # No register is left for the predicates that words would displace.
            scores = apply_mask(self.mask, scores, self.row, block, self.apart, by_words=False)
        found = self.softmax.block(scores, self.scale)
        pack_weights(self.weights, found.weights, self.dtype)
        for register, factor in zip(self.factors, found.factors, strict=True):
            register.set(factor)

    def store_weights_when_empty(self) -> Slot:
        """Wait for the next empty slot of weights and store this warp's rows of P and their factors."""
        slot = next(self.to_weights)
        slot.empty.wait()
        strip = part(slot.p, warp.id % WARPS, WARP_ROWS, "k")
        for start in range(0, len(self.weights), 4):
            corner = strip.at(warp.lane % WARP_ROWS, warp.lane // WARP_ROWS * 8 + 4 * start)
            stmatrix(corner, self.weights[start : start + 4])
        with If(warp.lane % 4 == 0):
            for row, factor in zip(own_rows(), self.factors, strict=True):
                st(slot.factors.at(0, row), factor)
        fence.proxy_async()
        return slot

    def store_sums_when_empty(self) -> None:
        """Wait until the sums of the part before were read, store the shift and the sum of weights of each row."""
        slot, (shifts, totals) = next(self.to_sums), self.softmax.reset()
        slot.empty.wait()
        with If(warp.lane % 4 == 0):
            for row, shift, total in zip(own_rows(), shifts, totals, strict=True):
                st(slot.pairs.at(0, row * PAIR), shift, total)
        self.arrive_full(slot)

    def arrive_full(self, slot: Slot) -> None:
        """Arrive on the full barrier of a slot, one thread for its warp."""
        warp.sync()
        with If(self.one):
            slot.full.arrive()


class Values(Consumer):
    """One of the two warpgroups of values: `HALF` columns of O, from `column` on, of all 64 rows, in registers."""

    def __init__(self, rings: MlaRings, config: MlaConfig) -> None:
        super().__init__(rings, config)
        self.own = shfl.idx(warp.id // WARPS, 0) - 2
        self.of_weights, self.of_sums = rings.weights.consumer(), rings.sums.consumer()
        self.out = [wgmma.accumulator(f32, (STRIP, WIDTH)) for _ in range(HALF // WIDTH)]

    @property
    def column(self) -> Any:
        """The first of this warpgroup's columns of O."""
        return self.own * HALF

    def compute_part(self, count: Any) -> tuple[list[Any], list[Any]]:
        """Compute O, not divided, over ``count`` key blocks; returns the shifts and the sums of weights of two rows."""
        for number in loop(0, count):
            slot, rows = next(self.of_weights), next(self.of_rows)
            slot.full.wait()
            rows.full.wait()
            factors = [ld(slot.factors.at(0, row)) for row in own_rows()]
            grown = vote.any((factors[0] != 1.0) | (factors[1] != 1.0))
            with If(grown & (number > 0)):
                for acc in self.out:
                    rescale(acc, factors)
            self.issue_values(slot, rows, number > 0)
            wgmma.wait_group(0)
            self.arrive_empty(slot)
            with If(self.leader):
                rows.empty.arrive()
        return self.wait_sums()

    def issue_values(self, slot: Slot, rows: Slot, accumulate: Any) -> None:
        """Issue O += P·V as one wgmma group; O = P·V where not ``accumulate``."""
        values = part(rows.rows, self.own, HALF, "mn")
        wgmma.fence()
        for number, acc in enumerate(self.out):
            left = values[:, number * WIDTH : (number + 1) * WIDTH]
            for kk in range(0, self.config.keys, K):
                adds = True if kk else accumulate
                wgmma.mma(acc, window(slot.p, kk, "k"), window(left, kk, "mn"), accumulate=adds)
        wgmma.commit_group()

    def wait_sums(self) -> tuple[list[Any], list[Any]]:
        """Wait for the sums of a part; returns the shifts and the sums of weights of this thread's rows."""
        slot = next(self.of_sums)
        slot.full.wait()
        pairs = [ld(slot.pairs.at(0, row * PAIR), vec=PAIR) for row in own_rows()]
        self.arrive_empty(slot)
        shifts, totals = zip(*pairs, strict=True)
        return list(shifts), list(totals)


def values_of_row(accs: Sequence[Fragment], half: int) -> list[Any]:
    """Returns this thread's elements of its first or second row, pairs of neighbours eight columns apart."""
    return [value for acc in accs for value in of_row(acc.regs, half)]


def store_part(
    space: Workspace, accs: Sequence[Fragment], slot: Any, column: Any, shifts: Sequence[Any], totals: Any
) -> None:
    """Store this thread's elements of two rows of a part, those of ``accs`` from ``column`` on."""
    for half, row in enumerate(own_rows()):
        values = values_of_row(accs, half)
        with If(row < space.rows):
            at = slot * space.rows + row
            mine = space.sums + (at * space.columns + column + warp.lane % 4 * 2)
            for number, start in enumerate(range(0, len(values), 2)):
                st(mine + 8 * number, *values[start : start + 2])
            with If((warp.lane % 4 == 0) & (column == 0)):
                st(space.pairs + at * 2, shifts[half], totals[half])


def store_tile(
    out: Output, accs: Sequence[Fragment], words: Sequence[Any], places: int, column: Any, shifts: Any, totals: Any
) -> None:
    """Store this thread's elements of two rows of a whole tile, those of ``accs`` from ``column`` on."""
    row, head, *_, batch, heads = words
    for half, at in enumerate(own_rows()):
        query, one = row + at % places, (warp.lane % 4 == 0) & (column == 0)
        with If((at // places < heads) & (query < out.q_len)):
            found = shifts[half], totals[half], values_of_row(accs, half)
            out.store_row(batch, head + at // places, query, column + warp.lane % 4 * 2, found, 2, one)
