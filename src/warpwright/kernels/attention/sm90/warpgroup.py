"""A warpgroup of the Hopper attention: 64 queries of a tile, their scores, weights and sums in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpwright.kernels.attention.sm90.steps import (
    STRIP,
    WARP_ROWS,
    WARPS,
    Mask,
    Rings,
    Rows,
    Turns,
    Weighed,
    Work,
    add,
    free,
    put_rows,
    rescale,
    score,
    seen,
    softmax,
    take,
    weights,
    write_lse,
)
from warpwright.lang import Break, Expr, If, b32, elect_one, f32, loop, rcp, select, var, warp, wgmma
from warpwright.lang.ring import Slot

__all__ = ["Warpgroup"]


class Warpgroup:
    """What one of ``consumers`` warpgroups holds; each method is a part of its work, emitted where it is called.

    Products that are under way at the end of a method are waited for in the next one that says so.
    """

    apart = 8  # queries between a thread's two rows

    def __init__(
        self,
        rings: Rings,
        mask: Mask,
        scale: Expr,
        consumers: int,
        *,
        in_turn: bool,
        together: bool,
        at: Work | None = None,
    ) -> None:
        self.rings, self.mask, self.scale, self.together = rings, mask, scale, together
        self.turns, self.one, self.strip = Turns(consumers, in_turn), elect_one(), warp.id - WARPS
        self.leads = self.one & (warp.id % WARPS == 0)
        keys, columns = rings.v.members["v"].shape
        self.dtype = rings.v.members["v"].dtype
        self.scores = wgmma.accumulator(f32, (STRIP, keys))
        self.sums = wgmma.accumulator(f32, (STRIP, columns))
        self.held, self.rows = [var(b32, 0) for _ in range(keys // 4)], Rows()
        self.at = at or Work.begin(mask.begin is not None)
        self.items, self.of_q, self.of_k, self.of_v = (
            ring.consumer() for ring in (rings.work, rings.q, rings.k, rings.v)
        )

    @property
    def row(self) -> Any:
        """The first of this thread's two rows among the queries of the head."""
        return self.at.row + self.strip * WARP_ROWS + warp.lane // 4

    def tiles(self, first: Sequence[Any], lse: Expr, q_len: Any) -> None:
        """All tiles of a CTA from the ``first`` on, one after the other."""
        beside = self.rings.q.stages > 1  # else Q leaves no room for the next one before O has taken its place
        self.go_to(first)
        self.begin_scores()
        self.first_weights()
        for _ in loop():
            self.blocks()
            following = self.take()
            if not beside:
                self.last_values()
                self.finish(lse, q_len)
            Break(when=following[3] == 0)
            if beside:
                self.last_values()
                self.turn_over(following, lse, q_len)
            else:
                self.go_to(following)
                self.begin_scores()
            self.first_weights()
        if beside:
            self.last_values()
            self.finish(lse, q_len)

    def take(self) -> tuple[Any, ...]:
        """What the loader says of the tile after this one."""
        return take(self.items, self.one)

    def go_to(self, following: Sequence[Any]) -> None:
        """Make it this one."""
        self.at.set(following)

    def begin_scores(self) -> None:
        """Begin the scores of a tile's first block, when Q and K are there."""
        self.of_q.peek().full.wait()
        self._scores(self.of_k.peek())
        self.turns.pass_on()

    def first_weights(self) -> None:
        """Wait for them, and their softmax."""
        wgmma.wait_group(0)
        free(next(self.of_k), self.leads)
        weights(self.dtype, self.held, self._softmax(True, 0)[0])

    def blocks(self) -> None:
        """The tile's other blocks: scores, values of the block before, softmax."""
        start: Any = 1
        for masked, stop in self.mask.runs(self.at.row + self.turns.own * STRIP, self.at.first, self.at.count):
            for number in loop(start, stop):
                slot_k, slot_v = next(self.of_k), next(self.of_v)
                self._scores(slot_k)
                self._values(slot_v, number > 1)
                self.turns.pass_on()
                wgmma.wait_group(1)
                free(slot_k, self.leads)
                values, factors, grown = self._softmax(masked, number)
                wgmma.wait_group(0)
                free(slot_v, self.leads)
                weights(self.dtype, self.held, values)
                for changed, halves in grown:
                    with If(changed):
                        rescale(self.sums, factors, halves)
            start = stop

    def last_values(self) -> None:
        """Begin to add the values of the tile's last block."""
        self._values(self.of_v.peek(), self.at.count > 1)

    def finish(self, lse: Expr, q_len: Expr) -> None:
        """Wait for them; O into the slot of Q."""
        factors = self._end_rows(lse, q_len)
        wgmma.wait_group(0)
        self._put(next(self.of_q), factors)

    def turn_over(self, following: Sequence[Any], lse: Expr, q_len: Expr) -> None:
        """The same while the first scores of the ``following`` tile begin."""
        slot = next(self.of_q)
        self.begin_scores()
        factors = self._end_rows(lse, q_len)
        self.go_to(following)
        wgmma.wait_group(1)
        self._put(slot, factors)

    def _scores(self, slot: Any) -> None:
        slot.full.wait()
        self.turns.wait()
        score(self.scores, self.of_q.peek().q, self.turns.own, slot.k)

    def _values(self, slot: Any, more: Expr) -> None:
        slot.full.wait()
        add(self.sums, self.held, slot.v, more)

    def _softmax(self, masked: bool, number: Any) -> Weighed:
        """Of the ``number``-th block from the last one on."""
        values: list[Any] = self.scores.regs
        if masked:
            block = (self.at.first + self.at.count - 1 - number) * self.mask.keys
            values = seen(self.mask, values, self.row, block, self.apart)
        return softmax(values, self.rows, self.scale, self.together)

    def _end_rows(self, lse: Expr, q_len: Expr) -> list[Any]:
        """What the rows of O are to be multiplied by; their log-sum-exp is written. A row without weights becomes 0."""
        shifts, totals = self.rows.begin()
        with If(lse != 0):
            write_lse(self.at.logs(lse, q_len), self.row, q_len, shifts, totals)
        return [select(total == 0.0, total, rcp(total)) for total in totals]

    def _put(self, slot: Any, factors: Sequence[Any]) -> None:
        free(next(self.of_v), self.leads)
        rescale(self.sums, factors)
        put_rows(self.sums, slot.q, self.strip, Slot(self.rings.o, slot.stage, slot.phase).full, self.one)
