"""Rules of headers, variables and directives (PTX ISA 9.1 sections 5 and 11)."""

from __future__ import annotations

import re
from math import prod

from warpwright.isa.operands import REGISTERS, bits_of
from warpwright.ptx import nodes
from warpwright.ptx.places import Fault
from warpwright.targets.archs import PTX_VERSIONS

__all__ = ["check_directive", "check_header", "check_variable"]

_OPTIONS = frozenset({"debug", "texmode_unified", "texmode_independent", "map_f64_to_f32"})
_TYPES = REGISTERS - {"pred"}
_OPAQUE = frozenset({"texref", "samplerref", "surfref"})
_PARAMETER_BYTES = 0x7FFC
_VECTOR_BITS = 128

# Where a directive may stand, and how many numbers follow it.
_NUMBERS = {
    ".maxntid": (1, 3), ".reqntid": (1, 3), ".reqnctapercluster": (1, 3), ".maxnreg": (1, 1), ".minnctapersm": (1, 1),
    ".maxnctapersm": (1, 1), ".maxclusterrank": (1, 1), ".explicitcluster": (0, 0), ".blocksareclusters": (0, 0),
}  # fmt: skip
_WORDS = {
    "module": frozenset({".file", ".pragma", ".alias", ".target", ".section"}),
    "entry": frozenset({*_NUMBERS, ".pragma", ".abi_preserve", ".abi_preserve_control"}),
    "func": frozenset({".noreturn", ".pragma", ".unique", ".attribute", ".abi_preserve", ".abi_preserve_control"}),
    "body": frozenset({".pragma", ".branchtargets", ".calltargets"}),
}
_MOST_ALIGN = 1 << 31  # ptxas: "Constant overflow" beyond
_POINTER = re.compile(r"\.ptr(?: \.(?:const|global|local|shared))?(?: \.align \d+)?$")
_STRINGS = re.compile(r'"[^"]*"(?:, "[^"]*")*')
_POSITIVE = frozenset({".maxntid", ".reqntid", ".maxnreg", ".minnctapersm", ".maxnctapersm"})


def check_header(module: nodes.Module, text: str) -> None:
    """Check ``.version``, ``.target`` and ``.address_size``."""
    target, *options = module.target
    if target not in PTX_VERSIONS:
        raise Fault(_line_of(text, ".target"), target, f"the target {target}", "a target such as sm_90a")
    for option in options:
        if option not in _OPTIONS and option not in PTX_VERSIONS:
            raise Fault(_line_of(text, ".target"), option, option, f"one of {', '.join(sorted(_OPTIONS))}")
    for item in module.items:
        if isinstance(item, nodes.Directive) and item.name == ".target":
            _check_other_target(item, target)
    least = PTX_VERSIONS[target]
    if _number(module.version) < _number(least):
        wanted = f"{least} or later, which has the target {target}"
        raise Fault(_line_of(text, ".version"), module.version, f".version {module.version}", wanted)
    if module.address_size != 64:
        raise Fault(_line_of(text, ".address_size"), "32", "32", "64: addresses have 64 bits from sm_90 on")


def _check_other_target(item: nodes.Directive, target: str) -> None:
    """A later ``.target`` may name an older target, unless its code runs there only (``sm_90a``)."""
    name = item.text.split(",")[0]
    if name not in PTX_VERSIONS or (not name[-1].isdigit() and name != target):
        raise Fault(item.line, name, f"a second target {name}", f"{target}, or one that runs on {target}")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split("."))


def _line_of(text: str, word: str) -> int:
    found = re.search(rf"^\s*{re.escape(word)}\b", text, re.MULTILINE)
    return text.count("\n", 0, found.end()) + 1 if found else 1


def check_variable(item: nodes.Variable, where: str) -> None:
    """Check a variable of a module, of a body, or a parameter of an entry or function (``where``)."""
    _check_place(item, where)
    opaque = item.type in _OPAQUE and item.space in ("global", "param")
    if item.type not in _TYPES and not opaque and not (item.type == "pred" and item.space == "reg"):
        raise Fault(item.line, f".{item.type}", f"a variable of type .{item.type}", "a type of memory, such as .b32")
    if item.vector > 1 and item.vector * bits_of(item.type) > _VECTOR_BITS:
        raise Fault(
            item.line, item.name, f"{item.name} of {item.vector} × .{item.type}", f"{_VECTOR_BITS} bits at most"
        )
    if ".ptr" in item.attributes and not _POINTER.search(item.attributes):
        raise Fault(item.line, ".ptr", item.attributes, ".ptr, then a state space, then one .align")
    for align in (item.align, _pointer_align(item)):
        if align is not None and (align < 1 or align & (align - 1) or align > _MOST_ALIGN):
            raise Fault(item.line, str(align), f"the alignment {align}", "a power of two up to 2147483648")
    open_array = item.dims[:1] == (0,) and item.init is None
    if any(size < 0 for size in item.dims) or 0 in item.dims[1:] or (open_array and not _may_be_open(item, where)):
        raise Fault(item.line, item.name, f"{item.name} without a size", "a positive number of elements")
    if item.init is not None:
        _check_initial(item)


def _pointer_align(item: nodes.Variable) -> int | None:
    found = re.search(r"\.ptr.*\.align (-?\d+)", item.attributes)
    return int(found[1]) if found else None


def _may_be_open(item: nodes.Variable, where: str) -> bool:
    return item.linkage == "extern" or (where == "func" and item.space == "param")


def _check_place(item: nodes.Variable, where: str) -> None:
    if where == "module" and item.space in ("local", "param", "reg"):
        raise Fault(
            item.line, item.name, f".{item.space} outside a function", "a variable in .global, .const or .shared"
        )
    if where == "body" and item.linkage:
        raise Fault(item.line, item.name, f".{item.linkage} inside a function", "a variable without linkage")
    if where == "entry":
        if item.space != "param" or item.vector > 1 or item.type == "f16x2":
            raise Fault(item.line, item.name, f"{item.name} as a parameter of a kernel", "a scalar or array in .param")
        if prod(item.dims) * max(8, bits_of(item.type) if item.type in _TYPES else 64) // 8 > _PARAMETER_BYTES:
            raise Fault(item.line, item.name, f"{item.name} of {prod(item.dims)} elements", f"{_PARAMETER_BYTES} bytes")


def _check_initial(item: nodes.Variable) -> None:
    if item.space not in ("global", "const") or item.linkage == "extern" or item.type in ("f16", "f16x2", "b128"):
        raise Fault(
            item.line, item.name, f"an initial value of {item.name}", "none for its state space, type or linkage"
        )
    depth = len(item.dims) + (item.vector > 1)
    _check_value(item, item.init, (*item.dims, *([item.vector] if item.vector > 1 else [])), depth)


def _check_value(item: nodes.Variable, value: nodes.Operand | None, dims: tuple[int, ...], depth: int) -> None:
    if isinstance(value, nodes.Vector):
        if not depth or (dims[0] and len(value.items) > dims[0]):
            raise Fault(item.line, item.name, f"{len(value.items)} initial values of {item.name}", _count(dims))
        for each in dict.fromkeys(value.items):
            _check_value(item, each, dims[1:], depth - 1)
    elif depth:
        raise Fault(item.line, item.name, f"one initial value of {item.name}", "a list in braces")
    elif isinstance(value, nodes.Imm):
        bits = value.text.lstrip("-").lower().startswith(("0f", "0d")) and item.type[0] == "b"
        if isinstance(value.value, float) != (item.type[0] == "f") and not bits:
            raise Fault(item.line, value.text, f"{value.text} for .{item.type}", f"a constant of type .{item.type}")


def _count(dims: tuple[int, ...]) -> str:
    return f"at most {dims[0]}" if dims else "one value without braces"


def check_directive(item: nodes.Directive, where: str) -> None:
    """Check that a directive may stand in a place, and its numbers."""
    if item.name not in _WORDS[where]:
        places = [place for place, words in _WORDS.items() if item.name in words]
        wanted = f"it in {' or '.join(_PLACES[place] for place in places)}" if places else "a directive of PTX"
        raise Fault(item.line, item.name, f"{item.name} {_PLACES[where]}", wanted)
    if item.name in _NUMBERS:
        _check_numbers(item)
    if item.name == ".pragma" and not _STRINGS.fullmatch(item.text):
        raise Fault(item.line, item.name, f".pragma {item.text}", "strings in quotes")


_PLACES = {
    "module": "outside functions", "entry": "before the body of a kernel", "func": "before the body of a function",
    "body": "in a body",
}  # fmt: skip


def _check_numbers(item: nodes.Directive) -> None:
    least, most = _NUMBERS[item.name]
    words = [word.strip() for word in item.text.split(",")] if item.text else []
    numbers = [
        int(word, 0) for word in words if re.fullmatch(r"0[xX][0-9a-fA-F]+|[1-9]\d*|0[0-7]*", word) and word != ""
    ]
    low = 1 if item.name in _POSITIVE else 0
    if len(numbers) != len(words) or not least <= len(words) <= most or any(not low <= n < 1 << 32 for n in numbers):
        count = f"{least} to {most} numbers" if most > least else f"{most} numbers"
        raise Fault(item.line, item.name, f"{item.name} {item.text}".rstrip(), f"{count} from {low} to 2³² − 1")
