"""Limits of targets, figures of devices and constants of the timing model: data only.

``arch("sm_100a")`` returns the limits of a target, ``device("b200")`` the figures of a device, ``device("b200x8")``
those of a node of eight, ``timing_of("b200")`` the constants of the timing model for a device. Every figure names its
source.
"""

from __future__ import annotations

import re
from dataclasses import replace

from warpwright.errors import UsageError
from warpwright.targets.archs import ARCHS, FAMILIES, Arch, kernels_of, runs
from warpwright.targets.clocks import TIMINGS
from warpwright.targets.devices import DEVICES, Device, nearest
from warpwright.targets.links import LINKS, MAX_GPUS, Link
from warpwright.targets.timing import Timing

__all__ = [
    "ARCHS",
    "DEVICES",
    "FAMILIES",
    "LINKS",
    "MAX_GPUS",
    "TIMINGS",
    "Arch",
    "Device",
    "Link",
    "Timing",
    "arch",
    "device",
    "find_chip",
    "kernels_of",
    "nearest",
    "runs",
    "split_node",
    "timing_of",
]


def arch(name: str) -> Arch:
    """Returns the limits of a target (``"sm_100a"``). Raises UsageError for a target that is not in ``ARCHS``."""
    found = ARCHS.get(name)
    if found is None:
        raise UsageError(f"given target {name!r}; expected one of {', '.join(ARCHS)}")
    return found


def device(name: str) -> Device:
    """Returns the figures of a device (``"b200"``, in any case) or of a node (``"b200x8"``: 2 to 8 of them).

    Raises UsageError for an unknown device, and for a node of a device without NVLink or of another number of GPUs.
    """
    chip, gpus = split_node(name)
    found = DEVICES.get(chip)
    if found is None:
        raise UsageError(f"given device {name!r}; expected one of {', '.join(DEVICES)}")
    return found if gpus is None else _node(name, found, gpus)


def find_chip(name: str) -> Device | None:
    """Returns the figures of a device, or of one GPU of a node; None for an unknown device."""
    return DEVICES.get(split_node(name)[0])


def split_node(name: str) -> tuple[str, int | None]:
    """Returns the device and the number of GPUs of a node: ``("b200", 8)`` for ``"b200x8"``; None for one device."""
    found = re.fullmatch(r"(.+)x(\d+)", name.lower())
    return (found[1], int(found[2])) if found and found[1] in DEVICES else (name.lower(), None)


def _node(name: str, device: Device, gpus: int) -> Device:
    if device.name not in LINKS:
        raise UsageError(
            f"given device {name!r}; a {device.name} has no NVLink to the GPUs of a node; expected a node of "
            f"{', '.join(LINKS)}, such as 'h200x2'"
        )
    if not 2 <= gpus <= MAX_GPUS:
        raise UsageError(f"given device {name!r}; expected a node of 2 to {MAX_GPUS} GPUs, such as '{device.name}x2'")
    return replace(device, name=f"{device.name}x{gpus}", gpus=gpus)


def timing_of(name: str) -> Timing:
    """Returns the timing constants of a device. Raises UsageError for an unknown device."""
    return TIMINGS[device(name).chip]
