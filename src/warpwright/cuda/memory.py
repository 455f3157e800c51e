"""NumPy arrays on the GPU for the time of one launch; arrays that are there already stay where they are."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.arrays import DeviceArray, Span
from warpwright.cuda.driver import call, driver
from warpwright.cuda.tensor_map import encode
from warpwright.errors import LaunchError
from warpwright.tensormap import TensorMap

__all__ = ["Transfers"]


class Transfers:
    """The copies of one launch on ``stream``; on leaving, NumPy arrays hold what was written."""

    def __init__(self, what: str, stream: int) -> None:
        self.what, self.stream = what, stream
        self._held: dict[int, tuple[int, NDArray[np.uint8], NDArray[Any]]] = {}

    def __enter__(self) -> Transfers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if self._held and kind is None:
                self._download()
        finally:
            for pointer, _, _ in self._held.values():
                driver().cuMemFree(pointer)

    def value(self, argument: Any) -> Any:
        """An argument as `Function` takes it: an address, the bytes of a tensor map or struct, a number."""
        if isinstance(argument, TensorMap):
            return encode(argument, self.value(argument.array))
        if isinstance(argument, DeviceArray):
            return argument.pointer
        return self._upload(argument) if isinstance(argument, np.ndarray) else argument

    def _upload(self, array: NDArray[Any]) -> int:
        """Copy an array in; gives the address of its first element. The same memory is copied once."""
        span = Span(array)
        data = np.asarray(span)
        if span.low not in self._held or self._held[span.low][1].size < data.size:
            self._held[span.low] = (self._copied(data), data, array)
        return self._held[span.low][0] + array.ctypes.data - span.low

    def _copied(self, data: NDArray[np.uint8]) -> int:
        bindings = driver()
        if call(bindings.cuStreamIsCapturing(self.stream)).value:
            raise LaunchError(
                f"{self.what}: given a NumPy array while the stream is captured; expected arrays on the GPU: "
                "a captured launch copies nothing"
            )
        pointer = int(call(bindings.cuMemAlloc(max(1, data.size)), f"{self.what}: {data.size} bytes"))
        call(bindings.cuMemcpyHtoDAsync(pointer, data.ctypes.data, data.size, self.stream), self.what)
        return pointer

    def _download(self) -> None:
        call(driver().cuStreamSynchronize(self.stream), self.what)
        for pointer, data, array in self._held.values():
            if array.flags.writeable:
                back = np.empty_like(data)
                call(driver().cuMemcpyDtoH(back.ctypes.data, pointer, back.size), self.what)
                start = array.ctypes.data - data.ctypes.data
                array[...] = np.ndarray(array.shape, array.dtype, back, start, array.strides)
