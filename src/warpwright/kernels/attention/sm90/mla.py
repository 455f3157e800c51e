"""Decoding of multi-head latent attention (DeepSeek) on Hopper: O = softmax(scale · Q·Kᵀ)·V of few queries, where the
keys are latent rows of 576 columns that all heads share, and the values their first 512 columns.

O of 64 rows takes half of an SM's registers, so two warpgroups hold 256 columns each. A third one computes scores and
weights, which they read from shared memory. Latent rows are loaded once and serve as K and as V. The CTAs have equal
shares of the key blocks of all sequences, as in `sm90.paged_decode`, and a second launch combines the parts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from warpwright.kernels.attention.sm90.decode_plan import COMBINE_THREADS, QUAD
from warpwright.kernels.attention.sm90.decode_steps import Output, Workspace, load_queries_when_empty
from warpwright.kernels.attention.sm90.mla_plan import CONFIG, REGISTERS, MlaConfig
from warpwright.kernels.attention.sm90.mla_steps import MlaRings, Scores, Values, store_part, store_tile
from warpwright.kernels.attention.sm90.paged_decode import WORDS, PagedShare, combine_paged, shares
from warpwright.kernels.attention.sm90.pages import Cut, PagedTiles, rows_at
from warpwright.kernels.attention.sm90.steps import init_barriers, publish_when_empty
from warpwright.kernels.attention.sm90.varlen import VarlenTile
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
    elect_one,
    f32,
    griddepcontrol,
    kernel,
    ld,
    loop,
    max,
    nctaid,
    role,
    setmaxnreg,
    tid,
    tma,
    u32,
    u64,
    var,
    warp,
)
from warpwright.types import Scalar

__all__ = ["attention_mla", "combine", "combine_of", "kernel_of"]


@kernel("sm_90a", threads=512)
def attention_mla(
    q: tma.Map[Scalar],
    kv: tma.Map[Scalar],
    o: Global[Scalar],
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    lse: u64,
    workspace: u64,
    block_table: u64,
    lengths: u64,
    width: u32,
    pages: u32,
    apart: u32,
    sequences: u32,
    q_len: u32,
    heads: u32,
    rows: u32,
    ctas: u32,
    reserve: u32,
    scale: f32,
    *,
    config: MlaConfig = CONFIG,
    causal: bool = False,
    size: int = 64,
    dtype: type[Scalar] = bf16,
) -> None:
    """A CTA computes its share of the key blocks; of each tile the blocks in that share, from right to left.

    With ``size`` 0 the latent rows of a sequence are not in pages of ``size`` rows, but one after the other.

    role    warps  moves                                 waits for               signals
    load    0      parts of tiles -> `work`; Q, rows     empty of each           full of each
    score   4-7    Q, rows -> registers -> weights       full of Q, rows, work   empty of these, full of weights, sums
    value   8-15   weights, rows -> registers -> O, or   full of weights, sums,  empty of these
                   workspace                             rows, work
    """
    keys, places = config.keys, config.places
    rings = MlaRings.of(config, dtype, WORDS)
    of_pages = rows_at(block_table, lengths, width, pages, 0, size)
    window = None, 0 if causal else None
    tiles = PagedTiles(of_pages, sequences, q_len, 1, heads, places, keys, config.rows, *window)
    init_barriers(rings, (q, kv))
    bar.sync()

    @role(warps=range(WARPS))
    def spare() -> None:
        setmaxnreg.dec(REGISTERS[0])

    @role(warp=0)
    def load() -> None:
        griddepcontrol.launch_dependents()
        cut = Cut(tiles.total(), ctas)
        begin, end = cut.start(ctaid.x), cut.start(ctaid.x + 1)
        sequence, base = tiles.find(begin)
        with If(elect_one()):
            items, to_q, to_rows = cursors = [ring.producer() for ring in (rings.work, rings.q, rings.rows)]
            for share in shares(tiles, cut, sequence, base, begin, end):
                of, right_most = (share.sequence, share.keys, share.kv_head), (share.first + share.count - 1) * keys
                of_pages.load_when_empty(to_rows, "rows", kv, apart, of, right_most)
                load_queries_when_empty(to_q, q, places, share.sequence, share.kv_head, share.member, 0)
                publish_when_empty(items, share.words(tiles))
                for step in loop(1, share.count):
                    of_pages.load_when_empty(to_rows, "rows", kv, apart, of, right_most - step * keys)
            publish_when_empty(items, (0,) * WORDS)
            for cursor in cursors:
                cursor.wait_all_empty()

    @role(warps=range(WARPS, 2 * WARPS))
    def score() -> None:
        setmaxnreg.dec(REGISTERS[1])  # as many as before; without it ptxas spills registers of this role
        tile = replace(VarlenTile.with_bounds(*window, keys), first=var(u32, 0))  # a part begins at any block
        scores = Scores(rings, scale, config, tile, tile.mask)
        for _ in loop():
            item = next(scores.items)
            item.full.wait()
            words = scores.read_item_and_arrive_empty(item)
            Break(when=words[3] == 0)
            scores.compute_part(words)
            # Else the loop ends in a branch, and ptxas keeps addresses of matrices in a register of each thread.
            warp.sync()

    @role(warps=range(2 * WARPS, 4 * WARPS))
    def value() -> None:
        setmaxnreg.inc(REGISTERS[2])
        values = Values(rings, config)
        for _ in loop():
            item = next(values.items)
            item.full.wait()
            count = ld(item.item.at(0, 3))
            with If(count == 0):
                values.arrive_empty(item)
            Break(when=count == 0)
            sums = values.compute_part(count)
            # The rest of the item is read after the part, so that it takes no registers beside O.
            words = values.read_item_and_arrive_empty(item)
            parts, slot = words[8:10]
            out = Output(o.cast(dtype), (o_batch, o_head, o_row), config.head_dim, lse, heads, q_len)
            with If(parts == 1):
                store_tile(out, values.out, words, places, values.column, *sums)
            with Else():
                space = Workspace.at(workspace, reserve, ctas, rows, config.head_dim)
                store_part(space, values.out, max(ctaid.x * 2, slot), values.column, *sums)
            warp.sync()  # as in `score`


@kernel("sm_90a", threads=COMBINE_THREADS)
def combine(
    o: Global[Scalar],
    o_batch: u64,
    o_head: u64,
    o_row: u64,
    lse: u64,
    workspace: u64,
    block_table: u64,
    lengths: u64,
    width: u32,
    pages: u32,
    apart: u32,
    sequences: u32,
    q_len: u32,
    heads: u32,
    rows: u32,
    ctas: u32,
    reserve: u32,
    *,
    config: MlaConfig = CONFIG,
    causal: bool = False,
    by_tile: bool = False,
    size: int = 64,
    dtype: type[Scalar] = bf16,
) -> None:
    """Combine the parts of a tile, four columns of a row a thread at a time: of tile ``ctaid.x`` if ``by_tile``, else
    of the tile that is cut where the share of CTA ``ctaid.x`` of `attention_mla` ends, unless an earlier cut is in the
    same tile.

    As `sm90.decode.combine`, the grid may start before that of `attention_mla` has ended.
    """
    of_pages = rows_at(block_table, lengths, width, pages, 0, size)
    window = None, 0 if causal else None
    tiles = PagedTiles(of_pages, sequences, q_len, 1, heads, config.places, config.keys, config.rows, *window)
    space = Workspace.at(workspace, reserve, ctas, rows, config.head_dim)
    out = Output(o.cast(dtype), (o_batch, o_head, o_row), config.head_dim, lse, heads, q_len)
    cut = Cut(tiles.total(), ctas)
    if by_tile:
        sequence, number = ctaid.x // tiles.each, ctaid.x % tiles.each
        base = tiles.before(sequence)
        begin = base + number * tiles.blocks(of_pages.keys(sequence))[1]
        share = PagedShare.at(tiles, cut, sequence, base, begin, begin + 1)
        mine = share.parts > 1
    else:
        end = cut.start(ctaid.x + 1)
        sequence, base = tiles.find(end)
        share = PagedShare.at(tiles, cut, sequence, base, end, end + 1)
        mine = (end < cut.total) & (cut.owner(share.begin) == ctaid.x)
    with If(mine):
        griddepcontrol.wait()
        words = share.words(tiles)
        for item in loop(
            ctaid.y * COMBINE_THREADS + tid.x, rows * (config.head_dim // QUAD), nctaid.y * COMBINE_THREADS
        ):
            combine_paged(out, space, config.places, words, words[8], item, config.at_once)


@cache
def kernel_of(config: MlaConfig) -> Kernel:
    """Returns the kernel of a configuration; configure ``dtype`` (bf16, f16), ``causal`` and the ``size`` of a page, 0
    for none, on it."""
    return attention_mla.configure(config=config)


@cache
def combine_of(config: MlaConfig) -> Kernel:
    """Returns `combine` of a configuration; configure the same, and ``by_tile``."""
    return combine.configure(config=config)
