"""Operands of instructions and values of initialisers (PTX ISA 6.4, 5.4.4)."""

from __future__ import annotations

import re
from collections.abc import Callable

from .constants import constant, integer, literal, starts_constant
from .lexer import NUMBER, Lexer
from .nodes import Address, Imm, Operand, Pair, Reg, Symbol, Vector

__all__ = ["arguments", "initializer", "operand", "plain_operand"]

_OPERAND = "an operand (a name, a constant, '[address]' or '{vector}')"
_VALUE = "a constant, the name of a symbol or '{'"
_OFFSET = "an integer offset"

_REG = r"[%$_A-Za-z][\w$]*(?:\.\w+)*"
_PLAIN_REG = re.compile(_REG, re.ASCII)
_PLAIN_NUMBER = re.compile(rf"-?({NUMBER})", re.ASCII)
_PLAIN_LIST = re.compile(rf"\s*({NUMBER}\s*(?:,\s*{NUMBER}\s*)*)\}}", re.ASCII)
_PLAIN_ADDRESS = re.compile(rf"\[\s*({_REG})\s*(?:\+\s*(-?(?:0|[1-9]\d{{0,9}})))?\s*\]", re.ASCII)


def operand(lexer: Lexer) -> Operand:
    """Parse one operand of an instruction."""
    first = _single(lexer)
    if isinstance(first, (Reg, Vector)) and lexer.accept("|"):
        return Pair(first, _single(lexer))
    return first


def arguments(lexer: Lexer, close: str, read: Callable[[Lexer], Operand] = operand) -> tuple[Operand, ...]:
    """Parse operands between commas, after the opening bracket and up to and including ``close``."""
    lexer.enter()
    items: list[Operand] = []
    while not lexer.accept(close):
        if items and not lexer.accept(","):
            lexer.unexpected(f"',' or '{close}'")
        items.append(read(lexer))
    lexer.leave()
    return tuple(items)


def initializer(lexer: Lexer) -> Operand:
    """Parse the value of an initialised variable: constants, symbol addresses, nested braces."""
    if lexer.accept("{"):
        return _plain_list(lexer) or Vector(arguments(lexer, "}", initializer))
    if starts_constant(lexer):
        value = constant(lexer)
        return _masked_symbol(lexer, value.text) if lexer.accept("(") else value
    return _symbol(lexer, _VALUE)


def _plain_list(lexer: Lexer) -> Vector | None:
    """Parse unsigned literals up to and including ``}``, as tables of 100,000 bytes have them; None for other lists."""
    found = _PLAIN_LIST.match(lexer.text, lexer.pos)
    words = "".join(found[1].split()).split(",") if found else []
    values = {word: literal(word) for word in set(words)}
    constants = {word: Imm(word, value) for word, value in values.items() if value is not None}
    if found is None or len(constants) < len(values):
        return None
    lexer.seek(found.end())
    return Vector(tuple(map(constants.__getitem__, words)))


def _masked_symbol(lexer: Lexer, mask: str) -> Symbol:
    inner = _symbol(lexer, "the name of a symbol")
    lexer.expect(")")
    if isinstance(inner, Symbol):
        return Symbol(inner.name, inner.offset, inner.generic, mask)
    return Symbol(inner.name, mask=mask)


def _symbol(lexer: Lexer, wanted: str) -> Reg | Symbol:
    name = lexer.expect_kind("name", wanted)
    generic = name == "generic" and lexer.accept("(")
    if generic:
        name = lexer.expect_kind("name", "the name of a symbol")
        lexer.expect(")")
    offset = integer(lexer, _OFFSET) if lexer.accept("+") else 0
    return Symbol(name, offset, generic) if generic or offset else Reg(name)


def _single(lexer: Lexer) -> Operand:
    token = lexer.peek()
    if token.kind == "name" and token.text != "WARP_SZ":
        return _symbol(lexer, _OPERAND)
    if lexer.accept("["):
        return _address(lexer)
    if lexer.accept("{"):
        return Vector(arguments(lexer, "}"))
    if token.text in ("!", "-"):
        return _signed(lexer, token.text)
    if not starts_constant(lexer):
        lexer.unexpected(_OPERAND)
    return constant(lexer)


def _signed(lexer: Lexer, sign: str) -> Operand:
    start = lexer.take().start
    token = lexer.peek()
    if token.kind == "name" and token.text != "WARP_SZ":
        return Reg(lexer.take().text, negated=sign == "!", minus=sign == "-")
    lexer.seek(start)
    return constant(lexer)


def _address(lexer: Lexer) -> Address:
    base, offset = _base(lexer)
    extra: tuple[Operand, ...] = ()
    if lexer.accept(","):
        extra = arguments(lexer, "]")
    elif not lexer.accept("]"):
        lexer.unexpected("'+', ',' or ']'")
    unified = lexer.accept(".unified")
    return Address(base, offset, extra, unified)


def _base(lexer: Lexer) -> tuple[Reg | Imm, int]:
    token = lexer.peek()
    if token.kind != "name" or token.text == "WARP_SZ":
        return _immediate_base(lexer), 0
    base = Reg(lexer.take().text)
    return base, integer(lexer, _OFFSET) if lexer.accept("+") else 0


def _immediate_base(lexer: Lexer) -> Imm:
    start = lexer.peek().start
    integer(lexer, "an address (a register, a symbol or an integer)")
    lexer.seek(start)
    return constant(lexer)


def plain_operand(text: str) -> Operand | None:
    """Returns the operand for the common forms of ``text``, or None for another form.

    The common forms are registers, literals, ``[register+8]`` and vectors of these. The result equals that of
    `operand`; the function is a fast path.
    """
    if _PLAIN_REG.fullmatch(text):
        return Reg(text) if text != "WARP_SZ" else None
    if text[:1] == "[":
        match = _PLAIN_ADDRESS.fullmatch(text)
        return Address(Reg(match[1]), int(match[2] or 0)) if match and match[1] != "WARP_SZ" else None
    if text[:1] == "{" and text[-1:] == "}":
        return _plain_vector(text[1:-1])
    match = _PLAIN_NUMBER.fullmatch(text)
    value = literal(match[1]) if match else None
    return None if value is None else Imm(text, -value if text[0] == "-" else value)


def _plain_vector(text: str) -> Vector | None:
    if "{" in text or "[" in text or not text.strip():
        return None
    items = [plain_operand(part.strip()) for part in text.split(",")]
    return Vector(tuple(item for item in items if item is not None)) if None not in items else None
