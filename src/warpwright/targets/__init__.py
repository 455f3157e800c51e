"""What the targets allow and what the devices are: data only.

``arch("sm_100a")`` gives the limits of a target, ``device("b200")`` the figures of a chip, ``timing_of("b200")`` what
things cost there. Every figure names its source.
"""

from __future__ import annotations

from warpwright.errors import UsageError
from warpwright.targets.archs import ARCHS, Arch
from warpwright.targets.devices import DEVICES, Device
from warpwright.targets.timing import TIMINGS, Timing

__all__ = ["ARCHS", "DEVICES", "TIMINGS", "Arch", "Device", "Timing", "arch", "device", "timing_of"]


def arch(name: str) -> Arch:
    """The limits of a target (``"sm_100a"``). Raises UsageError for a target that is not in ``ARCHS``."""
    found = ARCHS.get(name)
    if found is None:
        raise UsageError(f"given target {name!r}; expected one of {', '.join(ARCHS)}")
    return found


def device(name: str) -> Device:
    """The figures of a device (``"b200"``, upper or lower case). Raises UsageError for an unknown device."""
    found = DEVICES.get(name.lower())
    if found is None:
        raise UsageError(f"given device {name!r}; expected one of {', '.join(DEVICES)}")
    return found


def timing_of(name: str) -> Timing:
    """What things cost on a device. Raises UsageError for an unknown device."""
    return TIMINGS[device(name).name]
