"""Steps of FP8 attention on Hopper: rings, the softmax with e4m3 weights, and their order in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from warpwright.kernels.attention.sm90.fp8_plan import Fp8Config
from warpwright.kernels.attention.sm90.steps import (
    HALVES,
    BlockSoftmax,
    CurrentTile,
    OnlineSoftmax,
    Rings,
    of_row,
    reduce,
    reduce_quad,
)
from warpwright.kernels.tiles import ROW_BYTES, WARPS, WGMMA_BYTES
from warpwright.lang import (
    Expr,
    Global,
    If,
    Pointer,
    Ring,
    Var,
    b32,
    e4m3,
    ex2,
    f32,
    fma,
    max,
    min,
    pack_narrow,
    s32,
    select,
    smem,
    tma,
    u32,
    var,
    vote,
    warp,
)
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["WORDS", "Fp8Softmax", "ScaledTile", "Sums", "load_values_when_empty", "pack_e4m3", "rings_of", "scale_at"]

WORDS = 8  # of an item: first query, head, first block, blocks; scale of the scores, scale of V
TOP = 8  # weights are at most 2^TOP, of 448
QUAD = 4  # sums that one ld or st moves
QUAD_BYTES = 512  # of the quads of a warp
STRIP_QUADS = 4  # quads of a warp in 16 rows of 128 bytes


def rings_of(config: Fp8Config) -> Rings:
    """Returns the rings of a CTA; V lies in slabs of 32 keys, and the tile of O in `Sums`."""
    (queries, keys), consumers, width = config.tile, config.consumers, config.head_dim
    q, k = (smem.tile(e4m3, (rows, width), swizzle=min(width, ROW_BYTES)) for rows in (queries, keys))
    rings = Rings(
        work=Ring(2, empty=consumers * WARPS + 1, name="work", item=smem.tile(u32, (1, WORDS))),
        q=Ring(config.q_stages, empty=consumers, name="q", q=q),
        o=Ring(1, full=consumers * WARPS, name="o"),
        k=Ring(config.stages, empty=consumers, name="k", k=k),
        v=Ring(config.stages, empty=consumers, name="v", v=smem.tile(e4m3, (width, keys), swizzle=WGMMA_BYTES)),
    )
    rings.work.place.known()  # allocated beside the barriers, before larger tiles
    return rings


def load_values_when_empty(cursor: Cursor, values: Expr) -> None:
    """Wait for the next empty slot of V and copy a block of keys from address ``values`` on, contiguous."""
    slot = next(cursor)
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    tma.copy(slot.v.address, values, slot.nbytes, slot.full)


class Sums(NamedTuple):
    """Float32 sums of a tile of O in shared memory, and in their place the finished ``o``, a tile of 16 bits.

    The sums of a warp are divided as its 16 rows of O are, into parts of 16 x 128 bytes, which lie ``queries`` x 128
    bytes apart. So O overwrites sums of its own warp alone, which waits for no other one. Neighbouring lanes have
    neighbouring quads.
    """

    sums: Pointer[Any]
    o: Tile
    queries: int

    @staticmethod
    def of(config: Fp8Config, out: type[Scalar]) -> Sums:
        """Allocates the sums of a CTA."""
        queries, width = config.tile[0], config.head_dim
        sums = smem.array(f32, queries * width, align=1024)
        tile = smem.tile(out, (queries, width), swizzle=ROW_BYTES)
        return Sums(sums, tile.placed(None, sums.offset), queries)

    def of_warp(self, strip: Any) -> Sums:
        """Returns the sums of this lane of the warp with number ``strip`` among the consumers."""
        own = (strip * (STRIP_QUADS * QUAD_BYTES) + warp.lane * (4 * QUAD)) // 4
        return self._replace(sums=self.sums + own)

    def at(self, first: int) -> Pointer[Any]:
        """Returns the address of the quad that begins with register ``first`` of an accumulator."""
        part, quad = divmod(first // QUAD, STRIP_QUADS)
        return self.sums + (part * self.queries * ROW_BYTES + quad * QUAD_BYTES) // 4


def scale_at(scales: Expr, index: Any) -> Var:
    """Returns the scale (f32) with number ``index`` of those at address ``scales``; 1 for address 0."""
    scale = var(f32, 1.0)
    with If(scales != 0):
        pointer: Global[f32] = Global(f32, scales)
        scale.set(pointer[index])
    return scale


@dataclass(frozen=True)
class ScaledTile(CurrentTile):
    """The tile that a consumer works on, with the factor of its scores, times log2 e, and the scale of V."""

    scale: Var
    scale_v: Var

    @staticmethod
    def of_bounds(left_bound: bool) -> ScaledTile:
        """Returns registers for a tile, not set yet."""
        plain = CurrentTile.of(left_bound)
        return ScaledTile(plain.row, plain.head, plain.first, plain.count, var(f32, 0.0), var(f32, 0.0))

    def set(self, words: Sequence[Any]) -> None:
        """Take the tile of an item."""
        super().set(words[:4])
        self.scale.set(words[4].bitcast(f32))
        self.scale_v.set(words[5].bitcast(f32))


class Fp8Softmax(OnlineSoftmax):
    """`OnlineSoftmax` whose weights use the range of e4m3, up to 2^`TOP`.

    The shift of a row is the row max of the block in which its warp last rescaled O, where weights were at most
    2^(`TOP` - ``room``): a row max that grows by no more than ``room`` needs no rescaling.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.top = float(room), float(TOP - room)

    def block(self, scores: Sequence[Any], scale: Any, together: bool) -> BlockSoftmax:
        """Returns the weights of a key block, the factor of each row's earlier weights, and whether one is not 1."""
        block_max = [top * scale for top in row_maxima(scores)]
        growth = [new > shift + self.room for new, shift in zip(block_max, self.shift, strict=True)]
        grown, factors = vote.any(growth[0] | growth[1]), [var(f32, 1.0) for _ in HALVES]
        with If(grown):
            for shift, new, factor, row_sum in zip(self.shift, block_max, factors, self.row_sum, strict=True):
                top = max(shift, reduce_quad(max, new))
                factor.set(ex2(shift - top))
                shift.set(top)
                row_sum *= factor
        minus = [self.top - shift for shift in self.shift]
        weights = [ex2(fma(score, scale, minus[v >> 1 & 1])) for v, score in enumerate(scores)]
        for half, row_sum in enumerate(self.row_sum):
            row_sum += reduce(lambda a, b: a + b, of_row(weights, half))
        return BlockSoftmax(weights, list(factors), [(grown, HALVES)])

    def reset(self) -> tuple[list[Any], list[Any]]:
        """Returns the logarithms of the unit of the row sums, and the row sums; resets the state for the next tile."""
        shifts, totals = super().reset()
        return [shift - self.top for shift in shifts], totals


def row_maxima(scores: Sequence[Any]) -> list[Any]:
    """Returns the maximum of this thread's scores in each of its two rows.

    Integers have an instruction for the maximum of three, VIMNMX3, where floats have FMNMX for two. The bits of a float
    as s32 are in the order of floats if one of them is positive; of negative numbers the float maximum is the integer
    minimum.
    """
    rows = [[score.bitcast(s32) for score in of_row(scores, half)] for half in HALVES]
    tops = [var(s32, reduce(max, row)) for row in rows]
    with If(vote.any((tops[0] | tops[1]) < 0)):
        for top, row in zip(tops, rows, strict=True):
            top.set(select(top < 0, reduce(min, row), top))
    return [top.bitcast(f32) for top in tops]


def pack_e4m3(registers: Sequence[Var], weights: Sequence[Any]) -> None:
    """Round the weights P to e4m3 and pack them into the A operand of PV, whose keys are in the order of `fp8_values`.

    A word has the scores of one of the thread's two rows for two pairs of neighbouring keys, 8 keys apart.
    """
    for number, register in enumerate(registers):
        first = 8 * (number // 2) + 2 * (number % 2)
        found = [weights[first + step] for step in (0, 1, 4, 5)]
        register.set(pack_narrow(e4m3, *found).bitcast(b32))
