"""A traced function as a sum: `affine` finds factor · x + products in the instructions that the function emitted.

What follows the function then takes its terms apart: 2^(scale · f(x) + shift) takes one fma for each product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from warpwright.lang.derivative import is_zero, plus, times, value_of
from warpwright.lang.expr import Expr
from warpwright.lang.trace import Trace, current
from warpwright.ptx import nodes
from warpwright.types import f32

__all__ = ["Affine", "affine"]


@dataclass(frozen=True, slots=True)
class Affine:
    """``factor`` · x + the sum of ``products``, each of two values: `Expr` or Python numbers."""

    factor: Any
    products: tuple[tuple[Any, Any], ...] = ()

    def times(self, value: Any) -> Affine:
        """Returns the sum times ``value``."""
        return Affine(times(self.factor, value), tuple((times(a, value), b) for a, b in self.products))

    def plus(self, other: Affine) -> Affine:
        """Returns the sum of both."""
        return Affine(plus(self.factor, other.factor), self.products + other.products)


def affine(function: Callable[[Expr], Any], varying: set[str]) -> Affine | None:
    """Returns ``function`` as a sum, None if it is none. Instructions that depend on the argument are not emitted.

    ``varying`` are the names of registers with values of one call; those that the function computes from them are
    added. ``factor``, and the first value of a product if one can, do not depend on them: they are the same in all
    calls. After None the trace has some instructions of the function.
    """
    trace = current()
    start, x = len(trace.items), trace.fresh(f32)
    value = function(x)
    terms, items = _Terms(trace, varying, {x.reg: Affine(1.0)}), trace.items[start:]
    trace.cut(start)
    for item in items:
        if isinstance(item, nodes.Loc):
            trace.items.append(item)
        elif not isinstance(item, nodes.Instruction) or item.guard is not None or not terms.take(item):
            return None
    found = terms.sums.get(value.reg) if isinstance(value, Expr) else None
    return None if found is None or is_zero(found.factor) else found


@dataclass
class _Terms:
    """The registers of the instructions so far: ``sums`` depend on the argument, ``products`` do not."""

    trace: Trace
    varying: set[str]
    sums: dict[str, Affine]
    products: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def take(self, item: nodes.Instruction) -> bool:
        """Take the next instruction, and emit it unless it depends on the argument; returns False if it is no sum."""
        results, reads = set(_names(item.operands[:1])), set(_names(item.operands[1:]))
        if results & (self.written | self.sums.keys()):
            return False  # a variable that changes
        self.written |= results
        if reads & self.varying:
            self.varying |= results
        if not reads & self.sums.keys():
            self.trace.items.append(item)
            if item.opcode == "mul.rn.f32":
                self.products[next(iter(results))] = self._product(*item.operands[1:])
            return True
        found = self._sum(item.opcode, item.operands[1:])
        if found is not None:
            self.sums[next(iter(results))] = found
        return found is not None

    def _sum(self, opcode: str, sources: tuple[nodes.Operand, ...]) -> Affine | None:
        """Returns the result of an instruction that depends on the argument, None if it is no sum."""
        name = opcode.split(".")[0]
        if not opcode.endswith(".f32") or name not in ("mov", "neg", "add", "sub", "mul", "fma"):
            return None
        if name in ("mul", "fma"):
            found = self._multiplied(sources[0], sources[1])
            return found.plus(self._term(sources[2])) if found and name == "fma" else found
        first, *others = map(self._term, sources)
        first = first.times(-1.0) if name == "neg" else first
        return first.plus(others[0].times(-1.0 if name == "sub" else 1.0)) if others else first

    def _multiplied(self, a: nodes.Operand, b: nodes.Operand) -> Affine | None:
        """Returns a · b as a sum; None if both values depend on the argument, or if one does and the other varies."""
        if not {*_names((a, b))} & self.sums.keys():
            return Affine(0.0, (self._product(a, b),))
        a, b = (b, a) if _is_of(b, self.sums) else (a, b)
        if _is_of(b, self.sums) or _is_of(b, self.varying):
            return None
        return self._term(a).times(value_of(self.trace, b))

    def _term(self, operand: nodes.Operand) -> Affine:
        """Returns an operand as a sum."""
        if isinstance(operand, nodes.Reg) and operand.name in self.sums:
            return self.sums[operand.name]
        known = self.products.get(operand.name) if isinstance(operand, nodes.Reg) else None
        return Affine(0.0, (known or (1.0, value_of(self.trace, operand)),))

    def _product(self, a: nodes.Operand, b: nodes.Operand) -> tuple[Any, Any]:
        """Returns the values of two operands, first one that does not vary."""
        a, b = (b, a) if _is_of(a, self.varying) else (a, b)
        return value_of(self.trace, a), value_of(self.trace, b)


def _is_of(operand: nodes.Operand, names: Any) -> bool:
    """Returns whether ``operand`` is one of the registers ``names``."""
    return isinstance(operand, nodes.Reg) and operand.name in names


def _names(operands: tuple[nodes.Operand, ...]) -> Iterator[str]:
    """Yields the names of the registers in ``operands``."""
    for each in operands:
        if isinstance(each, nodes.Reg):
            yield each.name
        elif isinstance(each, nodes.Vector):
            yield from _names(each.items)
        elif isinstance(each, nodes.Pair):
            yield from _names((each.first, each.second))
        elif isinstance(each, nodes.Address):
            yield from _names((each.base, *each.extra))
