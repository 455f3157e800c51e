"""The GEMM with block scales by mma.sync: D = activation(scale · A·Bᵀ + bias) in MXFP8, MXFP4 or NVFP4.

A (M, K) and B (N, K) take the way of the GEMM without scales: TMA, a ring, ldmatrix, mma.sync. Their scale factors,
in tiles of 128 rows by 4 blocks of K, follow them into the ring. A tile has the 4 scale factors of a row in a word, and
the words of rows 32 apart side by side. So one load gives a lane the words of a row in each strip of its warp, and one
word of B; the selectors of mma.sync name the bytes of a step of K and the lanes that have them.

M and N are any size, for TMA reads zeros outside; a scale factor of the padding must not be NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from warpwright.kernels.gemm.epilogue import PLAIN, Epilogue
from warpwright.kernels.gemm.formats import FORMATS, Format
from warpwright.kernels.gemm.sm90.kernel import init_and_sync, load_part, rasterize
from warpwright.kernels.gemm.sm120.configs import ATOM_BYTES, CONFIGS, ROWS, Config
from warpwright.kernels.gemm.sm120.scaled.configs import SCALE_BYTES, stages_for
from warpwright.kernels.gemm.sm120.steps import (
    Place,
    Sums,
    clear_sums,
    left_fragments,
    right_fragments,
    store_blocks,
    store_tile,
    warp_position,
)
from warpwright.lang import (
    Expr,
    If,
    Ring,
    Shared,
    bf16,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mma,
    role,
    smem,
    tma,
    u32,
    u64,
    warp,
)
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["scaled_gemm"]

SCALE_ROWS = 128  # of a tile of scale factors
QUARTER = 32  # rows whose words are 16 bytes apart
CHUNK_BYTES = 16
WORD = 4  # bytes, and blocks of K
COLUMNS = 8  # of B that one mma.sync multiplies
PER_WORD = QUARTER // COLUMNS  # MMAs along N whose scale factors of B are in one register of a warp

Words = list[list[Any]]  # of each tile of scale factors of a k-block, the registers of its strips or spans


@kernel("sm_120a", threads=288)
def scaled_gemm(
    a: tma.Map[Scalar],
    b: tma.Map[Scalar],
    sfa: tma.Map[Scalar],
    sfb: tma.Map[Scalar],
    d: tma.Map[Scalar],
    tiles_m: u32,
    tiles_n: u32,
    tiles_k: u32,
    columns: u32,
    bias: u64,
    scale_a: u64,
    scale_b: u64,
    alpha: f32,
    *,
    config: Config = CONFIGS["128x128"],
    formats: tuple[Format, Format] = (FORMATS["mxfp8"], FORMATS["mxfp8"]),
    out: type[Scalar] = bf16,
    epilogue: Epilogue = PLAIN,
) -> None:
    """CTAs walk the tiles of D in groups of rows; the parameters from ``columns`` on are those of ``epilogue``.

    role      warps  moves                                     waits for             signals
    multiply  0-     ring -> registers -> blocks of D -> D     ring.full, own block  ring.empty
    load      last   A, B, scale factors: global -> ring       ring.empty            ring.full
    """
    (tile_m, tile_n), consumers = config.tile, config.consumers
    ring, blocks = scaled_ring(config, formats), store_blocks(config, out)
    init_and_sync(ring, (1, 1), (a, b, sfa, sfb, d))

    def output_tiles() -> Iterator[tuple[Expr, Expr]]:
        for down, across in rasterize(tiles_m, tiles_n, config.group):
            yield down * tile_m, across * tile_n

    @role(warp=consumers, elect=True)
    def load() -> None:
        slots = ring.producer()
        for row, col in output_tiles():
            for step in loop(tiles_k):
                slot = next(slots)
                slot.empty.wait()
                slot.full.arrive_expect_tx(slot.nbytes)
                load_part(slot.a, a, "k", (), row, step * ATOM_BYTES, slot.full)
                load_part(slot.b, b, "k", (), col, step * ATOM_BYTES, slot.full)
                for tile, source, first in ((slot.sfa, sfa, row), (slot.sfb, sfb, col)):
                    tma.load(tile, source[first // SCALE_ROWS, step * tile.shape[1], 0], slot.full)

    @role(warps=range(consumers))
    def multiply() -> None:
        place, leader, slots = warp_position(config), elect_one(), ring.consumer()
        sums = [[mma.accumulator(f32) for _ in range(tile_n // config.warps[1] // COLUMNS)] for _ in place.strips]
        finish = epilogue.prepare(alpha, scale_a, scale_b, bias, columns)
        for row, col in output_tiles():
            clear_sums(sums)
            words = lane_words(row, col, place)
            for _ in loop(tiles_k):
                slot = next(slots)
                slot.full.wait()
                multiply_scaled(sums, slot, place, words, formats[0], config.ahead)
                # This warp's reads of the slot precede the next copy to it, which is of the async proxy.
                fence.proxy_async()
                warp.sync()
                with If(leader):
                    slot.empty.arrive()
            store_tile(sums, d, blocks, place, (), row, col, leader, finish, config.matrices)
            if not config.overlap:
                with If(leader):
                    tma.wait_group(0)
                warp.sync()
        with If(leader):
            tma.wait_group(0, read=True)


def scaled_ring(config: Config, formats: tuple[Format, Format]) -> Ring:
    """The ring of A, B and the scale factors of 128 rows of each, as lines of 128 bytes."""
    (a, b), lines = formats, formats[0].count * SCALE_BYTES // ATOM_BYTES
    return Ring(
        stages_for(config, a),
        full=1,
        empty=config.consumers,
        name="ab",
        a=smem.tile(a.dtype, (config.tile[0], ATOM_BYTES), swizzle=128),
        b=smem.tile(b.dtype, (config.tile[1], ATOM_BYTES), swizzle=128),
        sfa=smem.tile(a.scale, (1, lines, ATOM_BYTES)),
        sfb=smem.tile(b.scale, (1, lines, ATOM_BYTES)),
    )


def lane_words(row: Expr, col: Expr, place: Place) -> tuple[Expr, Expr]:
    """Returns the offsets of this lane's words in a tile of scale factors: of row g or g + 8 of the first strip, and of
    column g of the lane's eight of the first span, for lane 4·g + q."""
    group, number = warp.lane // WORD, warp.lane % WORD
    of_a = row % SCALE_ROWS + place.row + (group + number % 2 * (ROWS // 2))
    of_b = col % SCALE_ROWS + place.column + (group + number * COLUMNS)
    first, second = (x % QUARTER * CHUNK_BYTES + x // QUARTER * WORD for x in (of_a, of_b))
    return first, second


def load_words(tile: Tile, offset: Expr, starts: range, count: int) -> Words:
    """Loads this lane's words of ``count`` tiles of scale factors, of strips or spans at ``starts``, multiples of 32
    rows."""
    base, first = tile.place.known()
    vector = len(starts) if len(starts) in (2, WORD) and starts.step == QUARTER else 1
    words: Words = []
    for number in range(count):
        at: list[Any] = [
            Shared(u32, base + offset, first + number * SCALE_BYTES + start // QUARTER * WORD) for start in starts
        ]
        words.append(list(ld(at[0], vec=vector)) if vector > 1 else [ld(each) for each in at])
    return words


def multiply_scaled(sums: Sums, slot: Any, place: Place, words: tuple[Expr, Expr], format: Format, ahead: bool) -> None:
    """Add the products of a k-block. With ``ahead`` the fragments of the next 32 bytes of K are loaded before those of
    this step are multiplied."""
    factors_a = load_words(slot.sfa, words[0], place.strips, format.count)
    factors_b = load_words(slot.sfb, words[1], place.spans, format.count)
    steps = enumerate(zip(left_fragments(slot.a, place, "k"), right_fragments(slot.b, place, "k"), strict=True))
    waiting: list[Any] = [next(steps)] if ahead else []
    for loaded in steps:
        waiting.append(loaded)
        multiply(sums, waiting.pop(0), factors_a, factors_b, format)
    for loaded in waiting:
        multiply(sums, loaded, factors_a, factors_b, format)


def multiply(
    sums: Sums, step: tuple[int, tuple[Sequence[Any], Sequence[Any]]], of_a: Words, of_b: Words, format: Format
) -> None:
    """Add each left operand times each right operand of a step of K, with their scale factors, to its sums."""
    at, (lefts, rights) = step
    number, first = divmod(at * format.count, WORD)
    for column, right in enumerate(rights):
        for strip, left, scale in zip(sums, lefts, of_a[number], strict=True):
            mma.block_scale(
                strip[column], left, right, scale, of_b[number][column // PER_WORD], format.scale,
                block=format.block, first=first, lane_b=column % PER_WORD,
            )  # fmt: skip
