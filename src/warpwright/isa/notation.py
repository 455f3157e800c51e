"""The notation in which the table of instruction forms is written, and the match of one opcode against it.

A table is text. A line that starts at the margin opens a form: its name, its PTX ISA 9.1 sections, its meaning, its
traits (see `traits`). Each indented line below is one spelling::

    ld  9.7.9.8,9.7.9.9  Load from memory. [read]
        ld{.weak}{.space=SPACE}{.cop=ca|cg|cs}{.vec=v2|v4}.type=LOAD   d*vec, [a]{, policy:b64}
        ld.sem=relaxed|acquire.scope=SCOPE{.space=SPACE}.type=LOAD     d, [a]                      @ sm_90+

``.word``            a modifier that must stand there; its slot has the modifier's own name
``{.word}``          one that may
``.slot=x|y|SET``    exactly one of the alternatives; SET is a name in ``SETS``
``{.slot=x|y}``      one of them or none; several modifiers in one pair of braces come together or not at all
``<NAME>``           a tail of modifiers in several versions, one spelling each: a name in ``TAILS``
``@ targets``        where the spelling exists: ``sm_90+`` (that one and all later), ``sm_100f`` (the family),
                     ``sm_90a`` (that one exactly); without ``@``, every target from sm_90 on
``@ … 8.6``          a number there is the lowest ``.version`` that ptxas accepts it with, when the target alone
                     does not ask for as much

Operands are ``name`` (of the type in slot ``type``), ``name:slot-or-type``, ``name*slot-or-count`` (a vector),
``[name]`` (an address), ``a|p`` (two results), ``#name`` (an immediate), ``{, …}`` (may be left out),
``{if slot, …}`` (there exactly when the slot is filled); ``_`` is an operand d that must be the sink. Operands at the
start called d, p, q or redval are the results. A line that starts with ``...`` continues the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

from warpwright.isa.sets import SETS, TAILS
from warpwright.isa.traits import Traits, traits_of

__all__ = ["UNKNOWN", "Form", "Match", "Modifier", "Operand", "Places", "Spelling", "forms", "supports"]

Places = Mapping[str, tuple[int, ...]]
_RESULTS = {"d", "p", "q", "redval"}


@dataclass(frozen=True, slots=True)
class Modifier:
    """One modifier of a spelling: its slot (a fixed word is its own) and what may stand there."""

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
    """One operand of a spelling: ``names`` of its parts, of a pair or of an address and the vector in it.

    ``optional``: whether it may be left out; ``slot``: the modifier that it comes with, else ""; ``kind``: "v" a
    vector, "p" a pair ``a|p`` or the first of it alone, "a" an address, "." anything else.
    """

    names: tuple[str, ...]
    optional: bool
    slot: str
    kind: str


@dataclass(frozen=True, slots=True)
class Spelling:
    """One line of syntax: modifiers in order, operands as text and by name, targets, every word that may stand in it.

    ``since`` is the lowest ``.version``, "" where the target asks for as much; ``writes``: names of the results.
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
        """Whether it may have ``arity`` operands (None: any number)."""
        return arity is None or self.arity[0] <= arity <= self.arity[1]

    def read(self, words: tuple[str, ...]) -> dict[str, str] | None:
        """The slots of ``words`` (modifiers after the form's name), None when they do not fit this spelling."""
        return _read(self.groups, words, 0, 0)

    def read_in_any_order(self, words: tuple[str, ...]) -> dict[str, str] | None:
        """As ``read``, with modifiers in another order, as ptxas takes them (``ld.b32.v2``, ``mul.f32.rz``).

        Types and state spaces keep their order, which tells destination from source; a few words keep their place.
        """
        return _read_loose(self.groups, words)


@dataclass(frozen=True, slots=True)
class Form:
    """One PTX instruction: what it means, who issues it, when its effect is complete, how it is spelled, what it is."""

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
        """Whether the issue leaves a record for an engine or a service, which performs the instruction later."""
        queue = self.traits.queue
        later = self.completes_by != "return" and not self.hint
        return queue == "service" or (later and queue in ("tensor", "copy", "lane-copy"))

    @property
    def hint(self) -> bool:
        """Whether the instruction changes nothing but time."""
        return self.completes_by == "nothing: a hint"

    @property
    def collective(self) -> bool:
        """Whether lanes or warps issue it together."""
        return self.issued_by not in ("each active lane", "one thread")

    @property
    def syntax(self) -> tuple[str, ...]:
        """The spellings as text, as the table has them."""
        return tuple(spelling.text for spelling in self.spellings)

    @property
    def targets(self) -> tuple[str, ...]:
        """Every target predicate of every spelling, in order, each once."""
        return tuple(dict.fromkeys(target for spelling in self.spellings for target in spelling.targets))

    def match(self, words: tuple[str, ...], arity: int | None = None) -> Match | None:
        """The first spelling that ``words`` (the modifiers after the name) fit, in the table's order if any does."""
        present = frozenset(words)
        fitting = [spelling for spelling in self.spellings if present <= spelling.words and spelling.takes(arity)]
        for read in (Spelling.read, Spelling.read_in_any_order):
            for spelling in fitting:
                slots = read(spelling, words)
                if slots is not None:
                    return Match(self, spelling, slots)
        return None


@dataclass(frozen=True, slots=True)
class Match:
    """An opcode that fits a form: ``match["type"]`` is the modifier in a slot, "" when it is absent.

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
        """Where each operand stands that is present, by name: its number, then the number of the part it is.

        ``shape`` has a letter an operand of the instruction: "v" a vector, "p" a pair ``d|p``, "." anything else. The
        parts of a pair are 0 and 1; the vector in an address is part 1, the address as a whole its first name.
        """
        operands = [operand for operand in self.spelling.named if not operand.slot or operand.slot in self.chosen]
        spare = len(shape) - sum(not operand.optional for operand in operands)
        places: dict[str, tuple[int, ...]] = {}
        at = 0
        for operand in operands:
            kind = shape[at : at + 1]
            if operand.optional:
                if spare <= 0 or (operand.kind == "v" and kind != "v"):
                    continue
                spare -= 1
            first, *others = operand.names
            places[first] = (at, 0) if kind == "p" else (at,)
            if kind == "p" or operand.kind != "p":
                places.update((name, (at, part)) for part, name in enumerate(others, start=1))
            at += 1
        return places


def _read(groups: tuple[Group, ...], words: tuple[str, ...], at: int, word: int) -> dict[str, str] | None:
    """Fit ``words[word:]`` to ``groups[at:]``, a present group before an absent one."""
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
def _kind(word: str) -> str:
    """What a modifier is, where its place among its like has a meaning: a type, a space, the order of a matrix."""
    return "space" if word in _SPACES else "type" if _TYPE.fullmatch(word) else "major" if word in _MAJORS else ""


def _read_loose(groups: tuple[Group, ...], words: tuple[str, ...]) -> dict[str, str] | None:
    if not groups:
        return None if words else {}
    taken = _take(groups[0].modifiers, words)
    if taken is not None:
        slots, left = taken
        rest = _read_loose(groups[1:], left)
        if rest is not None:
            return slots | rest
    return _read_loose(groups[1:], words) if groups[0].optional else None


def _may_move(modifier: Modifier, words: tuple[str, ...], at: int) -> bool:
    """Whether ``words[at]`` may be read before the words that stand in front of it."""
    if modifier.slot == "action" or (words[at] in _FIXED and modifier.slot != "cmp"):
        return at == 0
    kind = _kind(words[at])
    return not kind or kind not in map(_kind, words[:at])


def _take(modifiers: tuple[Modifier, ...], words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """Fill ``modifiers`` from anywhere in ``words``; the slots and the words left over."""
    slots: dict[str, str] = {}
    for modifier in modifiers:
        at = next((i for i, word in enumerate(words) if word in modifier.alternatives), None)
        if at is None or not _may_move(modifier, words, at):
            return None
        slots[modifier.slot] = words[at]
        words = words[:at] + words[at + 1 :]
    return slots, words


_FAMILIES = {
    "sm_100f": frozenset({"sm_100a", "sm_100f", "sm_103a", "sm_103f"}),
    "sm_120f": frozenset({"sm_120a", "sm_120f", "sm_121a", "sm_121f"}),
}


def supports(targets: tuple[str, ...], arch: str) -> bool:
    """Whether a tuple of target predicates admits ``arch`` (``"sm_100a"``)."""
    return any(_admits(target, arch) for target in targets)


def _admits(target: str, arch: str) -> bool:
    if target == "all":
        return True
    if target.endswith("+"):
        return int(re.sub(r"\D", "", arch)) >= int(target[3:-1])
    return arch == target or arch in _FAMILIES.get(target, ())


def forms(issued_by: str, completes_by: str, table: str) -> tuple[Form, ...]:
    """The forms of one table, all with the same issuer and completion."""
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
    """The lines that a tail ``<NAME>`` stands for."""
    found = re.search(r"<(\w+)>", line)
    if not found:
        yield line
        return
    for tail in TAILS[found[1]]:
        yield from _expand(line.replace(found[0], tail))


def _spelling(name: str, line: str) -> Spelling:
    syntax, _, where = line.partition("@")
    opcode, _, operands = syntax.strip().partition(" ")
    assert opcode.startswith(name), f"{opcode} stands under {name}"
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
_NAME = re.compile(r"(?:^|[\[|,#]\s*)([a-z_]\w*)")


def _operands(text: str) -> Iterator[Operand]:
    for found in _OPERAND.finditer(text):
        slot, written = found[1] or "", found[2] or found[3]
        names = tuple("d" if name == "_" else name for name in _NAME.findall(written))
        optional = found[2] is not None and not slot
        kind = next((kind for sign, kind in (("[", "a"), ("|", "p"), ("*", "v")) if sign in written), ".")
        yield Operand(names, optional, slot, kind)


def _writes(operands: tuple[Operand, ...]) -> frozenset[str]:
    results = takewhile(lambda operand: operand.kind != "a" and _RESULTS.issuperset(operand.names), operands)
    return frozenset(name for operand in results for name in operand.names)
