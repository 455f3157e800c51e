"""Device memory of a program: a file that its process and the virtual GPU's map at the same address."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import UsageError

__all__ = ["DEVICE", "SIZE", "START", "DeviceMemory", "allocations_of_process", "memory_of_process"]

START = 0x6800_0000_0000  # Linux maps libraries above 0x6fff_0000_0000, and programs below 0x6600_0000_0000
SIZE = 3 << 40  # of addresses: none is given twice
GAP = 512  # bytes without an owner after an allocation
DEVICE = 2  # the kind of an allocation, of cudaMemoryType
MAP_NORESERVE, MAP_FIXED_NOREPLACE, MADV_REMOVE = 0x4000, 0x100000, 9


class DeviceMemory:
    """Allocations at the addresses that the program uses, from ``start`` on. ``room``: bytes that they may have
    together."""

    def __init__(self, room: int, start: int = START) -> None:
        self.room, self.start = room, start
        self.used = 0
        self.sizes: dict[int, int] = {}
        self.kinds: dict[int, int] = {}
        self._next = start
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.file = os.memfd_create("warpwright")
        os.ftruncate(self.file, SIZE)
        self._map()

    def _map(self) -> None:
        flags = mmap.MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
        found = self._libc.mmap(self.start, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, self.file, 0)
        if found != self.start:
            raise UsageError(
                f"cannot map device memory at 0x{self.start:x} ({os.strerror(ctypes.get_errno())}); expected "
                f"{SIZE >> 40} TiB of addresses: raise the limit of virtual memory (ulimit -v unlimited)"
            )

    def close(self) -> None:
        """Unmap the memory and close the file."""
        os.close(self.file)
        self._libc.munmap(ctypes.c_void_p(self.start), ctypes.c_size_t(SIZE))

    def allocate(self, nbytes: int, kind: int = DEVICE) -> int:
        """Returns the address of new memory, which is zero; 0 if there is no room. ``kind`` is for the program."""
        if self.used + nbytes > self.room or self._next + nbytes > self.start + SIZE:
            return 0
        align = mmap.PAGESIZE if nbytes >= mmap.PAGESIZE else GAP
        address = -(-self._next // align) * align
        self._next = -(-(address + nbytes + GAP) // GAP) * GAP
        self.sizes[address], self.kinds[address] = nbytes, kind
        self.used += nbytes
        return address

    def free(self, address: int) -> bool:
        """Free an allocation. Returns whether there is one at ``address``."""
        nbytes = self.sizes.pop(address, None)
        if nbytes is None:
            return False
        self.used -= nbytes
        whole = nbytes // mmap.PAGESIZE * mmap.PAGESIZE
        if whole:
            self._libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(whole), MADV_REMOVE)
        return True

    def find(self, address: int, nbytes: int) -> int | None:
        """Returns the address of the allocation in which bytes lie, None if there is none."""
        places = self.sizes.items()
        return next((at for at, size in places if at <= address and address + nbytes <= at + size), None)

    def arrays(self) -> list[NDArray[np.uint8]]:
        """Returns the allocations."""
        return [self.array(address, nbytes) for address, nbytes in self.sizes.items() if nbytes]

    def array(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Returns the bytes at an address."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


@cache
def memory_of_process() -> DeviceMemory:
    """Returns the memory of this process's own driver, for all contexts: arrays may look at it after them."""
    return DeviceMemory(0, START + SIZE)


def allocations_of_process() -> list[NDArray[np.uint8]]:
    """Returns what this process has allocated by its own driver."""
    return memory_of_process().arrays() if memory_of_process.cache_info().currsize else []
