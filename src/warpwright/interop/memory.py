"""The memory that a kernel of another compiler may reach: torch's tensors on the host, found by their addresses."""

from __future__ import annotations

import bisect
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Memory", "whole"]

Bytes = NDArray[np.uint8]

TABLE = (torch.int64, torch.uint64)  # dtypes of tensors that may hold addresses


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
        """Add the tensors whose addresses are 64-bit words of parameters: those of structs and tensor maps too."""
        tensors = sorted(living(), key=lambda tensor: tensor.untyped_storage().data_ptr())
        starts = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        words = b"".join(data[: len(data) // 8 * 8] for data in params)
        for word in np.frombuffer(words, np.uint64).tolist():
            at = bisect.bisect_right(starts, word) - 1
            if at >= 0 and word <= starts[at] + tensors[at].untyped_storage().nbytes():
                self._add(tensors[at])

    def arrays(self) -> list[Bytes]:
        """Returns the arrays that a launch may reach; if one may contain addresses, all tensors of the program."""
        for tensor in living() if self.tables else ():
            self._add(tensor)
        return list(self.storages.values())

    def _add(self, tensor: torch.Tensor) -> None:
        self.storages[tensor.untyped_storage().data_ptr()] = whole(tensor)
        self.tables |= tensor.dtype in TABLE


def living() -> list[torch.Tensor]:
    """Returns the tensors of the program that lie on the host: those that Python knows, one of each storage."""
    found = {}
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor) and tensor.device.type == "cpu" and tensor.layout is torch.strided:
            found[tensor.untyped_storage().data_ptr()] = tensor
    found.pop(0, None)
    return list(found.values())


def whole(tensor: torch.Tensor) -> Bytes:
    """Returns all memory that ``tensor`` is a view of."""
    array: Bytes = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    return array
