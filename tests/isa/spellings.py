"""PTX text from the table's notation: every opcode of a spelling, with valid operands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

from warpwright.isa import FORMS, Match, Spelling
from warpwright.isa.operands import count_of, type_of

HEAD = """.version {version}
.target {arch}
.address_size 64
.extern .shared .align 1024 .b8 dsm[];
.global .align 128 .b8 gtm[128];
.func (.reg .b32 fr) ff(.reg .b32 fa) {{ mov.b32 fr, fa; ret; }}
.visible .entry k(.param .u64 a0, .param .align 128 .b8 tm[128])
{{
 .reg .b8 b<32>; .reg .b16 h<32>; .reg .b32 r<300>; .reg .f32 f<300>; .reg .b64 d<64>; .reg .f64 g<32>;
 .reg .b128 q<32>; .reg .pred p<32>;
 .shared .align 16 .b8 sm[4096]; .local .align 16 .b8 lm[64]; .param .align 16 .b8 pp[64];
 labels: .branchtargets end;
"""
TAIL = "end: ret;\n}\n"

_REGISTERS = {
    **dict.fromkeys(("f16", "bf16", "e4m3x2", "e5m2x2", "ue8m0x2", "e2m3x2", "e3m2x2", "e2m1x4"), "h"),
    **dict.fromkeys(("e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4", "tf32", "b8x16"), "r"),
    "pred": "p",
    "b128": "q",
    "f32": "f",
    "f64": "g",
    "e2m1x2": "b",
}


def opcodes(name: str, spelling: Spelling) -> Iterator[tuple[str, dict[str, str]]]:
    """Every opcode of a spelling, with its slots."""
    choices = []
    for group in spelling.groups:
        words = [*product(*(sorted(modifier.alternatives) for modifier in group.modifiers))]
        choices.append([*words, ()] if group.optional else words)
    slots = [[modifier.slot for modifier in group.modifiers] for group in spelling.groups]
    for chosen in product(*choices):
        pairs = [pair for names, words in zip(slots, chosen, strict=True) for pair in zip(names, words, strict=False)]
        yield ".".join((name, *(word for _, word in pairs))), dict(pairs)


def register(scalar: str, number: int) -> str:
    """A register that holds a value of a type."""
    letter = _REGISTERS.get(scalar)
    if letter is None:
        found = re.fullmatch(r"[a-z]+(\d+)(?:x(\d))?", scalar)
        assert found, f"{scalar} is no type"
        bits, count = found.groups()
        letter = {8: "h", 16: "h", 32: "r", 64: "d"}[int(bits) * int(count or 1)]
    return f"{letter}{number}"


def _address(match: Match, text: str) -> str:
    name, slots = match.form.name, match.chosen
    inner, _, coords = text.partition(",")
    if coords:
        return f"[d30, {{{', '.join(f'r{i}' for i in range(count_of(match, coords.split('*')[1])))}}}]"
    if name.startswith("tcgen05") and not name.endswith(("alloc", "commit")):
        return "[r9]"
    space = slots.get({"dst_mem": "dst", "src_mem": "src"}.get(inner, ""), slots.get("space", ""))
    small = (
        (inner == "mbar" and not name.startswith(("mbarrier", "cp.async.mbarrier", "tcgen05.commit")))
        or (name == "cp.async" and inner == "dst_mem")
        or space.startswith("shared")
        or name.startswith(("st.async", "red.async", "ldmatrix", "stmatrix", "clusterlaunch"))
    )
    if space.startswith("param"):
        return "[pp]" if name == "st" else "[tm]"
    if name.startswith("prefetch") and slots.get("space") == "param":
        return "[tm]"
    if space in ("local",):
        return "[lm]"
    return "[r8]" if small else "[d31]"


def _operand(match: Match, text: str, index: int) -> str:
    name = match.form.name
    if text.startswith("["):
        return _address(match, text[1:-1])
    if text.startswith("#"):
        return {"#size": "16" if name.startswith("cp.async") else "128", "#count": "40"}.get(
            text.partition("=")[0], "1"
        )
    if text in _WORDS:
        return _WORDS[text]
    text = text.partition("=")[0]
    if "|" in text:
        return "|".join(_operand(match, part, index + 8 * i) for i, part in enumerate(text.split("|")))
    word, _, count = text.partition("*")
    scalar = type_of(match, word.partition(":")[2] or "type")
    if not count or (count == "vec" and not match["vec"]):
        return register(scalar, index)
    return f"{{{', '.join(register(scalar, 16 + index + i) for i in range(count_of(match, count)))}}}"


_WORDS = {
    "label:label": "end", "list:label": "labels", "results": "(r1)", "function": "ff", "arguments": "(r2)", "_": "_",
}  # fmt: skip


def operands(name: str, spelling: Spelling, slots: Mapping[str, str], longest: bool) -> str:
    """Operands of an instruction, with or without the optional ones."""

    def keep(group: re.Match[str]) -> str:
        if group[1]:
            return group[2] if slots.get(group[1]) else ""
        return group[2] if longest else ""

    text = re.sub(r"\{(?:if (\w+))?([^{}]*)\}", keep, spelling.operands)
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]
    match = Match(FORMS[name], spelling, slots)
    return ", ".join(_operand(match, part, index) for index, part in enumerate(parts, start=1))
