"""Run-time control flow: `loop`, `Break`, `If`/`Elif`/`Else`, and the variables that it changes: `var`, `select`.

The constructs emit PTX branches (PTX ISA 9.1 section 9.7.12) to labels named after them (``loop_0``, ``if_0_else``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from warpwright.lang.context import misuse, where
from warpwright.lang.convert import cvt
from warpwright.lang.expr import OPERATIONS, Expr, Value, check_type, is_number, move_suffix, operand, same_type
from warpwright.lang.rebinding import Names
from warpwright.lang.scope import Scope
from warpwright.lang.trace import Trace, current
from warpwright.ptx import nodes
from warpwright.types import Scalar, pred, s32, u32

__all__ = ["Break", "Elif", "Else", "If", "Var", "check_condition", "loop", "select", "var"]


class Var(Expr):
    """A register that may change: ``x.set(e)``, ``x += e``. A read returns the value at that point of the program.

    ``y = x`` is a second name for the same register; ``y = x.to(x.type)`` is a copy.
    """

    __slots__ = ()
    mutable = True

    def set(self, value: Value) -> None:
        """Assign ``value``, which has the same type or is a Python number."""
        _move(self, value)

    def _update(self, symbol: str, other: Value) -> Var:
        type = self.type if symbol in ("<<", ">>") else same_type(symbol, self, other)
        name, forms = OPERATIONS[symbol]
        if type.kind not in forms or (symbol in ("//", "%") and is_number(other)):
            _move(self, getattr(self, _METHODS[symbol])(other))
            return self
        right = operand(other, u32 if symbol in ("<<", ">>") else type)
        current().emit(forms[type.kind].format(op=name, t=type.name, n=type.bits), self, self, right)
        return self

    def __iadd__(self, other: Value) -> Var:
        return self._update("+", other)

    def __isub__(self, other: Value) -> Var:
        return self._update("-", other)

    def __imul__(self, other: Value) -> Var:
        return self._update("*", other)

    def __ifloordiv__(self, other: Value) -> Var:
        return self._update("//", other)

    def __imod__(self, other: Value) -> Var:
        return self._update("%", other)

    def __itruediv__(self, other: Value) -> Var:
        return self._update("/", other)

    def __iand__(self, other: Value) -> Var:
        return self._update("&", other)

    def __ior__(self, other: Value) -> Var:
        return self._update("|", other)

    def __ixor__(self, other: Value) -> Var:
        return self._update("^", other)

    def __ilshift__(self, other: Value) -> Var:
        return self._update("<<", other)

    def __irshift__(self, other: Value) -> Var:
        return self._update(">>", other)


_METHODS = {"//": "__floordiv__", "%": "__mod__", "/": "__truediv__", "+": "__add__", "-": "__sub__", "*": "__mul__"}


def var(type: type[Scalar], value: Value) -> Var:
    """Returns a register of ``type`` with the initial ``value``, which loops and branches may change.

    Raises KernelError if ``value`` has another type.
    """
    trace = current()
    check_type("var", type)
    fresh = trace.fresh(type)
    register = Var(type, fresh.reg, fresh.scope, trace)
    _move(register, value)
    return register


def _move(register: Var, value: Value) -> None:
    trace = current()
    if register.type is pred and not isinstance(value, Expr):
        trace.emit("setp.ne.u32", register, int(operand(value, pred).value), 0)  # type: ignore[union-attr]
    else:
        trace.emit(f"mov.{move_suffix(register.type)}", register, operand(value, register.type))


def select(condition: Any, x: Value, y: Value) -> Any:
    """Returns ``x`` where ``condition`` holds, else ``y``; both are computed. A Python bool decides during tracing.

    Raises KernelError if x and y differ in type, or condition is not a pred.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.6.3 (selp).
    """
    if isinstance(condition, bool):
        return x if condition else y
    check_condition("select", condition)
    if is_number(x) and is_number(y):
        raise misuse(f"given select(p, {x!r}, {y!r}) without a type; write select(p, cvt({x!r}, u32), {y!r})")
    type = same_type("or", x, y)
    if type is pred:
        return (condition & x) | (~condition & y)
    if condition.negated:
        condition, x, y = ~condition, y, x
    return current().pure(f"selp.{move_suffix(type)}", type, operand(x, type), operand(y, type), condition)


def check_condition(name: str, condition: Any) -> None:
    """Raise KernelError unless ``condition``, the argument of ``name``, is a run-time pred."""
    if not isinstance(condition, Expr):
        raise misuse(f"given {condition!r} to {name}; expected a run-time pred such as k < n, or a Python bool")
    if condition.type is not pred:
        raise misuse(f"given {condition} to {name}; expected a pred: write x != 0")


def loop(*bounds: Value, unroll: bool = True) -> Iterator[Expr]:
    """Emit a run-time loop: ``for k in loop(n)``, ``loop(start, stop)``, ``loop(start, stop, step)``, ``loop()``.

    The body is traced once; ``k`` is a run-time value of the bounds' type (u32 if all are Python ints, s32 if one is
    negative). ``stop`` is exclusive and read once; a run-time ``step`` must be positive. ``loop()`` yields the number
    of the iteration and ends only by `Break`. ``unroll=False`` tells ptxas not to unroll the loop, which takes fewer
    registers (PTX ISA 9.1 section 12.1, ``.pragma "nounroll"``).

    Raises KernelError for bounds of different types, a zero step, or a name that is rebound inside the loop.
    """
    current()
    if len(bounds) > 3:
        raise misuse(f"given loop() with {len(bounds)} bounds; expected loop(), loop(n) or loop(start, stop[, step])")
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3] if bounds else (0, None, 1)
    type = _loop_type([bound for bound in (start, stop, step) if bound is not None])
    if is_number(step) and step == 0:
        raise misuse("given loop(…, step=0); expected a step that is not zero")
    if all(is_number(bound) for bound in (start, stop, step)):
        if not range(start, stop, step):  # type: ignore[arg-type]
            return
        yield from _traced_loop(type, start, stop, step, certain=True, unroll=unroll)
    else:
        yield from _traced_loop(type, start, stop, step, certain=False, unroll=unroll)


def _loop_type(bounds: list[Any]) -> type[Scalar]:
    given = [bound for bound in bounds if isinstance(bound, Expr)]
    for other in given[1:]:
        same_type("to", given[0], other)
    if given and given[0].type.kind not in ("unsigned", "signed"):
        raise misuse(f"given {given[0]} as a bound of loop(); expected an integer such as u32")
    for bound in bounds:
        if not isinstance(bound, Expr | int):
            raise misuse(f"given {bound!r} as a bound of loop(); expected a Python int or a run-time integer")
    if given:
        return given[0].type
    return s32 if min(bounds) < 0 else u32


def _traced_loop(
    type: type[Scalar], start: Any, stop: Any, step: Any, *, certain: bool, unroll: bool
) -> Iterator[Expr]:
    trace, names = current(), Names("loop", where())
    label = trace.label("loop")
    if stop is not None:
        stop = operand(cvt(stop, type) if isinstance(stop, Expr) else stop, type)
    counter = trace.fresh(type)
    trace.emit(f"mov.{type.name}", counter, operand(start, type))
    backwards = is_number(step) and step < 0
    with trace.inside("loop") as scope:
        scope.exit = f"{label}_end"
        trace.place(label)
        if not unroll:
            trace.items.append(nodes.Directive(".pragma", '"nounroll"'))
        if stop is not None and not certain:
            done = trace.result(f"setp.{'le' if backwards else 'ge'}.{type.name}", pred, counter, stop)
            trace.emit("bra", scope.exit, guard=done)
        yield from _yield_once(trace, Expr(type, counter.reg, scope, trace))
        names.check()
        trace.emit(f"add.{type.name}", counter, counter, operand(step, type))
        again = None
        if certain:
            again = trace.result(f"setp.{'gt' if backwards else 'lt'}.{type.name}", pred, counter, stop)
        trace.emit("bra", label, guard=again)
        trace.place(scope.exit)


def _yield_once(trace: Trace, counter: Expr) -> Iterator[Expr]:
    """Yield the counter once; record a misuse if Python's ``break`` or ``return`` leaves the body early."""
    at = where()
    try:
        yield counter
    except GeneratorExit:
        trace.pending_error = trace.pending_error or misuse(
            "a Python break or return leaves the body of loop() while it is traced; write Break(when=p), "
            "and let the body run to its end",
            at,
        )
        raise


def Break(*, when: Any = True) -> None:
    """Leave the innermost `loop` if ``when``, a pred or a Python bool, holds.

    Raises KernelError outside a loop; a loop around the role does not count.
    """
    trace = current()
    scope: Scope | None = trace.scope
    while scope is not None and scope.kind not in ("loop", "role"):
        scope = scope.parent
    if scope is None or scope.kind != "loop":
        raise misuse("given Break() outside a loop; expected it in the body of `for … in loop(…)`")
    if when is False:
        return
    if when is not True:
        check_condition("Break(when=…)", when)
    trace.emit("bra", scope.exit, guard=None if when is True else when)


@dataclass
class Chain:
    """An If with its Elif and Else arms while they are traced.

    ``open_arm`` has the indices of the last arm's branch and end label in the trace's items, ``length`` is the number
    of items at the end of the last arm, ``arms`` the number of arms. ``decided``: an arm's condition was True;
    ``joined``: an arm ends in a jump to the end of the chain.
    """

    name: str
    scope: Scope
    open_arm: tuple[int, int] | None = None
    decided: bool = False
    joined: bool = False
    length: int = 0
    arms: int = 0


class If:
    """``with If(p):`` runs the body in the threads where ``p`` (a pred) holds; `Elif` and `Else` may follow.

    A Python bool decides during tracing. The body must not rebind names from before it: use `var`.
    """

    kind = "If"

    def __init__(self, condition: Any) -> None:
        self.trace = current()
        if not isinstance(condition, bool):
            check_condition(self.kind, condition)
        self.condition = condition

    def __enter__(self) -> None:
        trace = self.trace
        self.chain = self._chain()
        self.names = Names(self.kind, where())
        self.start = len(trace.items)
        self.dead = self.chain.decided or self.condition is False
        condition_registers = list(trace.new_registers) if self.kind == "Elif" else []
        if not self.dead:
            self._branch()
        self.scope = trace.inside(self.kind)
        scope = self.scope.__enter__()
        for register in condition_registers:
            register.scope = scope

    def _chain(self) -> Chain:
        return Chain(self.trace.label("if"), self.trace.scope)

    def _branch(self) -> None:
        trace, chain = self.trace, self.chain
        if chain.open_arm is not None:
            _link_arm(trace, chain, "else" if self.kind == "Else" else f"elif_{chain.arms}")
        if self.condition is True:
            chain.decided = True
            return
        trace.emit("bra", f"{chain.name}_end", guard=~self.condition)
        self.branch_at = len(trace.items) - 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        trace, chain = self.trace, self.chain
        self.scope.__exit__(None, None, None)
        if error is not None:
            return
        self.names.check()
        if self.dead:
            trace.cut(self.start)
        elif self.condition is not True or chain.joined:
            trace.place(f"{chain.name}_end")
            chain.open_arm = None if self.condition is True else (self.branch_at, len(trace.items) - 1)
        chain.length, chain.arms = len(trace.items), chain.arms + 1
        trace.new_registers.clear()
        trace.chain = None if self.kind == "Else" else chain


class Elif(If):
    """``with Elif(q):`` directly after an `If`: the body runs where no earlier condition holds and ``q`` does."""

    kind = "Elif"

    def _chain(self) -> Chain:
        return _chain_to_continue(self.trace, self.kind)


class Else(If):
    """``with Else():`` directly after an `If` or `Elif`: the body runs where no earlier condition holds."""

    kind = "Else"

    def __init__(self) -> None:
        super().__init__(True)

    def _chain(self) -> Chain:
        return _chain_to_continue(self.trace, self.kind)


def _chain_to_continue(trace: Trace, kind: str) -> Chain:
    """Returns the chain that an Elif or Else continues. Raises KernelError if there is none directly before it."""
    chain: Chain | None = trace.chain
    if chain is None or chain.scope is not trace.scope:
        raise misuse(f"given {kind} without an If before it; expected `with If(p):` directly above, at the same depth")
    for item in trace.items[chain.length :]:
        if not isinstance(item, nodes.Loc) and not (kind == "Elif" and _belongs_to_condition(trace, item)):
            raise misuse(f"given {kind} after other instructions; expected it directly after its If or Elif")
    return chain


def _belongs_to_condition(trace: Trace, item: nodes.Item) -> bool:
    """Whether ``item`` may be part of the condition of an Elif: it computes or loads, and has no side effect."""
    if not isinstance(item, nodes.Instruction):
        return False
    first = item.operands[0] if item.operands else None
    pure = isinstance(first, nodes.Reg) and first.name in trace.pure_registers
    return pure or item.opcode.startswith("ld.")


def _link_arm(trace: Trace, chain: Chain, word: str) -> None:
    """End the last arm with a jump to the end of the chain, and label the start of the next arm."""
    branch_at, label_at = chain.open_arm or (0, 0)
    target = f"{chain.name}_{word}"
    branch = trace.items[branch_at]
    assert isinstance(branch, nodes.Instruction)
    trace.items[branch_at] = dataclasses.replace(branch, operands=(nodes.Reg(target),))
    trace.items[label_at] = nodes.Label(target)
    trace.items.insert(label_at, nodes.Instruction("bra", (nodes.Reg(f"{chain.name}_end"),)))
    chain.open_arm, chain.joined = None, True
