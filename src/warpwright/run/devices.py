"""Devices by name, and the default device of a kernel."""

from __future__ import annotations

from warpwright import cuda, targets, vgpu
from warpwright.errors import UsageError
from warpwright.gpu import Device

__all__ = ["DEFAULT", "Device", "device", "resolve"]

DEFAULT = "b200"
FOR_FAMILY = {"hopper": "h200", "blackwell": "b200", "consumer blackwell": "rtx5090"}


def device(name: str = DEFAULT, *, numerics: str = "exact") -> Device:
    """Returns a GPU: ``cuda`` or ``cuda:1`` is a real GPU; ``b200`` and ``gb200`` (sm_100a), ``h200`` (sm_90a) and
    ``rtx5090`` (sm_120a) are virtual GPUs. ``numerics`` selects how the tensor cores of a virtual GPU round sums:
    ``"exact"`` or ``"hardware"``, see `launch`; a real GPU ignores it.

    Raises UsageError for any other name, and for ``cuda`` without a GPU or without the package cuda-core.
    """
    if name.startswith("cuda"):
        return cuda.device(name)
    if name.lower() not in targets.DEVICES:
        raise UsageError(f"given device {name!r}; expected one of {', '.join(targets.DEVICES)}, cuda")
    return vgpu.Device(targets.device(name), numerics)


def resolve(given: Device | str | None, target: str = "", *, virtual: bool = False) -> Device:
    """Returns ``given`` as a Device. The default is the first real GPU that runs ``target``, unless ``virtual``, else
    the virtual GPU of that target; without a target ``b200``."""
    if given is not None:
        return device(given) if isinstance(given, str) else given
    real = [] if virtual else [gpu for gpu in cuda.devices() if not target or cuda.supports(gpu.spec.arch, target)]
    if real:
        return real[0]
    arch = targets.ARCHS.get(target)
    return device(FOR_FAMILY[arch.family] if arch else DEFAULT)
