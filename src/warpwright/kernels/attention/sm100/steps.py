"""The steps that the Blackwell attention of `sm100` is made of: products, softmax, correction, stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.steps import reduce
from warpwright.kernels.attention.sm100.plan import WARP_ROWS
from warpwright.kernels.tiles import pack_neighbours, part
from warpwright.lang import (
    Expr,
    If,
    b32,
    elect_one,
    ex2,
    fence,
    fma,
    max,
    rcp,
    s32,
    select,
    st,
    tcgen05,
    tid,
    tma,
    tmem,
    vote,
    warp,
)
from warpwright.lang.control import Var
from warpwright.lang.ring import Cursor, Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["give", "rescale", "scores", "seen", "store", "take", "values", "weights"]

K = 16
COLUMNS = 32  # of tensor memory, loaded or stored at a time


def scores(result: tmem.TmemTile, queries: Tile, keys: Tile) -> None:
    """Begin ``result`` = Q·Kᵀ."""
    for kk in range(0, keys.shape[1], K):
        tcgen05.mma(result, queries[:, kk : kk + K], keys[:, kk : kk + K], accumulate=kk > 0)


def values(result: tmem.TmemTile, weights: tmem.TmemTile, block: Tile, more: Any) -> None:
    """Begin to add P·V to ``result``, P in the first half of ``weights``; without ``more`` it overwrites it."""
    left = weights.packed(block.dtype)
    for kk in range(0, block.shape[0], K):
        accumulate = more if kk == 0 else True
        tcgen05.mma(result, left[:, kk : kk + K], block[kk : kk + K, :].T, accumulate=accumulate)


def seen(block: Any, low: Any, high: Any) -> Callable[[int], Any]:
    """Whether a row that sees the keys from ``low`` (if given) to ``high`` sees a column of the block at ``block``."""
    stop = (high - block).to(s32)
    if low is None:
        return lambda column: stop > column
    start = (low - block).to(s32)
    return lambda column: (stop > column) & (start <= column)


def arrive(barrier: Any) -> None:
    """This warp is done: each thread fences its tensor memory, all meet, one tells."""
    tcgen05.fence_before_thread_sync()
    warp.sync()
    with If(elect_one()):
        barrier.arrive()


def give(slot: Slot, own: Expr, value: Any) -> None:
    """Tell `correct` a number of each row."""
    slot.empty.wait()
    st(slot.value.at(0, own), value)
    arrive(slot.full)


def take(slot: Slot, own: Expr) -> Expr:
    """What `give` told of this thread's row."""
    slot.full.wait()
    value: Expr = slot.value.at(0, own)[0]
    arrive(slot.empty)
    return value


def weights(
    slot: Slot,
    to_row: Cursor,
    own: Expr,
    greatest: Var,
    weight: Var,
    scale: Any,
    keys: Callable[[int], Any] | None,
    lazy: float,
    dtype: type[Scalar],
) -> None:
    """The weights of a block take the place of its scores. A thread has a row: no other needs to be asked.

    With ``keys`` only those are seen for which it holds. The row's greatest score stays what it was unless it grows by
    more than ``lazy``; `correct` hears the factor of the earlier weights before the new ones are computed.
    """
    slot.full.wait()
    tcgen05.fence_after_thread_sync()
    found = [tcgen05.ld(slot.s[:, first : first + COLUMNS]) for first in range(0, slot.s.shape[1], COLUMNS)]
    tcgen05.wait_ld()
    score: list[Any] = [value for part in found for value in part]
    if keys:
        score = [select(keys(column), value, float("-inf")) for column, value in enumerate(score)]
    shift = max(reduce(max, score) * scale, greatest)
    shift = select(shift - greatest > lazy, shift, greatest)
    factor = ex2(greatest - shift)
    greatest.set(shift)
    give(next(to_row), own, factor)
    powers = [ex2(fma(value, scale, -shift)) for value in score]
    words = [word.bitcast(b32) for word in pack_neighbours(powers, dtype)]
    for first in range(0, len(words), COLUMNS):
        tcgen05.st(slot.s[:, first : first + COLUMNS], words[first : first + COLUMNS])
    tcgen05.wait_st()
    arrive(slot.empty)
    weight.set(fma(weight, factor, reduce(lambda a, b: a + b, powers)))


def rescale(slot: Slot, factor: Expr) -> None:
    """O times the factor of each row, where a row of this warp has one."""
    slot.full.wait()
    tcgen05.fence_after_thread_sync()
    with If(vote.any(factor != 1.0)):
        for first in range(0, slot.sum.shape[1], COLUMNS):
            columns = slot.sum[:, first : first + COLUMNS]
            found = tcgen05.ld(columns)
            tcgen05.wait_ld()
            tcgen05.st(columns, [value * factor for value in found])
        tcgen05.wait_st()
    arrive(slot.empty)


def store(slot: Slot, weight: Expr, o: tma.Map[Scalar], queries: Slot, batch: Expr, head: Expr, row: Expr) -> None:
    """O by the sum of weights, through the slot of Q; a row of no weight is 0."""
    slot.full.wait()
    tcgen05.fence_after_thread_sync()
    share = select(weight == 0.0, 0.0 * weight, rcp(weight))
    strip = part(queries.q, tid.x % 128 // WARP_ROWS, WARP_ROWS, "k")
    for first in range(0, slot.sum.shape[1], COLUMNS):
        found = tcgen05.ld(slot.sum[:, first : first + COLUMNS])
        tcgen05.wait_ld()
        words = pack_neighbours([value * share for value in found], strip.dtype)
        for i in range(0, len(words), 4):
            corner = strip.at(warp.lane, first + 2 * i)
            st(corner.cast(words[i].type), *words[i : i + 4])
    arrive(slot.empty)
    fence.proxy_async()
    warp.sync()
    with If(elect_one()):
        for left in range(0, strip.shape[1], PANEL):
            tma.store(o[batch, head, row + tid.x % 128 // WARP_ROWS * WARP_ROWS, left], strip[:, left : left + PANEL])
        tma.commit_group()
        tma.wait_group(0, read=True)
        queries.empty.arrive()
    warp.sync()
