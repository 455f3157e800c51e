"""``TensorMap`` as the 128 bytes that the hardware reads, made by the driver (``cuTensorMapEncodeTiled``)."""

from __future__ import annotations

import functools
import struct
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from warpwright.cuda.driver import driver
from warpwright.errors import LaunchError
from warpwright.layout.tensor_map import FILLS, INTERLEAVES, L2_PROMOTIONS, SWIZZLES, TensorMap

__all__ = ["MovableMap", "encode", "encoded"]

Extents = tuple[int, ...]

MAP_BYTES = 128


def encode(tensor: TensorMap, pointer: int) -> bytes:
    """``tensor`` over the memory at ``pointer``, an address on the GPU."""
    return encoded(pointer, *_description(tensor))


def _description(tensor: TensorMap) -> tuple[Any, ...]:
    """What `encoded` takes behind the address."""
    return (
        tensor.dtype.tma,
        tensor.dims,
        tensor.strides,
        tensor.box,
        tensor.elem_strides,
        tensor.swizzle,
        tensor.fill,
        tensor.interleave,
        tensor.l2_promotion,
    )


@functools.lru_cache(maxsize=4096)
def encoded(
    pointer: int,
    dtype: int | None,
    dims: Extents,
    strides: Extents,
    box: Extents,
    elem_strides: Extents | None = None,
    swizzle: int = 0,
    fill: str = "zero",
    interleave: str = "none",
    l2_promotion: int = 0,
) -> bytes:
    """128 bytes of a tensor map, everything innermost first and as in `TensorMap`; the last 4096 are kept.

    ``dtype`` is the driver's code of the element type, such as ``bf16.tma``.

    Raises LaunchError for what the driver refuses.
    """
    made = _made(pointer, dtype, dims, strides, box, elem_strides, swizzle, fill, interleave, l2_promotion)
    return struct.pack("<16Q", *map(int, made.opaque))


class MovableMap:
    """The 128 bytes of ``tensor`` over the memory at any address, which may change as often as one likes.

    The first address takes some ten microseconds of host time, every other about one.
    """

    def __init__(self, tensor: TensorMap) -> None:
        self._tensor, self._map, self._lock = tensor, None, threading.Lock()

    def __call__(self, pointer: int) -> bytes:
        """Raises LaunchError for an address that the driver refuses."""
        with self._lock:
            if self._map is None:
                self._map, self._memory = self._first(pointer)
            (status,) = driver().cuTensorMapReplaceAddress(self._map, pointer)
            if status:
                raise LaunchError(_refusal(pointer, _unit(self._tensor.interleave), status.name))
            return self._memory.tobytes()

    def _first(self, pointer: int) -> tuple[Any, np.ndarray[Any, Any]]:
        made = _made(pointer, *_description(self._tensor))
        memory = {"data": (made.getPtr(), True), "shape": (MAP_BYTES,), "typestr": "|u1", "version": 3}
        return made, np.asarray(SimpleNamespace(__array_interface__=memory))


def _made(pointer: int, *how: Any) -> Any:
    """The driver's own object for a tensor map; ``how`` is what `_description` gives."""
    dtype, dims, strides, box, elem_strides, swizzle, fill, interleave, l2_promotion = how
    bindings = driver()
    status, encoded_map = bindings.cuTensorMapEncodeTiled(
        bindings.CUtensorMapDataType(dtype),
        len(dims),
        pointer,
        [bindings.cuuint64_t(n) for n in dims],
        [bindings.cuuint64_t(n) for n in strides or (0,)],  # rank 1 has none, but the driver refuses a null pointer
        [bindings.cuuint32_t(n) for n in box],
        [bindings.cuuint32_t(n) for n in elem_strides or (1,) * len(dims)],
        bindings.CUtensorMapInterleave(INTERLEAVES.index(interleave)),
        bindings.CUtensorMapSwizzle(SWIZZLES.index(swizzle)),
        bindings.CUtensorMapL2promotion(L2_PROMOTIONS.index(l2_promotion)),
        bindings.CUtensorMapFloatOOBfill(FILLS.index(fill)),
    )
    if status.value:
        raise LaunchError(_refusal(pointer, _unit(interleave), status.name))
    return encoded_map


def _unit(interleave: str) -> int:
    """Bytes of which addresses are multiples."""
    return 32 if interleave == "32B" else 16


def _refusal(pointer: int, unit: int, status: str) -> str:
    if pointer % unit:
        return (
            f"given a tensor map over address {pointer:#x}; expected a multiple of {unit} bytes; "
            "pass an array that starts there, or a copy"
        )
    return f"the CUDA driver refuses the tensor map: {status}"
