"""Initial values of variables, and the names that operands and bodies mention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpwright import types
from warpwright.ptx import nodes

__all__ = ["constant_bits", "flatten_initialiser", "names_in", "names_of", "select_byte"]


def flatten_initialiser(init: nodes.Operand | None, dims: tuple[int, ...]) -> list[nodes.Operand | None]:
    """Initial values in memory order; a short row of nested braces is padded with None (zero)."""
    if init is None:
        return []
    if not isinstance(init, nodes.Vector):
        return [init]
    if len(dims) <= 1:
        return list(init.items)
    row = 1
    for extent in dims[1:]:
        row *= extent
    values: list[nodes.Operand | None] = []
    for item in init.items:
        part = flatten_initialiser(item, dims[1:])
        values += part + [None] * (row - len(part))
    return values


def constant_bits(imm: nodes.Imm, type: str) -> int:
    """The bit pattern of a constant stored as ``type``. A float in a ``.b`` type is its lowest bits, as ptxas has it; a
    double in ``.b32`` is rounded."""
    scalar, text = types.of_name("f32" if type == "b32" and imm.text[:2] in ("0d", "0D") else type), imm.text.lower()
    bits = text.startswith(("0f", "0d"))
    if scalar.kind != "float":
        return int(text[2:], 16) % (1 << scalar.bits) if bits else int(imm.value)
    if bits and (len(text) - 2) * 4 == scalar.bits:
        return int(text[2:], 16)
    return int.from_bytes(np.asarray(imm.value).astype(scalar.dtype).tobytes(), "little")


def select_byte(word: int, mask: int) -> int:
    """The byte of ``word`` that ``mask`` (``0xFF00``) selects."""
    shift = (mask & -mask).bit_length() - 1
    return (word & mask) >> shift


def names_of(operand: nodes.Operand | None) -> Iterator[str]:
    """Returns the names of registers, variables and functions that an operand or an initialiser has."""
    if isinstance(operand, nodes.Vector):
        for item in operand.items:
            yield from names_of(item)
    elif isinstance(operand, nodes.Reg | nodes.Symbol):
        yield operand.name


def names_in(block: nodes.Block | None) -> Iterator[str]:
    """The names that a body moves or stores."""
    for item in block.items if block else ():
        if isinstance(item, nodes.Block):
            yield from names_in(item)
        elif isinstance(item, nodes.Instruction) and item.opcode.startswith(("mov", "st", "selp", "cvta")):
            for operand in item.operands:
                yield from names_of(operand)
