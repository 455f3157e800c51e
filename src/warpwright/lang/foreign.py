"""Python's and NumPy's way to write what the language writes otherwise: their operators work, the rest is an error."""

from __future__ import annotations

import operator
import re
from typing import Any

import numpy as np

from warpwright.errors import KernelError
from warpwright.lang.context import misuse, source_line, where

__all__ = ["MissingAttribute", "apply_operator", "computed_error", "missing"]

_OPERATORS: dict[str, Any] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "negative": operator.neg, "absolute": operator.abs,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "invert": operator.invert,
    "left_shift": operator.lshift, "right_shift": operator.rshift, "equal": operator.eq, "not_equal": operator.ne,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
_FUNCTIONS = {
    "sin": "sin(x)", "cos": "cos(x)", "tan": "sin(x) / cos(x)", "tanh": "tanh(x)", "sqrt": "sqrt(x)",
    "exp": "ex2(x * 1.442695)", "exp2": "ex2(x)", "log": "lg2(x) * 0.693147", "log2": "lg2(x)",
    "pow": "ex2(lg2(x) * y)", "power": "ex2(lg2(x) * y)", "reciprocal": "rcp(x)", "square": "x * x",
    "maximum": "max(x, y)", "minimum": "min(x, y)", "fmax": "max(x, y)", "fmin": "min(x, y)", "fabs": "abs(x)",
    "floor": 'cvt(x, s32, rnd="rmi")', "ceil": 'cvt(x, s32, rnd="rpi")', "trunc": "x.to(s32)",
    "rint": 'cvt(x, s32, rnd="rni")', "fma": "fma(x, y, z)", "isnan": "x != x",
}  # fmt: skip
_SHAPE = "it has no shape: pass the size as a parameter n: u32"
_ATTRIBUTES = {
    "shape": _SHAPE, "size": _SHAPE, "ndim": _SHAPE, "strides": _SHAPE, "astype": "write x.to(f32)",
    "set": "only a variable changes: write x = var(u32, …)", "item": "its value is known only when the kernel runs",
}  # fmt: skip


class MissingAttribute(KernelError, AttributeError):
    """A kernel reads an attribute that NumPy's arrays have and values of the language have not."""


def missing(value: Any, name: str) -> AttributeError:
    """Returns the error for the attribute ``name``, which ``value`` lacks."""
    hint = _ATTRIBUTES.get(name)
    if hint is None:
        return AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")
    return MissingAttribute(f"given .{name} of {value!r}; {hint}", where=where())


def apply_operator(ufunc: Any, method: str, inputs: tuple[Any, ...], boxed: type) -> Any:
    """Returns an operator of NumPy numbers, or arrays, and values of type ``boxed``, element by element.

    Raises KernelError for another function of NumPy.
    """
    if method != "__call__" or ufunc.__name__ not in _OPERATORS:
        raise misuse(_function_error("np", ufunc.__name__, next(each for each in inputs if isinstance(each, boxed))))
    boxes = [np.empty((), object) if isinstance(each, boxed) else each for each in inputs]
    for box, each in zip(boxes, inputs, strict=True):
        if isinstance(each, boxed):
            box[()] = each
    return np.frompyfunc(_OPERATORS[ufunc.__name__], len(boxes), 1)(*boxes)


def computed_error(value: Any) -> KernelError:
    """Returns the error for ``value`` where a C function wants a float: ``float``, or one of the module math."""
    found = re.search(r"\bmath\.(\w+)\(", source_line())
    if found:
        return misuse(_function_error("math", found[1], value))
    return misuse(
        f"given {value} to float() or a function of math, but its value is known only when the kernel runs; write "
        "x.to(f32), or the function of warpwright.lang"
    )


def _function_error(module: str, name: str, value: Any) -> str:
    edit = _FUNCTIONS.get(name, "it with the functions of warpwright.lang: sin(x), ex2(x), select(p, x, y), …")
    return f"given {value} to {module}.{name}, which runs while the kernel is traced; write {edit}"
