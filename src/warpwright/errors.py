"""Every exception of the package. A message says what was given, what was expected, and the edit that mends it."""

from __future__ import annotations

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
]


class WarpwrightError(Exception):
    """Base of every error that this package raises on purpose.

    Of one that a kernel met on the virtual GPU, ``at`` is the number of the instruction and of the lane in the cluster,
    ``what`` is done there, in words, and ``reason`` the message without them.
    """

    at: tuple[int, int] | None = None
    what: str = "stops at"
    reason: str = ""


class PtxSyntaxError(WarpwrightError):
    """Text that is not PTX.

    ``line`` and ``column`` are 1-based positions in the text (0 when unknown); ``source`` names the text.
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0, source: str = "<ptx>") -> None:
        place = f"{source}:{line}:{column}: " if line else ""
        super().__init__(f"{place}{message}")
        self.line = line
        self.column = column
        self.source = source


class UsageError(WarpwrightError, ValueError):
    """Arguments of the Python API that cannot be right."""


class DescriptorError(UsageError):
    """A shared-memory matrix descriptor or instruction descriptor that the hardware does not define."""


class LaunchError(UsageError):
    """A launch that a device of this kind refuses: grid, block, cluster, shared memory or arguments."""


class KernelError(WarpwrightError):
    """Misuse of the kernel language, found while a kernel is traced.

    ``where`` is ``"file:line"`` of the kernel source (empty when unknown) and leads the message.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class DeviceError(WarpwrightError):
    """A fault of the virtual GPU while a kernel runs."""


class MemoryFault(DeviceError):
    """An access outside every allocation, misaligned, or to memory whose lifetime is over."""


class Deadlock(DeviceError):
    """No warp and no engine can make progress; the message says who waits on what."""


class LimitReached(DeviceError):
    """A kernel went on for longer than it was given: whether it ends is not known."""


class UnsupportedInstruction(DeviceError):
    """An instruction was reached that the virtual GPU, or the target, does not execute."""


class ProtocolError(DeviceError):
    """A rule of an asynchronous object was broken: mbarrier, tensor memory, tensor map or bulk group."""


class PrecisionWarning(UserWarning):
    """Inputs were rounded to a narrower type before the computation."""
