"""Copies of NumPy arrays on the GPU for one launch; arrays on the GPU are used in place."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.arrays.device import DeviceArray, Span, spans
from warpwright.cuda.driver import call, driver
from warpwright.cuda.tensor_map import encode
from warpwright.errors import LaunchError
from warpwright.layout.tensor_map import TensorMap

__all__ = ["Transfers"]


class Transfers:
    """A context manager that copies the NumPy arrays of one launch to the GPU, and at its exit back.

    Copies run on ``stream``. Memory that several arrays share is copied once, so that aliasing is preserved.
    """

    def __init__(self, what: str, stream: int, args: Sequence[Any]) -> None:
        self.what, self.stream = what, stream
        arrays = (argument.array if isinstance(argument, TensorMap) else argument for argument in args)
        self._spans = spans(array for array in arrays if isinstance(array, np.ndarray))
        self._pointers: list[int] = []
        self.written: list[NDArray[Any]] = []

    def __enter__(self) -> Transfers:
        try:
            for span in self._spans:
                self._upload(span)
        except BaseException:
            self._free()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if self._spans and kind is None:
                self.download()
        finally:
            self._free()

    def value(self, argument: Any) -> Any:
        """Returns an argument as `Function` takes it: an address, the bytes of a tensor map or struct, or a number."""
        if isinstance(argument, TensorMap):
            return encode(argument, self.value(argument.array))
        if isinstance(argument, DeviceArray):
            return argument.pointer
        return self._address(argument) if isinstance(argument, np.ndarray) else argument

    def _address(self, array: NDArray[Any]) -> int:
        """Returns the address on the GPU of the first element of ``array``; 0 for an empty array."""
        host, copies = array.ctypes.data, zip(self._spans, self._pointers, strict=True)
        inside = (pointer + host - span.low for span, pointer in copies if span.low <= host < span.high)
        return next(inside) if array.size else 0

    def _upload(self, span: Span) -> None:
        bindings, data = driver(), np.asarray(span)
        if call(bindings.cuStreamIsCapturing(self.stream)).value:
            raise LaunchError(
                f"{self.what}: given a NumPy array while the stream is being captured; expected arrays on the GPU, "
                "because a captured launch copies nothing; copy the array to the GPU before the capture"
            )
        what = f"{self.what}: {data.size:,} bytes of NumPy arrays"
        self._pointers.append(int(call(bindings.cuMemAlloc(data.size), what)))
        call(bindings.cuMemcpyHtoDAsync(self._pointers[-1], data.ctypes.data, data.size, self.stream), self.what)

    def download(self) -> None:
        """Synchronise the stream, and copy the writable NumPy arrays back; ``written`` are the read-only arrays that
        the kernel has written."""
        call(driver().cuStreamSynchronize(self.stream), self.what)
        for span, pointer in zip(self._spans, self._pointers, strict=True):
            back = np.empty(span.high - span.low, np.uint8)
            call(driver().cuMemcpyDtoH(back.ctypes.data, pointer, back.size), self.what)
            self.written += span.write_back(back)

    def _free(self) -> None:
        for pointer in self._pointers:
            driver().cuMemFree(pointer)
