"""Arithmetic instructions by their PTX names: `fma`, `min`, `mul_wide`, `ex2` … (PTX ISA 9.1 section 9.7)."""

from __future__ import annotations

import builtins
from typing import Any

from warpwright import isa
from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, is_number, operand, same_type
from warpwright.lang.trace import current
from warpwright.types import Scalar, b32, f32, f64, s32, s64, u32, u64

__all__ = [
    "brev", "clz", "cos", "div", "ex2", "fma", "lg2", "max", "min", "mul_hi", "mul_wide", "popc", "prmt",
    "rcp", "rem", "rsqrt", "sin", "sqrt", "tanh",
]  # fmt: skip

_SATURATED = "f32", "f16", "f16x2"
_WIDE: dict[type[Scalar], type[Scalar]] = {u32: u64, s32: s64}


def fma(a: Value, b: Value, c: Value, *, sat: bool = False) -> Expr:
    """Returns ``a * b + c``, rounded once: f32, f64, f16, bf16 and their pairs. For integers write ``a * b + c``.

    With ``sat`` the result is clamped to [0, 1], and NaN becomes 0: f32, f16 and f16x2.

    Raises KernelError for mixed types or integers, and for ``sat`` with other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.6 (fma.rn).
    """
    type = _common_type("fma", a, b, c)
    _check(type, type.kind == "float", "fma", "a float; write a * b + c for integers")
    _check(
        type,
        not sat or type.name in _SATURATED,
        "fma with sat=True",
        "f32, f16 or f16x2; write max(min(x, 1.0), 0.0) for other floats",
    )
    name = f"fma.rn.{'sat.' if sat else ''}{type.name}"
    return current().pure(name, type, operand(a, type), operand(b, type), operand(c, type))


def min(a: Any, b: Any, *more: Any, nan: bool = False) -> Any:
    """Returns the minimum; Python numbers are compared during tracing.

    Of a NaN and a number it is the number, or with ``nan`` the NaN: f32, f16, bf16 and their pairs. One instruction
    takes three f32 on sm_100 and later.

    Raises KernelError for mixed types, and for ``nan`` with other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.12 (min).
    """
    return _emit_extreme("min", builtins.min, a, b, more, nan)


def max(a: Any, b: Any, *more: Any, nan: bool = False) -> Any:
    """Returns the maximum; Python numbers are compared during tracing.

    Of a NaN and a number it is the number, or with ``nan`` the NaN: f32, f16, bf16 and their pairs. One instruction
    takes three f32 on sm_100 and later.

    Raises KernelError for mixed types, and for ``nan`` with other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.13 (max).
    """
    return _emit_extreme("max", builtins.max, a, b, more, nan)


def _emit_extreme(name: str, python: Any, a: Any, b: Any, more: tuple[Any, ...], nan: bool) -> Any:
    opcode = f"{name}{'.NaN' if nan else ''}.f32"
    if more and all(isinstance(each, Expr) and each.type is f32 for each in (a, b, more[0])) and _takes_three(opcode):
        three = current().pure(opcode, f32, a, b, more[0])
        return _emit_extreme(name, python, three, more[1], more[2:], nan) if more[1:] else three
    for value in more:
        b = _emit_extreme(name, python, b, value, (), nan)
    if is_number(a) and is_number(b):
        return python(a, b)
    type = _common_type(name, a, b)
    _check(type, type.kind not in ("bits", "pred"), name, "an integer or a float")
    if nan:
        _check(type, type.kind == "float" and type is not f64, f"{name} with nan=True", "f32, f16, bf16 or a pair")
    first, second = (a, b) if isinstance(a, Expr) else (b, a)
    return current().pure(f"{name}{'.NaN' if nan else ''}.{type.name}", type, first, operand(second, type))


def _takes_three(opcode: str) -> bool:
    match = isa.match(opcode, 4)
    return match is not None and isa.supports(match, current().arch)


def div(a: Value, b: Value) -> Expr:
    """Returns the quotient of integers, rounded toward zero (``//`` is for unsigned types only).

    Raises KernelError for mixed types or floats.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.8 (div).
    """
    return _emit_integer("div", a, b)


def rem(a: Value, b: Value) -> Expr:
    """Returns the remainder of `div`, with the sign of ``a`` (``%`` is for unsigned types only).

    Raises KernelError for mixed types or floats.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.9 (rem).
    """
    return _emit_integer("rem", a, b)


def mul_hi(a: Value, b: Value) -> Expr:
    """Returns the high half of the product of two integers.

    Raises KernelError for mixed types or floats.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.3 (mul.hi).
    """
    return _emit_integer("mul.hi", a, b)


def mul_wide(a: Value, b: Value) -> Expr:
    """Returns the full product of two 32-bit integers: u64 of u32, s64 of s32.

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.3 (mul.wide).
    """
    type = _common_type("mul_wide", a, b)
    _check(type, type in _WIDE, "mul_wide", "u32 or s32")
    return current().pure(f"mul.wide.{type.name}", _WIDE[type], operand(a, type), operand(b, type))


def popc(x: Expr) -> Expr:
    """Returns the number of one bits (u32) of a 32- or 64-bit integer.

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.14 (popc).
    """
    return _emit_bits("popc", x, u32)


def clz(x: Expr) -> Expr:
    """Returns the number of leading zero bits (u32) of a 32- or 64-bit integer.

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.15 (clz).
    """
    return _emit_bits("clz", x, u32)


def brev(x: Expr) -> Expr:
    """Returns the bits of a 32- or 64-bit integer in reverse order.

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.1.18 (brev).
    """
    return _emit_bits("brev", x, None)


def prmt(a: Expr, b: Expr, selector: Value) -> Expr:
    """Returns four of the eight bytes of ``b:a`` (b32): nibble i of ``selector`` is the number of byte i of the result.

    Raises KernelError for values of another size than 32 bits.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.7 (prmt).
    """
    nibbles = operand(selector, selector.type if isinstance(selector, Expr) else u32)
    return current().pure("prmt.b32", b32, a.bitcast(b32), b.bitcast(b32), nibbles)


def ex2(x: Expr) -> Expr:
    """Returns 2 to the power ``x`` (f32, approximate: 2 ulp).

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.21 (ex2.approx.ftz).
    """
    return _emit_f32("ex2.approx.ftz", x)


def lg2(x: Expr) -> Expr:
    """Returns the logarithm of ``x`` to base 2 (f32, approximate).

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.20 (lg2.approx.ftz).
    """
    return _emit_f32("lg2.approx.ftz", x)


def rcp(x: Expr) -> Expr:
    """Returns 1 / ``x`` (f32, approximate: 1 ulp).

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.13 (rcp.approx.ftz).
    """
    return _emit_f32("rcp.approx.ftz", x)


def rsqrt(x: Expr) -> Expr:
    """Returns 1 / √``x`` (f32, approximate).

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.16 (rsqrt.approx.ftz).
    """
    return _emit_f32("rsqrt.approx.ftz", x)


def sqrt(x: Expr) -> Expr:
    """Returns √``x`` (f32), correctly rounded.

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.15 (sqrt.rn).
    """
    return _emit_f32("sqrt.rn", x)


def sin(x: Expr) -> Expr:
    """Returns the sine of ``x`` in radians (f32, approximate).

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.18 (sin.approx.ftz).
    """
    return _emit_f32("sin.approx.ftz", x)


def cos(x: Expr) -> Expr:
    """Returns the cosine of ``x`` in radians (f32, approximate).

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.19 (cos.approx.ftz).
    """
    return _emit_f32("cos.approx.ftz", x)


def tanh(x: Expr) -> Expr:
    """Returns the hyperbolic tangent of ``x`` (f32, approximate).

    Raises KernelError for other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.3.22 (tanh.approx).
    """
    return _emit_f32("tanh.approx", x)


def _check(type: type[Scalar], holds: bool, name: str, expected: str) -> None:
    if not holds:
        raise misuse(f"given {type.name} to {name}; expected {expected}")


def _common_type(name: str, *values: Any) -> type[Scalar]:
    """Returns the common type of the run-time values among ``values``."""
    registers = [value for value in values if isinstance(value, Expr)]
    if not registers:
        raise misuse(f"given only Python numbers to {name}; expected at least one run-time value")
    for other in registers[1:]:
        same_type(name, registers[0], other)
    return registers[0].type


def _emit_integer(name: str, a: Value, b: Value) -> Expr:
    type = _common_type(name, a, b)
    _check(type, type.kind in ("unsigned", "signed") and type.bits > 8, name, "integers of 16, 32 or 64 bits")
    if is_number(b) and b == 0 and name in ("div", "rem"):
        raise misuse(f"given {name} by 0; the divisor must not be zero")
    return current().pure(f"{name}.{type.name}", type, operand(a, type), operand(b, type))


def _emit_bits(name: str, x: Expr, result: type[Scalar] | None) -> Expr:
    type = _common_type(name, x)
    _check(type, type.kind != "float" and type.bits in (32, 64), name, "an integer of 32 or 64 bits")
    return current().pure(f"{name}.b{type.bits}", result or type, x)


def _emit_f32(opcode: str, x: Expr) -> Expr:
    type = _common_type(opcode.split(".")[0], x)
    _check(type, type is f32, opcode.split(".")[0], "f32: write x.to(f32)")
    return current().pure(f"{opcode}.f32", f32, x)
