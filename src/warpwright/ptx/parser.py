"""The parser of PTX text: modules, functions, statements (PTX ISA 4.2, 11.1, 11.5)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from warpwright.errors import PtxSyntaxError

from .declarations import (
    LINKAGE,
    SPACES,
    call_prototype,
    directive,
    function_directives,
    join,
    parameters,
    registers,
    variables,
)
from .lexer import Lexer, Token
from .nodes import (
    Block,
    Directive,
    Function,
    Guard,
    Instruction,
    Item,
    Label,
    Loc,
    Module,
    Operand,
    Reg,
    Section,
    Variable,
    Vector,
)
from .operands import arguments, operand, plain_operand

__all__ = ["parse"]

# One whole instruction up to its ';'. A call, and an instruction with an uncommon operand, takes the slow path.
_INSTRUCTION = re.compile(
    r"\s*(?:@(!?)(%?\w[\w$]*)\s+)?(?!call\b)([A-Za-z_][\w$]*(?:(?:\.|::)\w+)*)(?:\s([^;]*))?;", re.ASCII
)
_PIECE = re.compile(r"\s*(\{[^{}]*\}\s*|\[[^\[\]]*\]\s*|[^,{}\[\]]+)(?:,|\Z)", re.ASCII)
_SECTION_BODY = re.compile(r"[^{}]*")
_VERSION = re.compile(r"\d+\.\d+", re.ASCII)


def parse(text: str | bytes, *, source: str = "<ptx>") -> Module:
    """Parse a PTX module.

    ``text`` is PTX as str, or as bytes in UTF-8; ``source`` names the text in messages. The parser accepts unknown
    instructions. Raises PtxSyntaxError, with line and column, for text that is not PTX (PTX ISA 4, 5, 10, 11).
    """
    return _Parser(_decode(text, source), source).module()


def _decode(text: str | bytes, source: str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        column = error.start - text.rfind(b"\n", 0, error.start)
        message = f"found the byte 0x{text[error.start]:02X}, expected PTX text (is this a cubin?)."
        raise PtxSyntaxError(message, line=line, column=column, source=source) from None


class _Parser:
    """A recursive-descent parser of one text; equal operands are shared, for speed and memory."""

    def __init__(self, text: str, source: str) -> None:
        self.lexer = Lexer(text, source)
        self.known: dict[str, Operand] = {}

    def module(self) -> Module:
        lexer = self.lexer
        lexer.expect(".version")
        version = lexer.expect_kind("number", "a version such as 8.7")
        if not _VERSION.fullmatch(version):
            lexer.fail(lexer.pos - len(version), f"'{version}'", "a version such as 8.7")
        lexer.expect(".target")
        target = self._targets()
        size = int(self._address_size()) if lexer.accept(".address_size") else 64
        return Module(version, target, size, tuple(self._items(module=True)), lexer.source)

    def _targets(self) -> tuple[str, ...]:
        words = [self.lexer.expect_kind("name", "a target such as sm_90a")]
        while self.lexer.accept(","):
            words.append(self.lexer.expect_kind("name", "a target option such as debug"))
        return tuple(words)

    def _address_size(self) -> str:
        if self.lexer.peek().text not in ("32", "64"):
            self.lexer.unexpected("32 or 64")
        return self.lexer.take().text

    def _items(self, *, module: bool) -> Iterator[Item]:
        """Parse items up to and including the ``}`` of a body, or up to the end of the module."""
        lexer = self.lexer
        while True:
            if not module and (instruction := self._common_instruction()):
                yield instruction
                continue
            token = lexer.peek()
            if token.kind == "end" and module:
                return
            if token.text == "}" and not module:
                lexer.take()
                return
            yield from self._top_level(token) if module else self._statement(token)

    def _top_level(self, token: Token) -> Iterator[Item]:
        lexer = self.lexer
        if token.kind != "dot":
            lexer.unexpected("a directive such as '.visible .entry'")
        linkage = self._linkage()
        word = lexer.peek()
        if word.text in (".entry", ".func"):
            yield self._function(linkage, lexer.line(token.start))
        elif linkage or word.text in SPACES:
            yield from self._variables(linkage, token)
        else:
            yield self._directive(lexer.take())

    def _statement(self, token: Token) -> Iterator[Item]:
        lexer = self.lexer
        if token.text == "{":
            yield self._block()
        elif token.kind == "name" or token.text == "@":
            yield self._labelled_or_instruction()
        elif token.kind != "dot":
            lexer.unexpected("an instruction, a label, a directive or '}'")
        elif lexer.accept(".reg"):
            yield from registers(lexer, lexer.line(token.start))
        elif token.text in SPACES | LINKAGE:
            yield from self._variables(self._linkage(), token)
        else:
            yield self._directive(lexer.take())

    def _linkage(self) -> str:
        return self.lexer.take().text[1:] if self.lexer.peek().text in LINKAGE else ""

    def _variables(self, linkage: str, start: Token) -> list[Variable]:
        space = self.lexer.peek().text
        if space not in SPACES:
            self.lexer.unexpected("a state space such as '.global'")
        self.lexer.take()
        return variables(self.lexer, space[1:], linkage, self.lexer.line(start.start))

    def _block(self) -> Block:
        self.lexer.enter()
        line = self.lexer.line(self.lexer.expect("{").start)
        items = tuple(self._items(module=False))
        self.lexer.leave()
        return Block(items, line)

    def _function(self, linkage: str, line: int) -> Function:
        lexer = self.lexer
        kind = lexer.take().text[1:]
        returns = parameters(lexer) if kind == "func" and lexer.accept("(") else ()
        name = lexer.expect_kind("name", "the name of a function")
        params = parameters(lexer) if lexer.accept("(") else ()
        directives = function_directives(lexer)
        body = None if lexer.accept(";") else self._body()
        return Function(kind, name, params, returns, directives, body, linkage, line)

    def _body(self) -> Block:
        if self.lexer.peek().text != "{":
            self.lexer.unexpected("a directive, '{' or ';'")
        return self._block()

    def _directive(self, token: Token) -> Item:
        if token.text == ".loc":
            return self._loc(token)
        if token.text == ".file":
            return self._file(token)
        if token.text == ".section":
            return self._section(token)
        if token.text == ".target":
            return Directive(".target", ", ".join(self._targets()), self.lexer.line(token.start))
        return directive(self.lexer, token)

    def _number(self, wanted: str) -> str:
        if not self.lexer.peek().text.isdigit():
            self.lexer.unexpected(wanted)
        return self.lexer.take().text

    def _loc(self, token: Token) -> Loc:
        file, row, column = (int(self._number(wanted)) for wanted in ("a file index", "a line", "a column"))
        words: list[str] = []
        if self.lexer.accept(","):
            words = [self.lexer.expect("function_name").text, self.lexer.expect_kind("name", "a label")]
            words += [self.lexer.take().text, self._number("an offset")] if self.lexer.peek().text == "+" else []
            words += [self.lexer.expect(",").text, self.lexer.expect("inlined_at").text]
            words += [self._number(wanted) for wanted in ("a file index", "a line", "a column")]
        return Loc(file, row, column, join(words), self.lexer.line(token.start))

    def _file(self, token: Token) -> Directive:
        words = [self._number("a file index"), self.lexer.expect_kind("string", "a file name in quotes")]
        while self.lexer.accept(","):
            words += [",", self._number("a time stamp or a size")]
        return Directive(".file", join(words), self.lexer.line(token.start))

    def _section(self, token: Token) -> Section:
        lexer = self.lexer
        name = lexer.expect_kind("dot", "the name of a section such as .debug_str")
        start = lexer.expect("{").start + 1
        match = _SECTION_BODY.match(lexer.text, start)
        end = match.end() if match else start
        lexer.seek(end)
        lexer.expect("}")
        return Section(name, lexer.text[start:end], lexer.line(token.start))

    def _common_instruction(self) -> Instruction | None:
        """Returns the instruction at the cursor if all its operands are of common forms; else takes no token."""
        lexer = self.lexer
        match = _INSTRUCTION.match(lexer.text, lexer.pos)
        if match is None:
            return None
        sign, register, opcode, rest = match.groups()
        operands = self._common_operands(rest.rstrip()) if rest else ()
        if operands is None:
            return None
        guard = Guard(register, bool(sign)) if register else None
        line = lexer.line(match.start(1) if register else match.start(3))
        lexer.seek(match.end())
        return Instruction(sys.intern(opcode), operands, guard, line)

    def _common_operands(self, text: str) -> tuple[Operand, ...] | None:
        found: list[Operand] = []
        pos, known = 0, self.known
        while pos < len(text):
            match = _PIECE.match(text, pos)
            if match is None:
                return None
            piece = match[1].rstrip()
            node = known.get(piece) or plain_operand(piece)
            if node is None:
                return None
            known[piece] = node
            found.append(node)
            pos = match.end()
        return tuple(found) if text[-1:] != "," else None

    def _labelled_or_instruction(self) -> Item:
        lexer = self.lexer
        start = lexer.peek()
        guard = self._guard()
        name = lexer.expect_kind("name", "an instruction")
        if guard is None and lexer.accept(":"):
            return self._label(name, lexer.line(start.start))
        operands = self._call() if name.split(".")[0] == "call" else self._operands()
        return Instruction(sys.intern(name), operands, guard, lexer.line(start.start))

    def _label(self, name: str, line: int) -> Item:
        if self.lexer.accept(".callprototype"):
            return call_prototype(self.lexer, name, line)
        return Label(name, line)

    def _guard(self) -> Guard | None:
        if not self.lexer.accept("@"):
            return None
        negated = self.lexer.accept("!")
        return Guard(self.lexer.expect_kind("name", "a predicate register"), negated)

    def _operands(self) -> tuple[Operand, ...]:
        if self.lexer.accept(";"):
            return ()
        found = [operand(self.lexer)]
        while not self.lexer.accept(";"):
            if not self.lexer.accept(","):
                self.lexer.unexpected("',' or ';'")
            found.append(operand(self.lexer))
        return tuple(found)

    def _call(self) -> tuple[Operand, ...]:
        """Parse ``(results), function, (arguments), prototype;``; only the function is required (PTX ISA 9.7.12.5)."""
        lexer = self.lexer
        results: tuple[Operand, ...] = ()
        if lexer.accept("("):
            results = arguments(lexer, ")")
            lexer.expect(",")
        parts: list[Operand] = [Vector(results), Reg(lexer.expect_kind("name", "the name of a function"))]
        args: tuple[Operand, ...] = ()
        more = lexer.accept(",")
        if more and lexer.accept("("):
            args = arguments(lexer, ")")
            more = lexer.accept(",")
        parts.append(Vector(args))
        if more:
            parts.append(Reg(lexer.expect_kind("name", "the name of a prototype")))
        if not lexer.accept(";"):
            lexer.unexpected("',' or ';'")
        return tuple(parts)
