"""The descriptors that a matrix instruction takes, computed from tiles: see `warpwright.layout` for their bits."""

from __future__ import annotations

from warpwright.errors import DescriptorError
from warpwright.lang.context import current
from warpwright.lang.expr import Expr
from warpwright.lang.smem import ATOM_ROWS, Tile, Transposed
from warpwright.layout import InstrDescriptor, SmemDescriptor
from warpwright.types import Scalar, u32, u64

__all__ = ["instruction_descriptor", "kind_of", "shared_descriptor", "warpgroup_descriptor"]

KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "u8": "i8", "s8": "i8"}
UNUSED_LBO = 16
ADDRESS_SHIFT, ADDRESS_BITS = 4, 14


def kind_of(a: Tile, b: Tile) -> str:
    """The ``kind::`` of a product of tiles, by element type. DescriptorError for a pair that no kind multiplies."""
    kinds = {KINDS.get(tile.dtype.name) for tile in (a, b)}
    kind = kinds.pop()
    if kinds or kind is None:
        known = ", ".join(KINDS)
        raise DescriptorError(
            f"given a of {a.dtype.name} and b of {b.dtype.name}; expected two of one kind among {known}"
        )
    return kind


def instruction_descriptor(
    kind: str, a: type[Scalar], b: type[Scalar], d: type[Scalar], m: int, n: int, cta_group: int
) -> int:
    """The 32-bit descriptor of an m × n product (of the pair with cta_group 2), K-major operands.

    Raises DescriptorError for types or extents that the kind does not have.
    """
    descriptor = InstrDescriptor(kind, a.name, b.name, d.name, m, n)
    descriptor.validate(cta_group)
    return descriptor.encode()


def shared_descriptor(tile: Tile) -> Expr:
    """The 64-bit descriptor of a K-major operand: a slice of a swizzled tile, within one panel.

    The address of the tile's memory becomes a register once; each slice adds a constant to it.
    """
    base, start = tile.place.known()
    fields = SmemDescriptor(start=0, lbo=UNUSED_LBO, sbo=ATOM_ROWS * tile.span, swizzle=tile.swizzle, version=1)
    constant = fields.encode() + (start + tile.offset >> ADDRESS_SHIFT)
    trace = current()
    low = trace.pure("bfe.u32", u32, base, ADDRESS_SHIFT, ADDRESS_BITS)
    return trace.pure("add.u64", u64, trace.pure("cvt.u64.u32", u64, low), f"0x{constant:016x}")


def warpgroup_descriptor(operand: Tile | Transposed) -> Expr:
    """The 64-bit descriptor of an operand of wgmma: a slice of a swizzled tile, transposed where its rows run along K.

    Rows along M or N: 8 of them are one SBO. Rows along K: a panel of M or N is one LBO, 8 rows one SBO
    (section 9.7.15.5.1.2). Only the low word depends on the address; each slice adds a constant to it.
    """
    tile = operand.tile if isinstance(operand, Transposed) else operand
    base, start = tile.place.known()
    lbo = tile.rows * tile.span if isinstance(operand, Transposed) else UNUSED_LBO
    value = SmemDescriptor(0, lbo, ATOM_ROWS * tile.span, tile.swizzle, version=0).encode()
    low, high = (value & 0xFFFFFFFF) + (start + tile.offset >> ADDRESS_SHIFT), value >> 32
    trace = current()
    address = trace.pure("bfe.u32", u32, base, ADDRESS_SHIFT, ADDRESS_BITS)
    return trace.pure("mov.b64", u64, (trace.pure("add.u32", u32, address, f"0x{low:08x}"), f"0x{high:08x}"))
