"""The memory that a kernel of another compiler may reach: torch's tensors and other arrays on the host, found by their
addresses."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray
from torch._subclasses.fake_tensor import is_fake

from warpwright.programs.memory import allocations_of_process

__all__ = ["Memory", "host_array", "whole"]

Bytes = NDArray[np.uint8]

TABLE, TABLE_ARRAYS = (torch.int64, torch.uint64), (np.int64, np.uint64)  # dtypes that addresses may have
_arrays: weakref.WeakValueDictionary[int, NDArray[Any]] = weakref.WeakValueDictionary()  # of NumPy, by their numbers


def host_array(value: Any) -> NDArray[Any] | None:
    """Returns the array of NumPy with the memory of an object with ``__dlpack__``, which kernels may reach as long as
    the array exists; None for tensors of torch and for dtypes that NumPy lacks."""
    if isinstance(value, torch.Tensor):
        return None
    with contextlib.suppress(BufferError, RuntimeError):
        array: NDArray[Any] = value if isinstance(value, np.ndarray) else np.from_dlpack(value)
        _arrays[id(array)] = array
        return array
    return None


class Memory:
    """The memory that a launch may reach, found in its arguments."""

    def __init__(self) -> None:
        self.storages: dict[int, Bytes] = {}
        self.tables = False

    def pointer(self, value: Any) -> int:
        """Returns the address of an argument: a tensor, another object with ``data_ptr``, a number, or None."""
        if value is None or isinstance(value, int):
            self.tables |= bool(value)
            return value or 0
        tensor = getattr(value, "base", value)  # TensorWrapper of triton.reinterpret
        if isinstance(tensor, torch.Tensor):
            self._add(tensor)
        return int(value.data_ptr())

    def find(self, params: Sequence[bytes]) -> None:
        """Add the tensors and arrays whose addresses are 64-bit words of parameters: those of structs and tensor maps
        too."""
        tensors = sorted(living(), key=lambda tensor: tensor.untyped_storage().data_ptr())
        starts = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        words = np.frombuffer(b"".join(data[: len(data) // 8 * 8] for data in params), np.uint64)
        for array in _arrays.values():
            start, end = byte_bounds(array)
            if np.any((start <= words) & (words <= end)):
                self.storages[start] = _bytes_at(start, end - start, array)
                self.tables |= array.dtype in TABLE_ARRAYS
        for word in words.tolist():
            at = bisect.bisect_right(starts, word) - 1
            if at >= 0 and word <= starts[at] + tensors[at].untyped_storage().nbytes():
                self._add(tensors[at])

    def arrays(self) -> list[Bytes]:
        """Returns the arrays that a launch may reach, allocations of the driver included; if one may contain addresses,
        also all tensors of the program."""
        for tensor in living() if self.tables else ():
            self._add(tensor)
        return [*self.storages.values(), *allocations_of_process()]

    def _add(self, tensor: torch.Tensor) -> None:
        self.storages[tensor.untyped_storage().data_ptr()] = whole(tensor)
        self.tables |= tensor.dtype in TABLE


def living() -> list[torch.Tensor]:
    """Returns the tensors of the program that lie on the host: those that Python knows, one of each storage.
    torch.compile has tensors without memory, fake ones."""
    found = {}
    for tensor in gc.get_objects():
        if not issubclass(type(tensor), torch.Tensor) or is_fake(tensor):
            continue
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            found[tensor.untyped_storage().data_ptr()] = tensor
    found.pop(0, None)
    return list(found.values())


def whole(tensor: torch.Tensor) -> Bytes:
    """Returns all memory that ``tensor`` is a view of."""
    storage = tensor.untyped_storage()
    return _bytes_at(storage.data_ptr(), storage.nbytes(), storage)


def _bytes_at(address: int, nbytes: int, owner: Any) -> Bytes:
    """Returns memory that ``owner`` keeps, without an operator of torch, which a graph would record."""
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return np.ctypeslib.as_array(memory)
