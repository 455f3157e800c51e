"""The launch before FP8 attention on Hopper: V transposed, because wgmma reads 8-bit operands along K only.

The keys of V are K of P·V. A slab has 32 of them, K of one wgmma, for all columns: 32 bytes a column, in the 32-byte
swizzle of a K-major operand, so that a slab is one contiguous copy. ldmatrix.trans moves pairs of bytes: a
register has two columns of two keys. Two such registers, eight keys apart, are four keys of two columns, which two
permutations of bytes put together. So the keys of each 16 lie in the order of the scores in a thread's accumulator, in
which the weights P are packed: 2c, 2c + 1, 2c + 8 and 2c + 9. A sum over the keys does not depend on their order.
"""

from __future__ import annotations

from functools import cache

from warpwright.kernels.attention.sm90.fp8_plan import SLAB, VALUE_KEYS
from warpwright.kernels.tiles import CHUNK_BYTES, ROW_BYTES, SWIZZLE_ROWS, WARPS, WGMMA_BYTES
from warpwright.lang import (
    Expr,
    Kernel,
    Shared,
    bar,
    ctaid,
    e4m3,
    fence,
    griddepcontrol,
    kernel,
    ldmatrix,
    mbarrier,
    min,
    nctaid,
    prmt,
    role,
    smem,
    stmatrix,
    tma,
    u8,
    u32,
    u64,
    warp,
)
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = ["Transposer", "kernel_of", "transpose_values"]

EVEN_COLUMN, ODD_COLUMN = 0x6420, 0x7531  # the bytes of a column in two registers of two columns each
AHEAD = 2  # ldmatrix in flight


class Transposer:
    """The lane's addresses in a tile of V and in its transpose, for one of `WARPS` warps, which share the columns.

    An ldmatrix has 32 keys of 16 columns, a chunk of 16 bytes in each row. Its four registers become four matrices of
    8 columns x 16 keys: those of keys 0 to 15, then of keys 16 to 31. The first matrix of two has the even columns of
    the lower eight and the odd columns of the upper eight, the second matrix the others, so that the rows of a matrix
    are different modulo 8 and lie in different banks.
    """

    def __init__(self, width: int) -> None:
        lane = warp.lane
        self.width, self.groups = width, width // CHUNK_BYTES // WARPS
        first = warp.id * self.groups
        rows_per_line = ROW_BYTES // width  # lines of 128 bytes hold the period of the swizzle
        self.source = lane * width + ((first ^ (lane // rows_per_line % (SWIZZLE_ROWS // rows_per_line))) * CHUNK_BYTES)
        matrix, row = lane // 8, lane % 8
        column = 2 * row + (row // 4 ^ matrix % 2)
        chunk = matrix // 2 ^ (column // 4 % 2)
        self.target = (first * CHUNK_BYTES + column) * WGMMA_BYTES + chunk * CHUNK_BYTES
        way = EVEN_COLUMN ^ lane // 16 * (EVEN_COLUMN ^ ODD_COLUMN)
        self.bytes = way, way ^ (EVEN_COLUMN ^ ODD_COLUMN)

    def move(self, rows: Tile, columns: Tile) -> None:
        """Write ``rows``, keys of V, to ``columns``, its transpose in slabs: this warp's share of the columns."""
        (base, start), (to, to_start) = rows.place.known(), columns.place.known()
        source, target = base + self.source, to + self.target
        places = [source ^ (group * CHUNK_BYTES) if group else source for group in range(self.groups)]
        parts = [(slab, group) for slab in range(rows.shape[0] // SLAB) for group in range(self.groups)]
        for at in range(0, len(parts), AHEAD):
            some = parts[at : at + AHEAD]
            loaded = [
                ldmatrix(Shared(u8, places[group], start + slab * SLAB * self.width), 4, trans=True)
                for slab, group in some
            ]
            for (slab, group), words in zip(some, loaded, strict=True):
                below = slab * SLAB * self.width + group * CHUNK_BYTES * WGMMA_BYTES
                stmatrix(Shared(u8, target, to_start + below), self.transpose(words))

    def transpose(self, words: list[Expr]) -> list[Expr]:
        """Returns the four registers of an ldmatrix as those of an stmatrix."""
        return [prmt(words[half], words[half + 1], way) for half in (0, 2) for way in self.bytes]


@kernel("sm_90a", threads=128)
def transpose_values(v: tma.Map[Scalar], out: u64, slabs: u32, *, head_dim: int = 128) -> None:
    """A CTA moves 128 keys of one head; the head is ``ctaid.y``, the batch ``ctaid.z``."""
    rows = smem.tile(e4m3, (VALUE_KEYS, head_dim), swizzle=min(head_dim, ROW_BYTES))
    columns = smem.tile(e4m3, (head_dim, VALUE_KEYS), swizzle=WGMMA_BYTES)
    full = mbarrier(1, name="full")

    @role(warp=0, elect=True)
    def load() -> None:
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(rows.nbytes)
        tma.load(rows, v[ctaid.z, ctaid.y, ctaid.x * VALUE_KEYS, 0], full)
        griddepcontrol.launch_dependents()

    bar.sync()
    full.wait(parity=0)
    Transposer(head_dim).move(rows, columns)
    fence.proxy_async()
    bar.sync()

    @role(warp=0, elect=True)
    def store() -> None:
        first, head = ctaid.x * (VALUE_KEYS // SLAB), ctaid.z * nctaid.y + ctaid.y
        count = min(slabs - first, VALUE_KEYS // SLAB)
        place = out + (head * slabs + first).to(u64) * (head_dim * SLAB)
        tma.copy(place, columns.address, count * (head_dim * SLAB))
        tma.commit_group()
        tma.wait_group(0)


@cache
def kernel_of(head_dim: int) -> Kernel:
    """Returns the kernel for tiles of ``head_dim`` columns."""
    return transpose_values.configure(head_dim=head_dim)
