"""A fake CUDA driver whose GPU memory is host memory."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["Driver"]

OK = SimpleNamespace(value=0, name="CUDA_SUCCESS")
FULL = SimpleNamespace(value=2, name="CUDA_ERROR_OUT_OF_MEMORY")


class Driver:
    """A fake driver whose GPU memory is host memory, ``room`` bytes of it."""

    def __init__(self) -> None:
        self.room, self.held, self.capturing = 1 << 20, {}, 0

    def cuStreamIsCapturing(self, stream: int) -> tuple[Any, Any]:
        return OK, SimpleNamespace(value=self.capturing)

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, int]:
        if nbytes > self.room - sum(buffer.size for buffer in self.held.values()):
            return FULL, 0
        buffer = np.zeros(nbytes, np.uint8)
        self.held[buffer.ctypes.data] = buffer
        return OK, buffer.ctypes.data

    def cuMemFree(self, pointer: int) -> tuple[Any]:
        del self.held[pointer]
        return (OK,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, count: int, stream: int) -> tuple[Any]:
        ctypes.memmove(target, source, count)
        return (OK,)

    def cuMemcpyDtoH(self, target: int, source: int, count: int) -> tuple[Any]:
        ctypes.memmove(target, source, count)
        return (OK,)

    def cuMemsetD8Async(self, pointer: int, value: int, count: int, stream: int) -> tuple[Any]:
        ctypes.memset(pointer, value, count)
        return (OK,)

    def cuCtxSetCurrent(self, context: Any) -> tuple[Any]:
        return (OK,)

    def cuStreamSynchronize(self, stream: int) -> tuple[Any]:
        return (OK,)
