"""The epilogue arguments of `matmul`: scales, a bias and an activation, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from warpwright import types
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import Library, View, library_of, location, overlap
from warpwright.errors import UsageError
from warpwright.kernels.gemm.epilogue import ACTIVATIONS, PLAIN, Epilogue

__all__ = ["FLOAT32_MAX", "NONE", "PAIR_BYTES", "EpilogueArgs", "check_epilogue"]

FLOATS = tuple(np.dtype(each) for each in (ml_dtypes.bfloat16, np.float16, np.float32))
FLOAT32_MAX = float(np.finfo(np.float32).max)
PAIR_BYTES = 8


@dataclass(frozen=True, slots=True)
class EpilogueArgs:
    """``activation(alpha · scale_a · scale_b · sum + bias)``; without scales the three factors are left out.

    ``alpha`` is the product of the scales on the host; ``scale_a`` and ``scale_b`` are scales on the GPU. ``bias`` is
    as kernels read it: dense, with an even number of ``columns``, aligned to pairs. ``epilogue`` is the part of the
    kernel's configuration that computes all this.
    """

    alpha: float = 1.0
    scale_a: DeviceArray | None = None
    scale_b: DeviceArray | None = None
    bias: View | None = None
    epilogue: Epilogue = PLAIN
    columns: int = 0


NONE = EpilogueArgs()


def check_epilogue(
    library: Library, a: View, columns: int, bias: Any, activation: str | None, scale_a: Any, scale_b: Any, out: Any
) -> EpilogueArgs:
    """Returns the epilogue arguments of `matmul` for a result of ``columns``.

    Raises UsageError for an unknown activation, and for a bias or scale of another shape, dtype or device.
    """
    if bias is None and activation is None and scale_a is None and scale_b is None:
        return NONE
    if activation is not None and activation not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise UsageError(f"matmul: activation={activation!r}; expected one of {known}, or None")
    scales = [_scale(name, value, a) for name, value in (("scale_a", scale_a), ("scale_b", scale_b))]
    alpha = math.prod(scale for scale in scales if isinstance(scale, float))
    if math.isfinite(alpha) and abs(alpha) > FLOAT32_MAX:
        raise UsageError(f"matmul: scale_a and scale_b are {alpha!r} together; expected a number that float32 holds")
    on_gpu = [scale if isinstance(scale, DeviceArray) else None for scale in scales]
    scaled = scale_a is not None or scale_b is not None
    ready = None if bias is None else _bias(library, bias, a, columns, out)
    of_bias = None if ready is None else types.of_dtype(ready.dtype)
    kernels = Epilogue(scaled, of_bias, activation or "")
    size = 0 if ready is None else ready.size
    return EpilogueArgs(alpha, on_gpu[0], on_gpu[1], ready, kernels, size)


def _scale(name: str, value: Any, a: View) -> float | DeviceArray | None:
    """Returns a number on the host, or an element on the GPU that holds ``a``."""
    if value is None or (isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)):
        return None if value is None else float(value)
    library = library_of(value)
    view = None if library is None else library.view(value)
    if view is None or view.dtype != np.float32 or view.size != 1:
        given = f"a {type(value).__name__}" if view is None else f"{_shape(view.shape)} of {view.dtype}"
        raise UsageError(f"matmul: {name} is {given}; expected a number, or an array of one float32 element")
    if not isinstance(view, DeviceArray):
        return float(view.reshape(()))
    if location(view) != location(a):
        raise UsageError(
            f"matmul: a is on {location(a)} and {name} on {location(view)}; expected it there or on the host"
        )
    return view


def _bias(library: Library, bias: Any, a: View, columns: int, out: Any) -> View:
    """Returns the bias as kernels read it, in place or as a copy."""
    view = library.view(bias)
    if view.shape != (columns,):
        raise UsageError(
            f"matmul: bias has shape {view.shape}; expected ({columns},), an element for each column of the result"
        )
    if view.dtype not in FLOATS:
        raise UsageError(f"matmul: bias is {view.dtype}; expected bfloat16, float16 or float32: bias{library.rounding}")
    if location(view) != location(a):
        raise UsageError(f"matmul: a is on {location(a)} and bias on {location(view)}; expected all on one device")
    if out is not None and overlap(library.view(out), view):
        raise UsageError("matmul: out overlaps bias; expected memory of its own: leave out= out")
    if columns % 2 == 0 and (not isinstance(view, DeviceArray) or (view.dense and view.pointer % PAIR_BYTES == 0)):
        return view
    copy = library.zeros((columns + columns % 2,), view.dtype, bias)
    copy[:columns] = bias
    return library.view(copy)


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "one element"
