"""Steps of the Hopper attention backward with functions, masks and soft caps of a user (`kernels.attention.mods`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warpwright.kernels.attention.index import Index
from warpwright.kernels.attention.mods import Mods, Place, is_affine
from warpwright.kernels.attention.sm90.backward_plan import BackwardConfig
from warpwright.kernels.attention.sm90.backward_steps import (
    BackwardConsumer,
    BackwardScores,
    Memory,
    QueryMask,
    hide_columns,
)
from warpwright.kernels.attention.sm90.block_lists import CUT, HEAD_WORDS, BlockLists
from warpwright.kernels.attention.sm90.steps import LOG2E
from warpwright.kernels.tiles import WARP_ROWS
from warpwright.lang import Expr, Global, If, ex2, fma, ld, loop, min, nctaid, s32, select, u32, var, warp
from warpwright.lang.derivative import times
from warpwright.lang.smem import Tile

__all__ = ["ListedTiles", "ModifiedBackwardConsumer", "ModifiedScores", "scale_of_scores"]


@dataclass(frozen=True)
class ListedTiles:
    """A cursor over the tiles of queries in the lists of a block of keys: those of head ``first_head``, among the heads
    of all batches, then those of the next heads of its group. ``word`` is the index of the current one."""

    lists: BlockLists
    key: Any
    first_head: Any
    count: Any = None
    word: Any = None

    @staticmethod
    def of(
        more: tuple[Any, ...], q_len: Expr, tile: tuple[int, int], group: Expr, key: Any, first_head: Any
    ) -> tuple[ListedTiles, tuple[Any, ...]]:
        """Returns the tiles of the keys from ``key`` on for ``group`` heads from ``first_head`` on, and the captured
        arrays; both are in ``more``, a kernel's parameters from those of `backward.LISTS` on."""
        lists, *steps = more[:3]
        by_keys = BlockLists(Global(u32, lists), q_len, *tile, (steps[0], steps[1]), nctaid.y * group)
        return ListedTiles(by_keys, key, first_head), more[3:]

    def begin(self) -> ListedTiles:
        """Returns a cursor, which `enter` puts at the start of a head."""
        return replace(self, count=var(u32, 0), word=var(u32, 0))

    def total(self, group: Any) -> Any:
        """Returns the number of tiles of ``group`` heads."""
        found = var(u32, 0)
        for number in loop(group):
            found += self.lists.of_tile(self.key, self.first_head + number)[1]
        return found

    def enter(self, number: Any) -> None:
        """Go to the first tile of a head of the group."""
        first, count = self.lists.of_tile(self.key, self.first_head + number)
        self.count.set(count)
        self.word.set(first + HEAD_WORDS)

    def tile_and_cut(self) -> tuple[Any, Any]:
        """Returns the current tile, and whether the mask function cuts it, u32."""
        word = self.lists.words[self.word]
        return word & (CUT - 1), word & CUT

    def advance(self) -> None:
        """Advance to the next tile of the head."""
        self.word.set(self.word + 1)


class ModifiedScores(BackwardScores):
    """Scores of a consumer warpgroup to which `Mods` are applied; a subclass sets ``mods`` and the captured ``arrays``.

    A changed score that is a sum (`is_affine`) becomes the exponent of its weight by one fma for each product, before
    dP is waited for; all of them have the derivative ``factor``. `change_scores` changes other scores a few at a time,
    because there are no registers for the derivatives of all.
    """

    batch: Any
    mods: Mods
    arrays: Sequence[Any]
    factor: Any = 1.0
    changed: Iterator[tuple[Any, Any]] = iter(())

    def compute_weights(self, stage: Any) -> None:
        """Set hidden scores to -inf; replace the scores by the weights unless `change_scores` does."""
        _, head, decided, _ = ld(self.inputs.items.at(stage, 0), vec=4)
        key = self.key + self.number * WARP_ROWS + warp.lane // 4
        place = Place(self.mods, self.arrays, self.batch.to(s32), head.to(s32))
        if is_affine(self.mods):
            self.compute_exponents(place, stage, key)
        self.hide(place, key, decided)
        if is_affine(self.mods):
            self.hide_beyond()
            for register in self.scores.regs:
                register.set(ex2(register))
            return
        shifts = self.of_queries(0, stage)
        if self.mods.changes_scores:
            self.changed = self.change_scores(place, shifts, self.indices(self.row, key))
            return
        for register, shift in zip(self.scores.regs, shifts, strict=True):
            register.set(ex2(fma(register, self.scale, shift)))

    def compute_exponents(self, place: Place, stage: Any, key: Any) -> None:
        """Replace the scores, which become sums, by the exponents of their weights in base 2. What the mask hides may
        have any exponent."""
        shifts, varying = self.of_queries(0, stage), set[str]()
        for register, exponent, (q, k) in zip(self.scores.regs, shifts, self.indices_of_sums(key), strict=True):
            varying |= q.names | k.names
            changed = place.affine(q, k, varying)
            assert changed is not None
            self.factor = changed.factor
            for first, second in changed.products:
                exponent = fma(times(first, LOG2E), second, exponent)
            register.set(fma(register, times(self.factor, self.scale), exponent))

    def hide(self, place: Place, key: Any, decided: Any) -> None:
        """Set the scores of keys to -inf that a query does not see."""
        self.apply_mask()
        if self.mods.mask is not None:
            with If(decided != 0):
                for register, (q, k) in zip(self.scores.regs, self.indices(self.row, key), strict=True):
                    register.set(select(place.sees(q, k), register, float("-inf")))

    def hide_beyond(self) -> None:
        """Set the exponents of the rows of a tile that are past the last query to -inf, so that their weights are 0."""
        with If(self.row + self.queries > self.mask.q_len):
            stop = (self.mask.q_len - self.row).to(s32) - (warp.lane % 4 * 2).to(s32)
            hide_columns(self.scores.regs, [(None, stop)] * 2)

    def change_scores(
        self, place: Place, shifts: Iterator[Any], indices: Iterable[tuple[Any, Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Yields the weight of each score, and the derivative of the changed score by the scaled one; both are 0 for a
        hidden score."""
        for register, shift, (q, k) in zip(self.scores.regs, shifts, indices, strict=True):
            hidden = register == float("-inf")
            score, slope = place.score_and_slope(register * self.scale, q, k)
            weight = select(hidden, 0.0, ex2(fma(score, LOG2E, shift)))
            yield weight, select(hidden, 0.0, slope) if isinstance(slope, Expr) else slope

    def indices(self, row: Any, key: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the query and the key (s32) of each score of this thread; no index is beyond the last one, because
        the functions load from arrays by them."""
        for v in range(len(self.scores.regs)):
            if not self.mods.indexed:
                yield None, None
                continue
            query = row + warp.lane % 4 * 2 + column_of(v)
            of_key = min(key + 8 * (v >> 1 & 1), self.mask.kv_len - 1)
            yield Index.of(min(query, self.mask.q_len - 1).to(s32)), Index.of(of_key.to(s32))

    def indices_of_sums(self, key: Any) -> Iterator[tuple[Index, Index]]:
        """Yields what `indices` does, but as f32 the indices beyond the last ones go on: f32 takes no conversion of
        each index then."""
        left, key = (self.row + warp.lane % 4 * 2).to(s32), key.to(s32)
        ends = [(length - 1).to(s32) for length in (self.mask.q_len, self.mask.kv_len)]
        for v in range(len(self.scores.regs)):
            yield Index.clamped(left, column_of(v), ends[0]), Index.clamped(key, 8 * (v >> 1 & 1), ends[1])


def column_of(v: int) -> int:
    """Returns the column of element ``v`` of a fragment of scores, less that of the thread's first one."""
    return 8 * (v >> 2) + (v & 1)


def scale_of_scores(mods: Mods, scale: Expr) -> Expr:
    """Returns the factor of scores that `ModifiedScores` takes: in base 2 for exponents of unchanged scores and of
    sums."""
    return scale if mods.changes_scores and not is_affine(mods) else scale * LOG2E


class ModifiedBackwardConsumer(ModifiedScores, BackwardConsumer):
    """A consumer warpgroup whose `compute_ds` changes the scores, beside S and dP in registers."""

    def __init__(
        self,
        memory: Memory,
        mask: QueryMask,
        place: tuple[Any, Any],
        scale: Expr,
        config: BackwardConfig,
        mods: Mods,
        arrays: Sequence[Any],
    ) -> None:
        self.batch, key = place
        super().__init__(memory, mask, key, scale_of_scores(mods, scale), config)
        self.mods, self.arrays = mods, arrays
        self.slopes: list[Any] = []

    def compute_ds(self, columns: slice, means: Iterator[Any], ds: Tile) -> None:
        """Change the scores of some columns to weights, then compute dSᵀ of them."""
        self.slopes, some = [], self.scores.regs[columns.start // 2 : columns.stop // 2]
        for register, (weight, slope) in zip(some, self.changed, strict=False):
            register.set(weight)
            self.slopes.append(slope)
        super().compute_ds(columns, means, ds)

    def score_gradients(self, some: slice, mean_of_column: Sequence[Any]) -> list[Any]:
        """Returns dSᵀ of ``some`` elements, times the derivatives of the changed scores."""
        found = super().score_gradients(some, mean_of_column)
        slopes = self.slopes or [self.factor] * len(found)
        return [times(each, slope) for each, slope in zip(found, slopes, strict=True)]
