"""Attention forward on datacentre Blackwell for packed sequences of any lengths, see `sm90.varlen`.

The roles multiply, softmax and correct are those of `sm100.kernel`. The role `load` finds the sequence of each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from warpwright.kernels.attention.sm90.steps import Mask, init_barriers, publish_when_empty, read_item, schedule
from warpwright.kernels.attention.sm90.varlen import WORDS, SequenceCursor
from warpwright.kernels.attention.sm100.plan import CONFIGS, KEYS, ROWS, Config
from warpwright.kernels.attention.sm100.roles import (
    alloc_and_sync,
    issue_products,
    soften,
    sync_and_dealloc,
    write_results,
)
from warpwright.kernels.attention.sm100.steps import Rings, arrive_on_empty, load_part_when_empty
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Kernel,
    Ring,
    atom,
    bf16,
    ctaid,
    f32,
    kernel,
    loop,
    nctaid,
    role,
    s32,
    setmaxnreg,
    smem,
    tma,
    u32,
    u64,
    var,
)
from warpwright.layout.tensor_map import RAGGED_ROWS
from warpwright.types import Scalar

__all__ = ["attention_varlen", "kernel_of"]

REGISTERS = {1: (240, 152, 112), 2: (184, 96, 48)}  # by tiles: of softmax, correction, the other warps


@kernel("sm_100a", threads=512)
def attention_varlen(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    counter: u64,
    cu_q: u64,
    cu_k: u64,
    sequences: u32,
    total_q: u32,
    total_k: u32,
    left: s32,
    right: s32,
    heads: u32,
    group: u32,
    section: u32,
    scale: f32,
    *,
    config: Config = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 512,
) -> None:
    """Persistent: CTAs take parts of ``config.tiles`` · 128 queries in the order of their numbers, which count through
    all sequences. A CTA takes its next number from ``counter``; the CTA that took the last number of all resets it.

    Only the role `load` computes how many parts there are; the ring `work` brings each part to the other roles. The
    maps are ragged (`warpwright.layout.tensor_map.ragged`), so that no tile reads or writes rows of the next sequence.

    role       warps     moves                                     waits for             signals
    load       13        parts -> `work`; Q, K, V: global -> rings empty of each         full of each
    others     0-12      as in `sm100.kernel`                      work.full, …          work.empty, …
    """
    tiles, rings = config.tiles, Rings.of(config, dtype)
    last, rows = WARPS * (tiles + 1), tiles * ROWS
    items = Ring(1, empty=last + 1, name="work", item=smem.tile(u32, (1, WORDS)))
    init_barriers((*rings.all, items), (q, k, v, o), on_warp=last)
    alloc_and_sync(last + 2)
    window = left if bounds[0] else None, right if bounds[1] else None

    def work(alone: bool = False) -> Iterator[PackedPart]:
        """Yields the parts that `load` publishes, to a thread ``alone`` or to a warp."""
        published = items.consumer()
        for _ in loop():
            item = next(published)
            item.full.wait()
            words = read_item(item)
            arrive_on_empty(item.empty, alone)
            Break(when=words[3] == 0)
            yield PackedPart(words, window, total_q, item.phase)

    @role(warps=range(last, last + WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[tiles][2])

    @role(warp=last + 1, elect=True)
    def load() -> None:
        to_q, to_kv, published = cursors = [ring.producer() for ring in (rings.qs, rings.kv, items)]
        number, at = var(u32, ctaid.x), SequenceCursor((cu_q, cu_k), (total_q, total_k), sequences, rows, heads)
        for _ in loop():
            at.advance_to(number)
            Break(when=number - at.before >= at.count)
            row, head = schedule(number - at.before, at.tiles, section, rows, bounds[1])
            offset = at.keys.to(s32) - at.queries.to(s32)
            mask = Mask(at.keys, offset - left if bounds[0] else None, offset + right + 1 if bounds[1] else None, KEYS)
            first, blocks = mask.blocks(row, rows)
            lengths = at.keys, offset.to(u32), at.queries
            publish_when_empty(published, (row, head, first, blocks, *lengths, head * total_q + at.first_query))
            queries = RAGGED_ROWS, at.stop_query, head, RAGGED_ROWS - at.queries + row
            keys = RAGGED_ROWS, at.stop_key, head // group, RAGGED_ROWS - at.keys + (first + blocks - 1) * KEYS
            load_part_when_empty((to_q, to_kv), (q, k, v), queries, keys, blocks, tiles)
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.add(Global(u32, counter), 1))
            number.set(taken + nctaid.x)
        with If((counter != 0) & (number == at.before + at.count + (nctaid.x - 1))):
            atom.exch(Global(u32, counter), 0)
        publish_when_empty(published, [0] * WORDS)
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warp=last, elect=True)
    def multiply() -> None:
        issue_products(rings, partial(work, alone=True))

    def softmax_of(tile: int) -> None:
        @role(warps=range(WARPS * tile, WARPS * (tile + 1)))
        def softmax() -> None:
            setmaxnreg.inc(REGISTERS[tiles][0])
            soften(rings, tile, work, scale, lse, config, dtype)

    for tile in range(tiles):
        softmax_of(tile)

    @role(warps=range(WARPS * tiles, last))
    def correct() -> None:
        setmaxnreg.dec(REGISTERS[tiles][1])
        write_results(rings, work, o)

    sync_and_dealloc(last + 2)


class PackedPart:
    """A part of a sequence, by the words of an item; ``window`` and ``total_q`` are the kernel's. See `roles.Part`."""

    def __init__(
        self, words: Sequence[Expr], window: tuple[Expr | None, Expr | None], total_q: Expr, phase: Expr
    ) -> None:
        self.row, self.head, self.first, self.blocks, self.keys, self.offset, self.q_len, self.lse_row = words
        self.window, self.total_q, self.phase = window, total_q, phase

    @property
    def mask(self) -> Mask:
        """The mask of the sequence."""
        (left, right), offset = self.window, self.offset.to(s32)
        begin, end = None if left is None else offset - left, None if right is None else offset + right + 1
        return Mask(self.keys, begin, end, KEYS)

    def place(self, row: Any) -> tuple[Any, ...]:
        """Returns the coordinates of a query in the ragged map of O, without the column."""
        stop = self.lse_row - self.head * self.total_q + self.q_len
        return RAGGED_ROWS, stop, self.head, RAGGED_ROWS - self.q_len + row


@cache
def kernel_of(config: Config) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on it."""
    return attention_varlen.configure(config=config, threads=config.threads)
