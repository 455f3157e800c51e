"""What the roles of the Blackwell attention of `sm100` do, and the rings between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.sm90.steps import LN2, LOWEST, Mask
from warpwright.kernels.attention.sm100.plan import KEYS, ROWS
from warpwright.kernels.attention.sm100.steps import give, rescale, scores, seen, store, take, values, weights
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Else,
    Expr,
    Global,
    If,
    Ring,
    f32,
    lg2,
    loop,
    max,
    min,
    smem,
    tcgen05,
    tid,
    tma,
    tmem,
    var,
)
from warpwright.types import Scalar

__all__ = ["Rings", "Work", "add_up", "soften", "update"]

Work = Callable[[], Iterator[tuple[Expr, Expr, Expr, Any, Expr]]]


@dataclass(frozen=True)
class Rings:
    """Rings of all tiles, `qs` and `kv`, and those of one stage of each: `ss`, `sums`, `rows`, see `sm100.attention`.

    ``scores`` are the tiles of tensor memory in `ss`.
    """

    qs: Ring
    kv: Ring
    ss: list[Ring]
    sums: list[Ring]
    rows: list[Ring]
    scores: list[tmem.TmemTile]

    @staticmethod
    def of(tiles: int, stages: int, head_dim: int, dtype: type[Scalar]) -> Rings:
        """Those of ``tiles`` tiles of queries, and of ``stages`` blocks of keys or values."""
        qs = Ring(tiles, full=1, empty=WARPS, name="q", q=smem.tile(dtype, (ROWS, head_dim), swizzle=128))
        kv = Ring(stages, full=1, empty=1, name="kv", kv=smem.tile(dtype, (KEYS, head_dim), swizzle=128))
        found = Rings(qs, kv, [], [], [], [tmem.tile(f32, (ROWS, KEYS)) for _ in range(tiles)])
        for name, s in zip("ab", found.scores, strict=False):
            o = tmem.tile(f32, (ROWS, head_dim))
            found.ss.append(Ring(1, full=1, empty=WARPS, name=f"s_{name}", s=s))
            found.sums.append(Ring(1, full=1, empty=WARPS, name=f"sum_{name}", sum=o))
            value = smem.tile(f32, (1, ROWS))
            found.rows.append(Ring(1, full=WARPS, empty=WARPS, name=f"row_{name}", value=value))
        return found

    @property
    def tiles(self) -> int:
        """Tiles of queries in flight."""
        return len(self.scores)

    def init(self) -> None:
        """Initialise all barriers: one thread."""
        for ring in (self.qs, self.kv, *self.ss, *self.sums, *self.rows):
            ring.init()


def add_up(rings: Rings, work: Work) -> None:
    """Products, by one thread: of each tile in turn the values of a block, then the scores of the next one."""
    of_q, of_kv = rings.qs.consumer(), rings.kv.consumer()
    to_s, weighed = [each.producer() for each in rings.ss], [each.producer() for each in rings.ss]
    to_sum, added = [each.producer() for each in rings.sums], [each.consumer() for each in rings.sums]
    for each in weighed:
        next(each)  # its slots are the next ones: they are empty when this one's weights are there

    def read(tile: int, slot: Any, more: Any) -> None:
        """Add the weights of a block times its values, once both are there and O is up to date.

        Then wait, for the next scores take the place of the weights, and products of other shapes may overtake.
        """
        result = next(to_sum[tile])
        next(weighed[tile]).empty.wait()
        result.empty.wait()
        tcgen05.fence_after_thread_sync()
        values(result.sum, rings.scores[tile], slot.kv, more)
        tcgen05.commit(result.full)
        next(added[tile]).full.wait()
        tcgen05.fence_after_thread_sync()

    def weigh(tile: int, queries: Any, slot: Any) -> None:
        result = next(to_s[tile])
        scores(result.s, queries.q, slot.kv)
        tcgen05.commit(result.full)

    for *_, blocks in work():
        key, queries = next(of_kv), [next(of_q) for _ in range(rings.tiles)]
        key.full.wait()
        for tile in range(rings.tiles):
            queries[tile].full.wait()
            weigh(tile, queries[tile], key)
        tcgen05.commit(key.empty)
        for step in loop(1, blocks + 1):
            value = next(of_kv)
            value.full.wait()
            with If(step < blocks):
                key = next(of_kv)
                for tile in range(rings.tiles):
                    read(tile, value, step > 1)
                    key.full.wait()
                    weigh(tile, queries[tile], key)
                tcgen05.commit(key.empty)
            with Else():
                for tile in range(rings.tiles):
                    read(tile, value, step > 1)
            tcgen05.commit(value.empty)


def soften(
    rings: Rings,
    tile: int,
    work: Work,
    mask: Mask,
    lse: Expr,
    heads: Expr,
    q_len: Expr,
    scale: Expr,
    lazy: float,
    dtype: type[Scalar],
) -> None:
    """The softmax of one tile, a thread a row, and the log-sum-exp."""
    of_s, to_row, own = rings.ss[tile].consumer(), rings.rows[tile].producer(), tid.x % ROWS
    greatest, weight = var(f32, LOWEST), var(f32, 0.0)
    for row, head, batch, first, blocks in work():
        top = row + tile * ROWS
        low, high = mask.first(top + own), mask.stop(top + own)
        whole = blocks - min(max(mask.stop(top) // KEYS, first) - first, blocks)
        greatest.set(LOWEST)
        weight.set(0.0)
        runs = [(0, blocks, True)] if mask.begin is not None else [(0, whole, True), (whole, blocks, False)]
        for start, stop, hides in runs:
            for step in loop(start, stop):
                keys = seen((first + blocks - 1 - step) * KEYS, low, high) if hides else None
                weights(next(of_s), to_row, own, greatest, weight, scale, keys, lazy, dtype)
        give(next(to_row), own, weight)
        with If((lse != 0) & (top + own < q_len)):
            found = (greatest + lg2(weight)) * LN2
            Global(f32, lse)[(batch * heads + head) * q_len + (top + own)] = found


def update(rings: Rings, work: Work, o: tma.Map[Scalar]) -> None:
    """Bring O up to date block by block, and store it at the end."""
    of_q, own = rings.qs.consumer(), tid.x % ROWS
    of_row, of_sum = [each.consumer() for each in rings.rows], [each.consumer() for each in rings.sums]
    for row, head, batch, _first, blocks in work():
        for tile in range(rings.tiles):
            take(next(of_row[tile]), own)
        for _ in loop(1, blocks):
            for tile in range(rings.tiles):
                rescale(next(of_sum[tile]), take(next(of_row[tile]), own))
        for tile in range(rings.tiles):
            weight = take(next(of_row[tile]), own)
            store(next(of_sum[tile]), weight, o, next(of_q), batch, head, row + tile * ROWS)
