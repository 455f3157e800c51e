"""The driver of a process with the environment variable WARPWRIGHT_DEVICE."""

from __future__ import annotations

import os
from typing import Any

from triton.backends.driver import DriverBase

__all__ = ["ProcessDriver"]

VARIABLE = "WARPWRIGHT_DEVICE"


class ProcessDriver(DriverBase):  # type: ignore[misc]
    """Stands for the driver of a virtual GPU until Triton makes one: that driver needs all of Triton."""

    def __new__(cls) -> Any:
        """Returns the driver of the device that WARPWRIGHT_DEVICE names. Raises UsageError for an unknown name."""
        from warpwright.interop.triton import Driver
        from warpwright.run.devices import device
        from warpwright.run.session import Session

        return Driver(Session(device(os.environ[VARIABLE])))

    @classmethod
    def is_active(cls) -> bool:
        """Returns whether the process has WARPWRIGHT_DEVICE."""
        return bool(os.environ.get(VARIABLE))


ProcessDriver.__abstractmethods__ = frozenset()  # Triton makes instances of concrete classes; `__new__` makes another's

if os.environ.get(VARIABLE):
    from warpwright.interop import torch_cuda
    from warpwright.run.devices import device

    torch_cuda.start(device(os.environ[VARIABLE]))
    os.environ["TRITON_DEFAULT_BACKEND"] = "warpwright"  # else two drivers are active: torch has CUDA now
