"""Attention forward on Hopper with the functions, masks and sinks of a user (`kernels.attention.mods`).

As `sm90.forward`; but the scores are scaled before the softmax, because a user's function gets them so. With a mask
function a tile takes the key blocks of its list: first those that the function decides key by key, then those that all
queries of the tile see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from warpwright.kernels.attention.index import Index
from warpwright.kernels.attention.mods import NO_MODS, Mods, Place
from warpwright.kernels.attention.sm90.block_lists import BlockLists
from warpwright.kernels.attention.sm90.forward import REGISTERS, Consumer
from warpwright.kernels.attention.sm90.plan import CONFIGS, Config
from warpwright.kernels.attention.sm90.softmax import HALVES, BlockSoftmax, nothing
from warpwright.kernels.attention.sm90.steps import (
    LOG2E,
    CurrentTile,
    Mask,
    Rings,
    apply_mask,
    init_barriers,
    load_when_empty,
    publish_when_empty,
    read_item,
    schedule,
    store_panels,
)
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Kernel,
    Pointer,
    Var,
    atom,
    bar,
    bf16,
    ctaid,
    f32,
    kernel,
    loop,
    max,
    min,
    nctaid,
    role,
    s32,
    select,
    setmaxnreg,
    tma,
    u32,
    u64,
    var,
    warp,
)
from warpwright.lang.ring import Slot
from warpwright.types import Scalar

__all__ = ["attention_modified", "kernel_of"]


@kernel("sm_90a", threads=384)
def attention_modified(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: tma.Map[Scalar],
    lse: u64,
    counter: u64,
    sinks: u64,
    lists: u64,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    heads: u32,
    group: u32,
    tiles: u32,
    total: u32,
    section: u32,
    of_batch: u32,
    of_head: u32,
    scale: f32,
    *arrays: Any,
    mods: Mods = NO_MODS,
    config: Config = CONFIGS["128: 128x128"],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    threads: int = 384,
) -> None:
    """Persistent: CTAs take tiles in the order of their numbers, as in `sm90.forward.attention`.

    ``lists`` is the address of the lists of key blocks, one for each tile of queries, each of ``HEAD_WORDS`` words and
    a word a block; the list of a head is ``of_batch`` lists a batch and ``of_head`` a head after the first. ``sinks``
    is the address of one f32 a head. ``arrays`` are those that the functions of ``mods`` capture.
    """
    (queries, keys), consumers = config.tile, config.consumers
    rings = Rings.of(config, dtype)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    blocks = BlockLists(Global(u32, lists), kv_len, keys, queries, (of_batch, of_head), heads)
    init_barriers(rings, (q, k, v, o))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[consumers][0])

    @role(warp=0, elect=True)
    def load() -> None:
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        number = var(u32, ctaid.x)
        for _ in loop():
            Break(when=number >= total)
            row, head = schedule(number, tiles, section, queries, bounds[1])
            first, count = blocks.of_tile(row, head) if mods.mask else mask.blocks(row, queries)
            at = blocks.rows_of(first) if mods.mask else keys_before(first + count, keys)
            publish_when_empty(items, (row, head, first, count))
            batch, own = head // heads, head % heads
            of, before = (batch, own // group), var(u32, at(0))
            load_when_empty(to_k, "k", k, *of, before)
            load_when_empty(to_q, "q", q, batch, own, row)
            for step in loop(1, count):
                here = at(step)
                load_when_empty(to_k, "k", k, *of, here)
                load_when_empty(to_v, "v", v, *of, before)
                before.set(here)
            taken = var(u32, number)
            with If(counter != 0):
                taken.set(atom.inc(Global(u32, counter), total - 1))
            load_when_empty(to_v, "v", v, *of, before)
            number.set(taken + nctaid.x)
        publish_when_empty(items, (0, 0, 0, 0))
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warp=1, elect=True)
    def save() -> None:
        items, of_q = rings.work.consumer(), rings.q.consumer()
        for _ in loop():
            item = next(items)
            item.full.wait()
            row, head, _, count = read_item(item)
            item.empty.arrive()
            Break(when=count == 0)
            slot = next(of_q)
            Slot(rings.o, slot.stage, slot.phase).full.wait()
            store_panels(slot.q, o, head // heads, head % heads, row)
            tma.commit_group()
            tma.wait_group(0, read=True)
            slot.empty.arrive()

    @role(warps=range(WARPS, WARPS + WARPS * consumers))
    def multiply() -> None:
        setmaxnreg.inc(REGISTERS[consumers][1])
        tile = ModifiedTile.of_mods(mods, blocks, mask, heads)
        consumer = ModifiedConsumer(rings, mask, scale, config, tile, mods, arrays, (q_len, sinks))
        consumer.run(consumer.wait_item(), lse, q_len)


def keys_before(stop: Any, keys: int) -> Any:
    """Returns a function: step 0 gives the first key of block ``stop`` - 1, step 1 that of the block before, …"""
    return lambda step: (stop - 1 - step) * keys


@dataclass(frozen=True)
class ModifiedTile(CurrentTile):
    """The tile that a consumer works on: also its batch and head (s32), and the first key of its next block.

    The next block is read from the list one block ahead, so that no multiplication waits for it.
    """

    blocks: BlockLists | None
    mask: Mask
    heads: Expr
    batch: Var
    own: Var
    partial: Var
    key: Var

    @staticmethod
    def of_mods(mods: Mods, blocks: BlockLists, mask: Mask, heads: Expr) -> ModifiedTile:
        """Returns registers for a tile, not set yet."""
        row, head, first, count, partial, key = (var(u32, 0) for _ in range(6))
        batch, own = var(s32, 0), var(s32, 0)
        lists = blocks if mods.mask else None
        return ModifiedTile(row, head, first, count, lists, mask, heads, batch, own, partial, key)

    def set(self, words: Sequence[Any]) -> None:
        """Take the tile of an item."""
        super().set(words)
        self.batch.set((self.head // self.heads).to(s32))
        self.own.set((self.head % self.heads).to(s32))
        if self.blocks is not None:
            self.partial.set(self.blocks.words[self.first + 1])
        self.key.set(self.key_of(0))

    def key_of(self, number: Any) -> Any:
        """Returns the first key of the ``number``-th block of the tile; some key of the tile after its last block."""
        if self.blocks is None:
            return (self.first + self.count - 1 - number) * self.mask.keys
        end = self.first + self.blocks.size - 1
        return self.blocks.row(self.first, self.partial, end, min(number, self.count - 1))


class ModifiedConsumer(Consumer):
    """A consumer warpgroup that applies `Mods` to its scores."""

    tile: ModifiedTile

    def __init__(
        self,
        rings: Rings,
        mask: Mask,
        scale: Expr,
        config: Config,
        tile: ModifiedTile,
        mods: Mods,
        arrays: Sequence[Any],
        rest: tuple[Expr, Expr],
    ) -> None:
        super().__init__(rings, mask, scale, config, tile)
        self.mods, (self.q_len, self.sinks) = mods, rest
        self.place = Place(mods, arrays, tile.batch, tile.own)

    def runs(self) -> list[tuple[bool, Any]]:
        """Returns the tile's blocks after the first as runs; in a list those that are decided key by key come first."""
        if self.mods.mask is None:
            return super().runs()
        return [(True, max(self.tile.partial, 1)), (False, self.tile.count)]

    def block_softmax(self, masked: bool, number: Any, after_maxima: Callable[[], None] = nothing) -> BlockSoftmax:
        """Returns the weights and factors of the ``number``-th block of the tile."""
        block = self.tile.key.to(u32)
        self.tile.key.set(self.tile.key_of(number + 1))
        scores: list[Any] = self.scores.regs
        if self.mods.changes_scores:
            scores = self.change(scores, block, masked)
        if masked:
            scores = self.hide(apply_mask(self.mask, scores, self.row, block, self.apart), block)
        return self.softmax.block(scores, LOG2E if self.mods.changes_scores else self.scale, after_maxima)

    def change(self, scores: Sequence[Any], block: Any, masked: bool) -> list[Any]:
        """Returns the scores scaled, changed by `Mods`, capped. A ``masked`` block may reach past the last key."""
        return [
            self.place.score(score * self.scale, q, k)
            for score, (q, k) in zip(scores, self.indices(len(scores), block, masked), strict=True)
        ]

    def hide(self, scores: Sequence[Any], block: Any) -> list[Any]:
        """Returns the scores, -inf where the mask function hides the key."""
        if self.mods.mask is None:
            return list(scores)
        return [
            select(self.place.sees(q, k), score, float("-inf"))
            for score, (q, k) in zip(scores, self.indices(len(scores), block, True), strict=True)
        ]

    def indices(self, count: int, block: Any, masked: bool) -> list[tuple[Any, Any]]:
        """Returns the query and the key (s32) of each score of this thread; no index is beyond the last one, because
        the functions load from arrays by them."""
        rows = [Index.of(min(self.row + self.apart * half, self.q_len - 1).to(s32)) for half in HALVES]
        left, found = (block + warp.lane % 4 * 2).to(s32), list[tuple[Any, Any]]()
        for v in range(count):
            column = 8 * (v >> 2) + (v & 1)
            key = min(left + column, (self.mask.kv_len - 1).to(s32))
            found.append((rows[v >> 1 & 1], Index.of(key) if masked else Index.of(left, column)))
        return found

    def sink(self) -> Any:
        """Returns the sink of the tile's head times log2 e, or None without sinks."""
        sinks: Pointer[f32] = Global(f32, self.sinks)
        return sinks[self.tile.own] * LOG2E if self.mods.sinks else None


@lru_cache(maxsize=256)
def kernel_of(config: Config, mods: Mods) -> Kernel:
    """Returns the kernel of a configuration for ``mods``; configure ``dtype`` and ``bounds`` (left, right) on it."""
    return attention_modified.with_params(**mods.params).configure(config=config, mods=mods, threads=config.threads)
