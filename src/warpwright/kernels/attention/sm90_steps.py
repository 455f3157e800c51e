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
    var,
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


def half(acc: Fragment, which: int) -> list[Any]:
    """This thread's elements of the first or second of its two rows."""
    return [register for v, register in enumerate(acc.regs) if v >> 1 & 1 == which]


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
    scores: Fragment, rows: Rows, scale: Any, mask: Callable[[int, int], Any] | None
) -> tuple[list[Any], list[Any]]:
    """The weights of this block's keys, element by element, and the factor of each row's earlier weights.

    ``mask(half, element)`` says whether an element's key is seen.
    """
    values: list[Any] = list(scores.regs)
    if mask:
        values = [select(mask(v >> 1 & 1, v), value, float("-inf")) for v, value in enumerate(values)]
    weighted: list[Any] = [None] * len(values)
    factors = []
    for which in HALVES:
        places = [v for v in range(len(values)) if v >> 1 & 1 == which]
        greatest = quad(max, reduced(max, [values[v] for v in places]))
        shift = max(rows.shift[which], greatest * scale)
        minus = -shift
        for v in places:
            weighted[v] = ex2(fma(values[v], scale, minus))
        factor = ex2(rows.shift[which] + minus)
        rows.shift[which].set(shift)
        total = reduced(lambda a, b: a + b, [weighted[v] for v in places])
        rows.total[which].set(fma(rows.total[which], factor, total))
        factors.append(factor)
    return weighted, factors


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
