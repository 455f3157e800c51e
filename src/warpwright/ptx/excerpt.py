"""Excerpts of PTX text: a kernel and what it needs, without the bodies of other functions.

A file of a C++ library has dozens of kernels, of which a program launches a few. Braces alone divide the text at its
top level, which takes a thirtieth of the time to parse and check all bodies. In an excerpt the other bodies are empty,
and every line stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from .lexer import NAME
from .nodes import Function, Module

__all__ = ["excerpt", "needed_by", "outline"]

_MARK = re.compile(r'[{}]|"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_NO_CODE = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_FUNCTION = re.compile(r"(?<![\w$])\.(entry|func)\b")
_NAME = re.compile(NAME, re.ASCII)
_LABEL_OF_BODY = re.compile(r"(?:func_begin|func_end|tmp)\d")  # in debug sections


@dataclass(frozen=True, slots=True)
class _Parts:
    """``bodies``: the places between the braces of each function; ``kernels`` of them are kernels; ``names`` occur
    outside functions; ``fixed``: other sections refer to labels in the bodies."""

    bodies: tuple[tuple[int, int], ...]
    kernels: int
    names: frozenset[str]
    fixed: bool


def outline(text: str) -> str:
    """Returns PTX text with the body of every function empty; text of a single kernel is returned as it is."""
    return excerpt(text, ())


def excerpt(text: str, kept: Collection[int]) -> str:
    """Returns a text of several kernels with only the bodies of the functions with a number in ``kept``, counted from 0
    in the order of their bodies; a text of one kernel whole."""
    parts = _parts(text)
    if parts.kernels < 2 or parts.fixed:
        return text
    pieces, end = [], 0
    for number, (first, last) in enumerate(parts.bodies):
        if number not in kept:
            pieces += [text[end:first], _blank(text, first, last)]
            end = last
    return "".join(pieces) + text[end:]


def needed_by(text: str, module: Module, entry: str) -> frozenset[int]:
    """Returns the functions that a kernel needs, by their numbers in the order of the text: the kernel, the functions
    that its body or a module variable names, and those that these name."""
    bodies = _parts(text).bodies
    names = [item.name for item in module.items if isinstance(item, Function) and item.body is not None]
    found: set[int] = set()
    wanted = _parts(text).names | {entry}
    while wanted:
        new = [number for number, name in enumerate(names) if name in wanted and number not in found]
        found.update(new)
        wanted = frozenset(name for number in new for name in _NAME.findall(text, *bodies[number]))
    return frozenset(found)


def _blank(text: str, first: int, last: int) -> str:
    """Returns white space that keeps lines and columns of what follows."""
    lines = text.count("\n", first, last)
    return "\n" * lines + " " * (last - (text.rindex("\n", first, last) + 1 if lines else first))


@lru_cache(maxsize=32)
def _parts(text: str) -> _Parts:
    bodies, kernels, names, fixed, end = [], 0, set[str](), False, 0
    for first, last in _braces(text):
        outside, _, head = _NO_CODE.sub(" ", text[end:first]).rpartition(";")
        names.update(_names_outside(outside))
        kind = _FUNCTION.search(head)
        if kind is None:
            names.update(_NAME.findall(text, first, last))
            fixed |= _LABEL_OF_BODY.search(text, first, last) is not None
        else:
            bodies.append((first, last))
            kernels += kind[1] == "entry"
        end = last + 1
    names.update(_names_outside(_NO_CODE.sub(" ", text[end:])))
    return _Parts(tuple(bodies), kernels, frozenset(names), fixed)


def _names_outside(text: str) -> Iterator[str]:
    """Yields the names in statements that declare no function."""
    for statement in text.split(";"):
        if not _FUNCTION.search(statement):
            yield from _NAME.findall(statement)


def _braces(text: str) -> Iterator[tuple[int, int]]:
    """Yields the places between outermost braces. Text after a brace without a partner is left to the parser."""
    depth = start = 0
    for mark in _MARK.finditer(text):
        if mark[0] == "{":
            start = start if depth else mark.end()
            depth += 1
        elif mark[0] == "}":
            depth -= 1
            if depth < 0:
                return
            if not depth:
                yield start, mark.start()
