"""The CUDA driver, loaded at the first use of a real GPU; its status codes as exceptions."""

from __future__ import annotations

import functools
from typing import Any

from warpwright.errors import DeviceError, LaunchError, UsageError

__all__ = ["call", "driver", "require", "version"]

EXTRA = "device 'cuda' needs the packages cuda-core and cuda-bindings; run: pip install 'warpwright[cuda]'"
NO_GPU = "device 'cuda' needs an NVIDIA GPU, and {reason}; use a virtual GPU, such as device='h200'"

# The driver refused the launch; every other error is a fault of the kernel or of the machine.
REFUSALS = (
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
)


@functools.cache
def driver() -> Any:
    """Returns ``cuda.bindings.driver``, initialised. Raises UsageError without the packages, a driver or a GPU."""
    try:
        import cuda.core  # noqa: F401  (the extra installs both; report the missing one here)
        from cuda.bindings import driver as bindings
    except ImportError:
        raise UsageError(EXTRA) from None
    try:
        (status,) = bindings.cuInit(0)
    except (RuntimeError, OSError):  # the bindings find libcuda on the first call
        raise UsageError(NO_GPU.format(reason="this machine has no CUDA driver")) from None
    if status.value:
        raise UsageError(NO_GPU.format(reason=f"the driver answers {status.name}"))
    return bindings


def require() -> Any:
    """Returns `driver`. Raises UsageError if there is no GPU."""
    bindings = driver()
    if call(bindings.cuDeviceGetCount()) == 0:
        raise UsageError(NO_GPU.format(reason="the driver finds no GPU"))
    return bindings


@functools.cache
def version() -> int:
    """Returns the CUDA version of the driver, 13000 for 13.0."""
    return int(call(driver().cuDriverGetVersion()))


def call(answer: tuple[Any, ...], what: str = "") -> Any:
    """Returns the value of a driver call. Raises LaunchError if the driver refuses it, DeviceError for a fault.

    ``what`` names the operation for the message: "launch of 'saxpy'".
    """
    status, *values = answer
    if status.value:
        raise failure(status.name, what)
    return values[0] if len(values) == 1 else tuple(values)


def failure(status: str, what: str) -> Exception:
    prefix = f"{what}: " if what else ""
    if status == "CUDA_ERROR_OUT_OF_MEMORY":
        return LaunchError(
            f"{prefix}the GPU has too little free memory; free some (torch.cuda.empty_cache() frees torch's cache), "
            "or use smaller arrays"
        )
    if status in REFUSALS:
        return LaunchError(f"{prefix}the CUDA driver answers {status}")
    return DeviceError(
        f"{prefix}the GPU stopped with {status}; run the launch on a virtual GPU of the same target to find the line"
    )
