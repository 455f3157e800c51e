"""Global memory of a launch: allocations at fixed virtual addresses, each a buffer of its own, or at the addresses that
they have on the host."""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.arrays.device import Span, spans
from warpwright.errors import LaunchError
from warpwright.vgpu.jit.state import GLOBAL_BASE, LOCAL_WINDOW, SHARED_WINDOW

__all__ = ["GlobalMemory", "aligned_zeros"]

_ALIGN = 256
_GAP = 4096  # unmapped bytes between allocations, so that running past one is seen
_ATOM = 16  # bytes of the widest atomic operation: copies of host memory keep their address modulo this
_NULL = 1 << 16  # addresses below are null pointers, and offsets from them
_FAR = 1 << 36  # bytes from an allocation that no index of 32 bits can reach
_FIRST = itemgetter(0)


def aligned_zeros(nbytes: int, align: int = _ALIGN) -> NDArray[np.uint8]:
    """Returns zeroed bytes whose host address is a multiple of ``align``."""
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]


class GlobalMemory:
    """The device's global memory during one launch.

    ``table`` has a row an allocation: first address, last address + 1, host address - virtual address. ``at_host``:
    arrays have their host addresses, which pointers in other memory name.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()  # of engines that reduce
        self.at_host = False
        self._next = GLOBAL_BASE
        self._buffers: list[tuple[int, NDArray[np.uint8]]] = []  # by address
        self._spans: list[tuple[Span, int]] = []  # host memory of arrays, and its virtual address

    @property
    def nbytes(self) -> int:
        """Bytes of all allocations."""
        return sum(len(buffer) for _, buffer in self._buffers)

    def place(self, address: int, data: bytes) -> None:
        """Allocate ``data`` at a fixed address (module variables)."""
        self._allocate(address, len(data))[: len(data)] = np.frombuffer(data, np.uint8)
        self._advance(address + max(1, len(data)))

    def reserve(self, data: bytes) -> int:
        """Allocate ``data`` and return its virtual address."""
        address = self._next
        self.place(address, data)
        return address

    def _allocate(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        buffer = aligned_zeros(max(1, nbytes) + address % _ATOM)[address % _ATOM :]
        self._add(address, buffer)
        return buffer

    def _add(self, address: int, buffer: NDArray[np.uint8]) -> None:
        insort(self._buffers, (address, buffer), key=_FIRST)

    def _advance(self, end: int) -> None:
        self._next = max(self._next, -(-(end + _GAP) // _ALIGN) * _ALIGN)

    def upload(
        self, arrays: Iterable[NDArray[Any]], *, copy: str = "all", read: Sequence[NDArray[Any]] | None = None
    ) -> None:
        """Allocate arrays. Arrays that share memory share one allocation, so that each sees the others' writes.

        ``copy``: of which arrays the kernel has a copy; it works in the own memory of the others. ``"all"``;
        ``"parts"``: those that are read-only, have gaps between rows, share memory or are not aligned; ``"none"``, for
        a kernel that only reads. ``read``: the arrays whose contents the launch may read, None for all; a copy of
        others has zeros.
        """
        for span in spans(arrays):
            self._spans.append((span, self._next))
            if copy == "none" or (copy == "parts" and span.whole and span.low % _ATOM == 0):
                self._add(self._next, np.asarray(span))
            else:
                own = self._allocate(self._next, span.high - span.low)
                if read is None or any(span.low <= array.ctypes.data < span.high for array in read):
                    own[:] = np.asarray(span)
            self._advance(self._next + span.high - span.low)

    def map_host(self, arrays: Iterable[NDArray[Any]], *, copy: bool) -> None:
        """Allocate arrays at their host addresses. Arrays that share memory or touch are one allocation.

        The kernel works in the arrays' own memory; with ``copy``, and where an array is read-only, in a copy.
        """
        self.at_host = True
        for span in spans(arrays, touching=True):
            self._spans.append((span, span.low))
            if copy or not span.writable:
                self._allocate(span.low, span.high - span.low)[:] = np.asarray(span)
            else:
                self._add(span.low, np.asarray(span))

    def check_apart(self) -> None:
        """Raises LaunchError if an array at its host address overlaps other memory of the kernel."""
        windows = [[first, first + (1 << 32)] for first in (SHARED_WINDOW, LOCAL_WINDOW)]
        for (_, end, *_), (first, *_) in pairwise(sorted([*self.table.tolist(), *windows])):
            if first < end:
                raise LaunchError(
                    f"given memory= with an array over the host address 0x{first:x}, where the virtual GPU has shared "
                    "or local memory, variables or parameters; expected another address; allocate the array again"
                )

    def address(self, array: NDArray[Any]) -> int:
        """Returns the virtual address of the first element of an uploaded array; an empty array gets a new one."""
        if array.size == 0:
            return self.reserve(b"")
        host = array.ctypes.data
        return next(start + host - span.low for span, start in self._spans if span.low <= host < span.high)

    def download(self, *, discard: bool = False) -> list[NDArray[Any]]:
        """Copy the arrays back that may be written, unless ``discard``; returns those that were written and may not."""
        copies = ((span, self.view(start)) for span, start in self._spans)
        written = (span.write_back(copy, discard=discard) for span, copy in copies if copy.ctypes.data != span.low)
        return [array for arrays in written for array in arrays]

    def view(self, address: int) -> NDArray[np.uint8]:
        """The bytes from a virtual address to the end of its allocation; empty when there is none."""
        found = bisect_right(self._buffers, address, key=_FIRST) - 1
        if found < 0:
            return np.empty(0, np.uint8)
        first, buffer = self._buffers[found]
        return buffer[address - first :]

    def digest(self, into: hashlib.blake2b) -> None:
        """Update a digest with all allocations."""
        for _, buffer in self._buffers:
            into.update(buffer.data)

    @property
    def table(self) -> NDArray[np.int64]:
        rows = [(first, first + b.size, b.ctypes.data - first) for first, b in self._buffers]
        return np.array(rows or [(0, 0, 0)], np.int64)

    def describe(self, address: int) -> str:
        """Returns where the nearest allocation lies, and what may mend the access, for messages."""
        if 0 <= address < _NULL:
            return "it is a null pointer, or an offset from one"
        distance, place = self._nearest(address)
        place = "no allocation is near" if distance > _FAR else place
        if self.at_host:
            return f"{place}; if it belongs to another array, add that array to memory="
        return f"{place}; if it is a host pointer, pass its array, too: memory=[x]" if distance > _FAR else place

    def _nearest(self, address: int) -> tuple[int, str]:
        """Returns the distance of the nearest allocation in bytes, and its place in words."""
        best = min(self._buffers, key=lambda r: min(abs(address - r[0]), abs(address - r[0] - r[1].size)), default=None)
        if best is None:
            return _FAR + 1, ""
        first, buffer = best
        past, before = address - first - buffer.size, first - address
        if max(past, before) < 0:
            return 0, f"the access runs over the end of the {buffer.size} bytes at 0x{first:x}"
        side = f"{past} bytes past the end of" if past >= 0 else f"{before} bytes before"
        return max(past, before), f"{side} the {buffer.size} bytes at 0x{first:x}"

    def alignment(self, address: int) -> str:
        """Returns the alignment of the host memory at an address, for messages; empty at a virtual address."""
        found = bisect_right(self._buffers, address, key=_FIRST) - 1
        if not self.at_host or found < 0:
            return ""
        first = self._buffers[found][0]
        return f"; its array is at 0x{first:x}, aligned to {first & -first} bytes (torch aligns arrays to 64 bytes)"
