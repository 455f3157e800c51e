"""The lists of blocks that a mask function leaves to compute: of key blocks that the queries of a tile see, for
`sm90.modified.attention_modified`, and of tiles of queries that see a block of keys, for `sm90.backward.gradients`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from warpwright.kernels.attention.mods import NO_MODS, Mods, Place
from warpwright.kernels.attention.sm90.steps import Mask
from warpwright.lang import (
    Expr,
    Global,
    If,
    Kernel,
    Pointer,
    bar,
    ctaid,
    cvt,
    kernel,
    loop,
    min,
    nctaid,
    s32,
    select,
    smem,
    tid,
    u32,
    var,
    vote,
    warp,
)

__all__ = ["CUT", "HEAD_WORDS", "BlockLists", "block_lists", "kernel_of"]

CUT = 1 << 31  # of a word of a list `by_keys`: the mask function decides one by one
HEAD_WORDS = 2  # words of a list before its blocks: all blocks, and those that are decided one by one
THREADS = 256
CTA_WARPS = THREADS // 32


@dataclass(frozen=True)
class BlockLists:
    """Lists of blocks in global memory: blocks of ``block`` among ``length`` rows, a list for each ``tile`` other rows.

    Word 0 of a list is how many blocks the tile takes. Word 1 is how many of them the mask function cuts; their numbers
    follow in ascending order. Blocks that the mask function leaves whole are stored from the last word of the list
    backwards. The list of a head is ``steps`` lists after that of the batch before, and of the head before.
    """

    words: Pointer[u32]
    length: Expr
    block: int
    tile: int
    steps: tuple[Expr, Expr]
    heads: Expr

    @property
    def size(self) -> Any:
        """Words of a list."""
        return (self.length + (self.block - 1)) // self.block + HEAD_WORDS

    def of_tile(self, row: Any, head: Any) -> tuple[Any, Any]:
        """Returns where the list of the tile from ``row`` on begins, and the number of its blocks."""
        of_batch, of_head = self.steps
        number = head // self.heads * of_batch + head % self.heads * of_head + row // self.tile
        first = number * self.size
        return first, self.words[first]

    def rows_of(self, first: Any) -> Any:
        """Returns a function: step i gives the first row of the i-th block of the list at word ``first``."""
        partial, end = self.words[first + 1], first + self.size - 1
        return lambda step: self.row(first, partial, end, step)

    def row(self, first: Any, partial: Any, end: Any, step: Any) -> Any:
        """Returns the first row of the block with number ``step`` of a list, whose last word is at ``end``."""
        at = select(partial > step, first + HEAD_WORDS + step, end - step + partial)
        return self.words[at] * self.block


@kernel("sm_90a", threads=THREADS)
def block_lists(
    lists: Global[u32],
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    *arrays: Pointer[Any],
    mods: Mods = NO_MODS,
    tile: tuple[int, int] = (128, 128),
    bounds: tuple[bool, bool] = (False, False),
    by_keys: bool = False,
) -> None:
    """One CTA writes the list of one tile of queries (x) of one head (y) of one batch (z); with ``by_keys`` that of one
    block of keys, whose blocks are tiles of queries.

    The mask function runs for each query and each key. `BlockLists` has the layout of a list, which has at least one
    block. Places after the last query see nothing and prevent nothing. A list ``by_keys`` has all its blocks in
    ascending order, those that the function cuts with the bit `CUT`.
    """
    (queries, keys), row = tile, ctaid.x * tile[by_keys]
    length, step = (q_len, queries) if by_keys else (kv_len, keys)
    place = Place(mods, arrays, ctaid.z.to(s32), ctaid.y.to(s32))
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    blocks = (length + (step - 1)) // step
    mine, size = lists + ((ctaid.z * nctaid.y + ctaid.y) * nctaid.x + ctaid.x) * (blocks + HEAD_WORDS), blocks + 1
    some, every = smem.array(u32, CTA_WARPS), smem.array(u32, CTA_WARPS)
    partial, whole = var(u32, 0), var(u32, 0)
    for block in loop(blocks):
        any_, all_ = var(u32, 0), var(u32, 1)  # of this thread: whether a query sees a key, whether all see all
        for index in loop(tid.x, queries * keys, THREADS):
            before = (block * queries, row) if by_keys else (row, block * keys)
            q, k = before[0] + index // keys, before[1] + index % keys
            near = min(q, q_len - 1)
            sees = (k < mask.stop(near)) & place.sees(near.to(s32), min(k, kv_len - 1).to(s32))
            if bounds[0]:
                sees = sees & (k >= mask.first(near))
            any_.set(select(sees & (q < q_len), cvt(1, u32), any_))
            all_.set(select(sees | (q >= q_len), all_, cvt(0, u32)))
        any_.set(select(vote.any(any_ != 0), cvt(1, u32), 0))
        all_.set(select(vote.all(all_ != 0), cvt(1, u32), 0))
        with If(warp.lane == 0):
            some[warp.id] = any_
            every[warp.id] = all_
        bar.sync()
        for other in range(CTA_WARPS):
            any_.set(any_ | some[other])
            all_.set(all_ & every[other])
        bar.sync()  # the next block's votes come after these reads
        if by_keys:
            with If((tid.x == 0) & (any_ != 0)):
                mine[partial + whole + HEAD_WORDS] = select(all_ != 0, block, block | CUT)
        else:
            with If((tid.x == 0) & (any_ != all_)):
                mine[partial + HEAD_WORDS] = block
            with If((tid.x == 0) & (all_ != 0)):
                mine[size - whole] = block
        partial.set(partial + (any_ & (all_ ^ 1)))
        whole.set(whole + all_)
    with If(tid.x == 0):
        with If(partial + whole == 0):
            partial.set(1)
            mine[HEAD_WORDS] = CUT if by_keys else 0
        mine[0] = partial + whole
        mine[1] = partial


@lru_cache(maxsize=256)
def kernel_of(tile: tuple[int, int], mods: Mods, by_keys: bool = False) -> Kernel:
    """Returns the kernel for tiles of (queries, keys); configure ``bounds`` (left, right) on it."""
    return block_lists.with_params(**mods.params).configure(mods=mods, tile=tile, by_keys=by_keys)
