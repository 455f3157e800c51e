"""Arrays in GPU memory: of torch, CuPy, JAX or any library with ``__cuda_array_interface__`` or DLPack."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib import array_utils
from numpy.typing import NDArray

from warpwright.errors import UsageError

__all__ = [
    "DeviceArray", "Span", "dense_strides", "device_array", "dtype_of_name", "reach", "refuse_written", "spans",
]  # fmt: skip

DLPACK_CUDA = 2


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in GPU memory: ``pointer`` is the address of its first element, ``strides`` are in bytes.

    ``ordinal`` is the number of the GPU, None if unknown; ``owner`` keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    ordinal: int | None
    owner: Any

    def __repr__(self) -> str:
        where = "a GPU" if self.ordinal is None else f"cuda:{self.ordinal}"
        return f"DeviceArray({self.dtype}, shape={self.shape}, strides={self.strides}, at {self.pointer:#x} of {where})"

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def T(self) -> DeviceArray:
        """Returns the same memory with its axes in reverse order."""
        return replace(self, shape=self.shape[::-1], strides=self.strides[::-1])

    def swapaxes(self, first: int, second: int) -> DeviceArray:
        """Returns the same memory with two axes exchanged."""
        order = list(range(len(self.shape)))
        order[first], order[second] = order[second], order[first]
        shape, strides = (tuple(values[axis] for axis in order) for values in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    def __getitem__(self, index: tuple[int, ...]) -> DeviceArray:
        """Returns the array at ``index`` of the first axes."""
        pointer, count = self.pointer + sum(i * step for i, step in zip(index, self.strides, strict=False)), len(index)
        return replace(self, pointer=pointer, shape=self.shape[count:], strides=self.strides[count:])

    @property
    def dense(self) -> bool:
        """Whether the elements are in C order without gaps."""
        rows = zip(self.shape, self.strides, dense_strides(self.shape, self.itemsize), strict=True)
        return self.size == 0 or all(extent == 1 or stride == wanted for extent, stride, wanted in rows)


class Span:
    """The host memory from address ``low`` to ``high``, which the ``arrays`` cover; keeps the arrays alive."""

    def __init__(self, low: int, high: int, arrays: Sequence[NDArray[Any]]) -> None:
        self.low, self.high, self.arrays = low, high, arrays
        self.writable = all(array.flags.writeable for array in arrays)
        data = (low, not self.writable)
        self.__array_interface__ = {"data": data, "shape": (high - low,), "typestr": "|u1", "version": 3}

    @property
    def whole(self) -> bool:
        """Whether the span is one writable array without gaps between its elements."""
        return self.writable and len(self.arrays) == 1 and self.arrays[0].nbytes == self.high - self.low

    def write_back(self, memory: NDArray[np.uint8], *, discard: bool = False) -> list[NDArray[Any]]:
        """Copy ``memory``, the span's bytes after a launch, to the writable arrays, unless ``discard``.

        Returns the read-only arrays that the launch has written: those of other values than the arrays that share
        their memory explain.
        """
        locked = [array for array in self.arrays if not array.flags.writeable]
        if discard and not locked:
            return []
        copy = np.array(self) if discard else None
        for array in self.arrays:
            if array.flags.writeable:
                self._host(array, copy)[...] = self._part(array, memory)
        return [array for array in locked if not _equal_bytes(self._host(array, copy), self._part(array, memory))]

    def _host(self, array: NDArray[Any], copy: NDArray[np.uint8] | None) -> NDArray[Any]:
        return array if copy is None else self._part(array, copy)

    def _part(self, array: NDArray[Any], memory: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns the elements of ``array`` in ``memory``, which has the bytes of the span."""
        return np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - self.low, array.strides)


def _equal_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (a, b))
    return np.array_equal(first, second)


def refuse_written(kernel: str, names: Iterable[str], arrays: Iterable[Any], written: Sequence[NDArray[Any]]) -> None:
    """Raise UsageError for the first of a launch's ``arrays`` that is among the read-only ones that it has ``written``;
    ``names`` are those of the arrays."""
    for name, array in zip(names, arrays, strict=True):
        if any(array is each for each in written):
            raise UsageError(
                f"kernel {kernel!r} wrote {name}, an array that is read-only or has several elements at one "
                "address; it is unchanged and all other results are stored; expected an array of its own: x.copy()"
            )


def spans(arrays: Iterable[NDArray[Any]], *, touching: bool = False) -> list[Span]:
    """Returns the memory of ``arrays`` by address, gaps between rows included; arrays that overlap share a span, and
    with ``touching`` also those without a byte between them."""
    joined: list[tuple[int, int, list[NDArray[Any]]]] = []
    bounds = ((*array_utils.byte_bounds(array), array) for array in arrays if array.size)
    for low, high, array in sorted(bounds, key=lambda bound: bound[:2]):
        if joined and low < joined[-1][1] + touching:
            first, last, together = joined[-1]
            joined[-1] = first, max(high, last), [*together, array]
        else:
            joined.append((low, high, [array]))
    return [Span(*each) for each in joined]


def device_array(value: Any) -> DeviceArray | None:
    """Returns ``value`` as a DeviceArray; None if it is no array on a GPU.

    Raises UsageError for an element type that neither NumPy nor ml_dtypes has.
    """
    if isinstance(value, DeviceArray):
        return value
    if hasattr(value, "data_ptr"):
        return _of_torch(value) if value.is_cuda else None
    if hasattr(value, "__cuda_array_interface__"):
        return _of_interface(value)
    if hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == DLPACK_CUDA:
        return _of_dlpack(value)
    return None


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Returns the strides in bytes of a C-contiguous array."""
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def reach(layout: tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]) -> int:
    """Returns the bytes from the first element of an array of ``layout`` (shape, strides, dtype) to the end of the
    last."""
    shape, strides, dtype = layout
    return sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + dtype.itemsize


def _of_torch(tensor: Any) -> DeviceArray:
    """Reads a tensor without its exchange protocols, which refuse float8 and tensors that require gradients."""
    dtype = dtype_of_name(str(tensor.dtype).removeprefix("torch."))
    strides = tuple(step * dtype.itemsize for step in tensor.stride())
    return DeviceArray(tensor.data_ptr(), tuple(tensor.shape), strides, dtype, tensor.device.index, tensor)


def _of_interface(value: Any) -> DeviceArray:
    interface = value.__cuda_array_interface__
    dtype = np.dtype(getattr(value, "dtype", interface["typestr"]))
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or dense_strides(shape, dtype.itemsize)
    ordinal = getattr(getattr(value, "device", None), "id", None)
    return DeviceArray(interface["data"][0], shape, tuple(strides), dtype, ordinal, value)


def _of_dlpack(value: Any) -> DeviceArray:
    from cuda.core.utils import StridedMemoryView

    view = StridedMemoryView.from_dlpack(value, stream_ptr=-1)
    shape, dtype = tuple(view.shape), np.dtype(view.dtype)
    strides = tuple(step * dtype.itemsize for step in view.strides) if view.strides else None
    return DeviceArray(view.ptr, shape, strides or dense_strides(shape, dtype.itemsize), dtype, view.device_id, view)


@functools.cache
def dtype_of_name(name: str) -> np.dtype[Any]:
    """Returns the dtype of NumPy or ml_dtypes that torch calls ``name``."""
    found = getattr(ml_dtypes, name, None) or getattr(np, name, None)
    try:
        return np.dtype(found if found is not None else name)
    except TypeError:
        raise UsageError(f"given elements of type {name}; expected one that NumPy or ml_dtypes has") from None
