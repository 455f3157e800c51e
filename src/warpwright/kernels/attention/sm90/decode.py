"""Attention forward on Hopper for few queries and many keys (decode): O = softmax(scale · Q·Kᵀ)·V, memory bound.

The heads of Q that share a head of K and V are rows of one tile, so that keys are read once. The keys of a tile are
split over as many CTAs as keep all SMs loading. Each CTA stores its part to a workspace; the CTA that stores the last
part combines them, or a second launch, `combine`, where that is much work; always in the same order. ``scale`` has the
factor log2 e: all powers are of 2.
"""

from __future__ import annotations

from functools import cache

from warpwright.kernels.attention.sm90.decode_plan import (
    COMBINE_THREADS,
    CONFIGS,
    QUAD,
    DecodeConfig,
)
from warpwright.kernels.attention.sm90.decode_steps import (
    REGISTERS,
    WORDS,
    DecodeConsumer,
    Output,
    Share,
    Tiles,
    Workspace,
    combine_parts,
    load_queries_when_empty,
    rings_of,
    shares,
)
from warpwright.kernels.attention.sm90.plan import WARPGROUP
from warpwright.kernels.attention.sm90.steps import Mask, init_barriers, load_when_empty, publish_when_empty
from warpwright.kernels.tiles import WARPS
from warpwright.lang import (
    Break,
    Else,
    Global,
    If,
    Kernel,
    bar,
    bf16,
    ctaid,
    f32,
    griddepcontrol,
    kernel,
    loop,
    role,
    s32,
    setmaxnreg,
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
    config: DecodeConfig = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
    ctas_per_sm: int = 1,
) -> None:
    """A CTA computes its share of all tiles; of each tile the key blocks in that share, from right to left.

    With ``config.last`` the CTA that stores the last part of a tile combines all parts.

    role      warps  moves                                          waits for        signals
    load      0      parts of tiles -> `work`; Q, K, V              empty of each    full of each
    multiply  4-7    Q, K, V -> registers -> O, or workspace -> O   full of each     empty of each
    """
    keys, places = config.keys, config.places
    flag, rings = smem.scalar(u32), rings_of(config, dtype)
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, keys)
    tiles = Tiles(total, strips, kv_heads, group, ctas, places, mask)
    init_barriers((rings.work, rings.q, rings.k, rings.v), (q, k, v))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        if ctas_per_sm > 1:
            setmaxnreg.dec(REGISTERS[0])

    @role(warp=0, elect=True)
    def load() -> None:
        if not config.last:
            griddepcontrol.launch_dependents()
        items, to_q, to_k, to_v = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.k, rings.v)]
        for share in shares(tiles):
            of, right = (share.tile.batch, share.tile.kv_head), (share.first + share.count - 1) * keys
            load_when_empty(to_k, "k", k, *of, right)
            load_queries_when_empty(to_q, q, places, *of, share.tile.member, share.tile.row)
            publish_when_empty(items, share.words)
            for step in loop(1, share.count):
                load_when_empty(to_k, "k", k, *of, right - step * keys)
                load_when_empty(to_v, "v", v, *of, right - (step - 1) * keys)
            load_when_empty(to_v, "v", v, *of, share.first * keys)
        publish_when_empty(items, (0,) * WORDS)
        for cursor in cursors:
            cursor.wait_all_empty()

    @role(warps=range(WARPS, 2 * WARPS))
    def multiply() -> None:
        if ctas_per_sm > 1:
            setmaxnreg.inc(REGISTERS[1])
        consumer = DecodeConsumer(rings, mask, scale, config)
        space = Workspace.at(workspace, reserve, ctas, rows, config.head_dim)
        out = Output(o.cast(dtype), (o_batch, o_head, o_row), columns, lse, kv_heads * group, q_len)
        for _ in loop():
            words = consumer.wait_item()
            _, _, _, count, blocks, number, *_ = words
            Break(when=count == 0)
            shifts, totals = consumer.compute_part(words)
            with If(count == blocks):
                out.store_tile(consumer.out, words, places, shifts, totals)
            with Else():
                space.store(consumer.out, tiles.slot(ctaid.x, number), shifts, totals)
                if config.last:
                    parts = tiles.owners(number, blocks)
                    with If(space.sync_and_count(tiles.slot(parts[1], number), parts[2], flag)):
                        for first in loop(0, rows * (config.head_dim // QUAD), WARPGROUP):
                            combine_parts(out, space, tiles, words, parts, first + tid.x % WARPGROUP)


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
    config: DecodeConfig = CONFIGS[128],
    bounds: tuple[bool, bool] = (False, False),
    dtype: type[Scalar] = bf16,
) -> None:
    """Combine the parts of a tile, four columns of a row a thread: the tile that is cut where the share of CTA
    ``ctaid.x`` of `attention` ends, unless an earlier cut is in the same tile.

    The grid may start before that of `attention` has ended. ``griddepcontrol.wait`` returns when everything that
    `attention` wrote is visible (PTX ISA 9.1 section 9.7.13.13).
    """
    mask = Mask(kv_len, begin if bounds[0] else None, end if bounds[1] else None, config.keys)
    tiles = Tiles(total, strips, kv_heads, group, ctas, config.places, mask, config.rows)
    space = Workspace.at(workspace, reserve, ctas, rows, config.head_dim)
    out = Output(o.cast(dtype), (o_batch, o_head, o_row), columns, lse, kv_heads * group, q_len)
    number = (ctaid.x + 1) * total // ctas
    tile = tiles.at(number)
    parts = tiles.owners(number, tile.blocks)
    with If((parts[0] == ctaid.x) & (parts[2] > 1)):
        griddepcontrol.wait()
        words = Share(number, tile, tile.blocks, tile.blocks).words
        combine_parts(out, space, tiles, words, parts, ctaid.y * COMBINE_THREADS + tid.x, config.at_once)


@cache
def kernel_of(config: DecodeConfig) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16) and ``bounds`` (left, right) on it."""
    return attention.configure(config=config, ctas_per_sm=config.ctas_per_sm)


@cache
def combine_of(config: DecodeConfig) -> Kernel:
    """Returns `combine` of a configuration; configure the same."""
    return combine.configure(config=config)
