"""Global memory of a launch: allocations at fixed virtual addresses, each a buffer of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib import array_utils
from numpy.typing import NDArray

from warpwright.arrays import Span
from warpwright.vgpu.jit.state import GLOBAL_BASE

__all__ = ["GlobalMemory", "aligned_zeros"]

_ALIGN = 256
_GAP = 4096  # unmapped bytes between allocations, so that running past one is seen


def aligned_zeros(nbytes: int, align: int = _ALIGN) -> NDArray[np.uint8]:
    """Zeroed bytes whose host address is a multiple of ``align``."""
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]


class GlobalMemory:
    """The device's global memory during one launch.

    ``table`` has a row an allocation: first address, last address + 1, host address - virtual address.
    """

    def __init__(self) -> None:
        self._next = GLOBAL_BASE
        self._held: list[tuple[int, NDArray[np.uint8]]] = []
        self._arrays: dict[int, tuple[int, NDArray[Any]]] = {}

    def place(self, address: int, data: bytes) -> None:
        """An allocation at a given address (module variables), holding ``data``."""
        self._add(address, np.frombuffer(data, np.uint8))

    def reserve(self, data: bytes | NDArray[np.uint8]) -> int:
        """A new allocation holding ``data``; gives its virtual address."""
        content = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        address = self._next
        self._add(address, content)
        return address

    def _add(self, address: int, content: NDArray[np.uint8]) -> None:
        buffer = aligned_zeros(max(1, content.size))
        buffer[: content.size] = content
        self._held.append((address, buffer))
        end = address + buffer.size + _GAP
        self._next = max(self._next, -(-end // _ALIGN) * _ALIGN)

    def upload(self, array: NDArray[Any]) -> int:
        """Copy an array in; gives the virtual address of its first element. The same memory is copied once."""
        if array.size == 0:
            return self.reserve(b"")
        span = Span(array)
        low, content = span.low, np.asarray(span)
        if low not in self._arrays or self._span(low) < content.size:
            self._arrays[low] = (self.reserve(content), array)
        return self._arrays[low][0] + array.ctypes.data - low

    def _span(self, low: int) -> int:
        return int(self.view(self._arrays[low][0]).size)

    def download(self) -> None:
        """Copy the arrays back that may be written."""
        for address, array in self._arrays.values():
            if array.flags.writeable:
                low, _ = array_utils.byte_bounds(array)
                start = array.ctypes.data - low
                held = self.view(address)
                array[...] = np.ndarray(array.shape, array.dtype, held, start, array.strides)

    def view(self, address: int) -> NDArray[np.uint8]:
        """The bytes from a virtual address to the end of its allocation; empty when there is none."""
        for first, buffer in self._held:
            if first <= address < first + buffer.size:
                return buffer[address - first :]
        return np.empty(0, np.uint8)

    @property
    def table(self) -> NDArray[np.int64]:
        rows = [(first, first + b.size, b.ctypes.data - first) for first, b in sorted(self._held, key=lambda r: r[0])]
        return np.array(rows or [(0, 0, 0)], np.int64)

    def describe(self, address: int) -> str:
        """Where the nearest allocation lies, for messages."""
        best = min(self._held, key=lambda r: min(abs(address - r[0]), abs(address - r[0] - r[1].size)), default=None)
        if best is None:
            return "nothing is allocated"
        first, buffer = best
        if address >= first:
            return f"{address - first - buffer.size} bytes past the end of the {buffer.size} bytes at 0x{first:x}"
        return f"{first - address} bytes before the {buffer.size} bytes at 0x{first:x}"
