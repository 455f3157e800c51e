"""The devices by name, and the one a kernel gets when none is named."""

from __future__ import annotations

from . import targets
from .errors import UsageError
from .vgpu import Device

__all__ = ["DEFAULT", "NAMES", "device", "resolve"]

NAMES = ("b200", "gb200", "h200", "rtx5090")
DEFAULT = "b200"
FOR_TARGET = {"sm_90a": "h200", "sm_100a": "b200", "sm_100f": "b200", "sm_120a": "rtx5090", "sm_120f": "rtx5090"}


def device(name: str = DEFAULT) -> Device:
    """A virtual GPU: ``b200`` or ``gb200`` (sm_100a), ``h200`` (sm_90a) or ``rtx5090`` (sm_120a).

    Raises UsageError for any other name.
    """
    if name not in NAMES:
        raise UsageError(f"unknown device {name!r}; expected one of {', '.join(NAMES)}")
    return Device(targets.device(name))


def resolve(given: Device | str | None, target: str = "") -> Device:
    """``given`` as a Device; without one, the device whose PTX target is ``target``, else ``b200``."""
    if isinstance(given, Device):
        return given
    return device(FOR_TARGET.get(target, DEFAULT) if given is None else given)
