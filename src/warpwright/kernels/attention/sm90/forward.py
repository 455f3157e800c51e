"""Attention forward on Hopper: O = softmax(scale · Q·Kᵀ)·V and the log-sum-exp of the scores.

A CTA takes tiles of queries of one head. Each consumer warpgroup has 64 queries; key/value blocks come from the last
one that a query sees to the first. PV of the block before runs on the tensor cores during the softmax of this block,
and P stays in registers. ``scale`` has the factor log2 e: all powers are of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from warpwright.kernels.attention.sm90.plan import CONFIGS, STRIP, WARPGROUP, Config
from warpwright.kernels.attention.sm90.softmax import (
    HALVES,
    BlockSoftmax,
    BranchingSoftmax,
    IntegerSoftmax,
    OnlineSoftmax,
    add_sink,
    nothing,
)
from warpwright.kernels.attention.sm90.steps import (
    CurrentTile,
    Mask,
    Rings,
    apply_mask,
    init_barriers,
    issue_rs,
    issue_ss,
    load_when_empty,
    pack_weights,
    publish_when_empty,
    read_item,
    rescale,
    schedule,
    store_panels,
    store_rows,
    write_lse,
)
from warpwright.kernels.tiles import WARP_ROWS, WARPS, WGMMA_BYTES
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    atom,
    b32,
    bar,
    bf16,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    loop,
    mbarrier,
    nctaid,
    rcp,
    role,
    s32,
    select,
    setmaxnreg,
    shfl,
    tma,
    u32,
    u64,
    var,
    warp,
    wgmma,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["REGISTERS", "Consumer", "attention"]

REGISTERS = {1: (56, 256), 2: (24, 240), 3: (32, 160)}  # by consumers: of the loading warpgroup, of a consumer
TURN = 1  # the first of the named barriers that order the consumers, one for each


@kernel("sm_90a", threads=384)
def attention(
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
    *,
    config: Config = CONFIGS["128: 128x128"],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles in the order of their numbers.

    The numbers count ``tiles`` tiles of queries of each of ``section`` heads, the heads of a section side by side; with
    a right bound from the last queries on, which see most keys. With the address of a ``counter`` a CTA takes its next
    number by an atomic operation shortly before the end of a tile, and the last one resets the counter to 0; without it
    CTAs take every n-th number. O leaves through the slot of Q.

    role      warps  moves                              waits for          signals
    load      0      numbers -> `work`; Q, K, V         empty of each      full of each
    multiply  4-     Q, K, V -> registers -> slot of Q  full of each       empty of K and V, o.full
    save      1      slot of Q -> O                     o.full             q.empty
    """
    (queries, keys), consumers = config.tile, config.consumers
    rings = Rings.of(config, dtype)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    init_barriers(rings, (q, k, v, o))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        number = var(u32, ctaid.x)
        for _ in loop():
            Break(when=number >= total)
            row, head = schedule(number, tiles, section, queries, bounds[1])
            first, count = mask.blocks(row, queries)
            publish_when_empty(items, (row, head, first, count))
            batch, own = head // heads, head % heads
            of, last = (batch, own // group), (first + count - 1) * keys
            # K of the last block and Q, then K a block ahead of V.
            load_when_empty(to_k, "k", k, *of, last)
            load_when_empty(to_q, "q", q, batch, own, row)
            for step in loop(1, count):
                load_when_empty(to_k, "k", k, *of, last - step * keys)
                load_when_empty(to_v, "v", v, *of, last - (step - 1) * keys)
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.inc(Global(u32, counter), total - 1))
            load_when_empty(to_v, "v", v, *of, first * keys)
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
            store_panels(slot.q[:, : config.columns], o, head // heads, head % heads, row)
            tma.commit_group()
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        consumer = Consumer(rings, mask, scale, config)
        consumer.run(consumer.wait_item(), lse, q_len)


class Consumer:
    """A consumer warpgroup: 64 queries of a tile, with their scores, weights P and output O in registers.

    A method that issues a wgmma group leaves it in flight; the ``wait_group`` stands where the result is used.
    """

    apart = 8  # queries between a thread's two rows
    rescales_late = True  # consumers in turn rescale O when QKᵀ of the next block has been issued

    def __init__(self, rings: Rings, mask: Mask, scale: Expr, config: Config, tile: CurrentTile | None = None) -> None:
        self.rings, self.mask, self.scale, self.config = rings, mask, scale, config
        self.own = shfl.idx(warp.id // WARPS - 1, 0)
        self.following = select(self.own == config.consumers - 1, self.own * 0, self.own + 1)
        if config.in_turn:  # the last warpgroup opens the barrier of the first one
            with If(self.own == config.consumers - 1):
                bar.arrive(TURN, 2 * WARPGROUP)
        self.strip = warp.id - WARPS
        self.leader = elect_one() & (warp.id % WARPS == 0)
        self.dtype = rings.q.members["q"].dtype
        self.scores = wgmma.accumulator(f32, (STRIP, config.tile[1]))
        self.out = wgmma.accumulator(f32, (STRIP, config.columns))
        self.late = var(u32, 0) if config.in_turn and self.rescales_late else None
        self.factors = [var(f32, 1.0) for _ in HALVES] if self.late is not None else []
        steps = config.tile[1] * self.dtype.nbytes // WGMMA_BYTES  # of PV
        self.early = slice(0, steps // 2 if config.splits else steps)
        words = config.tile[1] * self.dtype.nbytes // 8  # of a thread's weights
        self.weights, self.softmax = [var(b32, 0) for _ in range(words)], self.new_softmax(config)
        self.tile = tile or CurrentTile.of(mask.begin is not None)
        self.items, self.of_q, self.of_k, self.of_v = (
            ring.consumer() for ring in (rings.work, rings.q, rings.k, rings.v)
        )

    def new_softmax(self, config: Config) -> OnlineSoftmax:
        """Returns the softmax state of this thread's rows."""
        if config.splits:
            return IntegerSoftmax()
        return BranchingSoftmax() if config.branches else OnlineSoftmax()

    @property
    def overlaps(self) -> bool:
        """Whether the next tile's first QKᵀ runs during the epilogue; else its Q has no slot until O has left."""
        return self.rings.q.stages > 1

    @property
    def row(self) -> Any:
        """The query of the first of this thread's two rows."""
        return self.tile.row + self.strip * WARP_ROWS + warp.lane // 4

    def run(self, item: Sequence[Any], lse: Expr, q_len: Any) -> None:
        """Compute all tiles of a CTA: that of ``item``, then those that the ring `work` brings."""
        self.tile.set(item)
        self.wait_and_issue_first_scores()
        self.wait_first_scores()
        for _ in loop():
            self.mainloop()
            self.release_queries(0)
            following = self.wait_item()
            if self.overlaps:
                Break(when=following[3] == 0)
                self.wait_and_issue_last_values()
                slot = next(self.of_q)
                self.wait_and_issue_first_scores()  # of the following tile, during the epilogue of this one
                factors = self.finish_softmax(lse, q_len)
                self.tile.set(following)
                wgmma.wait_group(1)
                self.epilogue(slot, factors)
            else:
                self.wait_and_issue_last_values()
                factors = self.finish_softmax(lse, q_len)
                wgmma.wait_group(0)
                self.epilogue(next(self.of_q), factors)
                Break(when=following[3] == 0)
                self.tile.set(following)
                self.wait_and_issue_first_scores()
            self.wait_first_scores()
        if self.overlaps:
            self.wait_and_issue_last_values()
            factors = self.finish_softmax(lse, q_len)
            wgmma.wait_group(0)
            self.epilogue(next(self.of_q), factors)

    def wait_item(self) -> tuple[Any, ...]:
        """Wait for the item of the next tile, read it and arrive on its empty barrier."""
        item = next(self.items)
        item.full.wait()
        words = read_item(item)
        warp.sync()
        with If(elect_one()):
            item.empty.arrive()
        return words

    def wait_and_issue_scores(self, slot: Slot) -> None:
        """Wait for K in ``slot`` and for this warpgroup's turn, then issue QKᵀ."""
        slot.full.wait()
        self.wait_turn()
        issue_ss(self.scores, self.of_q.peek().q, self.own, slot.k)

    def wait_and_issue_values(self, slot: Slot, accumulate: Any, steps: slice = slice(None)) -> None:
        """Wait for V in ``slot``, then issue O += P·V, those ``steps`` of K; O = P·V where not ``accumulate``."""
        slot.full.wait()
        self.issue_values(slot, accumulate, steps)

    def issue_values(self, slot: Slot, accumulate: Any, steps: slice) -> None:
        """Issue the ``steps`` of PV whose V has come."""
        issue_rs(self.out, self.weights, slot.v, accumulate, steps=steps)

    def issue_later_values(self, slot: Slot) -> None:
        """Issue the second part of PV and pass the turn, if this configuration splits PV."""
        if self.config.splits:
            self.issue_values(slot, True, slice(self.early.stop, None))
            self.arrive_turn()

    def wait_and_issue_last_values(self) -> None:
        """Wait for V of a tile's last block, then issue PV."""
        self.rescale_late()
        self.wait_and_issue_values(self.of_v.peek(), self.tile.count > 1)

    def prepare_sums(self, number: Any) -> Any:
        """Rescale O if iteration ``number`` of `mainloop` has to; returns whether PV of the block before adds to O."""
        self.rescale_late()
        return number > 1

    def rescale_late(self) -> None:
        """Rescale O where a row max has grown in the block before."""
        if self.late is not None:
            with If(self.late != 0):
                rescale(self.out, self.factors)
            self.late.set(0)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Round the weights P and pack them into the A operand of PV."""
        pack_weights(self.weights, weights, self.dtype)

    def rescale_sums(self, factors: Sequence[Any], grown: Expr) -> None:
        """Rescale O of earlier blocks in the warps whose row max has grown, or keep the factors for `rescale_late`."""
        if self.late is None:
            with If(grown):
                rescale(self.out, factors)
            return
        for kept, factor in zip(self.factors, factors, strict=True):
            kept.set(factor)
        self.late.set(grown.to(u32))

    def release_queries(self, number: Any) -> None:
        """Nothing here, where O leaves through the slot of Q and the role `save` arrives on empty."""

    def wait_turn(self) -> None:
        """Wait on this warpgroup's named barrier until the one before has issued its wgmmas."""
        if self.config.in_turn:
            bar.sync(self.own + TURN, 2 * WARPGROUP)

    def arrive_turn(self) -> None:
        """Arrive on the named barrier of the following warpgroup, which multiplies during the softmax of this one."""
        if self.config.in_turn:
            bar.arrive(self.following + TURN, 2 * WARPGROUP)

    def wait_and_issue_first_scores(self) -> None:
        """Wait for Q and K of a tile's first block, then issue QKᵀ."""
        self.of_q.peek().full.wait()
        self.wait_and_issue_scores(self.of_k.peek())
        self.arrive_turn()

    def wait_first_scores(self) -> None:
        """Wait for the scores of a tile's first block, arrive on empty of its K, and compute the softmax."""
        wgmma.wait_group(0)
        self.arrive_empty(next(self.of_k))
        self.set_weights(self.block_softmax(True, 0).weights)

    def mainloop(self) -> None:
        """The tile's other blocks: issue QKᵀ of this block and PV of the block before, then softmax, then rescale O."""
        start: Any = 1
        for masked, stop in self.runs():
            for number in loop(start, stop):
                slot_k, slot_v = next(self.of_k), next(self.of_v)
                self.wait_and_issue_scores(slot_k)
                self.wait_and_issue_values(slot_v, self.prepare_sums(number), self.early)
                if not self.config.splits:
                    self.arrive_turn()
                # The scores are there, PV may still be in flight.
                wgmma.wait_group(1)
                self.arrive_empty(slot_k)
                self.release_queries(number)
                weights, factors, grown = self.block_softmax(masked, number, partial(self.issue_later_values, slot_v))
                # PV is done: the registers of P and O are free to change.
                wgmma.wait_group(0)
                self.arrive_empty(slot_v)
                self.set_weights(weights)
                self.rescale_sums(factors, grown)
            start = stop

    def runs(self) -> list[tuple[bool, Any]]:
        """Returns the tile's blocks after the first as runs: whether to mask, and the number of the block after it."""
        return self.mask.runs(self.tile.row + self.own * STRIP, self.tile.first, self.tile.count)

    def block_softmax(self, masked: bool, number: Any, after_maxima: Callable[[], None] = nothing) -> BlockSoftmax:
        """Returns the weights and factors of the ``number``-th block, counted from the last one."""
        scores: list[Any] = self.scores.regs
        if masked:
            block = (self.tile.first + self.tile.count - 1 - number) * self.mask.keys
            scores = self.hide_keys(scores, block)
        return self.softmax.block(scores, self.scale, after_maxima)

    def hide_keys(self, scores: list[Any], block: Any) -> list[Any]:
        """Returns the scores of the block that begins at key ``block``, -inf where a query does not see the key; in the
        same registers without bounds, where only a block that reaches past the last key takes the branch."""
        if self.mask.begin is not None or self.mask.end is not None:
            return apply_mask(self.mask, scores, self.row, block, self.apart)
        with If(block + self.mask.keys > self.mask.kv_len):
            masked = apply_mask(self.mask, scores, self.row, block, self.apart)
            for register, score in zip(scores, masked, strict=True):
                register.set(score)
        return scores

    def sink(self) -> Any:
        """Returns the sink of the tile's head times log2 e, or None without sinks."""
        return None

    def finish_softmax(self, lse: Expr, q_len: Any) -> list[Any]:
        """Write the log-sum-exp, with the sink; returns the factors of O, 0 for a row without weights."""
        sink, kept = self.sink(), None
        shifts, totals = self.softmax.reset()
        if sink is not None:
            shifts, totals, kept = add_sink(sink, shifts, totals)
        with If(lse != 0):
            write_lse(self.tile.lse_rows(lse, q_len), self.row, q_len, shifts, totals)
        if kept is None:
            return [select(total == 0.0, total, rcp(total)) for total in totals]
        return [select(total == 0.0, total, f * rcp(total)) for f, total in zip(kept, totals, strict=True)]

    def epilogue(self, slot: Slot, factors: Sequence[Any]) -> None:
        """Divide O by the row sums and hand it to the role `save` in the slot of Q."""
        self.arrive_empty(next(self.of_v))
        self.arrive_stored(self.store_output(slot, factors))

    def arrive_empty(self, *slots: Slot) -> None:
        """Arrive on empty of ``slots`` of K or V."""
        with If(self.leader):
            for slot in slots:
                slot.empty.arrive()

    def store_output(self, slot: Slot, factors: Sequence[Any]) -> mbarrier:
        """Divide O by the row sums and store it in the slot of Q; returns the full barrier of O."""
        rescale(self.out, factors)
        tile, full = slot.q[:, : self.config.columns], Slot(self.rings.o, slot.stage, slot.phase).full
        store_rows(self.out, tile, self.strip)
        return full

    def arrive_stored(self, full: mbarrier) -> None:
        """Arrive on full of O for the role `save`, whose TMA reads what this warp has stored."""
        fence.proxy_async()
        warp.sync()
        with If(elect_one()):
            full.arrive()
