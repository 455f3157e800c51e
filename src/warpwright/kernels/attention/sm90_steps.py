"""The steps that the Hopper attention of `sm90` is made of: tiles, loads, scores, softmax, stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warpwright.kernels.gemm.sm90_steps import PACKED, part, put, window
from warpwright.lang import (
    Expr,
    If,
    Var,
    b32,
    ex2,
    f32,
    fence,
    fma,
    max,
    pack,
    s32,
    select,
    shfl,
    tma,
    u32,
    var,
    vote,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "LOWEST",
    "Rows",
    "hidden",
    "load_tile",
    "quad",
    "read",
    "scale_rows",
    "softmax",
    "store",
    "weigh",
    "weights",
    "write_lse",
]

STRIP = 64
WARP_ROWS = 16
WARPS = 4
PANEL = 64
K = 16
HALVES = (0, 1)
CHAINS = 2
LOWEST = -3.4028234663852886e38
LN2 = 0.6931471805599453

Mask = Callable[[int, int, Any], Any]


class Rows:
    """What a thread knows of its two rows: the greatest score so far, scaled, and its part of the sum of weights.

    A row that has seen no finite score has the lowest number as its greatest, so that no difference is of infinities.
    """

    def __init__(self) -> None:
        self.shift = [var(f32, LOWEST) for _ in HALVES]
        self.total = [var(f32, 0.0) for _ in HALVES]

    def clear(self) -> None:
        """As at the first key."""
        for shift, total in zip(self.shift, self.total, strict=True):
            shift.set(LOWEST)
            total.set(0.0)


def load_tile(cursor: Cursor, name: str, source: tma.Map[Scalar], batch: Any, head: Any, row: Any) -> None:
    """Fill the next slot with the rows from ``row`` on of a head: a box a panel."""
    slot = next(cursor)
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    tile: Tile = getattr(slot, name)
    for column in range(0, tile.shape[1], PANEL):
        tma.load(tile[:, column : column + PANEL], source[batch, head, row, column], slot.full)


def weigh(scores: Fragment, q: Tile, k: Tile) -> None:
    """Begin ``scores`` = Q·Kᵀ of a strip of 64 queries."""
    for kk in range(0, k.shape[1], K):
        wgmma.mma(scores, window(q, kk, "k"), window(k, kk, "k"), accumulate=kk > 0)
    wgmma.commit_group()


def read(sums: Fragment, held: Sequence[Any], v: Tile, more: Any) -> None:
    """Begin to add P·V to ``sums``, P in the registers ``held``; without ``more`` it overwrites them."""
    for number, kk in enumerate(range(0, v.shape[0], K)):
        p = wgmma.left(v.dtype, held[4 * number : 4 * number + 4])
        wgmma.mma(sums, p, window(v, kk, "mn"), accumulate=more | (kk > 0) if number else more)
    wgmma.commit_group()


def reduced(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """All values as one, by chains side by side: one alone would wait for each of its steps."""
    chains = [values[i::CHAINS] for i in range(min(CHAINS, len(values)))]
    ends = []
    for chain in chains:
        end = chain[0]
        for value in chain[1:]:
            end = combine(end, value)
        ends.append(end)
    return ends[0] if len(ends) == 1 else combine(ends[0], ends[1])


def quad(combine: Callable[[Any, Any], Any], value: Any) -> Any:
    """Combined over the four lanes that share a row."""
    for distance in (1, 2):
        value = combine(value, shfl.bfly(value, distance))
    return value


def softmax(
    scores: Fragment,
    rows: Rows,
    scale: Any,
    mask: Callable[[int, int], Any] | None,
    lazy: float = 0.0,
    computed: tuple[int, int] = (0, 1),
) -> tuple[list[Any], list[Any], Any]:
    """The weights of this block's keys, element by element, and the factor of each row's earlier weights.

    ``mask(half, element)`` says whether an element's key is seen. A row's greatest score stays what it was unless it
    grows by more than ``lazy``; the third result says whether it did in a row of this warp. The first of ``computed``
    of as many elements as the second are powers by a polynomial.
    """
    values: list[Any] = list(scores.regs)
    if mask:
        values = [select(mask(v >> 1 & 1, v), value, float("-inf")) for v, value in enumerate(values)]
    shifts = [quad(max, reduced(max, of_row(values, which))) * scale for which in HALVES]
    if lazy:
        grown = [shift - old > lazy for shift, old in zip(shifts, rows.shift, strict=True)]
        any_grown = vote.any(grown[0] | grown[1])
        factors = [var(f32, 1.0) for _ in HALVES]
        with If(any_grown):
            for which in HALVES:
                shift = max(rows.shift[which], shifts[which])
                factors[which].set(ex2(rows.shift[which] - shift))
                rows.shift[which].set(shift)
    else:
        any_grown = None
        shifts = [max(old, new) for old, new in zip(rows.shift, shifts, strict=True)]
        factors = [ex2(old - new) for old, new in zip(rows.shift, shifts, strict=True)]
        for old, new in zip(rows.shift, shifts, strict=True):
            old.set(new)
    minus = [-shift for shift in rows.shift]
    count, of = computed
    weighted = []
    for v, value in enumerate(values):
        power = ex2_polynomial if v // 2 % of < count and not mask else ex2
        weighted.append(power(fma(value, scale, minus[v >> 1 & 1])))
    for which in HALVES:
        total = reduced(lambda a, b: a + b, of_row(weighted, which))
        rows.total[which].set(fma(rows.total[which], factors[which], total))
    return weighted, factors, any_grown


def of_row(values: Sequence[Any], which: int) -> list[Any]:
    """This thread's elements of the first or second of its two rows."""
    return [value for v, value in enumerate(values) if v >> 1 & 1 == which]


POWERS = (1.0, 0.69328293, 0.24221096, 0.05500893)  # of 2^r, |r| <= 1/2, off by at most 1.02e-4
ROUND = 12582912.0


def ex2_polynomial(x: Any) -> Any:
    """2 to the power ``x`` without the unit for it, off by at most 1.02e-4 of it; from -127 on downwards 0."""
    x = max(x, -127.0)
    rounded = x + ROUND
    rest = x - (rounded - ROUND)
    power = fma(rest, POWERS[3], POWERS[2])
    power = fma(rest, power, POWERS[1])
    power = fma(rest, power, POWERS[0])
    return (power.bitcast(u32) + (rounded.bitcast(u32) << 23)).bitcast(f32)


def weights(dtype: type[Scalar], held: Sequence[Var], values: Sequence[Any]) -> None:
    """P rounded to ``dtype``, as A of the next products."""
    for register, low, high in zip(held, values[::2], values[1::2], strict=True):
        register.set(pack(PACKED[dtype], low, high).bitcast(b32))


def scale_rows(sums: Fragment, factors: Sequence[Any]) -> None:
    """Each row of ``sums`` times its factor."""
    for v, register in enumerate(sums.regs):
        register.set(register * factors[v >> 1 & 1])


def hidden(limits: Sequence[Any], block: Any) -> Callable[[int, int], Any]:
    """The mask of keys before ``limits`` (s32) of the two rows, where keys begin at ``block``."""
    lefts = [limit - (block + warp.lane % 4 * 2).to(s32) for limit in limits]
    return lambda which, v: lefts[which] > 8 * (v >> 2) + (v & 1)


def store(
    sums: Fragment, o: tma.Map[Scalar], tile: Tile, index: Any, batch: Any, head: Any, row: Any, one: Expr
) -> None:
    """This warp's 16 rows of O into the ``index``-th of the tile of Q, which has been read, and on to memory."""
    strip = part(tile, index, WARP_ROWS, "k")
    for left in range(0, tile.shape[1], PANEL):
        put(strip[:, left : left + PANEL], sums.regs[left // 2 : (left + PANEL) // 2], True)
    fence.proxy_async()
    warp.sync()
    with If(one):
        for left in range(0, tile.shape[1], PANEL):
            tma.store(o[batch, head, row, left], strip[:, left : left + PANEL])
        tma.commit_group()


def write_lse(lse: Any, first: Any, row: Any, q_len: Any, values: Sequence[Any]) -> None:
    """The log-sum-exp of this thread's rows ``row`` and ``row`` + 8, once a quad."""
    for which, value in enumerate(values):
        at = row + 8 * which
        with If((at < q_len) & (warp.lane % 4 == 0)):
            lse[first + at] = value
