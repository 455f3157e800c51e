"""The online softmax of Hopper attention: row maxima, weights and row sums of key blocks, in registers.

A thread has two rows of a wgmma accumulator. Weights are 2^(score - shift). A row max that grows moves the shift, and
then O and the row sum of earlier blocks are rescaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from warpwright.lang import Expr, If, Var, ex2, f32, fma, max, min, rcp, s32, select, shfl, var, vote

__all__ = [
    "HALVES",
    "LOWEST",
    "BlockSoftmax",
    "BranchingSoftmax",
    "IntegerSoftmax",
    "OnlineSoftmax",
    "add_sink",
    "nothing",
    "of_row",
    "reduce",
    "reduce_quad",
    "row_maxima",
]

HALVES = (0, 1)  # a thread's two rows of a wgmma accumulator, 8 apart
CHAINS = 2
LOWEST = -3.4028234663852886e38
BELOW = 8.0  # powers of 2 that the shift of a row may be below its row max
# Powers of 2 that a row max may grow by without rescaling; 1 after a tile's first block, in which shifts always move.
ROOM, SHRINK, LEAST_ROOM = 1.25, 0.8, 0.2
NEVER = -(2**31)  # a limit that every score exceeds


class BlockSoftmax(NamedTuple):
    """The softmax of a key block: weights, the factors of earlier weights, and whether one of the warp's is not 1."""

    weights: list[Any]
    factors: list[Any]
    grown: Expr


def nothing() -> None:
    """The default of ``after_maxima``."""


class OnlineSoftmax:
    """The softmax state of a thread's two rows: ``row_max``, the scaled maximum so far; the ``shift`` that the weights
    are relative to; and ``row_sum``, the thread's part of the sum of weights.

    The row max of a row without a finite score is the lowest number, so that no difference is of infinities.
    """

    def __init__(self) -> None:
        self.row_max, self.shift = ([var(f32, LOWEST) for _ in HALVES] for _ in range(2))
        self.row_sum = [var(f32, 0.0) for _ in HALVES]

    def update(self, half: int, block_max: Expr, moves: Expr | None = None) -> Expr:
        """Update a row max and its shift for a block with the scaled maximum ``block_max``; returns the factor of
        earlier weights.

        Where the row ``moves``, always without this pred, its shift becomes ``block_max``, but stays within `BELOW` of
        the row max: earlier sums grow by at most that power of 2.
        """
        row_max, shift = self.row_max[half], self.shift[half]
        moved = max(block_max, row_max - BELOW)
        new = moved if moves is None else select(moves, moved, shift)
        factor = ex2(shift - new)
        row_max.set(max(row_max, block_max))
        shift.set(new)
        return factor

    def reset(self) -> tuple[list[Any], list[Any]]:
        """Returns the shifts and the row sums, reduced over each quad, and resets the state for the next tile."""
        shifts = [shift.to(f32) for shift in self.shift]
        totals = [reduce_quad(lambda a, b: a + b, row_sum) for row_sum in self.row_sum]
        for row_max, shift, row_sum in zip(self.row_max, self.shift, self.row_sum, strict=True):
            row_max.set(LOWEST)
            shift.set(LOWEST)
            row_sum.set(0.0)
        return shifts, totals

    def block(self, scores: Sequence[Any], scale: Any, after_maxima: Callable[[], None] = nothing) -> BlockSoftmax:
        """Returns the weights of a key block, the factor of each row's earlier weights, and whether a factor is not 1.

        That is where a score of the warp exceeds its row max. Then O is rescaled, so all rows of the warp may as well
        take this block's maximum as their shift: that score has a weight of exactly 1, which no rounding touches, and
        the next ones are just below 1, where a step is small beside them. The log has the measured benefit of this
        rule, and of rescaling more or less often. ``after_maxima`` emits what follows the maxima.
        """
        block_max = [reduce(max, of_row(scores, half)) * scale for half in HALVES]
        after_maxima()
        grown = vote.any((block_max[0] > self.row_max[0]) | (block_max[1] > self.row_max[1]))
        factors = [self.update(half, reduce_quad(max, new), grown) for half, new in enumerate(block_max)]
        return BlockSoftmax(self.weigh(scores, scale, factors), factors, grown)

    def weigh(self, scores: Sequence[Any], scale: Any, factors: Sequence[Any]) -> list[Any]:
        """Returns the weights of scores; multiplies the row sums by ``factors`` and adds the weights to them."""
        minus = [-shift for shift in self.shift]
        weights: list[Any] = [ex2(fma(score, scale, minus[v >> 1 & 1])) for v, score in enumerate(scores)]
        for half, (row_sum, factor) in enumerate(zip(self.row_sum, factors, strict=True)):
            row_sum.set(fma(row_sum, factor, reduce(lambda a, b: a + b, of_row(weights, half))))
        return weights


class BranchingSoftmax(OnlineSoftmax):
    """`OnlineSoftmax` that moves shifts in a branch, where a score of the warp exceeds its row max by more than the
    ``room``.

    The room shrinks whenever shifts move: row maxima grow most often in a tile's first blocks. Weights up to 2^room are
    rounded to steps twice as large as those below 1. The mean error is 1 to 2 % larger than without a room (docs/log).
    """

    def __init__(self) -> None:
        super().__init__()
        self.room = var(f32, ROOM)

    def reset(self) -> tuple[list[Any], list[Any]]:
        """Returns the shifts and the row sums, reduced over each quad, and resets the state for the next tile."""
        self.room.set(ROOM)
        return super().reset()

    def block(self, scores: Sequence[Any], scale: Any, after_maxima: Callable[[], None] = nothing) -> BlockSoftmax:
        """Returns the weights of a key block, the factor of each row's earlier weights, and whether one is not 1."""
        block_max = [top * scale for top in row_maxima(scores)]
        after_maxima()
        limits = [row_max + self.room for row_max in self.row_max]
        grown = vote.any((block_max[0] > limits[0]) | (block_max[1] > limits[1]))
        factors = [var(f32, 1.0) for _ in HALVES]
        with If(grown):
            self.move(block_max, factors)
        return BlockSoftmax(self.weigh(scores, scale, factors), list(factors), grown)

    def first(self, scores: Sequence[Any], scale: Any) -> list[Any]:
        """Returns the weights of a tile's first block. Its maxima always become the shifts, so it needs no vote."""
        factors = [var(f32, 1.0) for _ in HALVES]
        self.move([top * scale for top in row_maxima(scores)], factors)
        return self.weigh(scores, scale, factors)

    def move(self, block_max: Sequence[Any], factors: Sequence[Var]) -> None:
        """Move the shifts of a warp's rows to the maxima of a block; set the factors of earlier weights."""
        for half in HALVES:
            factors[half].set(self.update(half, reduce_quad(max, block_max[half])))
        self.room.set(max(self.room * SHRINK, LEAST_ROOM))


class IntegerSoftmax(BranchingSoftmax):
    """`BranchingSoftmax` that compares the bits of scores with the ``limit`` of their row, and repairs negative maxima
    in the branch.

    A limit is the largest score that leaves the shift as it is. A row without a positive score so far has the least
    integer as its limit, so that the branch is taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit = [var(s32, NEVER) for _ in HALVES]

    def reset(self) -> tuple[list[Any], list[Any]]:
        """Returns the shifts and the row sums, reduced over each quad, and resets the state for the next tile."""
        for limit in self.limit:
            limit.set(NEVER)
        return super().reset()

    def block(self, scores: Sequence[Any], scale: Any, after_maxima: Callable[[], None] = nothing) -> BlockSoftmax:
        """Returns the weights of a key block, the factor of each row's earlier weights, and whether one is not 1."""
        bits = bits_of(scores)
        tops = integer_maxima(bits)
        after_maxima()
        grown = vote.any((tops[0] > self.limit[0]) | (tops[1] > self.limit[1]))
        factors = [var(f32, 1.0) for _ in HALVES]
        with If(grown):
            repair_negative(tops, bits)
            self.move([top.bitcast(f32) * scale for top in tops], factors)
            for limit, row_max in zip(self.limit, self.row_max, strict=True):
                limit.set(self.limit_of(row_max, scale))
        return BlockSoftmax(self.weigh(scores, scale, factors), list(factors), grown)

    def limit_of(self, row_max: Expr, scale: Any) -> Any:
        """Returns the limit of a row as bits; `NEVER` instead of a negative score, because the bits of negative floats
        are not in order."""
        unscaled = (row_max + self.room) * rcp(scale)
        return select(unscaled >= 0.0, unscaled.bitcast(s32), NEVER)


def add_sink(sink: Any, shifts: Sequence[Any], totals: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns shifts and row sums with the weight of ``sink``, a scaled score, and the factors of earlier weights."""
    new = [max(shift, sink) for shift in shifts]
    factors = [ex2(shift - top) for shift, top in zip(shifts, new, strict=True)]
    sums = [f * total + ex2(sink - top) for f, total, top in zip(factors, totals, new, strict=True)]
    return new, sums, factors


def bits_of(scores: Sequence[Any]) -> list[list[Any]]:
    """Returns the bits (s32) of this thread's scores in each of its two rows."""
    return [[score.bitcast(s32) for score in of_row(scores, half)] for half in HALVES]


def integer_maxima(bits: Sequence[Sequence[Any]]) -> list[Var]:
    """Returns the maximum of the bits of each row.

    Integers have an instruction for the maximum of three, VIMNMX3, where floats have FMNMX for two. The bits of floats
    are in the order of floats if one of them is positive.
    """
    return [var(s32, reduce(max, row)) for row in bits]


def repair_negative(tops: Sequence[Var], bits: Sequence[Sequence[Any]]) -> None:
    """Replace the `integer_maxima` of rows whose scores are all negative by the integer minimum, which is their float
    maximum. A warp without such a row skips this."""
    with If(vote.any((tops[0] | tops[1]) < 0)):
        for top, row in zip(tops, bits, strict=True):
            top.set(select(top < 0, reduce(min, row), top))


def row_maxima(scores: Sequence[Any]) -> list[Any]:
    """Returns the maximum of this thread's scores in each of its two rows."""
    bits = bits_of(scores)
    tops = integer_maxima(bits)
    repair_negative(tops, bits)
    return [top.bitcast(f32) for top in tops]


def reduce(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """Returns all values combined, by `CHAINS` chains side by side, which hide the latency of each other's steps."""
    ends = []
    for chain in (values[i::CHAINS] for i in range(CHAINS)):
        end = chain[0]
        for value in chain[1:]:
            end = combine(end, value)
        ends.append(end)
    return combine(*ends)


def reduce_quad(combine: Callable[[Any, Any], Any], value: Any) -> Any:
    """Returns the value combined over the four lanes that share a row."""
    for distance in (1, 2):
        value = combine(value, shfl.bfly(value, distance))
    return value


def of_row(values: Sequence[Any], half: int) -> list[Any]:
    """Returns this thread's elements of the first or second of its two rows."""
    return [value for v, value in enumerate(values) if v >> 1 & 1 == half]
