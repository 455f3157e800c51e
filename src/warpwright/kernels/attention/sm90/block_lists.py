"""The lists of key blocks that a mask function lets queries see, for `sm90.modified.attention_modified`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from warpwright.kernels.attention.mods import NO_MODS, Mods, Place
from warpwright.kernels.attention.sm90.modified import HEAD_WORDS
from warpwright.kernels.attention.sm90.steps import Mask
from warpwright.lang import (
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

__all__ = ["block_lists", "kernel_of"]

THREADS = 256
CTA_WARPS = THREADS // 32


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
) -> None:
    """One CTA writes the list of one tile of queries (x) of one head (y) of one batch (z).

    The mask function runs for each query of the tile and each key. `sm90.modified.BlockLists` has the layout of a list,
    which has at least one block. Places after the last query see nothing and prevent nothing.
    """
    (queries, keys), row = tile, ctaid.x * tile[0]
    place = Place(mods, arrays, ctaid.z.to(s32), ctaid.y.to(s32))
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    blocks = (kv_len + (keys - 1)) // keys
    mine, size = lists + ((ctaid.z * nctaid.y + ctaid.y) * nctaid.x + ctaid.x) * (blocks + HEAD_WORDS), blocks + 1
    some, every = smem.array(u32, CTA_WARPS), smem.array(u32, CTA_WARPS)
    partial, whole = var(u32, 0), var(u32, 0)
    for block in loop(blocks):
        any_, all_ = var(u32, 0), var(u32, 1)  # of this thread: whether a query sees a key, whether all see all
        for index in loop(tid.x, queries * keys, THREADS):
            q, k = row + index // keys, block * keys + index % keys
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
        with If((tid.x == 0) & (any_ != all_)):
            mine[partial + HEAD_WORDS] = block
        with If((tid.x == 0) & (all_ != 0)):
            mine[size - whole] = block
        partial.set(partial + (any_ & (all_ ^ 1)))
        whole.set(whole + all_)
    with If(tid.x == 0):
        with If(partial + whole == 0):
            partial.set(1)
            mine[HEAD_WORDS] = 0
        mine[0] = partial + whole
        mine[1] = partial


@lru_cache(maxsize=256)
def kernel_of(tile: tuple[int, int], mods: Mods) -> Kernel:
    """Returns the kernel for tiles of (queries, keys); configure ``bounds`` (left, right) on it."""
    return block_lists.with_params(**mods.params).configure(mods=mods, tile=tile)
