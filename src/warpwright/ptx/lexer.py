"""Tokens of PTX (PTX ISA 4.1 to 4.4): comments become blanks first, then one regular expression matches a token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from warpwright.errors import PtxSyntaxError

__all__ = ["MAX_DEPTH", "NAME", "NUMBER", "Lexer", "Token"]

MAX_DEPTH = 64
"""Maximum nesting of scopes, braces and parentheses; compilers stay below ten."""

NAME = r"[%$_A-Za-z][\w$]*(?:(?:\.|::)\w+)*"
NUMBER = (
    r"(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?"
    r"|(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)(?![\w$]|\.\d)"
)

_TOKEN = re.compile(
    rf"""\s*(?:(?P<number>{NUMBER})|(?P<name>{NAME})|(?P<dot>\.[A-Za-z_]\w*)|(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<punct><<|>>|[=!<>]=|&&|\|\||[]{{}}[():;,<>|@!+*/%&^~=?-])|(?P<end>\Z))""",
    re.ASCII | re.VERBOSE,
)
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|(?P<open>/\*)', re.DOTALL)
_SPACE = re.compile(r"\s*", re.ASCII)
_VISIBLE = re.compile(r"[^\n]", re.ASCII)
_NAMES = {"number": "the number {}", "string": "the string {}", "end": "the end of the text"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token: ``kind`` is number, name, dot, string, punct or end; ``start`` is its offset in the text."""

    kind: str
    text: str
    start: int


class Lexer:
    """A cursor over the text with one token of look-ahead; it tracks line, column and nesting depth."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.depth = 0
        self._counted = (0, 1)
        self.text = text
        self.text = _COMMENT.sub(self._blank, text)
        self.pos = 0
        self._ahead: tuple[Token, int] | None = None

    def _blank(self, match: re.Match[str]) -> str:
        if match["open"]:
            self.fail(match.start(), "a comment without an end", "'*/'")
        return match[0] if match[0][0] == '"' else _VISIBLE.sub(" ", match[0])

    def seek(self, pos: int) -> None:
        """Move the cursor to offset ``pos``."""
        self.pos = pos
        self._ahead = None

    def peek(self) -> Token:
        """Returns the next token; the cursor does not move."""
        if self._ahead is None:
            match = _TOKEN.match(self.text, self.pos)
            if match is None or match.lastgroup is None:
                self._fail_character()
            kind = match.lastgroup
            self._ahead = Token(kind, match[kind], match.start(kind)), match.end()
        return self._ahead[0]

    def take(self) -> Token:
        """Returns the next token and moves the cursor past it."""
        token = self.peek()
        if self._ahead is not None:
            self.seek(self._ahead[1])
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is ``text``; returns whether it was."""
        if self.peek().text != text or self.peek().kind == "end":
            return False
        self.take()
        return True

    def expect(self, text: str) -> Token:
        """Take the next token, which must be ``text``."""
        if self.peek().text != text:
            self.unexpected(f"'{text}'")
        return self.take()

    def expect_kind(self, kind: str, wanted: str) -> str:
        """Take the next token, which must be of ``kind``; returns its text. The error names ``wanted`` as expected."""
        if self.peek().kind != kind:
            self.unexpected(wanted)
        return self.take().text

    def enter(self) -> None:
        """Increase the nesting depth; the limit protects Python's stack from hostile nesting."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(self.peek().start, f"nesting deeper than {MAX_DEPTH} levels", f"at most {MAX_DEPTH}")

    def leave(self) -> None:
        """Decrease the nesting depth."""
        self.depth -= 1

    def line(self, pos: int) -> int:
        """Returns the 1-based line of offset ``pos``; cheap if calls come with ascending positions."""
        start, line = self._counted if pos >= self._counted[0] else (0, 1)
        line += self.text.count("\n", start, pos)
        self._counted = pos, line
        return line

    def unexpected(self, wanted: str) -> NoReturn:
        """Raises PtxSyntaxError: the next token is not what was ``wanted``."""
        token = self.peek()
        shown = token.text if len(token.text) <= 40 else token.text[:40] + "…"
        self.fail(token.start, _NAMES.get(token.kind, "'{}'").format(shown), wanted)

    def fail(self, pos: int, found: str, wanted: str) -> NoReturn:
        """Raises PtxSyntaxError at offset ``pos``."""
        column = pos - self.text.rfind("\n", 0, pos)
        message = f"found {found}, expected {wanted}."
        raise PtxSyntaxError(message, line=self.line(pos), column=column, source=self.source)

    def _fail_character(self) -> NoReturn:
        space = _SPACE.match(self.text, self.pos)
        pos = space.end() if space else self.pos
        char = self.text[pos]
        number = re.compile(r"\.?\d[\w.$]*", re.ASCII).match(self.text, pos)
        if number:
            self.fail(pos, f"'{number[0][:40]}'", "a number of PTX (10, 0x1F, 017, 0b101, 1.5, 0f3F800000)")
        if char == '"':
            self.fail(pos, "a string without an end", "'\"' on the same line")
        shown = f"'{char}'" if char.isprintable() else f"the character U+{ord(char):04X}"
        self.fail(pos, shown, "PTX text")
