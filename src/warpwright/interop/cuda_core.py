"""Python's bindings of the CUDA driver, cuda.core and ``cuda.bindings.driver``, on a virtual GPU.

The driver is that of `driver`. NVRTC is NVIDIA's; where a program asks it for machine code, it gets PTX.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from cuda.bindings import driver as bindings
from cuda.bindings import runtime

from warpwright.interop import driver
from warpwright.run.session import Session

__all__ = ["opened"]

# Functions of the runtime that programs call, as functions of the driver with the numbers of arguments that these take;
# the runtime of cuda.bindings is linked into it, and serves GPUs only.
RUNTIME = {
    "cudaDeviceSynchronize": ("cuCtxSynchronize", 0),
    "cudaDeviceGetPCIBusId": ("cuDeviceGetPCIBusId", 2),
    "cudaGetDeviceCount": ("cuDeviceGetCount", 0),
    "cudaMalloc": ("cuMemAlloc", 1),
    "cudaFree": ("cuMemFree", 1),
    "cudaMemset": ("cuMemsetD8", 3),
    "cudaMemcpy": ("cuMemcpy", 3),
}


def _by_driver(name: str, count: int) -> Callable[..., Any]:
    """Returns a function of the runtime that calls one of the driver; addresses are numbers in the runtime."""

    def call(*args: Any) -> Any:
        error, *rest = getattr(bindings, name)(*args[:count])
        values = (int(value) if isinstance(value, bindings.CUdeviceptr) else value for value in rest)
        return (runtime.cudaError_t(int(error)), *values)

    return call


@contextlib.contextmanager
def opened(session: Session) -> Iterator[None]:
    """cuda.core and ``cuda.bindings.driver`` run on the session's virtual GPU."""
    with driver.opened(session) as serves, contextlib.ExitStack() as stack:
        for name, call in RUNTIME.items() if serves else ():
            stack.enter_context(mock.patch.object(runtime, name, _by_driver(*call)))
        yield
