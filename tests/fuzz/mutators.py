"""The mutators: each changes one place of a PTX text. A mutant is a pure function of seed and number."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.fuzz.corpus import corpus

__all__ = ["MUTATORS", "Mutant", "mutant"]

Lines = list[str]

_OPCODE = re.compile(r"\s*(?:\{\s*)?(?:@!?\S+\s+)?([a-z][\w:]*(?:\.[\w:]+)*)\s*([^;]*);")
_TYPE = re.compile(r"(?<=\.)(?:[usb](?:8|16|32|64)|f(?:16|32|64)|bf16|f16x2|bf16x2|b128|pred|tf32|e4m3|e5m2)\b")
_COUNT = re.compile(r"(?<=\.)(?:v[248]|x(?:1|2|4|8|16|32|64|128)|[1-5]d|m\d+n\d+k\d+|m8n8)\b")
_NUMBER = re.compile(r"(?<![\w.%$])-?(?:0[xX][0-9a-fA-F]+|0[fFdD][0-9a-fA-F]+|\d+(?:\.\d+)?)(?![\w.])")
_NAME = re.compile(r"[%$_A-Za-z][\w$]*")
_LABEL = re.compile(r"^\s*([%$_A-Za-z][\w$]*):")
_DIRECTIVE = re.compile(r"^\s*(?:\)|\()?\s*\.(?!loc|file|section)\w+")

_TYPES = [
    "u8", "s8", "b8", "u16", "s16", "b16", "f16", "bf16", "u32", "s32", "b32", "f32", "f16x2", "bf16x2", "u64", "s64",
    "b64", "f64", "b128", "pred",
]  # fmt: skip
_NUMBERS = [
    "0", "1", "-1", "3", "7", "31", "33", "64", "255", "4096", "65537", "2147483648", "4294967295", "4294967296",
    "-9223372036854775808", "18446744073709551615", "18446744073709551616", "0x7fffffff", "1.5", "1e400",
    "0f3F800000", "0f7FC00000", "0d3FF0000000000000", "08", "99999999999999999999999",
]  # fmt: skip
_WORDS = [
    ".global", ".shared", ".const", ".local", ".param", ".reg", ".extern", ".visible", ".weak", ".align 3", ".align 16",
    ".align 256", ".v2", ".v4", ".u32", ".b64", ".entry", ".func", ".maxntid 64", ".reqntid 32, 2", ".noreturn",
]  # fmt: skip
_HEADERS = [
    ".version 1.0", ".version 6.0", ".version 8.0", ".version 8.6", ".version 9.0", ".version 9.9", ".target sm_50",
    ".target sm_80", ".target sm_90", ".target sm_90a", ".target sm_100a", ".target sm_120a", ".target sm_999",
    ".target sm_90a, debug", ".target sm_90a, texmode_independent", ".address_size 32", ".address_size 64",
]  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A mutated text; ``line``: 1-based line of the change, ``before`` and ``after``: what stood there and stands."""

    number: int
    file: str
    mutator: str
    text: str
    line: int
    before: str
    after: str


_PASSIVE = re.compile(r"\s*(?://|\.loc|\.file|\.section|\$L__info|\.b(?:8|32|64)\s+[\w.$,+-]*\s*(?://.*)?$|$)")


def _code(lines: Lines) -> list[int]:
    """The lines that are neither empty nor comments nor debug data."""
    return [i for i, line in enumerate(lines) if not _PASSIVE.match(line)]


def _matching(lines: Lines, pattern: re.Pattern[str]) -> list[int]:
    return [i for i in _code(lines) if pattern.search(lines[i])]


def _replace(rng: Random, line: str, pattern: re.Pattern[str], choose: Callable[[str], str]) -> str:
    """Replace one match of a pattern, chosen at random."""
    found = rng.choice(list(pattern.finditer(line)))
    return line[: found.start()] + choose(found[0]) + line[found.end() :]


def _delete(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    at = rng.choice(_code(lines))
    return at, [*lines[:at], *lines[at + 1 :]]


def _duplicate(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    at = rng.choice(_code(lines))
    return at, [*lines[: at + 1], *lines[at:]]


def _swap(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    code = _code(lines)
    first = rng.randrange(len(code) - 1)
    second = min(first + rng.choice([1, 1, 2, 3, 8]), len(code) - 1)
    changed = list(lines)
    a, b = code[first], code[second]
    changed[a], changed[b] = lines[b], lines[a]
    return a, changed


def _split(text: str) -> list[str]:
    return re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,])+", text)


def _operands(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    """Exchange two operands of an instruction, or put one in the place of another's."""
    known = {i: found for i in _code(lines) if (found := _OPCODE.match(lines[i])) and found[2].strip()}
    at = rng.choice(list(known))
    parts = _split(known[at][2])
    one = rng.randrange(len(parts))
    if len(parts) > 1 and rng.random() < 0.5:
        two = rng.choice([i for i in range(len(parts)) if i != one])
        parts[one], parts[two] = parts[two].strip(), parts[one].strip()
    else:
        parts[one] = rng.choice(_split(known[rng.choice(list(known))][2])).strip()
    text = ", ".join(part.strip() for part in parts)
    line = lines[at]
    return at, _put(lines, at, line[: known[at].start(2)] + text + line[known[at].end(2) :])


def _put(lines: Lines, at: int, line: str) -> Lines:
    return [*lines[:at], line, *lines[at + 1 :]]


def _type(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    """Another type of the same number of bits."""

    def choose(name: str) -> str:
        bits = re.sub(r"\D*(\d+)\w*", r"\1", name)
        return rng.choice([t for t in _TYPES if t != name and (t.endswith(bits) or rng.random() < 0.1)] or _TYPES)

    at = rng.choice(_matching(lines, _TYPE))
    return at, _put(lines, at, _replace(rng, lines[at], _TYPE, choose))


def _width(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    """The same kind of type with other bits, or another length of a vector."""

    def choose(name: str) -> str:
        if name[0] in "vx":
            return rng.choice([word for word in ("v2", "v4", "v8", "x1", "x2", "x4", "x128") if word[0] == name[0]])
        if name[0].isdigit() or name[0] == "m":
            return rng.choice(["1d", "2d", "3d", "5d", "m16n8k8", "m16n8k16", "m64n8k16", "m64n256k16", "m8n8"])
        return rng.choice([word for word in _TYPES if word[0] == name[0] and word != name] or _TYPES)

    pattern = re.compile(f"{_TYPE.pattern}|{_COUNT.pattern}")
    at = rng.choice(_matching(lines, pattern))
    return at, _put(lines, at, _replace(rng, lines[at], pattern, choose))


def _number(rng: Random, line: str) -> str:
    """A number for a place in a line; few registers, because ptxas takes minutes for two billion."""
    return rng.choice(_NUMBERS[:10] if ".reg" in line else _NUMBERS)


def _immediate(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    at = rng.choice(_matching(lines, _NUMBER))
    return at, _put(lines, at, _replace(rng, lines[at], _NUMBER, lambda _: _number(rng, lines[at])))


def _register(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    """A register of another class: ``%rd3`` for ``%r7``; or one without a declaration."""
    pattern = re.compile(r"%[a-z]+\d+\b")
    names = sorted(set(pattern.findall("\n".join(lines))))
    if not names:
        return _operands(rng, lines, other)
    at = rng.choice(_matching(lines, pattern))

    def choose(name: str) -> str:
        others = [n for n in names if n.rstrip("0123456789") != name.rstrip("0123456789")]
        return rng.choice(others) if others and rng.random() < 0.9 else f"{name}{rng.randrange(10)}"

    return at, _put(lines, at, _replace(rng, lines[at], pattern, choose))


def _label(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    """Another label at a branch or at its place; or a label twice."""
    places = _matching(lines, _LABEL)
    labels = [found[1] for i in places if (found := _LABEL.match(lines[i]))]
    if not labels:
        at = rng.choice(_matching(lines, _OPCODE))
        return at, [*lines[:at], rng.choice(["L0:", "bra L0;", "L0: L0:", "bra %r1;"]), *lines[at:]]
    used = [i for i in _code(lines) if any(name in labels for name in _NAME.findall(lines[i]))]
    at = rng.choice(used)
    pattern = re.compile("|".join(re.escape(label) + r"(?![\w$])" for label in labels))
    return at, _put(
        lines, at, _replace(rng, lines[at], pattern, lambda name: rng.choice([*labels, f"{name}x", "%r1", "0"]))
    )


def _directive(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    """Another number, word or header; a directive more."""
    at = rng.choice(_matching(lines, _DIRECTIVE))
    line = lines[at]
    if re.match(r"\.(version|target|address_size)", line):
        return at, _put(lines, at, rng.choice(_HEADERS))
    kind = rng.randrange(4)
    number = re.compile(r"(?<![\w.])\d+")
    if kind == 0 and number.search(line):
        return at, _put(lines, at, _replace(rng, line, number, lambda _: _number(rng, line)))
    if kind == 1:
        name = re.compile(r"(?<![\w.])[%$_A-Za-z][\w$]*")
        if name.search(line):
            names = sorted(set(name.findall("\n".join(lines))))
            return at, _put(lines, at, _replace(rng, line, name, lambda _: rng.choice(names)))
    word = re.compile(r"\.\w+(?: \d+)?")
    if kind == 2:
        return at, _put(lines, at, _replace(rng, line, word, lambda found: f"{found} {rng.choice(_WORDS)}"))
    return at, _put(lines, at, _replace(rng, line, word, lambda _: rng.choice(_WORDS)))


def _splice(rng: Random, lines: Lines, other: Lines) -> tuple[int, Lines]:
    """Lines of another file, in the place of as many or between two."""
    code = _code(other)
    start = rng.choice(code)
    piece = other[start : start + rng.choice([1, 1, 2, 4])]
    at = rng.choice(_code(lines))
    return at, [*lines[:at], *piece, *lines[at + rng.choice([0, len(piece)]) :]]


MUTATORS: dict[str, Callable[[Random, Lines, Lines], tuple[int, Lines]]] = {
    "delete": _delete,
    "duplicate": _duplicate,
    "swap": _swap,
    "operands": _operands,
    "type": _type,
    "width": _width,
    "immediate": _immediate,
    "register": _register,
    "label": _label,
    "directive": _directive,
    "splice": _splice,
}


def mutant(seed: int, number: int) -> Mutant:
    """Returns mutant ``number`` of a seed; the mutators take turns."""
    rng = Random(f"{seed}/{number}")
    texts = corpus()
    file, other = rng.choice(list(texts)), rng.choice(list(texts))
    name = list(MUTATORS)[number % len(MUTATORS)]
    lines = texts[file].splitlines()
    at, changed = MUTATORS[name](rng, lines, texts[other].splitlines())
    after = changed[at] if at < len(changed) else ""
    return Mutant(number, file, name, "\n".join(changed) + "\n", at + 1, lines[at].strip(), after.strip())
