"""Evaluates straight-line integer PTX: the values of registers and the addresses of memory accesses."""

from __future__ import annotations

import re

_LINE = re.compile(r"(?:@(!?)(%\w+) )?([\w.:]+) (.*)")
_WORD = (1 << 32) - 1


def accesses(lines: list[str]) -> list[tuple[str, int, str]]:
    """Returns (opcode, address, last operand) of every memory access, in order. Waits succeed; symbols are 0."""
    values: dict[str, int] = {}
    found_accesses = []
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None or found[3] == "bra":
            continue
        negated, guard, opcode, text = found.groups()
        if guard and bool(values[guard]) == bool(negated):
            continue
        operands = re.split(r", (?![^{\[]*[}\]])", text)
        if "[" in text:
            base, offset = re.search(r"\[(%\w+)(?:\+(\d+))?\]", text).groups()
            last = values.get(operands[-1], operands[-1])
            found_accesses.append((opcode, values.get(base, 0) + int(offset or 0), str(last)))
        else:
            values[operands[0]] = _value(opcode.split(".")[0], [_read(values, operand) for operand in operands[1:]])
    return found_accesses


def _read(values: dict[str, int], operand: str) -> int:
    return int(operand, 0) if operand[0].isdigit() else values.get(operand, 0)


def _value(name: str, operands: list[int]) -> int:
    results = {
        "mov": lambda x: x,
        "add": lambda x, y: x + y,
        "xor": lambda x, y: x ^ y,
        "and": lambda x, y: x & y,
        "div": lambda x, y: x // y,
        "rem": lambda x, y: x % y,
        "shl": lambda x, y: x << y,
        "shr": lambda x, y: x >> y,
        "mad": lambda x, y, z: x * y + z,
        "setp": lambda x, y: int(x == y),
        "cvta": lambda x: x,
    }
    return results[name](*operands) & _WORD
