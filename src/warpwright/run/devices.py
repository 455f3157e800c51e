"""The devices by name, and the one a kernel gets when none is named."""

from __future__ import annotations

from warpwright import cuda, targets, vgpu
from warpwright.errors import UsageError
from warpwright.gpu import Device

__all__ = ["DEFAULT", "Device", "device", "resolve"]

DEFAULT = "b200"
FOR_FAMILY = {"hopper": "h200", "blackwell": "b200", "consumer blackwell": "rtx5090"}


def device(name: str = DEFAULT, *, numerics: str = "exact") -> Device:
    """A GPU: ``cuda`` or ``cuda:1`` is a real one; ``b200`` and ``gb200`` (sm_100a), ``h200`` (sm_90a) and
    ``rtx5090`` (sm_120a) are virtual. ``numerics`` says how tensor cores of a virtual one round sums: ``"exact"`` or
    ``"hardware"``, see `launch`; a real one rounds as it does.

    Raises UsageError for any other name, and for ``cuda`` where there is no GPU or no package to drive it.
    """
    if name.startswith("cuda"):
        return cuda.device(name)
    if name.lower() not in targets.DEVICES:
        raise UsageError(f"given device {name!r}; expected one of {', '.join(targets.DEVICES)}, cuda")
    return vgpu.Device(targets.device(name), numerics)


def resolve(given: Device | str | None, target: str = "", *, virtual: bool = False) -> Device:
    """``given`` as a Device; without one, the first real GPU that runs ``target``, else the virtual one it was
    written for (``b200`` where nothing says). ``virtual`` leaves real GPUs out of the choice.
    """
    if given is not None:
        return device(given) if isinstance(given, str) else given
    real = [] if virtual else [gpu for gpu in cuda.devices() if not target or cuda.supports(gpu.spec.arch, target)]
    if real:
        return real[0]
    arch = targets.ARCHS.get(target)
    return device(FOR_FAMILY[arch.family] if arch else DEFAULT)
