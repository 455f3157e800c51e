"""Attention forward on datacentre Blackwell: O = softmax(scale · Q·Kᵀ)·V and the log-sum-exp of the scores.

Scores S, weights P and output O are in tensor memory. A tile of 128 queries has a softmax warpgroup, a thread a row: it
reads the scores of a key block and writes P in their place, as the A operand of PV. Two tiles are in flight, so that
the tensor cores work for one during the softmax of the other. The correction warpgroup rescales O where a row max has
grown, and stores O (base 2 throughout: ``scale`` has the factor log2 e). Key/value blocks come from the last one that a
query sees to the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from warpwright.kernels.attention.sm90.steps import Mask, init_barriers
from warpwright.kernels.attention.sm100.plan import CONFIGS, KEYS, ROWS, Config
from warpwright.kernels.attention.sm100.roles import (
    alloc_and_sync,
    issue_products,
    soften,
    sync_and_dealloc,
    write_results,
)
from warpwright.kernels.attention.sm100.steps import Rings, load_part_when_empty
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Expr,
    Kernel,
    bf16,
    ctaid,
    f32,
    kernel,
    loop,
    nctaid,
    role,
    s32,
    select,
    setmaxnreg,
    tma,
    u32,
    u64,
)
from warpwright.types import Scalar

__all__ = ["attention", "kernel_of"]

REGISTERS = {1: (240, 152, 112), 2: (184, 88, 56)}  # by tiles: of softmax, correction, the other warps


@kernel("sm_100a", threads=512)
def attention(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    heads: u32,
    group: u32,
    parts: u32,
    total: u32,
    scale: f32,
    *,
    config: Config = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 512,
) -> None:
    """Persistent: CTAs take parts of ``config.tiles`` · 128 queries, ``parts`` of them a head; with a right bound the
    last queries of all heads first, which see most keys, in `turns`.

    Each tile has rings of one stage: `s` brings scores to its softmax and weights back, `rest` tells that the last of
    them are stored, `row` brings the factor of each row to `correct` and `total` its sum, `sum` is O.

    role       warps     moves                                     waits for             signals
    softmax    0-3, 4-7  `s` -> registers -> `s`, `row`, `total`   s.full, total.empty   s.empty, rest.full, row.full,
                                                                                         total.full
    correct    8-11      `sum` -> registers -> `sum`, or O         row.full, total.full, s.empty, total.empty
                                                                   sum.full
    multiply   12        Q, `kv` -> `s`; `s`, `kv` -> `sum`        q.full, kv.full,      s.full, sum.full, q.empty,
                                                                   s.empty, rest.full    kv.empty
    load       13        Q, K, V: global -> rings                  q.empty, kv.empty     q.full, kv.full
    """
    tiles, rings = config.tiles, Rings.of(config, dtype)
    last = WARPS * (tiles + 1)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, KEYS)
    init_barriers(rings.all, (q, k, v, o), on_warp=last)
    alloc_and_sync(last + 2)

    def work() -> Iterator[DensePart]:
        """Yields the parts of this CTA, the same in every role."""
        for turn, number in turns(total, sort=bounds[1]):
            if bounds[1]:
                both, row = number % (total // parts), (parts - 1 - number // (total // parts)) * (tiles * ROWS)
            else:
                both, row = number // parts, number % parts * (tiles * ROWS)
            yield DensePart(
                row, both % heads, both // heads, *mask.blocks(row, tiles * ROWS), mask, heads, q_len, turn % 2
            )

    @role(warps=range(last, last + WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[tiles][2])

    @role(warp=last + 1, elect=True)
    def load() -> None:
        to_q, to_kv = rings.qs.producer(), rings.kv.producer()
        for each in work():
            of_kv, last_row = (each.batch, each.head // group), (each.first + each.blocks - 1) * KEYS
            load_part_when_empty((to_q, to_kv), (q, k, v), each.place(each.row), (*of_kv, last_row), each.blocks, tiles)
        to_q.wait_all_empty()
        to_kv.wait_all_empty()

    @role(warp=last, elect=True)
    def multiply() -> None:
        issue_products(rings, work)

    def softmax_of(tile: int) -> None:
        @role(warps=range(WARPS * tile, WARPS * (tile + 1)))
        def softmax() -> None:
            setmaxnreg.inc(REGISTERS[tiles][0])
            soften(rings, tile, work, scale, lse, config, dtype)

    for tile in range(tiles):
        softmax_of(tile)

    @role(warps=range(WARPS * tiles, WARPS * (tiles + 1)))
    def correct() -> None:
        setmaxnreg.dec(REGISTERS[tiles][1])
        write_results(rings, work, o)

    sync_and_dealloc(last + 2)


def turns(total: Expr, sort: bool) -> Iterator[tuple[Any, Any]]:
    """Yields the numbers of this CTA's parts of ``total``, each after its turn. CTAs take one part each in the order of
    their ranks, and so on; with ``sort``, for parts that are sorted by length, in the opposite order every other turn,
    so that the sums of lengths differ little."""
    whole, rest = total // nctaid.x, total % nctaid.x

    def rank(turn: Any) -> Any:
        return select(turn % 2 == 0, ctaid.x, nctaid.x - 1 - ctaid.x) if sort else ctaid.x

    for turn in loop(whole + (rest > rank(whole)).to(u32)):
        yield turn, turn * nctaid.x + rank(turn)


@dataclass(frozen=True)
class DensePart:
    """A part of a head of ``q_len`` queries, see `roles.Part`."""

    row: Any
    head: Expr
    batch: Expr
    first: Any
    blocks: Any
    mask: Mask
    heads: Expr
    q_len: Expr
    phase: Any

    @property
    def lse_row(self) -> Any:
        """The index of query 0 in the log-sum-exp."""
        return (self.batch * self.heads + self.head) * self.q_len

    def place(self, row: Any) -> tuple[Any, ...]:
        """Returns the coordinates of a query in the map of O, without the column."""
        return self.batch, self.head, row


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on it."""
    return attention.configure(config=config, threads=config.threads)
