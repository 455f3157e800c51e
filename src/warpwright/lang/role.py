"""Roles: named functions that some warps of a CTA run; the decorator traces them in place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.control import check_condition
from warpwright.lang.ops.warp import elect_one
from warpwright.lang.ops.warp import warp as warp_registers
from warpwright.lang.returns import check_returns
from warpwright.lang.trace import Trace, current

__all__ = ["role"]


def role(
    *, warp: int | None = None, warps: Iterable[int] | None = None, elect: bool = False, when: Any = True
) -> Callable[[Callable[[], None]], None]:
    """Trace the decorated function, which has no parameters, in place for ``warp`` or ``warps`` (default: all).

    ``elect=True`` runs the function in one thread of each of these warps and emits ``bar.warp.sync`` after it. ``when``
    is a further condition, a pred or a Python bool. The PTX label is ``role_NAME_0``; reports and timelines use the
    name. Registers of a role cannot be read outside it.

    Raises KernelError for warps the CTA does not have, a role inside a role, or a function with parameters.
    """

    def trace_role(function: Callable[[], None]) -> None:
        trace = current()
        chosen = _warps(trace, function.__name__, warp, warps)
        _check_function(trace, function)
        if when is not False:
            _emit_role(trace, function, chosen, elect, when)

    return trace_role


def _check_function(trace: Trace, function: Callable[[], None]) -> None:
    if trace.scope.role is not None:
        raise misuse(f"given role {function.__name__} inside role {trace.scope.role.name}; expected roles side by side")
    if inspect.signature(function).parameters:
        raise misuse(
            f"given role {function.__name__} with parameters; "
            "expected none: a role reads the names of its enclosing function"
        )
    if inspect.isgeneratorfunction(function):
        raise misuse(f"given role {function.__name__} with a yield; expected a plain function")


def _warps(trace: Trace, name: str, warp: int | None, warps: Iterable[int] | None) -> tuple[int, ...]:
    """Returns the warps of a role, in order. Raises KernelError for none, for both arguments, and for missing warps."""
    count = _warp_count(trace)
    if warp is not None and warps is not None:
        raise misuse(f"given role {name} with warp={warp} and warps={warps!r}; expected one of them")
    chosen = tuple(range(count)) if warp is None and warps is None else (warp,) if warps is None else tuple(warps)
    missing = [index for index in chosen if not isinstance(index, int) or not 0 <= index < count]
    if missing or not chosen:
        raise misuse(
            f"given role {name} for warps {list(chosen)}; "
            f"expected warps 0 to {count - 1} of the CTA's {count * 32} threads"
        )
    return tuple(sorted(set(chosen)))  # type: ignore[arg-type]


def _warp_count(trace: Trace) -> int:
    x, y, z = trace.threads
    return -(-x * y * z // 32)


def _emit_role(trace: Trace, function: Callable[[], Any], chosen: tuple[int, ...], elect: bool, when: Any) -> None:
    label = trace.label(f"role_{function.__name__}")
    end = f"{label}_end"
    for condition in (_is_one_of(trace, chosen), when):
        if condition is not True:
            check_condition("role", condition)
            trace.emit("bra", end, guard=~condition)
    trace.place(label)
    with trace.inside("role", function.__name__):
        if elect:
            trace.emit("bra", f"{label}_join", guard=~elect_one())
        check_returns(function, function())
    if elect:
        trace.place(f"{label}_join")
        trace.emit("bar.warp.sync", "0xffffffff")
    trace.place(end)


def _is_one_of(trace: Trace, chosen: tuple[int, ...]) -> Any:
    """Returns a pred, whether this thread's warp is one of ``chosen``, or True if every warp is."""
    count, low, high = _warp_count(trace), chosen[0], chosen[-1]
    index = warp_registers.id
    if len(chosen) == 1 and count > 1:
        return index == low
    if len(chosen) == high - low + 1:
        return (True if low == 0 else index >= low) & (True if high == count - 1 else index <= high)
    either: Any = False
    for number in chosen:
        either = (index == number) | either
    return either
