"""`launches`: which kernel launches a call of an operator makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from warpwright.errors import UsageError
from warpwright.ops.attention import backward, forward, varlen
from warpwright.ops.binding import Call
from warpwright.ops.matmul import call

__all__ = ["launches"]

OPERATORS: dict[Callable[..., Any], Callable[..., Call]] = {
    call.matmul: call.describe,
    forward.attention: forward.describe,
    varlen.attention_varlen: varlen.describe,
    backward.gradients: backward.describe,
}


def launches(operator: Callable[..., Any], *args: Any, **options: Any) -> Call:
    """Returns the launches that ``operator(*args, **options)`` makes, and starts none of them.

    ``operator`` is `matmul`, `attention`, `attention_varlen` or `warpwright.ops.attention.backward.gradients`.

        call = ww.launches(ww.matmul, a, b, device="h200")
        for x in call:
            print(x.kernel.entry, x.grid)
            print(ww.check(x.kernel, x.grid, args=x.args, device=call.device, update=True))
        d = call.result

    Each launch has a traced ``kernel``, a ``grid`` and ``args``, as `ww.launch`, `ww.check` and `ww.profile` take them.
    Run each launch before you take the next: a launch may read the results of its predecessor. After the last launch
    ``result`` is the result of the operator. A call without elements makes no launch.

    Raises UsageError for another function, and as the operator does.
    """
    describe = OPERATORS.get(operator)
    if describe is None:
        names = ", ".join(known.__name__ for known in OPERATORS)
        name = getattr(operator, "__name__", repr(operator))
        raise UsageError(f"launches: given {name}; expected one of {names}: launches(ww.matmul, a, b)")
    bound = inspect.signature(operator).bind(*args, **options)
    bound.apply_defaults()
    return describe(*bound.args, **bound.kwargs)
