"""Reductions of asynchronous operations: ``.add`` to ``.xor`` of elements (PTX ISA 9.1 section 9.7.9.25.4.2).

An element is updated atomically (`Fabric.global_lock` for memory that several clusters reach). Sums round to nearest
even in the element's type; subnormal numbers stay (PTX says that f32 sums flush them; an H200 does not). Minimum and
maximum ignore a NaN, and -0 is less than +0. A NaN result has all mantissa bits set; in f64 infinity minus infinity is
0xfff8000000000000, and another NaN stays (seen on an H200).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["TENSOR_TYPES", "combine", "dtype_of"]

Array = NDArray[Any]

_DTYPES: dict[str, Any] = {
    "b32": np.uint32, "b64": np.uint64, "u32": np.uint32, "u64": np.uint64, "s32": np.int32, "s64": np.int64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip

_NANS: dict[int, np.unsignedinteger[Any]] = {
    2: np.uint16(0x7FFF), 4: np.uint32(0x7FFFFFFF), 8: np.uint64(0xFFF8_0000_0000_0000),
}  # fmt: skip

# op: element types of a tensor map that it accepts
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
    """The new values of ``old``, element by element."""
    floating = old.dtype.kind not in "iu"
    with np.errstate(all="ignore"):
        result: Array = (_FLOATS if floating else _INTEGERS)[op](old, new)
        if not floating:
            return result
        nan = np.isnan(result)
        if result.dtype.itemsize == 8:
            nan &= ~(np.isnan(old) | np.isnan(new))
        return np.where(nan, _NANS[result.dtype.itemsize].view(result.dtype), result)


def _minimum(old: Array, new: Array, flip: bool) -> Array:
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
    "add": np.add,
    "min": lambda old, new: _minimum(old, new, False),
    "max": lambda old, new: _minimum(old, new, True),
}
