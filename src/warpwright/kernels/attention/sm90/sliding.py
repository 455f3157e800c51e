"""Attention forward on Hopper in a causal window of whole key blocks: both ends of a window share one softmax.

128 queries see blocks of 128 keys: block D on the diagonal, M1 … Mn before it, and L, the first one. Query i sees
columns 0 … i of D and columns i + 1 … 127 of L. So D and L together have as many visible scores as one block, and one
softmax takes those of D where a query sees D, and those of L elsewhere. A warpgroup multiplies both blocks only in the
64 columns that its own queries' diagonals cross; in the other 64 it sees all of one block and nothing of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from warpwright.kernels.attention.sm90.forward import REGISTERS, Consumer
from warpwright.kernels.attention.sm90.plan import SLIDING, STRIP, Config
from warpwright.kernels.attention.sm90.softmax import HALVES, BranchingSoftmax
from warpwright.kernels.attention.sm90.steps import (
    LOG2E,
    Mask,
    Rings,
    init_barriers,
    issue_rs,
    issue_ss,
    load_when_empty,
    panel,
    publish_when_empty,
    read_item,
    schedule,
    store_panels,
)
from warpwright.kernels.tiles import WARP_ROWS, WARPS, WGMMA_BYTES, part, window
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Kernel,
    Ring,
    Var,
    atom,
    b32,
    bar,
    bf16,
    ctaid,
    cvt,
    f32,
    kernel,
    loop,
    max,
    min,
    nctaid,
    prmt,
    role,
    s32,
    select,
    setmaxnreg,
    smem,
    tma,
    u32,
    u64,
    var,
    vote,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["attention_sliding", "with_sinks"]

STEP = WGMMA_BYTES // bf16.nbytes  # keys of one wgmma of PV
PAIRS = STRIP // 8  # of neighbouring columns that a thread has of 64
SIGNS = 0x9988, 0xBBAA  # prmt: both halves of a word from the signs of bytes 0 and 1; of bytes 2 and 3


@kernel("sm_90a", threads=384)
def attention_sliding(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    counter: u64,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    heads: u32,
    group: u32,
    tiles: u32,
    total: u32,
    section: u32,
    scale: f32,
    *sinks: Any,
    config: Config = SLIDING,
    bounds: tuple[bool, bool] = (True, True),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles in the order of their numbers, as in `sm90.forward.attention`, but the tiles whose
    window begins before the first key last, those of all heads side by side (`schedule_short_last`).

    Query i sees the keys ``begin`` + i … ``end`` + i - 1: two blocks or more, and as many as a multiple of a block.
    ``end`` - 1 is such a multiple too. Keys before the first one are zeros that TMA fills in. ``sinks`` is empty or the
    address of one f32 a head (`with_sinks`).

    role      warps  moves                              waits for          signals
    load      0      numbers -> `work`; Q; K, V -> `kv` empty of each      full of each
    multiply  4-     Q, K, V -> registers -> slot of Q  full of each       empty of `kv`, o.full
    save      1      slot of Q -> O                     o.full             q.empty
    """
    (queries, keys), consumers = config.tile, config.consumers
    rings = rings_of(config, dtype)
    mask = Mask(kv_len, begin, end, keys)
    init_barriers((rings.work, rings.q, rings.o, rings.k), (q, k, v, o))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_kv = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k)]
        number = var(u32, ctaid.x)
        short = min(max(1 - begin, 0).to(u32) // queries, tiles)
        for _ in loop():
            Break(when=number >= total)
            row, head = schedule_short_last(number, tiles, short, section, total // tiles, queries)
            diagonal, left = row.to(s32) + (end - 1), row.to(s32) + (begin - 1)
            count = max(min(diagonal, end - begin - keys).to(u32) // keys, 1)
            publish_when_empty(items, (row, head, 0, count))
            batch, own = head // heads, head % heads
            of = batch, own // group
            # In the order of their use: K of D and L, K of M1 with V of D and L, then K a block ahead of V.
            load_when_empty(to_kv, "kv", k, *of, diagonal)
            load_when_empty(to_q, "q", q, batch, own, row)
            load_when_empty(to_kv, "kv", k, *of, left)
            load_when_empty(to_kv, "kv", k, *of, diagonal - keys)
            load_when_empty(to_kv, "kv", v, *of, diagonal)
            load_when_empty(to_kv, "kv", v, *of, left)
            middle = var(s32, diagonal - keys)
            for _step in loop(1, count):
                load_when_empty(to_kv, "kv", k, *of, middle - keys)
                load_when_empty(to_kv, "kv", v, *of, middle)
                middle -= keys
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.inc(Global(u32, counter), total - 1))
            load_when_empty(to_kv, "kv", v, *of, middle)
            number.set(taken + nctaid.x)
        publish_when_empty(items, (0, 0, 0, 0))
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warp=1, elect=True)
    def save() -> None:
        items, of_q = rings.work.consumer(), rings.q.consumer()
        for _ in loop():
            item = next(items)
            item.full.wait()
            row, head, _, count = read_item(item)
            item.empty.arrive()
            Break(when=count == 0)
            slot = next(of_q)
            Slot(rings.o, slot.stage, slot.phase).full.wait()
            store_panels(slot.q, o, head // heads, head % heads, row)
            tma.commit_group()
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        consumer = SlidingConsumer(rings, mask, scale, config, sinks, heads)
        consumer.run(consumer.wait_item(), lse, q_len)


def schedule_short_last(number: Any, tiles: Any, short: Any, section: Any, heads: Any, queries: int) -> tuple[Any, Any]:
    """Returns the first query and the head of tile ``number``, where the first ``short`` of a head's tiles see fewer
    keys: the others of ``section`` heads side by side, then the short ones of all ``heads``, the longest ones first."""
    long = tiles - short
    is_long = number < long * heads
    within = select(is_long, number, number - long * heads)
    row, head = schedule(within, select(is_long, long, short), select(is_long, section, heads), queries, True)
    return row + select(is_long, short * queries, 0), head


def rings_of(config: Config, dtype: type[Scalar]) -> Rings:
    """Returns the rings of a CTA, in which blocks of K and of V are in one ring, in the order of their use."""
    shape = config.tile[1], config.head_dim
    tile = smem.tile(dtype, shape, swizzle=panel(shape[1]) * dtype.nbytes)
    both = Ring(config.stages, empty=config.consumers, name="kv", kv=tile)
    return Rings.of(config, dtype)._replace(k=both, v=both)


class SlidingConsumer(Consumer):
    """A consumer warpgroup whose first softmax is that of blocks D and L.

    ``upper`` says whether its queries are the last 64 of a tile. ``diagonal`` and ``left`` are the scores of D and L in
    the 64 columns of its own diagonals, ``other`` those in the other 64, of the block that it sees there. The tile's
    ``count`` is that of blocks M, at least one.
    """

    softmax: BranchingSoftmax

    def __init__(self, rings: Rings, mask: Mask, scale: Expr, config: Config, sinks: Any, heads: Expr) -> None:
        super().__init__(rings, mask, scale, config)
        self.sinks, self.heads = sinks, heads
        # A vote has the same result in all threads, so addresses that depend on it are in uniform registers.
        self.upper = vote.any(warp.id >= WARPS + WARPS)
        self.own = select(self.upper, cvt(1, u32), cvt(0, u32))
        self.masks = self.masks_of_d()
        # Registers of their own: ptxas serialises wgmmas into a part of an accumulator.
        self.diagonal, self.left, self.other = (wgmma.accumulator(f32, (STRIP, STRIP)) for _ in range(3))
        self.kept_sink = var(f32, 0.0) if sinks else None
        self.left_weights = [var(b32, 0) for _ in range(len(self.weights) // 2)]
        self.of_kv = self.of_k = self.of_v

    def new_softmax(self, config: Config) -> BranchingSoftmax:
        """Returns the softmax state of this thread's rows."""
        return BranchingSoftmax()

    def run(self, item: Sequence[Any], lse: Expr, q_len: Any) -> None:
        """Compute all tiles of a CTA: that of ``item``, then those that the ring `work` brings."""
        self.set_tile(item)
        self.of_q.peek().full.wait()
        ends = next(self.of_kv), next(self.of_kv)
        self.wait_turn()
        self.wait_and_issue_diagonal(ends[0])
        self.wait_and_issue_left(*ends)
        self.wait_scores_of_ends(ends)
        for _ in loop():
            self.mainloop()
            following = self.wait_item()
            Break(when=following[3] == 0)
            last, slot = next(self.of_kv), next(self.of_q)
            ends = next(self.of_kv), next(self.of_kv)
            self.rescale_late()
            self.wait_turn()
            self.wait_and_issue_values(last, True)
            self.of_q.peek().full.wait()
            self.wait_and_issue_diagonal(ends[0])  # of the following tile
            factors = self.finish_softmax(lse, q_len)
            self.set_tile(following)
            wgmma.wait_group(1)
            self.arrive_empty(last)
            stored = self.store_output(slot, factors)
            # Eight wgmmas at a time: with more of them in the queue the warps would hang in the issue.
            self.wait_and_issue_left(*ends)
            self.arrive_stored(stored)
            self.wait_scores_of_ends(ends)
        self.rescale_late()
        last = next(self.of_kv)
        self.wait_and_issue_values(last, True)
        factors = self.finish_softmax(lse, q_len)
        wgmma.wait_group(0)
        self.arrive_empty(last)
        self.arrive_stored(self.store_output(next(self.of_q), factors))

    def wait_and_issue_diagonal(self, slot_d: Slot) -> None:
        """Wait for K of block D, then issue QKᵀ of the columns of this warpgroup's own diagonals."""
        slot_d.full.wait()
        wgmma.fence()
        self.issue_half_scores(self.diagonal, part(slot_d.kv, self.own, STRIP, "k"))
        wgmma.commit_group()

    def wait_and_issue_left(self, slot_d: Slot, slot_l: Slot) -> None:
        """Wait for K of block L, issue QKᵀ of both halves, then arrive for the other warpgroup's turn."""
        slot_l.full.wait()
        with If(self.has_left()):
            wgmma.fence()
            self.issue_half_scores(self.left, part(slot_l.kv, self.own, STRIP, "k"))
            wgmma.commit_group()
        wgmma.fence()
        self.issue_half_scores(self.other, self.other_half(slot_d, slot_l))
        wgmma.commit_group()
        self.arrive_turn()

    def issue_half_scores(self, scores: Fragment, keys: Tile) -> None:
        """Issue QKᵀ of 64 keys, as part of a group that the caller commits."""
        rows = part(self.of_q.peek().q, self.own, STRIP, "k")
        for kk in range(0, keys.shape[1], STEP):
            wgmma.mma(scores, window(rows, kk, "k"), window(keys, kk, "k"), accumulate=kk > 0)

    def other_half(self, slot_d: Slot, slot_l: Slot) -> Tile:
        """Returns the other 64 rows of K or V: the first ones of D for the last queries, else the last ones of L."""
        of_d, of_l = part(slot_d.kv, 0, STRIP, "k"), part(slot_l.kv, 1, STRIP, "k")
        return of_d.placed(select(self.upper, of_d.address, of_l.address), 0)

    def wait_scores_of_ends(self, ends: Sequence[Slot]) -> None:
        """Wait for the scores of blocks D and L, arrive on empty of their K, and compute the softmax of both."""
        wgmma.wait_group(0)
        self.arrive_empty(*ends)
        self.hide_left()
        of_d = [self.masks[v >> 1 & 1] & bit_of(v // 4, v % 2) != 0 for v in range(len(self.diagonal.regs))]
        scores = [select(*each) for each in zip(of_d, self.diagonal.regs, self.left.regs, strict=True)]
        self.set_weights(self.softmax.first([*scores, *self.other.regs], self.scale))
        self.split_weights()

    def has_left(self) -> Expr:
        """Returns whether block L is not before the first key; a vote, so that the branch around wgmmas is uniform."""
        return vote.any(self.tile.row.to(s32) + self.mask.begin > 0)

    def hide_left(self) -> None:
        """Set the scores of block L to -inf if it is before the first key."""
        with If(~self.has_left()):
            hide_all(self.left)
            with If(~self.upper):
                hide_all(self.other)

    def masks_of_d(self) -> list[Var]:
        """Returns a word for each of this thread's two rows: `bit_of` is set for columns that the row sees in D."""
        words = [var(u32, 0) for _ in HALVES]
        for half, word in enumerate(words):
            row, first = warp.id % WARPS * WARP_ROWS + warp.lane // 4 + self.apart * half, warp.lane % 4 * 2
            for pair, odd in product(range(PAIRS), range(2)):
                word.set(word | select(row >= first + (8 * pair + odd), cvt(bit_of(pair, odd), u32), cvt(0, u32)))
        return words

    def split_weights(self) -> None:
        """Split the weights of the own 64 columns: ``weights`` keeps those of D, ``left_weights`` gets those of L."""
        for number, rest in enumerate(self.left_weights):
            (pair, half), register = divmod(number, len(HALVES)), self.weights[number]
            signs, both = self.masks[half] << pair // 2, register.to(b32)
            own = both & prmt(signs, signs, SIGNS[pair % 2])
            register.set(own)
            rest.set(both ^ own)

    def set_tile(self, item: Sequence[Any]) -> None:
        """Take the tile of an item and load the sink of its head, which comes long before the tile's end."""
        self.tile.set(item)
        if self.kept_sink is not None:
            self.kept_sink.set(Global(f32, self.sinks[0])[self.tile.head % self.heads])

    def sink(self) -> Any:
        """Returns the sink of the tile's head times log2 e, or None without sinks."""
        return None if self.kept_sink is None else self.kept_sink * LOG2E

    def mainloop(self) -> None:
        """The tile's blocks M: issue QKᵀ of this block and PV of the block before, then softmax, then rescale O."""
        self.first_middle()
        super().mainloop()

    def first_middle(self) -> None:
        """Block M1, with PV of blocks D and L, a part of it after the maxima."""
        slot_k, slot_d, slot_l = (next(self.of_kv) for _ in range(3))
        self.wait_and_issue_scores(slot_k)
        slot_d.full.wait()
        slot_l.full.wait()
        wgmma.fence()
        half = len(self.left_weights)
        self.issue_half_values(self.weights[:half], part(slot_d.kv, self.own, STRIP, "k"), False)
        self.issue_half_values(self.weights[half:], self.other_half(slot_d, slot_l), True)
        wgmma.commit_group()
        wgmma.wait_group(1)
        self.arrive_empty(slot_k)
        with If(self.tile.row.to(s32) + self.mask.end <= self.mask.keys):  # the first queries have no M1
            hide_all(self.scores)
        later = partial(self.issue_left_values, slot_l)
        weights, factors, grown = self.softmax.block(self.scores.regs, self.scale, later)
        wgmma.wait_group(0)
        self.arrive_empty(slot_d, slot_l)
        self.set_weights(weights)
        self.rescale_sums(factors, grown)

    def issue_half_values(self, weights: Sequence[Any], values: Tile, accumulate: bool) -> None:
        """Issue O += P·V of 64 keys, or O = P·V, as part of a group that the caller commits."""
        for step in range(STRIP // STEP):
            left = wgmma.left(self.dtype, weights[4 * step : 4 * step + 4])
            wgmma.mma(self.out, left, window(values, step * STEP, "mn"), accumulate=accumulate or step > 0)

    def issue_left_values(self, slot_l: Slot) -> None:
        """Issue O += P·V of block L in this warpgroup's own 64 columns, then arrive for the other warpgroup's turn."""
        with If(self.has_left()):
            wgmma.fence()
            self.issue_half_values(self.left_weights, part(slot_l.kv, self.own, STRIP, "k"), True)
            wgmma.commit_group()
        self.arrive_turn()

    def runs(self) -> list[tuple[bool, Any]]:
        """Returns blocks M2 … Mn as one run without a mask."""
        return [(False, self.tile.count)]

    def prepare_sums(self, number: Any) -> bool:
        """Rescale O if a row max has grown; returns that PV of the block before adds to O."""
        self.rescale_late()
        return True

    def wait_and_issue_scores(self, slot: Slot) -> None:
        """Wait for K in ``slot`` and for this warpgroup's turn, then issue QKᵀ."""
        slot.full.wait()
        self.wait_turn()
        issue_ss(self.scores, self.of_q.peek().q, self.own, slot.kv)

    def issue_values(self, slot: Slot, accumulate: Any, steps: slice) -> None:
        """Issue the ``steps`` of PV whose V has come."""
        issue_rs(self.out, self.weights, slot.kv, accumulate, steps=steps)


def with_sinks(config: Config) -> Kernel:
    """Returns the kernel with the address of sinks as its last parameter; configure ``dtype`` on it."""
    return attention_sliding.with_params(sinks=u64).configure(config=config, threads=config.threads)


def bit_of(pair: int, odd: int) -> int:
    """Returns the bit of a column, the first or (``odd``) the second of a pair, in a word of masks. Shifted left by
    ``pair`` // 2, the word has an even pair in the signs of bytes 0 and 1, an odd one in those of bytes 2 and 3."""
    return 1 << (8 * (pair % 2 * 2 + odd) + 7 - pair // 2)


def hide_all(scores: Fragment) -> None:
    """Set all scores to -inf."""
    for score in scores.regs:
        score.set(float("-inf"))
