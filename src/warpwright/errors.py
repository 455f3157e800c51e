"""Exceptions of the package. A message names the given value, the expected value, and the edit that mends the error."""

from __future__ import annotations

from typing import Any

__all__ = [
    "Deadlock",
    "DescriptorError",
    "DeviceError",
    "KernelError",
    "LaunchError",
    "LimitReached",
    "MemoryFault",
    "PrecisionWarning",
    "ProtocolError",
    "PtxSyntaxError",
    "UnsupportedInstruction",
    "UsageError",
    "WarpwrightError",
    "kind_of",
]


def kind_of(value: Any) -> str:
    """Returns the kind of a value for a message: ``"a list"``, ``"an int"``, ``"bytes"``, ``"None"``."""
    name = type(value).__name__
    if value is None or name == "bytes":
        return "None" if value is None else name
    return f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


class WarpwrightError(Exception):
    """Base class of the errors that this package raises.

    An error of a kernel on the virtual GPU sets more attributes: ``at`` is the index of the instruction and the
    index of the lane in the cluster; ``what`` is the verb of the message ("stops at"); ``reason`` is the message
    without instruction and lane. ``printed`` is the text that the launch printed before.
    """

    at: tuple[int, int] | None = None
    what: str = "stops at"
    reason: str = ""
    printed: str = ""


class PtxSyntaxError(WarpwrightError):
    """The text is not PTX.

    ``line`` and ``column`` are 1-based positions in the text (0 when unknown); ``source`` names the text.
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0, source: str = "<ptx>") -> None:
        place = f"{source}:{line}:{column}: " if line else ""
        super().__init__(f"{place}{message}")
        self.line = line
        self.column = column
        self.source = source


class UsageError(WarpwrightError, ValueError):
    """An argument of the Python API is invalid."""


class DescriptorError(UsageError):
    """A shared-memory matrix descriptor or an instruction descriptor has a value that the hardware does not define."""


class LaunchError(UsageError):
    """The device refuses the launch: grid, block, cluster, shared memory or arguments are invalid."""


class KernelError(WarpwrightError):
    """The kernel misuses the kernel language; raised while the kernel is traced.

    ``where`` is ``"file:line"`` of the kernel source (empty when unknown); the message starts with it.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class DeviceError(WarpwrightError):
    """The kernel faults while it runs."""


class MemoryFault(DeviceError):
    """An access is outside every allocation, is misaligned, or reaches memory whose lifetime has ended."""


class AssertionFault(DeviceError):
    """An assertion of the kernel does not hold."""


class Deadlock(DeviceError):
    """No warp and no engine can make progress; the message names every waiting warp and what it waits on."""


class LimitReached(DeviceError):
    """The kernel reached its limit of steps before it ended; whether it ends is unknown."""


class UnsupportedInstruction(DeviceError):
    """The kernel reached an instruction that the virtual GPU, or the target, does not execute."""


class ProtocolError(DeviceError):
    """The kernel breaks a rule of an asynchronous object: mbarrier, tensor memory, tensor map or bulk group."""


class PrecisionWarning(UserWarning):
    """The inputs were rounded to a narrower type before the computation."""
