"""The rule that an instruction breaks, from the kinds of its operands and the table of instructions in `isa`.

The kind of an operand is a string or a tuple. A register is the name of its type. Other strings: ``"#integer"``,
``"#0f"``, ``"#0d"``, ``"#decimal"`` constants; ``"&shared"`` the address of a variable; ``"&func"`` a function;
``":"`` a label; ``"%32"``, ``"%64"`` a special register; ``"_"`` the sink; ``"!pred"``, ``"-u32"`` a signed register.
Tuples: ``("[", base, …)`` an address and what follows the comma, ``("{", …)`` a vector, in braces or a variable,
``("|", first, second)`` a pair.
"""

from __future__ import annotations

import re
from functools import lru_cache

from warpwright import isa
from warpwright.isa.operands import REGISTERS, bits_of, count_of, takes_constant, takes_register, type_of
from warpwright.targets.archs import ARCHS

__all__ = ["Kind", "broken_rule", "values_of"]

Kind = str | tuple["Kind", ...]
Rule = tuple[int, str]  # number of the operand, -1 for the opcode; what was expected

_SHAPES = {"{": "v", "|": "p", "[": "."}
_READS_SPECIAL = frozenset({"mov", "cvt"})
_READS_ADDRESS = frozenset({"mov", "cvta", "mapa", "getctarank"})
_WIDER = frozenset({"ld", "ldu", "st", "cvt", "cvt.pack"})  # registers may be wider than the type (section 9.4.1)
_GENERIC = frozenset({"", "global"})

# Instructions of PTX that the table does not describe; the virtual GPU stops where it reaches one.
_VIDEO = ("add", "sub", "absdiff", "min", "max", "shl", "shr", "mad", "set", "avrg")
_OTHERS = frozenset(
    {"tex", "tld4", "txq", "istypep", "suld", "sust", "sured", "suq", "multimem"}
    | {f"v{name}{lanes}" for name in _VIDEO for lanes in ("", "2", "4")}
)
# Instructions of which the table has not every spelling.
_OPEN = re.compile(r"cvt\..*(?:x[24]|bf16)|(?:mma|wgmma|tcgen05|ldmatrix|stmatrix|st\.bulk)\.")


@lru_cache(maxsize=1 << 14)
def find(opcode: str, arity: int) -> isa.Match | None:
    """The form that fits an opcode with ``arity`` operands, else a form that fits it with another number."""
    return isa.match(opcode, arity) or isa.match(opcode)


@lru_cache(maxsize=1 << 16)
def broken_rule(opcode: str, kinds: tuple[Kind, ...], target: str) -> Rule | None:
    """Returns the first rule of PTX that an instruction breaks on a target, as the number of the operand and what
    belongs there; None if the instruction breaks none."""
    match = find(opcode, len(kinds))
    if match is None:
        return _unknown(opcode)
    rules = [_broken(each, kinds, target) for each in _spellings(match, opcode, len(kinds))]
    return None if None in rules else rules[0]


def _spellings(match: isa.Match, opcode: str, arity: int) -> list[isa.Match]:
    """All matches of an opcode, which has one at least: with as many operands, else with any number."""
    words = tuple(opcode.split(".")[len(match.form.name.split(".")) :])
    return [*match.form.matches(words, arity)] or [match]


def _broken(match: isa.Match, kinds: tuple[Kind, ...], target: str) -> Rule | None:
    if target in ARCHS and not isa.supports(match, target):
        needed = ", ".join(match.spelling.targets)
        return -1, f"an instruction of {target}: {match.form.name} in this form needs {needed}"
    if match.form.name == "mov" and not match["vec"] and ("{" in (kind[0] for kind in kinds)) and len(kinds) == 2:
        return _pack(match, kinds)
    return _operands(match, kinds)


@lru_cache(maxsize=1 << 12)
def values_of(opcode: str, kinds: tuple[Kind, ...]) -> tuple[tuple[int, str], ...]:
    """Numbers of the operands that are constants of certain values, and these values."""
    match = find(opcode, len(kinds))
    operands = [*match.operands(_shape(kinds))] if match else []
    return tuple((at, op.values[0]) for at, op in enumerate(operands) if op.values[0] and kinds[at] == "#integer")


def _shape(kinds: tuple[Kind, ...]) -> str:
    return "".join(_SHAPES.get(str(kind[0]), ".") for kind in kinds)


def _unknown(opcode: str) -> Rule | None:
    words = opcode.split(".")
    forms = [form for form in isa.FORMS.values() if form.name.split(".")[0] == words[0]]
    if not forms and words[0] not in _OTHERS:
        return -1, "an instruction of PTX"
    if not forms or _OPEN.match(opcode) or any(_reordered(form, words) for form in forms):
        return None
    return -1, f"a spelling of {words[0]} (PTX ISA {forms[0].section})"


def _reordered(form: isa.Form, words: list[str]) -> bool:
    """Whether the words are those of a form with modifiers between the words of its name (``vote.ballot.sync.b32``)."""
    name = form.name.split(".")
    rest = tuple(word for word in words if word not in name)
    return len(words) == len(name) + len(rest) and form.match(rest) is not None


def _operands(match: isa.Match, kinds: tuple[Kind, ...]) -> Rule | None:
    operands = [*match.operands(_shape(kinds))]
    if len(operands) != len(kinds):
        return -1, f"{match.form.name} with {_arity(match)} operands, not {len(kinds)}"
    for at, (operand, kind) in enumerate(zip(operands, kinds, strict=True)):
        wanted = _operand(match, operand, kind)
        if wanted:
            return at, wanted
    return None


def _arity(match: isa.Match) -> str:
    least, most = match.spelling.arity
    return str(most) if least == most else f"{least} to {most}"


def _operand(match: isa.Match, operand: isa.Operand, kind: Kind) -> str:
    """Returns what belongs in the place of an operand; "" if its kind fits."""
    if operand.kind == "a":
        return _address(match, operand, kind)
    if kind[0] == "[":
        tensor_memory = match.form.name.startswith("tcgen05.mma") and operand.names == ("a",)
        return "" if tensor_memory else _describe(match, operand)
    if operand.kind == "#":
        return "" if kind == "#integer" else "an integer constant"
    if kind[0] == "|":
        parts = zip(operand.types, kind[1:], strict=False)
        fits = len(operand.names) == 2 and all(k == "_" or _fits(match, operand, t, k) for t, k in parts)
    elif operand.counts[0]:
        return _vector(match, operand, kind)
    else:
        fits = _fits(match, operand, operand.types[0], kind)
    return "" if fits else _describe(match, operand)


def _fits(match: isa.Match, operand: isa.Operand, word: str, kind: Kind) -> bool:
    """Whether a kind fits an operand, or the element of a vector, whose type a word of the table gives."""
    type, name, result = type_of(match, word), match.form.name, operand.names[0] in match.spelling.writes
    if word == "label" or not isinstance(kind, str):
        return kind == ":"
    if word == "_" or kind == "_":
        sink = match.form.traits.access == "update" or match.form.traits.queue == "mbarrier"
        return kind == "_" and result and sink and type != "pred"
    if kind[0] == "%":
        return name in _READS_SPECIAL and not result and _fits_special(type, kind, name)
    if kind[0] == "&":
        space = match.chosen.get("space", "shared").split("::")[0]
        return name in _READS_ADDRESS and not result and type[:1] in "usb" and (name == "mov" or kind[1:] == space)
    if kind[0] == "#":
        return not result and (not type or takes_constant(type, kind[1:]))
    if kind[0] == "!":
        return type == "pred" and kind == "!pred" and not result
    return kind in REGISTERS and (not type or takes_register(type, kind, name in _WIDER))


def _fits_special(type: str, kind: str, name: str) -> bool:
    """A special register of 32 bits fits a 16-bit move too: the lower half."""
    size = int(kind[1:])
    if size == 1:
        return type == "pred"
    if type not in REGISTERS or type[0] not in "usb":
        return False
    return bits_of(type) <= size if name == "cvt" else bits_of(type) in ((16, 32) if size == 32 else (size,))


def _vector(match: isa.Match, operand: isa.Operand, kind: Kind) -> str:
    count = count_of(match, operand.counts[0])
    word = operand.types[0]
    if kind[0] == "{":
        items = kind[1:]
        sink = operand.names[0] in match.spelling.writes and len(items) > 1
        fits = all((sink and item == "_") or (item[0] != "{" and _fits(match, operand, word, item)) for item in items)
        fits &= len({bits_of(str(item)) for item in items if item in REGISTERS}) <= 1
        return "" if fits and len(items) == max(1, count) else _describe(match, operand)
    return "" if count <= 1 and _fits(match, operand, word, kind) else _describe(match, operand)


def _address(match: isa.Match, operand: isa.Operand, kind: Kind) -> str:
    """An address is a register of integers or bits, or a variable of the instruction's state space."""
    name = operand.names[0]
    if kind[0] != "[":
        return f"an address in brackets, [{name}]"
    base, extra = kind[1], kind[2:]
    if len(extra) != len(operand.names) - 1:
        return f"[{', '.join(operand.names)}]"
    for part, (item, count) in enumerate(zip(extra, operand.counts[1:], strict=True), start=1):
        if item[0] != "{" or len(item) - 1 != count_of(match, count):
            return f"{count_of(match, count)} {operand.names[part]} in braces"
    assert isinstance(base, str)
    return _base(match, _space(match, name), base)


def _space(match: isa.Match, name: str) -> str:
    slot = {"dst_mem": "dst", "src_mem": "src"}.get(name, "space")
    return match.chosen.get(slot, "").split("::")[0] if match.form.traits.access else "?"


def _base(match: isa.Match, space: str, base: str) -> str:
    if base[0] == "#":
        return "" if space in ("local", "?") and base == "#integer" else "a register or a variable in the brackets"
    if base[0] == "&":
        if base == "&func":
            return "a variable in the brackets"
        return "" if space in ("", "?", base[1:]) else f"a variable of the state space .{space}"
    if base[0] in "us" or (base[0] == "b" and base != "b128"):
        return "" if space not in _GENERIC or bits_of(base) == 64 else "a 64-bit register in the brackets"
    return "a register of integers or bits in the brackets"


def _pack(match: isa.Match, kinds: tuple[Kind, ...]) -> Rule | None:
    """``mov`` between a scalar and a vector whose elements have as many bits together."""
    at = 0 if kinds[0][0] == "{" else 1
    vector, scalar = kinds[at], kinds[1 - at]
    type = match["type"]
    size = bits_of(type)
    if scalar[0] == "{" or type[0] != "b":
        return at, "a scalar, or a bit type such as mov.b64"
    if not isinstance(scalar, str) or scalar not in REGISTERS or not takes_register(type, scalar, False):
        return 1 - at, f"a register of {size} bits"
    each = size // (len(vector) - 1)
    for item in vector[1:]:
        constant = at == 1 and item == "#integer"
        sink = at == 0 and item == "_"
        if not (constant or sink or (item in REGISTERS and bits_of(str(item)) == each)):
            return at, f"elements of {each} bits"
    return None if each * (len(vector) - 1) == size else (at, f"elements of {size} bits together")


def _describe(match: isa.Match, operand: isa.Operand) -> str:
    """Returns what an operand takes, in words."""
    if operand.types[0] == "label":
        return "a label of this function, in this scope or around it"
    type = type_of(match, operand.types[0])
    count = count_of(match, operand.counts[0]) if operand.counts[0] else 0
    kinds = f".{type}" if not type or type == "pred" else ", ".join(_registers(type, match.form.name in _WIDER))
    constant = operand.names[0] not in match.spelling.writes and takes_constant(type or "b32", "integer")
    size = ", of one size" if match.form.name in _WIDER else ""
    what = f"{count} registers in braces{size}, each" if count > 1 else "a register"
    return f"{what} of type {kinds}" + (" or an integer" if constant and type != "pred" else "")


def _registers(type: str, wider: bool) -> list[str]:
    found = [f".{r}" for r in sorted(REGISTERS - {"f16x2"}) if takes_register(type, r, False)]
    return [*found[:3], *(["or wider"] if wider else [])]
