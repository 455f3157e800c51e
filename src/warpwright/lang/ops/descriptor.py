"""The descriptors of matrix instructions, computed from tiles; `warpwright.layout` has their bits."""

from __future__ import annotations

from dataclasses import replace

from warpwright.errors import DescriptorError
from warpwright.lang.expr import Expr
from warpwright.lang.smem import ATOM_ROWS, Tile, Transposed
from warpwright.lang.tensor_memory import TmemTile
from warpwright.lang.trace import current
from warpwright.layout import InstrDescriptor, SmemDescriptor
from warpwright.types import Scalar, u32, u64

__all__ = ["Operand", "instruction_descriptor", "kind_of", "shared_descriptor", "warpgroup_descriptor"]

KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "u8": "i8", "s8": "i8"}
UNUSED_LBO = 16
ADDRESS_SHIFT, ADDRESS_BITS = 4, 14
Operand = Tile | Transposed | TmemTile


def kind_of(a: Operand, b: Operand) -> str:
    """Returns the ``kind::`` of an mma of two tiles. Raises DescriptorError if no kind has both element types."""
    kinds = {KINDS.get(tile.dtype.name) for tile in (a, b)}
    kind = kinds.pop()
    if kinds or kind is None:
        known = ", ".join(KINDS)
        raise DescriptorError(
            f"given a of {a.dtype.name} and b of {b.dtype.name}; expected two of one kind among {known}"
        )
    return kind


def instruction_descriptor(kind: str, a: Operand, b: Operand, d: type[Scalar], n: int, cta_group: int) -> int:
    """Returns the 32-bit descriptor of an mma with ``n`` columns of D.

    Raises DescriptorError for types or sizes that the kind does not have.
    """
    return _encode(InstrDescriptor(kind, a.dtype.name, b.dtype.name, d.name, *_extents(a, b, n, cta_group)), cta_group)


def scaled_kind(a: Operand, b: Operand, scale: type[Scalar], block: int) -> str:
    """Returns the ``kind::`` of a block-scaled mma. Raises DescriptorError if no kind has the types and the block."""
    types = {a.dtype.name, b.dtype.name}
    if types == {"e2m1x2"} and (scale.name, block) in (("ue8m0", 32), ("ue8m0", 16), ("ue4m3", 16)):
        return "mxf4" if block == 32 else "mxf4nvf4"
    if types <= {"e4m3", "e5m2"} and (scale.name, block) == ("ue8m0", 32):
        return "mxf8f6f4"
    raise DescriptorError(
        f"given a of {a.dtype.name}, b of {b.dtype.name} and scale factors of {scale.name} for {block} elements; "
        "expected e4m3 or e5m2 with ue8m0 for 32, or two of e2m1x2 with ue8m0 for 32 or 16, or ue4m3 for 16"
    )


def scaled_descriptor(
    kind: str, a: Operand, b: Operand, scale: type[Scalar], n: int, cta_group: int, block: int, first: int
) -> int:
    """Returns the 32-bit descriptor of a block-scaled mma; ``first``: the number of its first scale factor of a row.

    Raises DescriptorError for sizes that the kind does not have, and numbers that are not those of an instruction.
    """
    left, right = (each.dtype.name.removesuffix("x2") for each in (a, b))
    plain = InstrDescriptor(kind, left, right, "f32", *_extents(a, b, n, cta_group))
    found = replace(plain, sfa_id=first, sfb_id=first, scale_type=scale.name)
    count = found.k // block
    if first % count:
        raise DescriptorError(
            f"given first={first} for {count} scale factors of an instruction; expected a multiple of {count} below 4"
        )
    return _encode(found, cta_group)


def _extents(a: Operand, b: Operand, n: int, cta_group: int) -> tuple[int, int, str, str]:
    """Returns M and N of the CTA group, and how both operands are stored."""
    a_major, b_major = ("mn" if isinstance(each, Transposed) else "k" for each in (a, b))
    return cta_group * a.shape[0], n, a_major, b_major


def _encode(descriptor: InstrDescriptor, cta_group: int) -> int:
    descriptor.validate(cta_group)
    return descriptor.encode()


def shared_descriptor(operand: Tile | Transposed) -> Expr:
    """Returns the 64-bit descriptor of an operand of tcgen05.mma, a slice of a swizzled tile.

    One register has the tile's address; each use adds the slice's constant to it again. That is one instruction and
    saves registers, of which the warp that issues the mma has few.
    """
    base, constant = _fields(operand, version=1)
    trace = current()
    low = trace.pure("bfe.u32", u32, base, ADDRESS_SHIFT, ADDRESS_BITS)
    return trace.result("add.u64", u64, trace.pure("cvt.u64.u32", u64, low), f"0x{constant:016x}")


def warpgroup_descriptor(operand: Tile | Transposed) -> Expr:
    """Returns the 64-bit descriptor of an operand of wgmma, a slice of a swizzled tile.

    Only the low word depends on the address; each slice adds a constant to it.
    """
    base, constant = _fields(operand, version=0)
    low, high = constant & 0xFFFFFFFF, constant >> 32
    trace = current()
    address = trace.pure("bfe.u32", u32, base, ADDRESS_SHIFT, ADDRESS_BITS)
    return trace.pure("mov.b64", u64, (trace.pure("add.u32", u32, address, f"0x{low:08x}"), f"0x{high:08x}"))


def _fields(operand: Tile | Transposed, version: int) -> tuple[Expr, int]:
    """Returns the register with the address of the tile, and the slice's descriptor for address 0.

    SBO is the distance of 8 rows. LBO counts only if the rows run along K (transposed): the distance of two panels of
    M or N (PTX ISA 9.1 sections 9.7.15.5.1.2 and 9.7.16.5).
    """
    tile = operand.tile if isinstance(operand, Transposed) else operand
    base, start = tile.place.known()
    lbo = tile.rows * tile.span if isinstance(operand, Transposed) else UNUSED_LBO
    fields = SmemDescriptor(start=0, lbo=lbo, sbo=ATOM_ROWS * tile.span, swizzle=tile.swizzle, version=version)
    return base, fields.encode() + (start + tile.offset >> ADDRESS_SHIFT)
