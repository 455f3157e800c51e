"""mma.sync: the tensor core multiplies fragments in a warp's registers (PTX ISA 9.1 section 9.7.14.5), all targets.

D is 16 × 8, A 16 × K row by row, B K × 8 column by column; K is 16 or 32 bytes. `ldmatrix` loads the fragments::

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
from warpwright.types import Scalar, f16, s32

__all__ = ["accumulator", "left", "right", "sync"]

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


def _operand(dtype: type[Scalar], regs: Sequence[Expr], name: str) -> Fragment:
    if dtype.name not in PAIRS:
        raise misuse(f"given {name} of {dtype.name} to mma; expected one of {', '.join(PAIRS)}")
    rows = M if name == "A" else N
    k_of_register = LANES * REGISTER_BITS // dtype.bits // rows
    counts = [k // k_of_register for k in PAIRS[dtype.name][2]]
    regs = check_registers(regs, counts, f"{name} of mma in {dtype.name}")
    k = k_of_register * len(regs)
    place = partial(fragment.a_operand if name == "A" else fragment.b_operand, bits=dtype.bits)
    return Fragment(dtype, (M, k) if name == "A" else (k, N), regs, LANES, place)
