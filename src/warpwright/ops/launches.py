"""`launches`: which kernel launches a call of an operator makes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from warpwright.errors import UsageError
from warpwright.ops.binding import Call

__all__ = ["launches"]

# Operators by name, and their modules. Each module has a function `describe`; none is imported before it is needed.
OPERATORS = {
    "matmul": "warpwright.ops.matmul.call",
    "attention": "warpwright.ops.attention.forward",
    "attention_varlen": "warpwright.ops.attention.varlen",
    "attention_paged": "warpwright.ops.attention.paged",
    "attention_mla": "warpwright.ops.attention.mla",
    "gradients": "warpwright.ops.attention.backward",
    "gradients_varlen": "warpwright.ops.attention.varlen_backward",
}


def launches(operator: Callable[..., Any], *args: Any, **options: Any) -> Call:
    """Returns the launches that ``operator(*args, **options)`` makes, and starts none of them.

    ``operator`` is `matmul`, `attention`, `attention_varlen`, `attention_paged`, `attention_mla`,
    `warpwright.ops.attention.backward.gradients` or `warpwright.ops.attention.varlen_backward.gradients_varlen`.

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
    name, module = getattr(operator, "__name__", repr(operator)), getattr(operator, "__module__", None)
    if OPERATORS.get(name, "") != module:
        expected = ", ".join(OPERATORS)
        raise UsageError(f"launches: given {name}; expected one of {expected}: launches(ww.matmul, a, b)")
    bound = inspect.signature(operator).bind(*args, **options)
    bound.apply_defaults()
    call: Call = sys.modules[module].describe(*bound.args, **bound.kwargs)
    return call
