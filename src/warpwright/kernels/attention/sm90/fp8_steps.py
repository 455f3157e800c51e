"""Steps of FP8 attention on Hopper: rings, the softmax with e4m3 weights, and their order in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    Ring,
    Var,
    b32,
    e4m3,
    ex2,
    f32,
    fma,
    max,
    pack_narrow,
    smem,
    tma,
    u32,
    var,
    vote,
)
from warpwright.lang.ring import Cursor
from warpwright.types import Scalar

__all__ = ["WORDS", "Fp8Softmax", "ScaledTile", "load_values_when_empty", "pack_e4m3", "rings_of", "scale_at"]

WORDS = 8  # of an item: first query, head, first block, blocks; scale of the scores, scale of V
TOP = 8  # weights are at most 2^TOP, of 448


def rings_of(config: Fp8Config, out: type[Scalar]) -> Rings:
    """Returns the rings of a CTA; V lies in slabs of 32 keys, and O has a slot of its own."""
    (queries, keys), consumers, width = config.tile, config.consumers, config.head_dim
    q, k = (smem.tile(e4m3, (rows, width), swizzle=swizzle_of(width)) for rows in (queries, keys))
    return Rings(
        work=Ring(2, empty=consumers * WARPS + 1, name="work", item=smem.tile(u32, (1, WORDS))),
        q=Ring(config.q_stages, empty=consumers, name="q", q=q),
        o=Ring(1, full=consumers * WARPS, name="o", o=smem.tile(out, (queries, width), swizzle=ROW_BYTES)),
        k=Ring(config.stages, empty=consumers, name="k", k=k),
        v=Ring(config.stages, empty=consumers, name="v", v=smem.tile(e4m3, (width, keys), swizzle=WGMMA_BYTES)),
    )


def swizzle_of(nbytes: int) -> int:
    """Returns the swizzle of rows of ``nbytes``: 64 or 128."""
    return nbytes if nbytes < ROW_BYTES else ROW_BYTES


def load_values_when_empty(cursor: Cursor, values: Expr) -> None:
    """Wait for the next empty slot of V and copy a block of keys from address ``values`` on, contiguous."""
    slot = next(cursor)
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    tma.copy(slot.v.address, values, slot.nbytes, slot.full)


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
        block_max = [reduce(max, of_row(scores, half)) * scale for half in HALVES]
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


def pack_e4m3(registers: Sequence[Var], weights: Sequence[Any]) -> None:
    """Round the weights P to e4m3 and pack them into the A operand of PV, whose keys are in `KEY_ORDER`.

    A word has the scores of one of the thread's two rows for two pairs of neighbouring keys, 8 keys apart.
    """
    for number, register in enumerate(registers):
        first = 8 * (number // 2) + 2 * (number % 2)
        found = [weights[first + step] for step in (0, 1, 4, 5)]
        register.set(pack_narrow(e4m3, *found).bitcast(b32))
