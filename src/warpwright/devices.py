"""The devices by name, and the one a kernel gets when none is named."""

from __future__ import annotations

from warpwright import targets
from warpwright.vgpu import Device

__all__ = ["DEFAULT", "device", "resolve"]

DEFAULT = "b200"
FOR_FAMILY = {"hopper": "h200", "blackwell": "b200", "consumer blackwell": "rtx5090"}


def device(name: str = DEFAULT) -> Device:
    """A virtual GPU: ``b200`` or ``gb200`` (sm_100a), ``h200`` (sm_90a) or ``rtx5090`` (sm_120a).

    Raises UsageError for any other name.
    """
    return Device(targets.device(name))


def resolve(given: Device | str | None, target: str = "") -> Device:
    """``given`` as a Device; without one, a device of the family that the PTX was written for, else ``b200``."""
    if isinstance(given, Device):
        return given
    arch = targets.ARCHS.get(target)
    return device(given or (FOR_FAMILY[arch.family] if arch else DEFAULT))
