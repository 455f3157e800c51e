"""LLVM IR helpers for the meanings of arithmetic. Types are LLVM vector types as text."""

from __future__ import annotations

import struct
from collections.abc import Callable

from warpwright.vgpu.jit.lanes import MEANINGS, Lanes, Meaning
from warpwright.vgpu.program.program import Inst

__all__ = ["arithmetic", "call", "cast", "choose", "has", "is_float", "number", "repeat", "shift_left", "shift_right"]

_KINDS: dict[tuple[str, bool], Meaning] = {}


def is_float(type: str) -> bool:
    """Whether a PTX type is a floating-point one, packed or not."""
    return "f" in type


def arithmetic(*names: str, floating: bool) -> Callable[[Meaning], Meaning]:
    """Register the meaning of forms that exist for integers and for floating point: dispatches on the type."""

    def register(function: Meaning) -> Meaning:
        for name in names:
            _KINDS[name, floating] = function
            MEANINGS[name] = _dispatch
        return function

    return register


def _dispatch(lanes: Lanes, inst: Inst) -> None:
    _KINDS[inst.name, is_float(inst["type"])](lanes, inst)


def has(inst: Inst, word: str) -> bool:
    """Whether the opcode has a modifier, in a slot of its form or as a fixed word."""
    return word in inst.opcode.split(".")


def _overload(type: str) -> str:
    count, element = type.strip("<>").split(" x ")
    return f"v{count}" + {"half": "f16", "float": "f32", "double": "f64"}.get(element, element)


def call(lanes: Lanes, name: str, type: str, *values: str, tail: str = "", result: str = "") -> str:
    """Call an LLVM intrinsic on operands of one type. ``tail``: further arguments as text; ``result``: its type if the
    name is overloaded on both."""
    arguments = ", ".join(f"{type} {value}" for value in values) + tail
    overload = f"{_overload(result)}.{_overload(type)}" if result else _overload(type)
    return lanes.op(f"call {result or type} @llvm.{name}.{overload}({arguments})")


def choose(lanes: Lanes, condition: str, type: str, yes: str, no: str) -> str:
    """``yes`` in the lanes where ``condition`` (i1 of as many lanes as ``type``) is true, else ``no``."""
    count = type[1:].split(" ")[0]
    return lanes.op(f"select <{count} x i1> {condition}, {type} {yes}, {type} {no}")


def cast(lanes: Lanes, word: str, value: str, source: str, target: str) -> str:
    """A conversion instruction, or nothing if the types agree."""
    return value if source == target else lanes.op(f"{word} {source} {value} to {target}")


def number(value: float, element: str) -> str:
    """A floating-point constant in every lane; ``value`` must be exact in ``element`` (float or double)."""
    return f"splat ({element} 0x{struct.pack('>d', value).hex()})"


def repeat(value: int, bits: int) -> str:
    """An integer constant in every lane, for any number of lanes."""
    return f"splat (i{bits} {value & ((1 << bits) - 1)})"


def shift_left(lanes: Lanes, value: str, amount: int) -> str:
    """Lanes of i32 shifted left by a constant."""
    return value if amount == 0 else lanes.op(f"shl <32 x i32> {value}, {repeat(amount, 32)}")


def shift_right(lanes: Lanes, value: str, amount: int) -> str:
    """Lanes of i32 shifted right by a constant, with zeros."""
    return value if amount == 0 else lanes.op(f"lshr <32 x i32> {value}, {repeat(amount, 32)}")
