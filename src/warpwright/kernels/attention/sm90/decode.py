"""Attention forward on Hopper for few queries and many keys: O = softmax(scale · Q·Kᵀ)·V, bound by memory.

The heads of Q that share a head of K and V are rows of one tile, so that keys are read once; and the keys of a tile are
shared out to as many CTAs as keep all SMs loading. These leave their parts in memory; who comes last puts them
together, or where that is much work a second launch, `combine`; always in the same order. ``scale`` has the factor
log2 e: all powers are of 2.
"""

from __future__ import annotations

from functools import cache

from warpwright.kernels.attention.sm90.decode_plan import COMBINE_THREADS, QUAD, DecodeConfig
from warpwright.kernels.attention.sm90.decode_steps import (
    WORDS,
    Output,
    Packed,
    Share,
    Tiles,
    Workspace,
    load_queries,
    publish,
    put_together,
    rings_of,
    shares,
)
from warpwright.kernels.attention.sm90.plan import WARPGROUP
from warpwright.kernels.attention.sm90.steps import WARPS, Mask, load_tile, set_up
from warpwright.lang import (
    Break,
    Else,
    Global,
    If,
    Kernel,
    bf16,
    ctaid,
    f32,
    griddepcontrol,
    kernel,
    loop,
    role,
    s32,
    smem,
    tid,
    tma,
    u32,
    u64,
)
from warpwright.types import Scalar

__all__ = ["attention", "combine", "combine_of", "kernel_of"]


@kernel("sm_90a", threads=256)
def attention(
    q: tma.Map[Scalar],
    k: tma.Map[Scalar],
    v: tma.Map[Scalar],
    o: Global[Scalar],
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    columns: u32,
    lse: u64,
    workspace: u64,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    kv_heads: u32,
    group: u32,
    strips: u32,
    total: u32,
    rows: u32,
    ctas: u32,
    reserve: u32,
    scale: f32,
    *,
    head_dim: int = 128,
    keys: int = 64,
    stages: int = 6,
    places: int = 1,
    last: bool = True,
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
) -> None:
    """A CTA takes its share of all tiles, and of each the blocks of keys that are in it, from right to left.

    With ``last`` who leaves the last part of a tile puts all of them together.

    role      warps  moves                                          waits for        signals
    load      0      parts of tiles -> `work`; Q, K, V              empty of each    full of each
    multiply  4-7    Q, K, V -> registers -> O, or workspace -> O   full of each     empty of each
    """
    flag, rings = smem.scalar(u32), rings_of(keys, head_dim, stages, dtype)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    tiles = Tiles(total, strips, kv_heads, group, ctas, places, mask)
    set_up((rings.work, rings.q, rings.k, rings.v), (q, k, v))

    @role(warp=0, elect=True)
    def load() -> None:
        if not last:
            griddepcontrol.launch_dependents()
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        for share in shares(tiles):
            of, right = (share.tile.batch, share.tile.kv_head), (share.first + share.count - 1) * keys
            load_tile(to_k, "k", k, *of, right)
            load_queries(to_q, q, places, *of, share.tile.member, share.tile.row)
            publish(items, share.words)
            for step in loop(1, share.count):
                load_tile(to_k, "k", k, *of, right - step * keys)
                load_tile(to_v, "v", v, *of, right - (step - 1) * keys)
            load_tile(to_v, "v", v, *of, share.first * keys)
        publish(items, (0,) * WORDS)
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warps=range(WARPS, 2 * WARPS))
    def multiply() -> None:
        own, space = Packed(rings, mask, scale, places), Workspace.at(workspace, reserve, ctas, rows, head_dim)
        out = Output(o.cast(dtype), (o_batch, o_head, o_row), columns, lse, kv_heads * group, q_len)
        for _ in loop():
            words = own.take()
            _, _, _, count, blocks, number, *_ = words
            Break(when=count == 0)
            shifts, totals = own.part(words)
            with If(count == blocks):
                out.put_tile(own.sums, words, places, shifts, totals)
            with Else():
                space.put(own.sums, tiles.slot(ctaid.x, number), shifts, totals)
                if last:
                    parts = tiles.owners(number, blocks)
                    with If(space.is_last(tiles.slot(parts[1], number), parts[2], flag)):
                        for first in loop(0, rows * (head_dim // QUAD), WARPGROUP):
                            put_together(out, space, tiles, words, parts, first + tid.x % WARPGROUP)


@kernel("sm_90a", threads=COMBINE_THREADS)
def combine(
    o: Global[Scalar],
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    columns: u32,
    lse: u64,
    workspace: u64,
    q_len: u32,
    kv_len: u32,
    begin: s32,
    end: s32,
    kv_heads: u32,
    group: u32,
    strips: u32,
    total: u32,
    rows: u32,
    ctas: u32,
    reserve: u32,
    *,
    head_dim: int = 128,
    keys: int = 64,
    places: int = 1,
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
) -> None:
    """Puts the parts of a tile together, four columns of a row a thread: of the tile that is cut where the share of CTA
    ``ctaid.x`` of `attention` ends, unless it is cut before.

    The grid may start before that of `attention` has ended. ``griddepcontrol.wait`` returns when all it wrote is
    visible (PTX ISA 9.1 section 9.7.13.13).
    """
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    tiles = Tiles(total, strips, kv_heads, group, ctas, places, mask)
    space = Workspace.at(workspace, reserve, ctas, rows, head_dim)
    out = Output(o.cast(dtype), (o_batch, o_head, o_row), columns, lse, kv_heads * group, q_len)
    number = (ctaid.x + 1) * total // ctas
    tile = tiles.at(number)
    parts = tiles.owners(number, tile.blocks)
    with If((parts[0] == ctaid.x) & (parts[2] > 1)):
        griddepcontrol.wait()
        words = Share(number, tile, tile.blocks, tile.blocks).words
        put_together(out, space, tiles, words, parts, ctaid.y * COMBINE_THREADS + tid.x)


@cache
def kernel_of(config: DecodeConfig) -> Kernel:
    """The kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on what is seen."""
    return attention.configure(**config.keywords)


@cache
def combine_of(config: DecodeConfig) -> Kernel:
    """The kernel that follows it; configure the same."""
    return combine.configure(**{name: value for name, value in config.keywords.items() if name in combine.config})
