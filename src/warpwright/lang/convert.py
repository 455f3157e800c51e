"""Conversions: ``cvt`` preserves the number, ``bitcast`` the bits; ``pack`` and ``unpack`` join and split halves."""

from __future__ import annotations

from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, as_expr, check_type, current, is_number, move_suffix, operand
from warpwright.lang.scope import register_class
from warpwright.types import Scalar, e2m1x2, f32, pred, u16, u32

__all__ = ["bitcast", "cvt", "pack", "pack_narrow", "unpack"]

_BYTES = (("f32",) * 4, ("f16x2",) * 2)
_NARROW = {"e4m3": _BYTES, "e5m2": _BYTES, "e2m1x2": (("f32",) * 8,)}
_INTEGER = ("unsigned", "signed", "bits")


def cvt(value: Any, type: type[Scalar], *, rnd: str = "", sat: bool = False) -> Expr:
    """Returns ``value`` converted to ``type``.

    Integers truncate or extend (by the sign of the source), floats round to nearest even (``rnd``: rn, rz, rm, rp),
    floats become integers toward zero (``rnd``: rzi, rni, rmi, rpi); ``sat`` clamps to the range of ``type``
    (floats to [0, 1]). pred becomes 0 or 1. Integer types of one size share the register.

    Raises KernelError if PTX has no such conversion.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.21 (cvt).
    """
    check_type("cvt", type)
    if is_number(value):
        return as_expr(value, type)
    source = value.type
    if source is type:
        return _current_value(value)
    if pred in (source, type):
        return _convert_pred(value, type)
    if source.kind in _INTEGER and type.kind in _INTEGER and source.bits == type.bits and not sat:
        return bitcast(value, type)
    if source.kind == type.kind == "float" and source.bits == type.bits == 16:
        return cvt(cvt(value, f32), type, rnd=rnd, sat=sat)
    _check(source, type)
    rounding = rnd or _rounding(source, type)
    words = ["cvt", rounding, "sat" if sat else "", _name(type), _name(source)]
    return current().pure(".".join(word for word in words if word), type, value)


def _name(type: type[Scalar]) -> str:
    return f"u{type.bits}" if type.kind == "bits" else type.name


def _rounding(source: type[Scalar], type: type[Scalar]) -> str:
    if type.kind == "float":
        return "" if source.kind == "float" and source.bits < type.bits else "rn"
    return "rzi" if source.kind == "float" else ""


def _check(source: type[Scalar], type: type[Scalar]) -> None:
    pairs = {"f16x2", "bf16x2", "f32x2", "e2m1x2", "e4m3", "e5m2", "ue4m3", "ue8m0", "b128", "tf32"}
    packed = pairs & {source.name, type.name}
    if packed:
        raise misuse(
            f"given {source.name}.to({type.name}); PTX converts {', '.join(sorted(packed))} only in pairs or not "
            "at all: write pack(…), unpack(…) or bitcast(…)"
        )


def _current_value(value: Expr) -> Expr:
    """Returns a copy of a `var`, any other value itself."""
    if not value.mutable:
        return value
    return current().pure(f"mov.{move_suffix(value.type)}", value.type, value)


def _convert_pred(value: Expr, type: type[Scalar]) -> Expr:
    if type is pred:
        result: Expr = value != 0
        return result
    if type.kind == "float" and type.bits == 16:
        return cvt(_convert_pred(value, f32), type)
    true, false = (0, 1) if value.negated else (1, 0)
    plain = ~value if value.negated else value
    suffix = move_suffix(type)
    return current().pure(f"selp.{suffix}", type, operand(true, type), operand(false, type), plain)


def bitcast(value: Expr, type: type[Scalar]) -> Expr:
    """Returns the bits of ``value`` as ``type``, which must have the same size.

    Raises KernelError for another size or a pred.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.3 (mov).
    """
    check_type("bitcast", type)
    trace = current()
    if value.type.bits != type.bits or pred in (value.type, type):
        raise misuse(
            f"given {value.type.name}.bitcast({type.name}), {value.type.bits} and {type.bits} bits; "
            f"expected types of one size: write x.to({type.name}) to convert the number"
        )
    trace.use(value)
    if register_class(value.type) == register_class(type) and not value.mutable:
        return Expr(type, value.reg, value.scope, trace)
    return trace.pure(f"mov.b{type.bits}", type, value)


def pack(type: type[Scalar], low: Any, high: Any, *, relu: bool = False) -> Expr:
    """Returns two values in one register, ``low`` in the low half.

    ``bf16x2`` and ``f16x2`` take two f32 (rounded to nearest even, and with ``relu`` at least 0, NaN kept) or two of
    their own halves; ``f32x2`` takes two f32; ``b32``, ``u32``, ``b64`` and ``u64`` take two values of half their
    size, bits unchanged.

    Raises KernelError if the halves do not fit, and for ``relu`` of other halves than f32.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 sections 9.7.9.21 and 9.7.9.3 (cvt or mov).
    """
    low, high = _halves(type, low, high)
    if low.type is f32 and type.name in ("bf16x2", "f16x2"):
        return current().pure(f"cvt.rn{'.relu' if relu else ''}.{type.name}.f32", type, high, low)
    if relu:
        raise misuse(f"given two {low.type.name} to pack with relu=True; expected f32: max(x, 0.0, nan=True) of others")
    if low.type.bits * 2 != type.bits:
        raise misuse(f"given two {low.type.name} to pack into {type.name}; expected halves of {type.bits // 2} bits")
    return current().pure(f"mov.b{type.bits}", type, (low, high))


def pack_narrow(type: type[Scalar], *values: Expr) -> Expr:
    """Returns numbers as a u32 of elements of ``type``, the first in the lowest bits: four f32 or two f16x2 for e4m3
    and e5m2, eight f32 for e2m1x2. They are rounded to nearest even and saturate.

    Raises KernelError for another type, another number of values, and values of other types.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all; e2m1x2 sm_100a and sm_120a.
    PTX ISA 9.1 section 9.7.9.21 (cvt).
    """
    given = tuple(value.type.name for value in values)
    if given not in _NARROW.get(type.name, ()):
        raise misuse(
            f"given pack_narrow({type.name}) of {', '.join(given)}; expected four f32 or two f16x2 for e4m3 and e5m2, "
            "eight f32 for e2m1x2"
        )
    half, name = (e2m1x2, "e2m1x2") if type is e2m1x2 else (u16, f"{type.name}x2")
    each = 2 if given[0] == "f32" else 1
    halves = [values[first : first + each][::-1] for first in range(0, len(values), each)]
    narrow = [current().pure(f"cvt.rn.satfinite.{name}.{given[0]}", half, *pair) for pair in halves]
    return current().pure("mov.b32", u32, tuple(narrow))


def _halves(type: type[Scalar], low: Any, high: Any) -> tuple[Expr, Expr]:
    register = low if isinstance(low, Expr) else high
    half = register.type if isinstance(register, Expr) else f32 if type.kind == "float" else u32
    return as_expr(low, half), as_expr(high, half)


def unpack(value: Expr, type: type[Scalar]) -> tuple[Expr, Expr]:
    """Returns the low and the high half of ``value``, each as ``type``.

    Raises KernelError if ``type`` has not half the size of the value.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.3 (mov).
    """
    if type.bits * 2 != value.type.bits:
        raise misuse(f"given {value} to unpack into {type.name}; expected halves of {value.type.bits // 2} bits")
    trace = current()
    low, high = trace.fresh(type), trace.fresh(type)
    trace.emit(f"mov.b{value.type.bits}", (low, high), value)
    return low, high
