"""Reductions of asynchronous operations: what ``.add`` to ``.xor`` do to an element (PTX ISA 9.1 section 9.7.9.25.4.2).

An element is updated atomically (`GLOBAL_LOCK` for memory that several clusters reach). Sums round to nearest even in
the element's type; f32 sums flush subnormal operands and results to zero of the same sign, as PTX says of bulk
reductions in global memory. Minimum and maximum ignore a NaN, and -0 is less than +0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["GLOBAL_LOCK", "TENSOR_TYPES", "combine", "dtype_of"]

GLOBAL_LOCK = threading.Lock()

Array = NDArray[Any]

_DTYPES: dict[str, Any] = {
    "b32": np.uint32, "b64": np.uint64, "u32": np.uint32, "u64": np.uint64, "s32": np.int32, "s64": np.int64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip

# op: element types of a tensor map that it takes
TENSOR_TYPES: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f32", "f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("u32", "s32", "u64", "s64"),
    "or": ("u32", "s32", "u64", "s64"),
    "xor": ("u32", "s32", "u64", "s64"),
}


def dtype_of(type: str) -> np.dtype[Any]:
    """The NumPy dtype in which a PTX type is reduced."""
    found: np.dtype[Any] = np.dtype(_DTYPES[type])
    return found


def combine(op: str, old: Array, new: Array) -> Array:
    """Element by element, the value that replaces ``old``."""
    floating = old.dtype.kind not in "iu"
    with np.errstate(all="ignore"):
        result: Array = (_FLOATS if floating else _INTEGERS)[op](old, new)
    return result


def _add(old: Array, new: Array) -> Array:
    if old.dtype == np.float32:
        return _flush(_flush(old) + _flush(new))
    return old + new


def _flush(x: Array) -> Array:
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), x), x)


def _least(old: Array, new: Array, flip: bool) -> Array:
    a, b = old.astype(np.float64), new.astype(np.float64)
    less = (a > b) if flip else (a < b)
    tie = (a == b) & (np.signbit(a) != flip)
    return np.where(less | tie | np.isnan(b), old, new)


_INTEGERS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, new: np.where(old >= new, 0, old + 1).astype(old.dtype),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype),
}
_FLOATS: dict[str, Callable[[Array, Array], Array]] = {
    "add": _add,
    "min": lambda old, new: _least(old, new, False),
    "max": lambda old, new: _least(old, new, True),
}
