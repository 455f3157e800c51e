"""Global memory of a launch: allocations at fixed virtual addresses, each a buffer of its own."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.arrays.device import Span, spans
from warpwright.vgpu.jit.state import GLOBAL_BASE

__all__ = ["GlobalMemory", "aligned_zeros"]

_ALIGN = 256
_GAP = 4096  # unmapped bytes between allocations, so that running past one is seen


def aligned_zeros(nbytes: int, align: int = _ALIGN) -> NDArray[np.uint8]:
    """Returns zeroed bytes whose host address is a multiple of ``align``."""
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]


class GlobalMemory:
    """The device's global memory during one launch.

    ``table`` has a row an allocation: first address, last address + 1, host address - virtual address.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()  # of engines that reduce
        self._next = GLOBAL_BASE
        self._buffers: list[tuple[int, NDArray[np.uint8]]] = []
        self._spans: list[tuple[Span, int]] = []  # host memory of arrays, and its virtual address

    def place(self, address: int, data: bytes) -> None:
        """Allocate ``data`` at a fixed address (module variables)."""
        self._add(address, len(data))[: len(data)] = np.frombuffer(data, np.uint8)

    def reserve(self, data: bytes) -> int:
        """Allocate ``data`` and return its virtual address."""
        address = self._next
        self.place(address, data)
        return address

    def _add(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        buffer = aligned_zeros(max(1, nbytes))
        self._buffers.append((address, buffer))
        end = address + buffer.size + _GAP
        self._next = max(self._next, -(-end // _ALIGN) * _ALIGN)
        return buffer

    def upload(self, arrays: Iterable[NDArray[Any]]) -> None:
        """Copy arrays in. Arrays that share memory share one allocation, so that each sees the others' writes."""
        for span in spans(arrays):
            self._spans.append((span, self._next))
            self._add(self._next, span.high - span.low)[:] = np.asarray(span)

    def address(self, array: NDArray[Any]) -> int:
        """Returns the virtual address of the first element of an uploaded array; an empty array gets a new one."""
        if array.size == 0:
            return self.reserve(b"")
        host = array.ctypes.data
        return next(start + host - span.low for span, start in self._spans if span.low <= host < span.high)

    def download(self, *, discard: bool = False) -> list[NDArray[Any]]:
        """Copy the arrays back that may be written, unless ``discard``; returns those that were written and may not."""
        written = (span.write_back(self.view(start), discard=discard) for span, start in self._spans)
        return [array for arrays in written for array in arrays]

    def view(self, address: int) -> NDArray[np.uint8]:
        """The bytes from a virtual address to the end of its allocation; empty when there is none."""
        for first, buffer in self._buffers:
            if first <= address < first + buffer.size:
                return buffer[address - first :]
        return np.empty(0, np.uint8)

    def digest(self, into: hashlib.blake2b) -> None:
        """Update a digest with all allocations."""
        for _, buffer in self._buffers:
            into.update(buffer.data)

    @property
    def table(self) -> NDArray[np.int64]:
        rows = [
            (first, first + b.size, b.ctypes.data - first) for first, b in sorted(self._buffers, key=lambda r: r[0])
        ]
        return np.array(rows or [(0, 0, 0)], np.int64)

    def describe(self, address: int) -> str:
        """Returns where the nearest allocation lies, for messages."""
        best = min(self._buffers, key=lambda r: min(abs(address - r[0]), abs(address - r[0] - r[1].size)), default=None)
        if best is None:
            return "nothing is allocated"
        first, buffer = best
        if first <= address < first + buffer.size:
            return f"the access runs over the end of the {buffer.size} bytes at 0x{first:x}"
        if address >= first:
            return f"{address - first - buffer.size} bytes past the end of the {buffer.size} bytes at 0x{first:x}"
        return f"{first - address} bytes before the {buffer.size} bytes at 0x{first:x}"
