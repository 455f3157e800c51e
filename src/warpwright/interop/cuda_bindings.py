"""NVIDIA's Python bindings of the CUDA driver and runtime in CuTe DSL's programs: one device, its attributes, its
context, streams that run in order, and events with the host's time. `driver` serves the bindings' kernels and memory,
but not where a process has NVIDIA's driver; the bindings' runtime needs that driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from cuda.bindings import driver, runtime

from warpwright.programs.attributes import device_attributes
from warpwright.targets import Device

__all__ = ["replaced"]

VERSION = 13000  # of the driver: CUDA 13.0


def replaced(spec: Device) -> Iterator[tuple[Any, str, Any]]:
    """Yields the two modules, the names of their functions, and what these are for one virtual GPU."""
    done, device = driver.CUresult.CUDA_SUCCESS, driver.CUdevice(0)
    times: dict[int, float] = {}
    numbers, known = count(1), device_attributes(spec)

    def attribute(name: Any, device: Any) -> Any:
        return (done, known[int(name)]) if int(name) in known else (driver.CUresult.CUDA_ERROR_INVALID_VALUE, 0)

    def record(event: Any, stream: Any) -> Any:
        times[int(event)] = time.perf_counter()
        return (done,)

    def elapsed(start: Any, end: Any) -> Any:
        return done, 1e3 * (times[int(end)] - times[int(start)])

    context, success = driver.CUcontext(1), runtime.cudaError_t.cudaSuccess
    for name, values in {
        "cuDeviceGetCount": [1], "cuDeviceGet": [device], "cuCtxGetDevice": [device], "cuDriverGetVersion": [VERSION],
        "cuCtxGetCurrent": [context], "cuCtxCreate": [context], "cuDevicePrimaryCtxRetain": [context],
        "cuStreamCreate": [driver.CUstream(0)], "cuInit": [], "cuCtxSetCurrent": [], "cuCtxSynchronize": [],
        "cuDevicePrimaryCtxRelease": [], "cuStreamSynchronize": [], "cuStreamDestroy": [], "cuEventSynchronize": [],
        "cuEventDestroy": [],
    }.items():  # fmt: skip
        yield driver, name, _returns(done, *values)
    yield driver, "cuDeviceGetAttribute", attribute
    yield driver, "cuEventCreate", lambda flags: (done, driver.CUevent(next(numbers)))
    yield driver, "cuEventRecord", record
    yield driver, "cuEventElapsedTime", elapsed
    for name, values in {
        "cudaGetDeviceCount": [1], "cudaGetDevice": [0], "cudaStreamCreate": [runtime.cudaStream_t(0)],
        "cudaSetDevice": [], "cudaDeviceSynchronize": [], "cudaStreamSynchronize": [], "cudaStreamDestroy": [],
    }.items():  # fmt: skip
        yield runtime, name, _returns(success, *values)


def _returns(*values: Any) -> Callable[..., Any]:
    return lambda *args: values
