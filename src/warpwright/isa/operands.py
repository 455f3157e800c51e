"""Types and counts of operands, and which registers and constants an operand of a type takes (PTX ISA 9.1 section 9.4).

ptxas 13.0 is the second source: `tests/isa/test_operand_types.py` compares these rules with it for every spelling.
"""

from __future__ import annotations

import re
from functools import cache

from warpwright.isa.notation import Match

__all__ = ["REGISTERS", "bits_of", "count_of", "extents_of", "has_value", "takes_constant", "takes_register", "type_of"]

_TYPE = re.compile(r"([a-z]+)(\d+)(m\d+)?(?:x(\d+))?(?:_p\d+)?")
_SCALARS = frozenset({f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)} | {"b128", "f16", "f32", "f64"})
REGISTERS = _SCALARS | {"f16x2", "pred"}


def type_of(match: Match, word: str) -> str:
    """The type that the word after an operand's ``:`` stands for: the modifier in a slot, twice the width, or itself;
    "" if it stands for none."""
    if word == "wide":
        kind, bits = match["type"][0], int(match["type"][1:])
        return f"{kind}{2 * bits}"
    found = match.chosen.get(word, word)
    return found if found == "pred" or _TYPE.fullmatch(found) else ""


def count_of(match: Match, word: str) -> int:
    """Returns the elements of a vector operand: a number, or what a ``word`` of the table such as ``vec`` stands for; 0
    without one."""
    shape, chosen = match.chosen.get("shape", ""), match.chosen.get(word, "" if word == "vec" else word)
    if word == "num" and shape.startswith("16x"):
        return int(chosen[1:]) * {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    if word == "num" and shape == "m16n16":
        return 2 * int(chosen[1:])
    if word == "sums":
        _, columns, _ = extents_of(shape)
        return columns // 4 if match["dtype"] == "f16" else columns // 2
    if word in ("mk", "nk", "mn"):  # a matrix in the registers of 32 lanes
        rows, columns = (extents_of(shape)["mnk".index(axis)] for axis in word)
        return rows * columns * bits_of(match.chosen.get("atype") or match["type"]) // 1024
    if word == "im2col":
        return int(match["dim"][0]) - 2
    if word == "lanes":
        return 4 * int(match["group"][-1])
    return int(re.sub(r"\D", "", chosen) or 0)


def extents_of(shape: str) -> tuple[int, int, int]:
    """Returns M, N and K of a shape such as ``"m16n8k16"``."""
    m, n, k = map(int, re.findall(r"\d+", shape))
    return m, n, k


@cache
def bits_of(type: str) -> int:
    """The bits of a value of a type (``"u32"``, ``"e4m3x2"``, ``"pred"``)."""
    if type == "pred":
        return 1
    found = _TYPE.fullmatch(type)
    assert found, f"{type} is no type"
    kind, digits, mantissa, lanes = found.groups()
    if mantissa:  # in memory and in registers, elements of six bits have eight
        digits = "4" if kind + digits + mantissa == "e2m1" else "8"
    return int(digits) * int(lanes or 1)


@cache
def takes_register(type: str, register: str, wider: bool) -> bool:
    """Whether an operand of a type takes a register of a type; ``wider``: a wider register too (section 9.4.1).

    Bit types fit any type of their size, integers each other; floating-point types fit themselves and bits. Packed
    types, which registers cannot have, are in registers of bits.
    """
    if "pred" in (type, register):
        return type == register
    size, own = bits_of(type), bits_of(register)
    fits = own == size or (wider and own > size)
    if type[0] == "b" and type in _SCALARS:
        return fits
    if type[0] in "us" and type in _SCALARS:
        return fits and (register[0] in "usb" or register == "f16x2")
    return fits and (register[0] == "b" or register == type or (register == "f16x2" and type in ("s16x2", "u16x2")))


@cache
def takes_constant(type: str, kind: str) -> bool:
    """Whether a source of a type takes a constant of a kind: ``integer``, ``0f``, ``0d`` or ``decimal``."""
    if kind == "integer":
        return type == "pred" or (type in _SCALARS and type[0] in "usb")
    if type in ("f32", "f64"):
        return True
    return (type == "b32" and kind == "0f") or (type == "b64" and kind in ("0d", "decimal"))


def has_value(values: str, number: int) -> bool:
    """Whether the values of an operand (``"0..15"``, ``"4/8/16"``, ``"16n"``) include a number."""
    if values.endswith("n"):
        return number % int(values[:-1]) == 0
    if ".." in values:
        low, high = values.split("..")
        return int(low) <= number <= int(high)
    return str(number) in values.split("/")
