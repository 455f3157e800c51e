"""The derivative of a traced function: `value_and_slope` differentiates the instructions that the function emitted.

Each instruction that depends on the argument has a rule in ``RULES``, by its PTX operation. The tangents are emitted
after the function's own instructions, in their order (forward mode).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpwright.lang.arithmetic import cos, fma, rcp, sin
from warpwright.lang.context import misuse
from warpwright.lang.control import select
from warpwright.lang.expr import Expr, as_expr
from warpwright.lang.trace import Trace, current
from warpwright.ptx import nodes
from warpwright.types import f32, pred

__all__ = ["is_zero", "plus", "times", "value_and_slope", "value_of"]

LN2, LOG2E = 0.6931471805599453, 1.4426950408889634
INTEGERS = ("s", "u", "b")  # first letters of types without a derivative
Operands = list[Any]  # values: `Expr` or Python numbers


def value_and_slope(function: Callable[[Expr], Any], x: Expr) -> tuple[Any, Any]:
    """Returns ``function(x)`` and its derivative by ``x``, f32; a derivative that is the same everywhere is a float.

    Values that become integers or predicates on the way count as constants. Raises KernelError for branches, changed
    variables, and instructions without a rule.
    """
    trace = current()
    start = len(trace.items)
    value = function(x)
    slopes: dict[str, Any] = {x.reg: 1.0}
    written = {x.reg}
    for item in trace.items[start:]:
        if isinstance(item, nodes.Loc):
            continue
        if not isinstance(item, nodes.Instruction) or item.guard is not None:
            raise misuse("given a function of the score with If or loop; expected select(p, x, y), which has a slope")
        result, *sources = item.operands or (None,)
        if isinstance(result, nodes.Reg) and result.name in written:
            raise misuse("given a function of the score that changes a variable; expected y = …, a new value")
        if isinstance(result, nodes.Reg):
            written.add(result.name)
        found = [slopes.get(each.name, 0.0) if isinstance(each, nodes.Reg) else 0.0 for each in sources]
        if isinstance(result, nodes.Reg) and any(not is_zero(each) for each in found) and not _is_integer(item.opcode):
            values = [value_of(trace, each) for each in sources]
            slopes[result.name] = _rule(item.opcode)(Expr(f32, result.name, trace.scope, trace), values, found)
    return value, slopes.get(value.reg, 0.0) if isinstance(value, Expr) else 0.0


def is_zero(value: Any) -> bool:
    """Returns whether a slope is known to be 0."""
    return not isinstance(value, Expr) and value == 0


def _is_integer(opcode: str) -> bool:
    """Returns whether the result of an instruction is an integer or a predicate."""
    name, *rest = opcode.split(".")
    target = next((part for part in rest if part[0] in "subf" and part[1:].isdigit()), "")
    return name == "setp" or (name == "cvt" and target.startswith(INTEGERS))


def value_of(trace: Trace, operand: nodes.Operand) -> Any:
    """Returns an operand as an `Expr` or a Python number."""
    if isinstance(operand, nodes.Imm):
        return operand.value
    if not isinstance(operand, nodes.Reg):
        return operand
    kind = pred if operand.name.startswith("%p") else f32
    return Expr(kind, operand.name, trace.scope, trace)


def _rule(opcode: str) -> Callable[[Expr, Operands, Operands], Any]:
    name, *rest = opcode.split(".")
    rule = RULES.get(name)
    if rule is None or rest[-1:] != ["f32"]:
        raise misuse(
            f"given {opcode} of the score, which has no rule for its derivative; expected f32 and +, -, *, /, "
            f"{', '.join(sorted(set(RULES) - {'add', 'sub', 'mul', 'div', 'neg', 'mov', 'selp'}))} or select"
        )
    return rule


def times(x: Any, y: Any) -> Any:
    """Returns x · y; a factor that is known to be 0 or 1 takes no instruction."""
    if is_zero(x) or is_zero(y):
        return 0.0
    return y if not isinstance(x, Expr) and x == 1 else x if not isinstance(y, Expr) and y == 1 else x * y


def plus(x: Any, y: Any) -> Any:
    """Returns x + y; an addend that is known to be 0 takes no instruction."""
    return y if is_zero(x) else x if is_zero(y) else x + y


def choose(condition: Expr, x: Any, y: Any) -> Any:
    """Returns ``x`` where ``condition`` holds, else ``y``, of which both may be Python numbers."""
    if not isinstance(x, Expr) and not isinstance(y, Expr):
        return x if x == y else select(condition, as_expr(x, f32), y)
    return select(condition, x, y)


def _extreme(values: Operands, slopes: Operands, greatest: bool) -> Any:
    (x, *rest), (slope, *slopes) = values, slopes
    for y, other in zip(rest, slopes, strict=True):
        first = x if isinstance(x, Expr) else as_expr(x, f32)
        slope = choose(first > y if greatest else first < y, slope, other)
        x = select(first > y if greatest else first < y, first, y)
    return slope


# The derivative of an instruction, by its operation: of its result, the values of its sources, and their slopes.
RULES: dict[str, Callable[[Expr, Operands, Operands], Any]] = {
    "mov": lambda r, v, d: d[0],
    "neg": lambda r, v, d: -d[0],
    "add": lambda r, v, d: plus(d[0], d[1]),
    "sub": lambda r, v, d: plus(d[0], times(-1.0, d[1])),
    "mul": lambda r, v, d: plus(times(d[0], v[1]), times(v[0], d[1])),
    "div": lambda r, v, d: times(plus(d[0], times(times(-1.0, r), d[1])), rcp(as_expr(v[1], f32))),
    "fma": lambda r, v, d: plus(plus(times(d[0], v[1]), times(v[0], d[1])), d[2]),
    "abs": lambda r, v, d: choose(v[0] < 0.0, times(-1.0, d[0]), d[0]),
    "max": lambda r, v, d: _extreme(v, d, True),
    "min": lambda r, v, d: _extreme(v, d, False),
    "selp": lambda r, v, d: choose(v[2], d[0], d[1]),
    "ex2": lambda r, v, d: times(times(r, LN2), d[0]),
    "lg2": lambda r, v, d: times(times(rcp(v[0]), LOG2E), d[0]),
    "rcp": lambda r, v, d: times(times(times(-1.0, r), r), d[0]),
    "sqrt": lambda r, v, d: times(times(rcp(r), 0.5), d[0]),
    "rsqrt": lambda r, v, d: times(times(times(r, r), times(r, -0.5)), d[0]),
    "sin": lambda r, v, d: times(cos(v[0]), d[0]),
    "cos": lambda r, v, d: times(times(-1.0, sin(v[0])), d[0]),
    "tanh": lambda r, v, d: times(fma(times(-1.0, r), r, 1.0), d[0]),
}
