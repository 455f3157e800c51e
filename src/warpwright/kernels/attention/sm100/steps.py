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
    fence,
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
    "next_slot",
    "rescale",
    "same_slot",
    "store_and_arrive",
    "store_panels",
    "store_weights",
    "visible_columns",
    "wait_and_load",
]

K = 16
PANELS = 2  # of O in shared memory
RESCALED = 16  # columns of O, loaded and stored at once
COLUMNS = 32  # of tensor memory, loaded or stored by one instruction


@dataclass(frozen=True)
class Rings:
    """The rings `qs` and `kv` of all tiles, and for each tile the rings of one stage `ss`, `rests`, `sums`, `rows` and
    `totals`, see `sm100.kernel.attention`. ``scores`` are the tiles of tensor memory in `ss`. O leaves
    through two ``panels``.
    """

    qs: Ring
    kv: Ring
    ss: list[Ring]
    rests: list[Ring]
    sums: list[Ring]
    rows: list[Ring]
    totals: list[Ring]
    scores: list[tmem.TmemTile]
    panels: list[Tile]

    @property
    def all(self) -> tuple[Ring, ...]:
        """Every ring."""
        return (self.qs, self.kv, *self.ss, *self.rests, *self.sums, *self.rows, *self.totals)

    @staticmethod
    def of(config: Config, dtype: type[Scalar]) -> Rings:
        """Returns the rings of a CTA."""
        swizzle = panel(config.head_dim) * dtype.nbytes
        queries, block = (smem.tile(dtype, (rows, config.head_dim), swizzle=swizzle) for rows in (ROWS, KEYS))
        qs = Ring(config.tiles, full=1, empty=1, name="q", q=queries)
        kv = Ring(config.stages, full=1, empty=1, name="kv", kv=block)
        scores = [tmem.tile(f32, (ROWS, KEYS)) for _ in range(config.tiles)]
        panels = [smem.tile(dtype, (ROWS, swizzle // dtype.nbytes), swizzle=swizzle) for _ in range(PANELS)]
        rings = Rings(qs, kv, [], [], [], [], [], scores, panels)
        for name, s in zip("ab", scores, strict=False):
            o, row = tmem.tile(f32, (ROWS, config.head_dim)), smem.tile(f32, (1, ROWS))
            rings.ss.append(Ring(1, full=1, empty=2 * WARPS, name=f"s_{name}", s=s))
            rings.rests.append(Ring(1, full=WARPS, empty=0, name=f"rest_{name}"))
            rings.sums.append(Ring(1, full=1, empty=0, name=f"sum_{name}", sum=o))
            rings.rows.append(Ring(1, full=WARPS, empty=0, name=f"row_{name}", value=row))
            rings.totals.append(Ring(1, full=WARPS, empty=WARPS, name=f"total_{name}", value=row))
        return rings


def same_slot(ring: Ring, slot: Slot) -> Slot:
    """Returns the slot of a ring that is filled once a block, as the ring of ``slot`` is, for the same block."""
    return Slot(ring, slot.stage, slot.phase)


def next_slot(ring: Ring, slot: Slot) -> Slot:
    """Returns the slot of a ring of one stage after that of the block of ``slot``."""
    return Slot(ring, slot.stage, slot.phase ^ 1)


def load_part_when_empty(
    cursors: tuple[Cursor, Cursor],
    maps: tuple[tma.Map[Scalar], tma.Map[Scalar], tma.Map[Scalar]],
    queries: tuple[Any, ...],
    keys: tuple[Any, ...],
    blocks: Any,
    tiles: int,
) -> None:
    """Load a part as its slots of Q and of K and V become empty: ``tiles`` tiles of Q, and ``blocks`` blocks of K and
    V, from right to left.

    ``queries`` are the coordinates of the part's first query, ``keys`` those of the last block's first key.
    """
    (to_q, to_kv), (q, k, v), (*of, last) = cursors, maps, keys
    load_when_empty(to_kv, "kv", k, *of, last)
    for tile in range(tiles):
        load_when_empty(to_q, "q", q, *queries[:-1], queries[-1] + tile * ROWS)
    for step in loop(1, blocks):
        load_when_empty(to_kv, "kv", v, *of, last - (step - 1) * KEYS)
        load_when_empty(to_kv, "kv", k, *of, last - step * KEYS)
    load_when_empty(to_kv, "kv", v, *of, last - (blocks - 1) * KEYS)


def issue_scores(result: tmem.TmemTile, queries: Tile, keys: Tile) -> None:
    """Issue ``result`` = Q·Kᵀ; the caller commits."""
    for kk in range(0, keys.shape[1], K):
        tcgen05.mma(result, queries[:, kk : kk + K], keys[:, kk : kk + K], accumulate=kk > 0)


def issue_values(
    result: tmem.TmemTile, weights: tmem.TmemTile, block: Tile, accumulate: Any, keys: range | None = None
) -> None:
    """Issue ``result`` += P·V, P in the first half of ``weights``; ``result`` = P·V where not ``accumulate``. Of the
    block only ``keys``, where given."""
    left, rows = weights.packed(block.dtype), keys or range(block.shape[0])
    for kk in rows[::K]:
        first = accumulate if kk == rows.start else True
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


def store_and_arrive(slot: Slot, own: Expr, value: Any) -> None:
    """Write this thread's row of an empty slot of a ring `row` or `total`, and arrive on full."""
    st(slot.value.at(0, own), value)
    fence_and_arrive(slot.full)


def wait_and_load(slot: Slot, own: Expr) -> Expr:
    """Wait until a slot of a ring `row` or `total` is full; returns this thread's row."""
    slot.full.wait()
    value: Expr = slot.value.at(0, own)[0]
    return value


def load_scores(scores: tmem.TmemTile, visible: Callable[[int], Any] | None) -> list[Any]:
    """Returns this thread's row of scores; with ``visible`` -inf in the columns that are not."""
    loaded = [tcgen05.ld(scores[:, first : first + COLUMNS]) for first in range(0, scores.shape[1], COLUMNS)]
    tcgen05.wait_ld()
    row: list[Any] = [value for columns in loaded for value in columns]
    if visible is None:
        return row
    return [select(visible(column), value, float("-inf")) for column, value in enumerate(row)]


def store_weights(scores: tmem.TmemTile, weights: Sequence[Any], dtype: type[Scalar], first: int = 0) -> None:
    """Store this thread's weights from key ``first`` on, rounded to ``dtype``, in the place of its scores; the caller
    waits."""
    words = [word.bitcast(b32) for word in pack_neighbours(list(weights), dtype)]
    for start in range(0, len(words), COLUMNS):
        stop, begin = min(start + COLUMNS, len(words)), start + first // 2
        tcgen05.st(scores[:, begin : begin + stop - start], words[start:stop])


def rescale(out: tmem.TmemTile, factor: Expr) -> None:
    """Multiply this thread's row of O by its factor."""
    for first in range(0, out.shape[1], RESCALED):
        columns = out[:, first : first + RESCALED]
        loaded = tcgen05.ld(columns)
        tcgen05.wait_ld()
        tcgen05.st(columns, [value * factor for value in loaded])
    tcgen05.wait_st()


def store_panels(
    out: tmem.TmemTile, factor: Expr, strips: Sequence[Tile], o: tma.Map[Scalar], corner: tuple[Any, ...], tile: int
) -> None:
    """Store this warp's 32 rows of O of a tile, each times its factor, to global memory, panel by panel through two
    ``strips``: one is overwritten when TMA has read the panel before the last one from it."""
    width = strips[0].shape[1]
    for left in range(0, out.shape[1], width):
        number = (tile * out.shape[1] + left) // width
        strip = strips[number % PANELS]
        with If(warp.lane == 0):
            tma.wait_group(min(number, PANELS - 1), read=True)
        warp.sync()
        store_rows(out[:, left : left + width], factor, strip)
        fence.proxy_async()
        warp.sync()
        with If(warp.lane == 0):
            tma.store(o[(*corner, left)], strip)
            tma.commit_group()


def store_rows(out: tmem.TmemTile, factor: Expr, strip: Tile) -> None:
    """Store this warp's 32 rows of O, each times its factor, to a strip of shared memory."""
    for first in range(0, out.shape[1], COLUMNS):
        loaded = tcgen05.ld(out[:, first : first + COLUMNS])
        tcgen05.wait_ld()
        words = pack_neighbours([value * factor for value in loaded], strip.dtype)
        for i in range(0, len(words), 4):
            corner = strip.at(warp.lane, first + 2 * i)
            st(corner.cast(words[i].type), *words[i : i + 4])
