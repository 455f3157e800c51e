"""mma.sync: the tensor core multiplies fragments in a warp's registers (PTX ISA 9.1 section 9.7.14.5), all targets.

D is 16 × 8, A 16 × K row by row, B K × 8 column by column; K is 16 or 32 bytes. An element of e2m1x2 is a byte with two
elements of K. `ldmatrix` loads the fragments::

    acc = mma.accumulator(f32)
    a = mma.left(bf16, ldmatrix(tile_a.at(row + warp.lane % 16, k + warp.lane // 16 * 8), 4))
    b = mma.right(bf16, ldmatrix(tile_b.at(col + warp.lane % 8, k + warp.lane // 8 % 2 * 8), 2))
    mma.sync(acc, a, b)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr
from warpwright.lang.fragment import Fragment, accumulator_registers, check_registers
from warpwright.lang.trace import current
from warpwright.layout import fragment
from warpwright.types import Scalar, e2m1x2, f16, f32, s32

__all__ = ["accumulator", "block_scale", "left", "right", "sync"]

M, N, LANES = 16, 8, 32
REGISTER_BITS = 32
FLOATS = ("f32", "f16")
# element type of A: (types that B may have, types of D, values of K)
PAIRS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]] = {
    "f16": (("f16",), FLOATS, (8, 16)),
    "bf16": (("bf16",), ("f32",), (8, 16)),
    "tf32": (("tf32",), ("f32",), (8,)),
    "e4m3": (("e4m3", "e5m2"), FLOATS, (16, 32)),
    "e5m2": (("e4m3", "e5m2"), FLOATS, (16, 32)),
    "s8": (("s8", "u8"), ("s32",), (16, 32)),
    "u8": (("s8", "u8"), ("s32",), (16, 32)),
}
KS = {name: row[2] for name, row in PAIRS.items()} | {"e2m1x2": (32,)}
BYTES = 32  # of K of an MMA with block scales
# packed elements, type of the scale factors, elements that share one: kind and scale vector
SCALED_KINDS = {
    (False, "ue8m0", 32): "kind::mxf8f6f4.block_scale.scale_vec::1X",
    (True, "ue8m0", 32): "kind::mxf4.block_scale.scale_vec::2X",
    (True, "ue4m3", 16): "kind::mxf4nvf4.block_scale.scale_vec::4X",
}


def accumulator(dtype: type[Scalar]) -> Fragment:
    """Returns a (16, 8) accumulator of ``dtype`` (f32, f16, s32), set to 0: 4 registers, for f16 2 of f16x2.

    Raises KernelError for another type.
    """
    if dtype.name not in (*FLOATS, "s32"):
        raise misuse(f"given an mma accumulator of {dtype.name}; expected f32, f16 or s32")
    registers = accumulator_registers(dtype, M * N // LANES)
    for register in registers:
        kind = "b32" if dtype in (f16, s32) else "f32"
        current().emit(f"mov.{kind}", register, "0" if kind == "b32" else "0f00000000")
    return Fragment(dtype, (M, N), registers, LANES, fragment.accumulator)


def left(dtype: type[Scalar], regs: Sequence[Expr]) -> Fragment:
    """Returns A (16, K) in 32-bit registers, elements of ``dtype`` lowest bits first; their number determines K.

    Raises KernelError for a type that mma does not have, or another number of registers.
    """
    return _operand(dtype, regs, "A")


def right(dtype: type[Scalar], regs: Sequence[Expr]) -> Fragment:
    """Returns B (K, 8) in 32-bit registers, elements of ``dtype`` lowest bits first; their number determines K.

    Raises KernelError for a type that mma does not have, or another number of registers.
    """
    return _operand(dtype, regs, "B")


def sync(acc: Fragment, a: Fragment, b: Fragment, *, satfinite: bool = False) -> None:
    """Compute D += A·B with one m16n8kK instruction. ``satfinite`` clamps sums of s32.

    Raises KernelError for types that mma does not have, and for A and B of different K.

    Issued by the whole warp, converged.
    Completes by itself.
    Targets: sm_90 and later; sm_90 and sm_100a convert e4m3 and e5m2 to f16 first.
    PTX ISA 9.1 section 9.7.14.5.14 (mma).
    """
    if a.dtype.name not in PAIRS:
        raise misuse(f"given a of {a.dtype.name} to mma.sync; expected mma.block_scale, which multiplies e2m1x2")
    partners, results, _ = PAIRS[a.dtype.name]
    if b.dtype.name not in partners or acc.dtype.name not in results:
        raise misuse(
            f"given a of {a.dtype.name}, b of {b.dtype.name} and sums of {acc.dtype.name} to mma.sync; expected for a "
            f"of {a.dtype.name}: b of {' or '.join(partners)}, sums of {' or '.join(results)}"
        )
    k = a.shape[1]
    if (acc.shape, a.shape, b.shape) != ((M, N), (M, k), (k, N)):
        raise misuse(
            f"given a {a.shape}, b {b.shape} and sums {acc.shape} to mma.sync; expected (16, K), (K, 8) and (16, 8): "
            "mma.left, mma.right and mma.accumulator"
        )
    if satfinite and acc.dtype is not s32:
        raise misuse(f"given satfinite=True for sums of {acc.dtype.name}; expected an accumulator of s32")
    sums = acc.dtype.name
    types = f"{'satfinite.' if satfinite else ''}{sums}.{a.dtype.name}.{b.dtype.name}.{sums}"
    d, left_regs, right_regs = (tuple(matrix.regs) for matrix in (acc, a, b))
    current().emit(f"mma.sync.aligned.m16n8k{k}.row.col.{types}", d, left_regs, right_regs, d)


def block_scale(
    acc: Fragment,
    a: Fragment,
    b: Fragment,
    scale_a: Expr,
    scale_b: Expr,
    scale: type[Scalar],
    *,
    block: int = 32,
    first: int = 0,
    lanes_a: int = 0,
    lane_b: int = 0,
) -> None:
    """Compute D += A·B with one m16n8 instruction, each ``block`` of K times a scale factor of its row and its column.

    ``a`` and ``b`` are of e4m3 and e5m2 (K is 32 elements), or of e2m1x2 (64). ``scale_a`` and ``scale_b`` are
    registers of four scale factors of type ``scale``; ``first`` is the byte of the first of the 1 (32 elements by 32),
    2 (64 by 32) or 4 (64 by 16) that the instruction uses. Lanes 4·g + 2·``lanes_a`` and the next one have those of
    rows g and g + 8 of A, lane 4·g + ``lane_b`` has those of column g of B.

    Raises KernelError for types and blocks that no kind has, other shapes, and selectors out of range.

    Issued by the whole warp, converged.
    Completes by itself.
    Targets: sm_120a.
    PTX ISA 9.1 section 9.7.14.5.14 (mma).
    """
    packed = [matrix.dtype is e2m1x2 for matrix in (a, b)]
    kind = SCALED_KINDS.get((packed[0], scale.name, block))
    types = [matrix.dtype.name.removesuffix("x2") for matrix in (a, b)]
    if kind is None or packed[0] != packed[1] or not {*types} <= {"e4m3", "e5m2", "e2m1"}:
        raise misuse(
            f"given a of {a.dtype.name}, b of {b.dtype.name} and scale factors of {scale.name} for {block} elements; "
            "expected e4m3 or e5m2 with ue8m0 for 32, or two of e2m1x2 with ue8m0 for 32 or ue4m3 for 16"
        )
    if (acc.dtype, acc.shape, a.shape, b.shape) != (f32, (M, N), (M, BYTES), (BYTES, N)):
        raise misuse(
            f"given a {a.shape}, b {b.shape} and sums {acc.shape} of {acc.dtype.name} to mma.block_scale; expected "
            "(16, 32), (32, 8) and (16, 8) of f32"
        )
    count = BYTES * (2 if packed[0] else 1) // block
    if first not in range(0, 4, count) or lanes_a not in range(2) or lane_b not in range(4):
        raise misuse(
            f"given first={first}, lanes_a={lanes_a} and lane_b={lane_b} for {count} scale factors; expected a "
            f"multiple of {count} below 4, 0 or 1, and 0 to 3"
        )
    opcode = f"mma.sync.aligned.m16n8k{BYTES * (2 if packed[0] else 1)}.row.col.{kind}"
    factors = (*check_registers([scale_a], [1], "scale factors"),), (first, lanes_a)
    others = (*check_registers([scale_b], [1], "scale factors"),), (first, lane_b)
    d, left_regs, right_regs = (tuple(matrix.regs) for matrix in (acc, a, b))
    current().emit(
        f"{opcode}.f32.{types[0]}.{types[1]}.f32.{scale.name}", d, left_regs, right_regs, d, *factors, *others
    )


def _operand(dtype: type[Scalar], regs: Sequence[Expr], name: str) -> Fragment:
    if dtype.name not in KS:
        raise misuse(f"given {name} of {dtype.name} to mma; expected one of {', '.join(KS)}")
    rows = M if name == "A" else N
    k_of_register = LANES * REGISTER_BITS // dtype.bits // rows
    counts = [k // k_of_register for k in KS[dtype.name]]
    regs = check_registers(regs, counts, f"{name} of mma in {dtype.name}")
    k = k_of_register * len(regs)
    place = partial(fragment.a_operand if name == "A" else fragment.b_operand, bits=dtype.bits)
    return Fragment(dtype, (M, k) if name == "A" else (k, N), regs, LANES, place)
