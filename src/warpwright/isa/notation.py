"""The notation of the instruction-form tables, and the match of an opcode against it.

A table is text. A line that starts at the margin opens a form: its name, its PTX ISA 9.1 sections, its meaning, its
traits (see `traits`). Each indented line below is one spelling::

    ld  9.7.9.8,9.7.9.9  Load from memory. [read]
        ld{.weak}{.space=SPACE}{.cop=ca|cg|cs}{.vec=v2|v4}.type=LOAD   d*vec, [a]{, policy:u64}
        ld.sem=relaxed|acquire.scope=SCOPE{.space=SPACE}.type=LOAD     d, [a]                      @ sm_90+

``.word``            a required modifier; its slot has the modifier's own name
``{.word}``          an optional modifier
``.slot=x|y|SET``    exactly one of the alternatives; SET is a name in ``SETS``
``{.slot=x|y}``      one of the alternatives or none; one pair of braces is present or absent as a whole
``<NAME>``           a tail of modifiers in several versions, one spelling each: a name in ``TAILS``
``@ targets``        the targets of the spelling: ``sm_90+`` (that target and all later), ``sm_100f`` (the family),
                     ``sm_90a`` (that target exactly); without ``@``, every target from sm_90 on
``@ … 8.6``          the lowest ``.version`` with which ptxas accepts the spelling, if the target alone does not
                     imply it

Operands are ``name`` (of the type in slot ``type``), ``name:slot-or-type``, ``name*slot-or-count`` (a vector),
``[name]`` (an address), ``a|p`` (two results), ``#name`` (an immediate), ``{, …}`` (optional),
``{if slot, …}`` (present exactly if the slot is filled); after the type, ``=0..15``, ``=4/8/16`` or ``=16n`` are the
values that a constant may have; ``_`` is an operand d that must be the sink. Operands at the
start called d, p, q or redval are the results. A line that starts with ``...`` continues the line before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

from warpwright.isa.sets import SETS, TAILS
from warpwright.isa.traits import Traits, traits_of
from warpwright.targets import FAMILIES

__all__ = ["UNKNOWN", "Form", "Match", "Modifier", "Operand", "Places", "Spelling", "forms", "supports"]

Places = Mapping[str, tuple[int, ...]]
_RESULTS = {"d", "p", "q", "redval"}


@dataclass(frozen=True, slots=True)
class Modifier:
    """One modifier of a spelling: its slot (a fixed word is its own slot) and its alternatives."""

    slot: str
    alternatives: frozenset[str]
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Modifiers that stand together; ``optional`` ones may all be absent."""

    modifiers: tuple[Modifier, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a spelling. ``names``: of a pair, or of an address and the vector in it, the names of the parts.

    ``types``, ``values`` and ``counts``: of each part the word after ``:`` ("type" without one), the text after ``=``
    and the word after ``*``, or "".
    ``optional``: whether it may be absent; ``slot``: the modifier that requires it, else ""; ``kind``: "v" a vector,
    "p" a pair ``a|p`` or its first part alone, "a" an address, "#" an immediate, "." anything else.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]
    counts: tuple[str, ...]
    optional: bool
    slot: str
    kind: str


@dataclass(frozen=True, slots=True)
class Spelling:
    """One line of syntax: modifiers in order, operands as text and by name, targets, and every possible modifier.

    ``since``: the lowest ``.version``, "" if the target implies it; ``writes``: names of the results.
    """

    text: str
    groups: tuple[Group, ...]
    operands: str
    named: tuple[Operand, ...]
    arity: tuple[int, int]
    writes: frozenset[str]
    targets: tuple[str, ...]
    since: str
    words: frozenset[str]

    def slots(self) -> Iterator[str]:
        """Names of the slots, in order."""
        for group in self.groups:
            yield from (modifier.slot for modifier in group.modifiers)

    def takes(self, arity: int | None) -> bool:
        """Whether the spelling accepts ``arity`` operands (None: any number)."""
        return arity is None or self.arity[0] <= arity <= self.arity[1]

    def read(self, words: tuple[str, ...]) -> dict[str, str] | None:
        """The slots of ``words`` (modifiers after the form's name); None if they do not fit this spelling."""
        return _read(self.groups, words, 0, 0)

    def read_in_any_order(self, words: tuple[str, ...]) -> dict[str, str] | None:
        """As ``read``, with modifiers in another order, which ptxas accepts (``ld.b32.v2``, ``mul.f32.rz``).

        Types and state spaces keep their order, which distinguishes destination from source; a few words keep their
        place.
        """
        return _read_unordered(self.groups, words)


@dataclass(frozen=True, slots=True)
class Form:
    """One PTX instruction: name, section, meaning, issuer, completion, spellings and traits."""

    name: str
    section: str
    doc: str
    issued_by: str
    completes_by: str
    spellings: tuple[Spelling, ...]
    slots: frozenset[str]
    traits: Traits

    @property
    def queued(self) -> bool:
        """Whether an issued instruction leaves a record for an engine or a service, which performs it later."""
        queue = self.traits.queue
        later = self.completes_by != "return" and not self.hint
        return queue == "service" or (later and queue in ("tensor", "copy", "lane-copy"))

    @property
    def hint(self) -> bool:
        """Whether the instruction changes nothing but time."""
        return self.completes_by == "nothing: a hint"

    @property
    def collective(self) -> bool:
        """Whether the lanes or warps of a group issue it together."""
        return self.issued_by not in ("each active lane", "one thread")

    @property
    def syntax(self) -> tuple[str, ...]:
        """The spellings as text, as in the table."""
        return tuple(spelling.text for spelling in self.spellings)

    @property
    def targets(self) -> tuple[str, ...]:
        """Every target predicate of every spelling, in order, without repetition."""
        return tuple(dict.fromkeys(target for spelling in self.spellings for target in spelling.targets))

    def match(self, words: tuple[str, ...], arity: int | None = None) -> Match | None:
        """Match ``words`` (the modifiers after the name) against the spellings; the table's order of modifiers goes
        first."""
        return next(self.matches(words, arity), None)

    def matches(self, words: tuple[str, ...], arity: int | None = None) -> Iterator[Match]:
        """Every match of ``words``: spellings with the same modifiers differ in their operands."""
        present = frozenset(words)
        fitting = [spelling for spelling in self.spellings if present <= spelling.words and spelling.takes(arity)]
        for read in (Spelling.read, Spelling.read_in_any_order):
            for spelling in fitting:
                slots = read(spelling, words)
                if slots is not None:
                    yield Match(self, spelling, slots)


@dataclass(frozen=True, slots=True)
class Match:
    """An opcode that fits a form: ``match["type"]`` is the modifier in a slot, "" if absent.

    Raises KeyError for a slot that no spelling of the form has.
    """

    form: Form
    spelling: Spelling
    chosen: Mapping[str, str]

    def __getitem__(self, slot: str) -> str:
        word = self.chosen.get(slot)
        if word is None:
            if slot not in self.form.slots:
                raise KeyError(f"{self.form.name} has no slot {slot!r}; it has {', '.join(sorted(self.form.slots))}")
            return ""
        return word

    def places(self, shape: str) -> Places:
        """The place of each present operand, by name: its number, then the number of its part.

        ``shape`` has a letter for each operand of the instruction: "v" a vector, "p" a pair ``d|p``, "." anything else.
        The parts of a pair are 0 and 1; the vector in an address is part 1, and the address as a whole has its first
        name.
        """
        places: dict[str, tuple[int, ...]] = {}
        for at, operand in enumerate(self.operands(shape)):
            kind = shape[at : at + 1]
            first, *others = operand.names
            places[first] = (at, 0) if kind == "p" else (at,)
            if kind == "p" or operand.kind != "p":
                places.update((name, (at, part)) for part, name in enumerate(others, start=1))
        return places

    def operands(self, shape: str) -> Iterator[Operand]:
        """The operands that an instruction of a ``shape`` has, in order: all required ones, and the optional ones for
        which it has room."""
        operands = [operand for operand in self.spelling.named if not operand.slot or operand.slot in self.chosen]
        spare = len(shape) - sum(not operand.optional for operand in operands)
        at = 0
        for operand in operands:
            if operand.optional:
                if spare <= 0 or (operand.kind == "v" and shape[at : at + 1] != "v"):
                    continue
                spare -= 1
            at += 1
            yield operand


def _read(groups: tuple[Group, ...], words: tuple[str, ...], at: int, word: int) -> dict[str, str] | None:
    """Fit ``words[word:]`` to ``groups[at:]``; try a group present before absent."""
    if at == len(groups):
        return {} if word == len(words) else None
    group = groups[at]
    end = word + len(group.modifiers)
    if end <= len(words) and all(w in m.alternatives for w, m in zip(words[word:end], group.modifiers, strict=True)):
        rest = _read(groups, words, at + 1, end)
        if rest is not None:
            return {m.slot: w for w, m in zip(words[word:end], group.modifiers, strict=True)} | rest
    return _read(groups, words, at + 1, word) if group.optional else None


_SPACES = frozenset(["const", "global", "local", "param", "shared", "shared::cta", "shared::cluster"])
_TYPE = re.compile(r"(?!b1024)(?:[usbfe]|bf|tf|ue)\d+(?:m\d)?(?:x\d+)?(?:_p\d+)?|pred")
_MAJORS = frozenset(["row", "col"])
_FIXED = frozenset(["lo", "hi", "wide", "full", "to", "l", "r", "fractional", "range", "cvt"])


@cache
def _order_class(word: str) -> str:
    """The class of a modifier whose order among its class has a meaning: type, space, or major (matrix order)."""
    return "space" if word in _SPACES else "type" if _TYPE.fullmatch(word) else "major" if word in _MAJORS else ""


def _read_unordered(groups: tuple[Group, ...], words: tuple[str, ...]) -> dict[str, str] | None:
    if not groups:
        return None if words else {}
    filled = _fill(groups[0].modifiers, words)
    if filled is not None:
        slots, left = filled
        rest = _read_unordered(groups[1:], left)
        if rest is not None:
            return slots | rest
    return _read_unordered(groups[1:], words) if groups[0].optional else None


def _may_precede(modifier: Modifier, words: tuple[str, ...], at: int) -> bool:
    """Whether ``words[at]`` may be read before the words in front of it."""
    if modifier.slot in ("action", "matrix") or (words[at] in _FIXED and modifier.slot != "cmp"):
        return at == 0
    kind = _order_class(words[at])
    return not kind or kind not in map(_order_class, words[:at])


def _fill(modifiers: tuple[Modifier, ...], words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """Fill ``modifiers`` from anywhere in ``words``; returns the slots and the remaining words."""
    slots: dict[str, str] = {}
    for modifier in modifiers:
        at = next((i for i, word in enumerate(words) if word in modifier.alternatives), None)
        if at is None or not _may_precede(modifier, words, at):
            return None
        slots[modifier.slot] = words[at]
        words = words[:at] + words[at + 1 :]
    return slots, words


@cache
def supports(targets: tuple[str, ...], arch: str) -> bool:
    """Whether a tuple of target predicates includes ``arch`` (``"sm_100a"``)."""
    return any(_includes(target, arch) for target in targets)


def _includes(target: str, arch: str) -> bool:
    if target == "all":
        return True
    if target.endswith("+"):
        return int(re.sub(r"\D", "", arch)) >= int(target[3:-1])
    return arch == target or arch in FAMILIES.get(target, ())


def forms(issued_by: str, completes_by: str, table: str) -> tuple[Form, ...]:
    """Parse one table; all its forms have the same issuer and completion."""
    found: list[tuple[str, list[str]]] = []
    for line in table.splitlines():
        if line[:1].strip():
            found.append((line, []))
        elif line.strip().startswith("..."):
            found[-1][1][-1] += line.strip()[3:]
        elif line.strip():
            found[-1][1].append(line.strip())
    return tuple(_form(head, issued_by, completes_by, lines) for head, lines in found)


def _form(head: str, issued_by: str, completes_by: str, lines: list[str]) -> Form:
    name, section, rest = head.split(maxsplit=2)
    doc, _, traits = rest.partition(" [")
    spellings = tuple(_spelling(name, expanded) for line in lines for expanded in _expand(line))
    slots = frozenset(slot for spelling in spellings for slot in spelling.slots())
    return Form(name, section, doc, issued_by, completes_by, spellings, slots, traits_of(traits.rstrip("]")))


UNKNOWN = Form("", "", "An opcode that no table describes.", "each active lane", "return", (), frozenset(), Traits())


def _expand(line: str) -> Iterator[str]:
    """The lines with the tail ``<NAME>`` replaced by each of its versions."""
    found = re.search(r"<(\w+)>", line)
    if not found:
        yield line
        return
    for tail in TAILS[found[1]]:
        yield from _expand(line.replace(found[0], tail))


def _spelling(name: str, line: str) -> Spelling:
    syntax, _, where = line.partition("@")
    opcode, _, operands = syntax.strip().partition(" ")
    assert opcode.startswith(name), f"{opcode} is under {name}"
    words = where.split()
    since = words.pop() if words and not words[-1].startswith("sm_") else ""
    operands = operands.strip()
    groups = tuple(_groups(opcode[len(name) :]))
    text = f"{opcode} {operands}".rstrip()
    known = frozenset(word for group in groups for modifier in group.modifiers for word in modifier.alternatives)
    named = tuple(_operands(operands))
    arity = sum(not (operand.optional or operand.slot) for operand in named), len(named)
    return Spelling(text, groups, operands, named, arity, _writes(named), tuple(words) or ("all",), since, known)


_GROUP = re.compile(r"\{([^{}]*)\}|(\.[^.{}]+)")
_MODIFIER = re.compile(r"\.(?:(\w+)=)?([^.]+)")


def _groups(text: str) -> Iterator[Group]:
    for group in _GROUP.finditer(text):
        optional = group[1] is not None
        found = _MODIFIER.findall(group[1] if optional else group[2])
        yield Group(tuple(_modifier(slot, words) for slot, words in found), optional)


def _modifier(slot: str, words: str) -> Modifier:
    alternatives: list[str] = []
    for word in words.split("|"):
        alternatives += SETS.get(word, word).split("|")
    return Modifier(slot or words, frozenset(alternatives), words)


_OPERAND = re.compile(r"\{(?:if (\w+))?, ([^{}]+)\}|((?:\[[^\]]*\]|\{\|[^{}]*\}|[^,{}\[\]\s])+)")
_WORDS = {"_": "_"}
_PART = re.compile(r"(?:^|[\[|,#]\s*)([a-z_]\w*)(?::(\w+))?(?:=([\d./]+n?))?(?:\*(\w+))?")


def _operands(text: str) -> Iterator[Operand]:
    for found in _OPERAND.finditer(text):
        slot, text = found[1] or "", found[2] or found[3]
        parts = _PART.findall(text)
        names = tuple("d" if name == "_" else name for name, *_ in parts)
        types = tuple(type or _WORDS.get(name, "type") for name, type, *_ in parts)
        values, counts = tuple(value for *_, value, _ in parts), tuple(count for *_, count in parts)
        optional = found[2] is not None and not slot
        kind = next((kind for sign, kind in (("[", "a"), ("|", "p"), ("*", "v"), ("#", "#")) if sign in text), ".")
        yield Operand(names, types, values, counts, optional, slot, kind)


def _writes(operands: tuple[Operand, ...]) -> frozenset[str]:
    results = takewhile(lambda operand: operand.kind != "a" and _RESULTS.issuperset(operand.names), operands)
    return frozenset(name for operand in results for name in operand.names)
