"""The indices of queries and keys that a user's function reads: integers whose conversion to f32 costs an addition."""

from __future__ import annotations

from typing import Any

from warpwright.lang import Expr, f32, min
from warpwright.types import Scalar

__all__ = ["EXACT", "Index"]

EXACT = 1 << 24  # integers up to here are exact in f32
Addends = tuple[tuple[Expr, bool], ...]


class Index(Expr):
    """An s32 that is known as a sum of registers, each added or subtracted, and a constant.

    Neighbouring scores have the same registers and other constants. Converted to f32 it is the sum of the converted
    registers, which the trace emits once, and of the constant: an SM converts 16 integers a cycle and adds 128 floats
    (CUDA C++ Programming Guide, arithmetic throughput). The sum is exact while its parts are below `EXACT`. Sums and
    differences of indices and of Python integers are indices; other operators have the result of any `Expr`.
    """

    __slots__ = ("addends", "constant")

    def __init__(self, value: Expr, addends: Addends, constant: int = 0) -> None:
        super().__init__(value.type, value.reg, value.scope, value.trace)
        self.addends, self.constant = addends, constant

    @staticmethod
    def clamped(register: Expr, constant: int, last: Expr) -> Index:
        """Returns ``register`` + ``constant`` (s32), at most ``last`` as an integer, which then may index an array. As
        f32 it is the sum, also beyond ``last``: it takes no conversion of its own."""
        return Index(min(register + constant, last), ((register, True),), constant)

    @staticmethod
    def of(register: Expr, constant: int = 0) -> Index:
        """Returns ``register`` + ``constant`` (s32)."""
        return Index(register + constant, ((register, True),), constant)

    def to(self, type: type[Scalar]) -> Expr:
        """Returns this value converted to ``type``."""
        if type is not f32:
            return super().to(type)
        total = self._registers()
        return total + float(self.constant) if self.constant else total

    @property
    def names(self) -> set[str]:
        """The names of its registers."""
        return {self.reg, *(each.reg for each, _ in self.addends)}

    def _registers(self) -> Expr:
        """Returns the sum of the converted registers, f32."""
        (first, added), *others = self.addends
        total = first.to(f32) if added else -first.to(f32)
        for register, added in others:
            total = total + register.to(f32) if added else total - register.to(f32)
        return total

    def __add__(self, other: Any) -> Expr:
        return self._combined(other, super().__add__(other), True)

    def __radd__(self, other: Any) -> Expr:
        return self._combined(other, super().__radd__(other), True)

    def __sub__(self, other: Any) -> Expr:
        return self._combined(other, super().__sub__(other), False)

    def __rsub__(self, other: Any) -> Expr:
        return (-self)._combined(other, super().__rsub__(other), True)

    def __neg__(self) -> Index:
        return Index(super().__neg__(), tuple((each, not added) for each, added in self.addends), -self.constant)

    def _combined(self, other: Any, value: Expr, added: bool) -> Expr:
        """Returns ``value``, which is this index plus or minus ``other``, as an index if ``other`` allows."""
        if isinstance(other, Index):
            more = other.addends if added else tuple((each, not sign) for each, sign in other.addends)
            return Index(value, self.addends + more, self.constant + (other.constant if added else -other.constant))
        if isinstance(other, int):
            return Index(value, self.addends, self.constant + (other if added else -other))
        return value
