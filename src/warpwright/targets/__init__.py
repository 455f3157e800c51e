"""Limits of targets, figures of devices and constants of the timing model: data only.

``arch("sm_100a")`` returns the limits of a target, ``device("b200")`` the figures of a device, ``timing_of("b200")``
the constants of the timing model for a device. Every figure names its source.
"""

from __future__ import annotations

from warpwright.errors import UsageError
from warpwright.targets.archs import ARCHS, FAMILIES, Arch, kernels_of, runs
from warpwright.targets.clocks import TIMINGS
from warpwright.targets.devices import DEVICES, Device, nearest
from warpwright.targets.timing import Timing

__all__ = [
    "ARCHS",
    "DEVICES",
    "FAMILIES",
    "TIMINGS",
    "Arch",
    "Device",
    "Timing",
    "arch",
    "device",
    "kernels_of",
    "nearest",
    "runs",
    "timing_of",
]


def arch(name: str) -> Arch:
    """Returns the limits of a target (``"sm_100a"``). Raises UsageError for a target that is not in ``ARCHS``."""
    found = ARCHS.get(name)
    if found is None:
        raise UsageError(f"given target {name!r}; expected one of {', '.join(ARCHS)}")
    return found


def device(name: str) -> Device:
    """Returns the figures of a device (``"b200"``, in any case). Raises UsageError for an unknown device."""
    found = DEVICES.get(name.lower())
    if found is None:
        raise UsageError(f"given device {name!r}; expected one of {', '.join(DEVICES)}")
    return found


def timing_of(name: str) -> Timing:
    """Returns the timing constants of a device. Raises UsageError for an unknown device."""
    return TIMINGS[device(name).name]
