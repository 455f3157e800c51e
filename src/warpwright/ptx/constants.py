"""Constants and constant expressions (PTX ISA 4.5); the parser folds an expression to one literal."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .lexer import Lexer
from .nodes import Imm

__all__ = ["ADDITIVE", "constant", "integer", "literal", "starts_constant"]

Number: TypeAlias = "int | float"
WARP_SIZE = 32


@dataclass(frozen=True, slots=True)
class _Value:
    """A folded value; ``unsigned`` selects .u64 instead of .s64; ``text`` is the source text of a literal."""

    number: Number
    unsigned: bool = False
    text: str = ""


_LEVELS = ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %")
_PRECEDENCE = {sign: level for level, signs in enumerate(_LEVELS, 1) for sign in signs.split()}
ADDITIVE = _PRECEDENCE["+"]

_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
}
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_INTEGER: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": lambda a, b: a << b if 0 <= b < 64 else 0,
    ">>": lambda a, b: a >> b if 0 <= b < 64 else (-1 if a < 0 else 0),
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}
_UNARY = ("-", "+", "~", "!")
_CASTS = {".s64": False, ".u64": True}


def literal(text: str) -> Number | None:
    """Returns the value of one unsigned literal, or None if it is not a number of at most 64 bits."""
    lower = text.lower()
    if lower[:2] == "0f":
        return float(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    if lower[:2] == "0d":
        return float(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
    if lower[:2] != "0x" and any(mark in lower for mark in ".e"):
        return float(text)
    return _integer_literal(lower.rstrip("u"))


def _integer_literal(text: str) -> int | None:
    if len(text) > 2 + 64:
        return None
    base = {"0x": 16, "0b": 2}.get(text[:2], 8 if text[0] == "0" else 10)
    try:
        value = int(text, base)
    except ValueError:
        return None
    return value if value < 1 << 64 else None


def starts_constant(lexer: Lexer) -> bool:
    """Returns whether the next token begins a constant expression."""
    token = lexer.peek()
    return token.kind == "number" or token.text in ("(", "WARP_SZ", *_UNARY)


def constant(lexer: Lexer, minimum: int = 0) -> Imm:
    """Parse a constant expression whose operators have at least the precedence ``minimum``."""
    value = _expression(lexer, minimum)
    if value.text:
        return Imm(value.text, value.number)
    if isinstance(value.number, float):
        return Imm(f"0d{struct.pack('>d', value.number).hex().upper()}", value.number)
    return Imm(f"{value.number}{'U' if value.unsigned else ''}", value.number)


def integer(lexer: Lexer, wanted: str, minimum: int = 0) -> int:
    """Parse a constant expression that must be an integer; the error names ``wanted`` as what was expected."""
    if not starts_constant(lexer):
        lexer.unexpected(wanted)
    start = lexer.peek()
    imm = constant(lexer, minimum)
    if isinstance(imm.value, float):
        lexer.fail(start.start, f"the number {imm.text}", wanted)
    return imm.value


def _expression(lexer: Lexer, minimum: int) -> _Value:
    lexer.enter()
    left = _unary(lexer)
    while (rank := _PRECEDENCE.get(lexer.peek().text, -1)) >= max(minimum, 1):
        sign = lexer.take()
        right = _expression(lexer, rank + 1)
        left = _binary(lexer, sign.text, left, right, sign.start)
    if minimum == 0 and lexer.accept("?"):
        left = _choice(lexer, left)
    lexer.leave()
    return left


def _choice(lexer: Lexer, condition: _Value) -> _Value:
    first = _expression(lexer, 0)
    lexer.expect(":")
    second = _expression(lexer, 0)
    return first if condition.number else second


def _unary(lexer: Lexer) -> _Value:
    sign = lexer.peek()
    if sign.kind != "punct" or sign.text not in _UNARY:
        return _primary(lexer)
    lexer.take()
    lexer.enter()
    value = _unary(lexer)
    lexer.leave()
    number = value.number
    if sign.text == "-":
        return _negate(value)
    if sign.text == "+":
        return _Value(number, value.unsigned)
    if sign.text == "!":
        return _Value(int(not number))
    if isinstance(number, float):
        lexer.fail(sign.start, "'~' before a floating-point number", "an integer constant")
    return _fold(~number, value.unsigned)


def _negate(value: _Value) -> _Value:
    """Returns the negative value; ``-7`` remains one literal, an expression is folded."""
    if value.text[:1].isdigit() and value.number <= 1 << 63:
        return _Value(-value.number, value.unsigned, "-" + value.text)
    return _fold(-value.number, value.unsigned)


def _primary(lexer: Lexer) -> _Value:
    token = lexer.peek()
    if token.text == "WARP_SZ":
        lexer.take()
        return _Value(WARP_SIZE, text="WARP_SZ")
    if lexer.accept("("):
        return _parenthesised(lexer)
    if token.kind != "number":
        lexer.unexpected("a constant")
    number = literal(token.text)
    if number is None:
        lexer.unexpected("an integer of at most 64 bits (a leading 0 means octal)")
    lexer.take()
    unsigned = isinstance(number, int) and (token.text[-1] == "U" or number >= 1 << 63)
    return _Value(number, unsigned, token.text)


def _parenthesised(lexer: Lexer) -> _Value:
    """Parse the rest after ``(``: an expression and ``)``, or a cast such as ``.s64)`` and its operand."""
    cast = lexer.take().text if lexer.peek().text in _CASTS else ""
    if not cast:
        value = _expression(lexer, 0)
        lexer.expect(")")
        return _Value(value.number, value.unsigned)
    lexer.expect(")")
    start = lexer.peek().start
    value = _unary(lexer)
    if isinstance(value.number, float):
        lexer.fail(start, "a cast of a floating-point number", "an integer constant")
    return _fold(value.number, _CASTS[cast])


def _binary(lexer: Lexer, sign: str, left: _Value, right: _Value, start: int) -> _Value:
    if sign in "/%" and right.number == 0:
        lexer.fail(start, f"'{sign}' by zero", "a divisor other than 0")
    if sign in _COMPARE:
        return _Value(int(_COMPARE[sign](left.number, right.number)))
    if isinstance(left.number, int) and isinstance(right.number, int):
        unsigned = left.unsigned or (right.unsigned and sign not in ("<<", ">>"))
        return _fold(_INTEGER[sign](left.number, right.number), unsigned)
    if sign not in _FLOAT:
        lexer.fail(start, f"'{sign}' between floating-point numbers", "'+', '-', '*' or '/'")
    return _Value(_FLOAT[sign](float(left.number), float(right.number)))


def _fold(number: Number, unsigned: bool) -> _Value:
    """Wrap an integer to 64 bits, as PTX evaluates constant expressions; a float is unchanged."""
    if isinstance(number, float):
        return _Value(number)
    wrapped = number & ((1 << 64) - 1)
    if not unsigned and wrapped >> 63:
        wrapped -= 1 << 64
    return _Value(wrapped, unsigned)
