"""Steps of FP8 attention on Hopper: rings, the softmax with e4m3 weights, and their order in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from warpwright.kernels.attention.sm90.fp8_plan import ONES, SLAB, SUMS_ALIGN, Fp8Config
from warpwright.kernels.attention.sm90.softmax import (
    HALVES,
    LOWEST,
    BlockSoftmax,
    OnlineSoftmax,
    nothing,
    of_row,
    reduce,
    reduce_quad,
    row_maxima,
)
from warpwright.kernels.attention.sm90.steps import CurrentTile, Rings
from warpwright.kernels.tiles import CHUNK_BYTES, ROW_BYTES, WARPS, WGMMA_BYTES
from warpwright.lang import (
    Expr,
    Global,
    If,
    Pointer,
    Ring,
    Shared,
    Var,
    b32,
    cvt,
    e4m3,
    ex2,
    f16x2,
    f32,
    fence,
    fma,
    max,
    pack_narrow,
    prmt,
    smem,
    st,
    tma,
    u32,
    var,
    vote,
    warp,
)
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "WORDS",
    "Fp8Softmax",
    "ScaledTile",
    "Sums",
    "load_values_when_empty",
    "pack_e4m3",
    "rings_of",
    "scale_at",
    "write_ones",
]

WORDS = 8  # of an item: first query, head, first block, blocks; scale of the scores, scale of V
TOP = 8  # weights are at most 2^TOP, of 448
QUAD = 4  # sums that one ld or st moves
QUAD_BYTES = 512  # of the quads of a warp
FOUR_ONES = 0x38383838  # e4m3
STRIP_QUADS = 4  # quads of a warp in 16 rows of 128 bytes
PART = 32  # scores of a row
OCTAVES, BIAS = 32, 15  # of the exponents of an f16
# Octaves, for a mean relative error of 0: the two terms of `power` are each 2^-0.5 of it, and 1 + f exceeds 2^f.
CORRECTION = -0.5575
HALF_OCTAVE = 0.5 / OCTAVES
FIRST = (BIAS + CORRECTION) / OCTAVES - HALF_OCTAVE
SELECT = 0x6521  # for prmt: bytes 1 and 2 of both words
HALVES_DOWN = 0x82008200  # of each half: the sign, and half an octave
MINUS_ROOT = 0xB9A8B9A8  # of f16x2: -(1 / 2)^(1/2)


def rings_of(config: Fp8Config) -> Rings:
    """Returns the rings of a CTA; V lies in slabs of 32 keys, and the tile of O in `Sums`."""
    (queries, keys), consumers, width = config.tile, config.consumers, config.head_dim
    q, k = (smem.tile(e4m3, (rows, width), swizzle=min(width, ROW_BYTES)) for rows in (queries, keys))
    rings = Rings(
        work=Ring(2, empty=consumers * WARPS + 1, name="work", item=smem.tile(u32, (1, WORDS))),
        q=Ring(config.q_stages, empty=consumers, name="q", q=q),
        o=Ring(1, full=consumers * WARPS, name="o"),
        k=Ring(config.stages, empty=consumers, name="k", k=k),
        v=Ring(config.stages, empty=consumers, name="v", v=smem.tile(e4m3, (width + ONES, keys), swizzle=WGMMA_BYTES)),
    )
    rings.work.place.known()  # allocated beside the barriers, before larger tiles
    return rings


def write_ones(rings: Rings, config: Fp8Config) -> None:
    """Write the rows of ones after the columns of V in every slot, which no copy overwrites.

    Half of the second warp does, while the first one initialises the barriers; all threads synchronise afterwards.
    """
    ring, slabs = rings.v, config.tile[1] // SLAB
    (base, start), rows = ring.place.known(), config.head_dim + ONES
    with If((warp.id == 1) & (warp.lane < ONES * SLAB // CHUNK_BYTES)):
        for stage, slab in product(range(ring.stages), range(slabs)):
            place = start + stage * ring.stride + (slab * rows + config.head_dim) * SLAB
            st(Shared(u32, base + warp.lane * CHUNK_BYTES, place), *[cvt(FOUR_ONES, u32)] * 4)
        fence.proxy_async()


def load_values_when_empty(cursor: Cursor, values: Expr) -> None:
    """Wait for the next empty slot of V and copy a block of keys from address ``values`` on, slab by slab."""
    slot = next(cursor)
    slot.empty.wait()
    rows, keys = slot.v.shape
    copied = (rows - ONES) * SLAB
    slot.full.arrive_expect_tx(keys // SLAB * copied)
    for slab in range(keys // SLAB):
        tma.copy(slot.v.address + slab * rows * SLAB, values + slab * copied, copied, slot.full)


class Sums(NamedTuple):
    """Float32 sums of a tile of O in shared memory, and in their place the finished ``o``, a tile of 16 bits.

    The sums of a warp are divided as its 16 rows of O are, into parts of 16 x 128 bytes, which lie ``queries`` x 128
    bytes apart. So O overwrites sums of its own warp alone, which waits for no other one. Neighbouring lanes have
    neighbouring quads. The last quad of an accumulator, the row sums, lies in ``totals``.
    """

    sums: Pointer[Any]
    totals: Pointer[Any]
    o: Tile

    @staticmethod
    def of(config: Fp8Config, out: type[Scalar]) -> Sums:
        """Allocates the sums of a CTA."""
        queries, width = config.tile[0], config.head_dim
        sums, totals = (smem.array(f32, queries * columns, align=SUMS_ALIGN) for columns in (width, ONES))
        tile = smem.tile(out, (queries, width), swizzle=ROW_BYTES)
        return Sums(sums, totals, tile.placed(None, sums.offset))

    def of_warp(self, strip: Any) -> Sums:
        """Returns the sums of this lane of the warp with number ``strip`` among the consumers."""
        own, lane = strip * (QUAD_BYTES // 4), warp.lane * QUAD
        return self._replace(sums=self.sums + (own * STRIP_QUADS + lane), totals=self.totals + (own + lane))

    def at(self, first: int) -> Pointer[Any]:
        """Returns the address of the quad that begins with register ``first`` of an accumulator."""
        queries, width = self.o.shape
        part, quad = divmod(first // QUAD, STRIP_QUADS)
        if first // QUAD == width // ONES:
            return self.totals
        return self.sums + (part * queries * ROW_BYTES + quad * QUAD_BYTES) // 4


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
    2^(`TOP` - ``room``): a row max that grows by no more than ``room`` needs no rescaling. With a NaN among the scores
    of a row its shift is NaN from then on.

    The tensor cores multiply FP8 as fast as ex2 computes exponentials, so those of each thread's second row are left to
    the FMA units (`power`). With ``sums`` all are by ex2, and the row sums are those of the weights before they are
    rounded, for the log-sum-exp; without ``sums`` there are none.
    """

    def __init__(self, room: int, sums: bool) -> None:
        super().__init__()
        self.room, self.top, self.sums = float(room), float(TOP - room), sums

    def block(self, scores: Sequence[Any], scale: Any, after_maxima: Callable[[], None] = nothing) -> BlockSoftmax:
        """Returns the weights of a key block, the factor of each row's earlier weights, and whether one is not 1.

        The weights of a row are a list of f32, or of f16x2 with two weights each.
        """
        block_max = [top * scale for top in row_maxima(scores)]
        after_maxima()
        kept = [new <= shift + self.room for new, shift in zip(block_max, self.shift, strict=True)]
        grown, factors = vote.any(~(kept[0] & kept[1])), [var(f32, 1.0) for _ in HALVES]
        with If(grown):
            for shift, new, factor, row_sum in zip(self.shift, block_max, factors, self.row_sum, strict=True):
                top = larger(shift, reduce_quad(larger, new))
                factor.set(ex2(shift - top))
                shift.set(top)
                row_sum *= factor
        rows = [of_row(scores, half) for half in HALVES]
        weights = self.weigh_and_add(rows, scale) if self.sums else self.weigh_by_two_units(rows, scale)
        return BlockSoftmax(weights, list(factors), grown)

    def weigh_and_add(self, rows: Sequence[Sequence[Any]], scale: Any) -> list[list[Any]]:
        """Returns the weights of both rows by ex2, and adds them to the row sums."""
        minus = [self.top - shift for shift in self.shift]
        weights = [[ex2(fma(score, scale, minus[half])) for score in rows[half]] for half in HALVES]
        for row_sum, row in zip(self.row_sum, weights, strict=True):
            row_sum += reduce(lambda a, b: a + b, row)
        return weights

    def weigh_by_two_units(self, rows: Sequence[Sequence[Any]], scale: Any) -> list[list[Any]]:
        """Returns the weights of the first row by ex2, and those of the second by the FMA units.

        ptxas would put the fma of all scores before the exponentials. So the addend of a part of the scores depends on
        a result of the part before.
        """
        first, second = (self.top - shift for shift in self.shift)
        step, addends = scale * (1 / OCTAVES), [first, fma(second, 1 / OCTAVES, FIRST)]
        by_fma: list[Any] = []
        by_ex2: list[Any] = []
        for at in range(0, len(rows[0]), PART):
            bits = [power_bits(score, step, addends[1]) for score in rows[1][at : at + PART]]
            powers = [ex2(fma(score, scale, addends[0])) for score in rows[0][at : at + PART]]
            by_fma += [power(*bits[pair : pair + 2]) for pair in range(0, len(bits), 2)]
            by_ex2 += powers
            addends = [fma(result, 0.0, old) for result, old in zip((powers[0], bits[0]), addends, strict=True)]
        return [by_ex2, by_fma]

    def reset(self) -> tuple[list[Any], list[Any]]:
        """Returns the logarithms of the unit of the row sums, and the row sums, if there are any; resets the state for
        the next tile."""
        if self.sums:
            shifts, totals = super().reset()
            return [shift - self.top for shift in shifts], totals
        shifts = [shift.to(f32) for shift in self.shift]
        for shift in self.shift:
            shift.set(LOWEST)
        return shifts, []


def larger(a: Any, b: Any) -> Any:
    """Returns the maximum, NaN if one of both is."""
    return max(a, b, nan=True)


def power_bits(score: Any, step: Any, addend: Any) -> Any:
    """Returns an f32 whose bits 8 to 22 are those of an f16, without its sign, that is about 2^x: score * step + addend
    is (x + 15 + `CORRECTION`) / 32 - 1 / 64.

    Read as a fixed-point number, the bits of a float are its exponent n and the fraction f of its mantissa: nearly
    its logarithm, for 2^(n + f) is nearly 2^n (1 + f) (Schraudolph, Neural Computation 11, 1999). An fma computes such
    a number in the mantissa of an f32 between 1 and 2. It is at least 1 / 64, so that `power` can subtract 1 / 64.
    """
    return fma(score, step, addend, sat=True) + (1 + HALF_OCTAVE)


def power(low: Any, high: Any) -> Any:
    """Returns the powers of two scores (f16x2) from their `power_bits`: the RMS error is 0.45 %, the largest 1.1 %.

    An f16 of those bits is 2^n (1 + f) in place of 2^(n + f). The result is the weighted mean of it and of the one half
    an octave lower, which exceeds its power little where the other one exceeds it much. Bit 23 of `power_bits` is 1, so
    the sign of the former is set.
    """
    negative = prmt(low.bitcast(b32), high.bitcast(b32), SELECT).bitcast(u32)
    lower = negative - HALVES_DOWN
    return fma(negative.bitcast(f16x2), cvt(MINUS_ROOT, u32).bitcast(f16x2), lower.bitcast(f16x2))


def pack_e4m3(registers: Sequence[Var], rows: Sequence[Sequence[Any]]) -> None:
    """Round the weights P of both rows to e4m3 and pack them into the A operand of PV, whose keys are in the order of
    `fp8_values`.

    A word has the scores of one of the thread's two rows for two pairs of neighbouring keys, 8 keys apart.
    """
    for number, register in enumerate(registers):
        row, at = rows[number % 2], number // 2
        each = len(row) * 2 // len(registers)
        register.set(pack_narrow(e4m3, *row[each * at : each * (at + 1)]).bitcast(b32))
