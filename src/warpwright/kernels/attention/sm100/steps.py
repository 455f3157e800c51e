"""Steps of the Blackwell attention: the rings, MMAs, and moves between registers, tensor and shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm90.steps import load_when_empty, panel
from warpwright.kernels.attention.sm100.plan import KEYS, ROWS, Config
from warpwright.kernels.tiles import WARPS, pack_neighbours
from warpwright.lang import (
    Expr,
    If,
    Ring,
    b32,
    elect_one,
    f32,
    loop,
    s32,
    select,
    smem,
    st,
    tcgen05,
    tma,
    tmem,
    warp,
)
from warpwright.lang.ring import Cursor, Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "COLUMNS",
    "Rings",
    "arrive_on_empty",
    "fence_and_arrive",
    "issue_scores",
    "issue_values",
    "load_part_when_empty",
    "load_scores",
    "receive_when_full",
    "rescale",
    "send_when_empty",
    "store_rows",
    "store_weights",
    "visible_columns",
]

K = 16
COLUMNS = 32  # of tensor memory, loaded or stored by one instruction


@dataclass(frozen=True)
class Rings:
    """The rings `qs` and `kv` of all tiles, and for each tile the rings of one stage `ss`, `sums` and `rows`, see
    `sm100.kernel.attention`. ``scores`` are the tiles of tensor memory in `ss`.
    """

    qs: Ring
    kv: Ring
    ss: list[Ring]
    sums: list[Ring]
    rows: list[Ring]
    scores: list[tmem.TmemTile]

    @property
    def all(self) -> tuple[Ring, ...]:
        """Every ring."""
        return (self.qs, self.kv, *self.ss, *self.sums, *self.rows)

    @staticmethod
    def of(config: Config, dtype: type[Scalar]) -> Rings:
        """Returns the rings of a CTA."""
        swizzle = panel(config.head_dim) * dtype.nbytes
        queries, block = (smem.tile(dtype, (rows, config.head_dim), swizzle=swizzle) for rows in (ROWS, KEYS))
        qs = Ring(config.tiles, full=1, empty=WARPS, name="q", q=queries)
        kv = Ring(config.stages, full=1, empty=1, name="kv", kv=block)
        rings = Rings(qs, kv, [], [], [], [tmem.tile(f32, (ROWS, KEYS)) for _ in range(config.tiles)])
        for name, s in zip("ab", rings.scores, strict=False):
            o = tmem.tile(f32, (ROWS, config.head_dim))
            rings.ss.append(Ring(1, full=1, empty=WARPS, name=f"s_{name}", s=s))
            rings.sums.append(Ring(1, full=1, empty=WARPS, name=f"sum_{name}", sum=o))
            value = smem.tile(f32, (1, ROWS))
            rings.rows.append(Ring(1, full=WARPS, empty=WARPS, name=f"row_{name}", value=value))
        return rings


def load_part_when_empty(
    cursors: tuple[Cursor, Cursor],
    maps: tuple[tma.Map[Scalar], tma.Map[Scalar], tma.Map[Scalar]],
    queries: tuple[Any, ...],
    keys: tuple[Any, ...],
    blocks: Any,
) -> None:
    """Load a part as its slots of Q and of K and V become empty: the tiles of Q, then ``blocks`` blocks of K, each
    ahead of V of the block before, from right to left.

    ``queries`` are the coordinates of the part's first query, ``keys`` those of the last block's first key.
    """
    (to_q, to_kv), (q, k, v), (*of, last) = cursors, maps, keys
    for tile in range(to_q.ring.stages):
        load_when_empty(to_q, "q", q, *queries[:-1], queries[-1] + tile * ROWS)
    load_when_empty(to_kv, "kv", k, *of, last)
    for step in loop(1, blocks):
        load_when_empty(to_kv, "kv", v, *of, last - (step - 1) * KEYS)
        load_when_empty(to_kv, "kv", k, *of, last - step * KEYS)
    load_when_empty(to_kv, "kv", v, *of, last - (blocks - 1) * KEYS)


def issue_scores(result: tmem.TmemTile, queries: Tile, keys: Tile) -> None:
    """Issue ``result`` = Q·Kᵀ; the caller commits."""
    for kk in range(0, keys.shape[1], K):
        tcgen05.mma(result, queries[:, kk : kk + K], keys[:, kk : kk + K], accumulate=kk > 0)


def issue_values(result: tmem.TmemTile, weights: tmem.TmemTile, block: Tile, accumulate: Any) -> None:
    """Issue ``result`` += P·V, P in the first half of ``weights``; ``result`` = P·V where not ``accumulate``."""
    left = weights.packed(block.dtype)
    for kk in range(0, block.shape[0], K):
        first = accumulate if kk == 0 else True
        tcgen05.mma(result, left[:, kk : kk + K], block[kk : kk + K, :].T, accumulate=first)


def visible_columns(block: Any, low: Any, high: Any) -> Callable[[int], Any]:
    """Returns whether a row that sees the keys from ``low`` (if given) to ``high`` sees a column of a key block."""
    stop = (high - block).to(s32)
    if low is None:
        return lambda column: stop > column
    start = (low - block).to(s32)
    return lambda column: (stop > column) & (start <= column)


def arrive_on_empty(empty: Any, alone: bool) -> None:
    """Arrive once on the empty barrier of an item that a thread ``alone`` or all lanes of a warp have read."""
    if alone:
        empty.arrive()
        return
    warp.sync()
    with If(elect_one()):
        empty.arrive()


def fence_and_arrive(barrier: Any) -> None:
    """Fence this warp's accesses to tensor memory, then arrive on the barrier, one thread for the warp."""
    tcgen05.fence_before_thread_sync()
    warp.sync()
    with If(elect_one()):
        barrier.arrive()


def send_when_empty(slot: Slot, own: Expr, value: Any) -> None:
    """Wait until a slot of the ring `row` is empty, write this thread's row and arrive on full."""
    slot.empty.wait()
    st(slot.value.at(0, own), value)
    fence_and_arrive(slot.full)


def receive_when_full(slot: Slot, own: Expr) -> Expr:
    """Wait until a slot of the ring `row` is full, read this thread's row and arrive on empty."""
    slot.full.wait()
    value: Expr = slot.value.at(0, own)[0]
    fence_and_arrive(slot.empty)
    return value


def load_scores(scores: tmem.TmemTile, visible: Callable[[int], Any] | None) -> list[Any]:
    """Returns this thread's row of scores; with ``visible`` -inf in the columns that are not."""
    loaded = [tcgen05.ld(scores[:, first : first + COLUMNS]) for first in range(0, scores.shape[1], COLUMNS)]
    tcgen05.wait_ld()
    row: list[Any] = [value for columns in loaded for value in columns]
    if visible is None:
        return row
    return [select(visible(column), value, float("-inf")) for column, value in enumerate(row)]


def store_weights(scores: tmem.TmemTile, weights: Sequence[Any], dtype: type[Scalar]) -> None:
    """Store this thread's row of P, rounded to ``dtype``, in the place of its scores."""
    words = [word.bitcast(b32) for word in pack_neighbours(list(weights), dtype)]
    for first in range(0, len(words), COLUMNS):
        tcgen05.st(scores[:, first : first + COLUMNS], words[first : first + COLUMNS])
    tcgen05.wait_st()


def rescale(out: tmem.TmemTile, factor: Expr) -> None:
    """Multiply this thread's row of O by its factor."""
    for first in range(0, out.shape[1], COLUMNS):
        columns = out[:, first : first + COLUMNS]
        loaded = tcgen05.ld(columns)
        tcgen05.wait_ld()
        tcgen05.st(columns, [value * factor for value in loaded])
    tcgen05.wait_st()


def store_rows(out: tmem.TmemTile, factor: Expr, strip: Tile) -> None:
    """Store this warp's 32 rows of O, each times its factor, to a strip of shared memory."""
    for first in range(0, out.shape[1], COLUMNS):
        loaded = tcgen05.ld(out[:, first : first + COLUMNS])
        tcgen05.wait_ld()
        words = pack_neighbours([value * factor for value in loaded], strip.dtype)
        for i in range(0, len(words), 4):
            corner = strip.at(warp.lane, first + 2 * i)
            st(corner.cast(words[i].type), *words[i : i + 4])
