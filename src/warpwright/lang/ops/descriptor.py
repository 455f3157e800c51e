"""The descriptors that a matrix instruction takes, computed from tiles: see `warpwright.layout` for their bits."""

from __future__ import annotations

from warpwright.errors import DescriptorError
from warpwright.lang.context import current
from warpwright.lang.expr import Expr
from warpwright.lang.smem import ATOM_ROWS, Tile, Transposed
from warpwright.lang.tmem import TmemTile
from warpwright.layout import InstrDescriptor, SmemDescriptor
from warpwright.types import Scalar, u32, u64

__all__ = ["Operand", "instruction_descriptor", "kind_of", "shared_descriptor", "warpgroup_descriptor"]

KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "u8": "i8", "s8": "i8"}
UNUSED_LBO = 16
ADDRESS_SHIFT, ADDRESS_BITS = 4, 14
Operand = Tile | Transposed | TmemTile


def kind_of(a: Operand, b: Operand) -> str:
    """The ``kind::`` of a product of tiles, by element type. DescriptorError for a pair that no kind multiplies."""
    kinds = {KINDS.get(tile.dtype.name) for tile in (a, b)}
    kind = kinds.pop()
    if kinds or kind is None:
        known = ", ".join(KINDS)
        raise DescriptorError(
            f"given a of {a.dtype.name} and b of {b.dtype.name}; expected two of one kind among {known}"
        )
    return kind


def instruction_descriptor(kind: str, a: Operand, b: Operand, d: type[Scalar], m: int, n: int, cta_group: int) -> int:
    """The 32-bit descriptor of an m × n product (of the pair with cta_group 2).

    Raises DescriptorError for types or extents that the kind does not have.
    """
    a_major, b_major = ("mn" if isinstance(each, Transposed) else "k" for each in (a, b))
    descriptor = InstrDescriptor(kind, a.dtype.name, b.dtype.name, d.name, m, n, a_major, b_major)
    descriptor.validate(cta_group)
    return descriptor.encode()


def shared_descriptor(operand: Tile | Transposed) -> Expr:
    """The 64-bit descriptor of an operand of tcgen05.mma: a slice of a swizzled tile, see `_fields`.

    The address of the tile's memory becomes a register once; each use adds a constant to it, anew, so that nobody
    holds registers for what costs one instruction: the thread that multiplies has few.
    """
    base, constant = _fields(operand, version=1)
    trace = current()
    low = trace.pure("bfe.u32", u32, base, ADDRESS_SHIFT, ADDRESS_BITS)
    return trace.result("add.u64", u64, trace.pure("cvt.u64.u32", u64, low), f"0x{constant:016x}")


def warpgroup_descriptor(operand: Tile | Transposed) -> Expr:
    """The 64-bit descriptor of an operand of wgmma: a slice of a swizzled tile, see `_fields`.

    Only the low word depends on the address; each slice adds a constant to it.
    """
    base, constant = _fields(operand, version=0)
    low, high = constant & 0xFFFFFFFF, constant >> 32
    trace = current()
    address = trace.pure("bfe.u32", u32, base, ADDRESS_SHIFT, ADDRESS_BITS)
    return trace.pure("mov.b64", u64, (trace.pure("add.u32", u32, address, f"0x{low:08x}"), f"0x{high:08x}"))


def _fields(operand: Tile | Transposed, version: int) -> tuple[Expr, int]:
    """The register with the address of the operand's memory, and the descriptor of the slice at address 0.

    Rows along M or N: 8 of them are one SBO. Rows along K (transposed): a panel of M or N is one LBO, 8 rows one SBO
    (PTX ISA 9.1 sections 9.7.15.5.1.2 and 9.7.16.5).
    """
    tile = operand.tile if isinstance(operand, Transposed) else operand
    base, start = tile.place.known()
    lbo = tile.rows * tile.span if isinstance(operand, Transposed) else UNUSED_LBO
    fields = SmemDescriptor(start=0, lbo=lbo, sbo=ATOM_ROWS * tile.span, swizzle=tile.swizzle, version=version)
    return base, fields.encode() + (start + tile.offset >> ADDRESS_SHIFT)
