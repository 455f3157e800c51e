"""JAX arrays on the CPU: operators read them in place as NumPy arrays, and copy their results to JAX."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import UsageError

__all__ = ["jax_result", "jax_view"]


def jax_view(array: Any) -> NDArray[Any]:
    """Returns the elements of a JAX array once they are computed, read-only; a new array of NumPy is its own view.

    Raises UsageError for a value that JAX traces, and for an array that is not on one CPU.
    """
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, sys.modules["jax"].core.Tracer):
        raise UsageError(
            "given a value that JAX traces; expected an array: call warpwright outside jax.jit, jax.grad and jax.vmap, "
            "or from jax.pure_callback with np.asarray of its arguments"
        )
    places = sorted((device.platform, device.id) for device in array.devices())
    if [platform for platform, _ in places] != ["cpu"]:
        names = ", ".join(f"{platform}:{number}" for platform, number in places)
        raise UsageError(
            f"given a JAX array on {names}; expected one on one CPU: jax.device_put(x, jax.devices('cpu')[0])"
        )
    return np.asarray(array)


def jax_result(result: Any) -> Any:
    """Returns the result of an operator, an array of NumPy or a tuple with several, with copies in JAX."""
    if isinstance(result, tuple):
        return tuple(map(jax_result, result))
    return sys.modules["jax"].numpy.array(result) if isinstance(result, np.ndarray) else result
