"""Declarations of registers, variables, parameters and functions (PTX ISA 5, 10.1, 11.1)."""

from __future__ import annotations

import re

from .constants import ADDITIVE, integer
from .lexer import Lexer, Token
from .nodes import CallProto, Directive, RegDecl, Variable
from .operands import initializer

__all__ = ["LINKAGE", "SPACES", "call_prototype", "directive", "function_directives", "join", "parameters", "registers"]
__all__ += ["variables"]

SPACES = frozenset({".const", ".global", ".local", ".param", ".shared", ".tex"})
LINKAGE = frozenset({".extern", ".visible", ".weak", ".common"})

MAX_REGISTERS = 1 << 20

_TYPE = re.compile(r"\.(?:[usbf]\d+(?:x\d)?|pred|bf16(?:x2)?|tf32|e\dm\d(?:x\d)?|texref|samplerref|surfref)")
_VECTORS = {".v2": 2, ".v4": 4}
_TIGHT_BEFORE = frozenset({",", ")", "]", "["})
_TIGHT_AFTER = frozenset({"(", "["})


def join(words: list[str]) -> str:
    """Returns the tokens of a directive as one canonical text: ``128, 1, 1``."""
    text = ""
    for word in words:
        tight = not text or word in _TIGHT_BEFORE or text[-1] in _TIGHT_AFTER
        text += word if tight else f" {word}"
    return text


def registers(lexer: Lexer, line: int) -> list[RegDecl]:
    """Parse the rest after ``.reg``; each name with a count, and each run of names without, is one declaration."""
    vector = _VECTORS[lexer.take().text] if lexer.peek().text in _VECTORS else 1
    type_ = _type(lexer)
    found: list[RegDecl] = []
    while True:
        name = lexer.expect_kind("name", "the name of a register")
        count = _count(lexer)
        if count is None and found and found[-1].count is None:
            found.append(RegDecl(type_, (*found.pop().names, name), None, vector, line))
        else:
            found.append(RegDecl(type_, (name,), count, vector, line))
        if not _more(lexer):
            return found


def variables(lexer: Lexer, space: str, linkage: str, line: int) -> list[Variable]:
    """Parse a variable statement after its state space, up to and including the ``;``."""
    align, vector, type_, attributes = _prefix(lexer)
    found: list[Variable] = []
    while True:
        name, dims = _declarator(lexer)
        init = initializer(lexer) if lexer.accept("=") else None
        found.append(Variable(space, type_, name, dims, align, vector, init, linkage, attributes, line))
        if not _more(lexer):
            return found


def parameters(lexer: Lexer) -> tuple[Variable, ...]:
    """Parse the parameters of an entry or function, after ``(`` and up to and including ``)``."""
    found: list[Variable] = []
    while not lexer.accept(")"):
        if found and not lexer.accept(","):
            lexer.unexpected("',' or ')'")
        found.append(_parameter(lexer))
    return tuple(found)


def _parameter(lexer: Lexer) -> Variable:
    token = lexer.peek()
    if token.text not in (".param", ".reg"):
        lexer.unexpected("'.param', '.reg' or ')'")
    lexer.take()
    align, vector, type_, attributes = _prefix(lexer)
    name, dims = _declarator(lexer)
    line = lexer.line(token.start)
    return Variable(token.text[1:], type_, name, dims, align, vector, None, "", attributes, line)


def _prefix(lexer: Lexer) -> tuple[int | None, int, str, str]:
    """Parse alignment, vector length, type and attributes: the words between the state space and the name."""
    align: int | None = None
    vector, attributes = 1, ""
    while (word := lexer.peek().text) in (".align", ".attribute", *_VECTORS):
        lexer.take()
        if word == ".align":
            align = integer(lexer, "an alignment in bytes")
        elif word == ".attribute":
            attributes = f".attribute{_parenthesised(lexer)}"
        else:
            vector = _VECTORS[word]
    type_ = _type(lexer)
    if lexer.peek().text == ".ptr":
        attributes = f"{attributes} {_pointer(lexer)}".lstrip()
    return align, vector, type_, attributes


def _pointer(lexer: Lexer) -> str:
    """Parse ``.ptr .global .align 16`` of a kernel parameter (PTX ISA 5.1.6.3)."""
    words = [lexer.take().text]
    while lexer.peek().kind == "dot":
        words.append(lexer.take().text)
        if words[-1] == ".align":
            words.append(str(integer(lexer, "an alignment in bytes")))
    return join(words)


def _parenthesised(lexer: Lexer) -> str:
    words = [lexer.expect("(").text]
    while words[-1] != ")":
        if lexer.peek().kind not in ("dot", "name", "number") and lexer.peek().text not in (",", ")"):
            lexer.unexpected("an attribute or ')'")
        words.append(lexer.take().text)
    return join(words)


def _type(lexer: Lexer) -> str:
    if not _TYPE.fullmatch(lexer.peek().text):
        lexer.unexpected("a type such as '.b32'")
    return lexer.take().text[1:]


def _declarator(lexer: Lexer) -> tuple[str, tuple[int, ...]]:
    name = lexer.expect_kind("name", "the name of a variable")
    dims: list[int] = []
    while lexer.accept("["):
        dims.append(0 if lexer.peek().text == "]" else integer(lexer, "a number of elements"))
        lexer.expect("]")
    return name, tuple(dims)


def _count(lexer: Lexer) -> int | None:
    """Parse ``<count>`` after the name of a register: the name stands for ``count`` numbered registers."""
    if not lexer.accept("<"):
        return None
    start = lexer.peek().start
    count = integer(lexer, "a number of registers", minimum=ADDITIVE)  # '>' ends it, so it is no operator here
    if not 0 <= count <= MAX_REGISTERS:
        lexer.fail(start, f"{count} registers", f"0 to {MAX_REGISTERS}")
    lexer.expect(">")
    return count


def _more(lexer: Lexer) -> bool:
    """Returns True after ``,`` and False after the ``;`` that ends the statement."""
    if lexer.accept(","):
        return True
    if not lexer.accept(";"):
        lexer.unexpected("',' or ';'")
    return False


def directive(lexer: Lexer, token: Token) -> Directive:
    """Parse the rest of a directive that ends with ``;``."""
    words = _words_to(lexer, ";")
    lexer.expect(";")
    return Directive(token.text, join(words), lexer.line(token.start))


def call_prototype(lexer: Lexer, name: str, line: int) -> CallProto:
    """Parse the rest after ``name: .callprototype``."""
    words = _words_to(lexer, ";")
    lexer.expect(";")
    return CallProto(name, join(words), line)


def _words_to(lexer: Lexer, close: str) -> list[str]:
    words: list[str] = []
    while (token := lexer.peek()).text != close:
        if token.kind == "end" or token.text in ("{", "}", ":", "@"):
            lexer.unexpected(f"'{close}'")
        words.append(lexer.take().text)
    return words


def function_directives(lexer: Lexer) -> tuple[Directive, ...]:
    """Parse the directives between the parameters of a function and its body or ``;``."""
    found: list[Directive] = []
    while (token := lexer.peek()).kind == "dot":
        lexer.take()
        words: list[str] = []
        while lexer.peek().kind in ("number", "string", "name") or lexer.peek().text == ",":
            words.append(lexer.take().text)
        if token.text == ".pragma":
            lexer.expect(";")
        found.append(Directive(token.text, join(words), lexer.line(token.start)))
    return tuple(found)
