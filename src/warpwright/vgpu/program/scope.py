"""The names of a ``{ }`` of PTX, and the sizes of what they name."""

from __future__ import annotations

from warpwright import types
from warpwright.ptx import nodes
from warpwright.vgpu.program.program import Operand, Register, vector_of

__all__ = ["Scope", "align_of", "bits_of", "round_up", "size_of"]

_ELEMENTS = "xyzw"
_SELECTORS = {letter: number for letters in (_ELEMENTS, "rgba") for number, letter in enumerate(letters)}


class Scope:
    """Names of one ``{ }``: registers, variables, labels, branch lists; a lookup falls back to ``parent``."""

    def __init__(self, parent: Scope | None, suffix: str) -> None:
        self.parent = parent
        self.suffix = suffix
        self.names: dict[str, Operand] = {}
        self.ranges: list[tuple[str, nodes.RegDecl]] = []
        self.targets: dict[str, tuple[str, ...]] = {}

    def find(self, name: str) -> Operand | None:
        found = self.names.get(name) or self._range_register(name)
        if found is None and self.parent:
            return self.parent.find(name)
        return found

    def _range_register(self, name: str) -> Operand | None:
        for prefix, item in self.ranges:
            number = name[len(prefix) :]
            if name.startswith(prefix) and number.isdecimal() and int(number) < (item.count or 0):
                return self.declare(name, item)
        return None

    def declare(self, name: str, item: nodes.RegDecl | nodes.Variable) -> Operand:
        """Declare a register, or a variable of two or four, which is a vector of its elements."""
        full, bits = name + self.suffix, bits_of(item.type)
        elements = [Register(f"{full}.{element}", bits) for element in _ELEMENTS[: item.vector]]
        self.names[name] = vector_of(elements) if item.vector > 1 else Register(full, bits)
        return self.names[name]

    def element(self, name: str) -> Operand | None:
        """Returns the register that ``v.x`` or ``v.r`` names, an element of the vector variable ``v``, or None."""
        variable, _, letter = name.rpartition(".")
        vector = self.find(variable)
        items = vector.items if isinstance(vector, nodes.Vector) else ()
        number = _SELECTORS.get(letter, len(items))
        return items[number] if number < len(items) else None

    def branch_targets(self, name: str) -> tuple[str, ...] | None:
        return self.targets.get(name) or (self.parent.branch_targets(name) if self.parent else None)


def bits_of(type: str) -> int:
    return types.of_name(type).bits


def size_of(variable: nodes.Variable) -> int:
    count = 1
    for extent in variable.dims:
        count *= extent
    return max(1, bits_of(variable.type) // 8) * count * variable.vector


def align_of(variable: nodes.Variable) -> int:
    return variable.align or max(1, bits_of(variable.type) // 8) * variable.vector


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step
