"""The 128-byte encoding of a ``TensorMap``, by the driver (``cuTensorMapEncodeTiled``, ``cuTensorMapEncodeIm2col``)."""

from __future__ import annotations

import functools
import struct
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from warpwright.cuda.driver import driver
from warpwright.errors import LaunchError
from warpwright.layout.swizzle import Mode
from warpwright.layout.tensor_map import FILLS, INTERLEAVES, L2_PROMOTIONS, SWIZZLES, TensorMap

__all__ = ["MovableMap", "encode", "encode_fields"]

Extents = tuple[int, ...]

MAP_BYTES = 128


def encode(tensor: TensorMap, pointer: int) -> bytes:
    """Returns the 128 bytes of ``tensor`` over the memory at ``pointer``, an address on the GPU."""
    return encode_fields(pointer, *_fields(tensor))


def _fields(tensor: TensorMap) -> tuple[Any, ...]:
    """Returns the arguments of `encode_fields` after the address."""
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
        tensor.corners,
    )


@functools.lru_cache(maxsize=4096)
def encode_fields(
    pointer: int,
    dtype: int | None,
    dims: Extents,
    strides: Extents,
    box: Extents,
    elem_strides: Extents | None = None,
    swizzle: Mode = 0,
    fill: str = "zero",
    interleave: str = "none",
    l2_promotion: int = 0,
    corners: tuple[Extents, ...] = (),
) -> bytes:
    """Returns the 128 bytes of a tensor map; the last 4096 results are cached.

    The arguments are the attributes of `TensorMap`, innermost dimension first. ``dtype`` is the driver's code of the
    element type, such as ``bf16.tma``. Raises LaunchError if the driver refuses the tensor map.
    """
    fields = dtype, dims, strides, box, elem_strides, swizzle, fill, interleave, l2_promotion, corners
    handle = _encode(pointer, *fields)
    return struct.pack("<16Q", *map(int, handle.opaque))


class MovableMap:
    """The 128 bytes of ``tensor`` over memory at a variable address.

    The first call takes about ten microseconds of host time, every later call about one.
    """

    def __init__(self, tensor: TensorMap) -> None:
        self._tensor, self._map, self._lock = tensor, None, threading.Lock()

    def __call__(self, pointer: int) -> bytes:
        """Returns the 128 bytes for the address ``pointer``. Raises LaunchError if the driver refuses it."""
        with self._lock:
            if self._map is None:
                self._map, self._memory = self._first(pointer)
            (status,) = driver().cuTensorMapReplaceAddress(self._map, pointer)
            if status:
                raise LaunchError(_refusal(pointer, _unit(self._tensor.interleave), status.name))
            return self._memory.tobytes()

    def _first(self, pointer: int) -> tuple[Any, np.ndarray[Any, Any]]:
        handle = _encode(pointer, *_fields(self._tensor))
        memory = {"data": (handle.getPtr(), True), "shape": (MAP_BYTES,), "typestr": "|u1", "version": 3}
        return handle, np.asarray(SimpleNamespace(__array_interface__=memory))


def _encode(pointer: int, *fields: Any) -> Any:
    """Returns the driver's object of a tensor map; ``fields`` are those of `_fields`."""
    dtype, dims, strides, box, elem_strides, swizzle, fill, interleave, l2_promotion, corners = fields
    bindings = driver()
    encode = bindings.cuTensorMapEncodeIm2col if corners else bindings.cuTensorMapEncodeTiled
    status, encoded_map = encode(
        bindings.CUtensorMapDataType(dtype),
        len(dims),
        pointer,
        [bindings.cuuint64_t(n) for n in dims],
        [
            bindings.cuuint64_t(n) for n in strides or (0,)
        ],  # rank 1 has no strides, but the driver refuses a null pointer
        *(map(list, corners) if corners else ()),
        *(box if corners else [[bindings.cuuint32_t(n) for n in box]]),
        [bindings.cuuint32_t(n) for n in elem_strides or (1,) * len(dims)],
        bindings.CUtensorMapInterleave(INTERLEAVES.index(interleave)),
        bindings.CUtensorMapSwizzle(SWIZZLES[swizzle]),
        bindings.CUtensorMapL2promotion(L2_PROMOTIONS.index(l2_promotion)),
        bindings.CUtensorMapFloatOOBfill(FILLS.index(fill)),
    )
    if status.value:
        raise LaunchError(_refusal(pointer, _unit(interleave), status.name))
    return encoded_map


def _unit(interleave: str) -> int:
    """Returns the alignment of addresses, in bytes."""
    return 32 if interleave == "32B" else 16


def _refusal(pointer: int, unit: int, status: str) -> str:
    if pointer % unit:
        return (
            f"given a tensor map over address {pointer:#x}; expected a multiple of {unit} bytes; "
            "pass an aligned array, or a copy"
        )
    return f"the CUDA driver refuses the tensor map: {status}"
