"""Devices by name, and the default device of a kernel."""

from __future__ import annotations

from typing import Any

from warpwright import cuda, targets, vgpu
from warpwright.errors import UsageError
from warpwright.gpu import Device

__all__ = ["DEFAULT", "Device", "check_device", "device", "resolve"]

DEFAULT = "b200"


def device(name: str = DEFAULT, *, numerics: str = "exact") -> Device:
    """Returns a GPU: ``cuda`` or ``cuda:1`` is a real GPU; the names of ``warpwright devices``, such as ``b200``
    (sm_100a), ``b300`` (sm_103a), ``h200`` (sm_90a) and ``rtx5090`` (sm_120a), are virtual GPUs; ``h200x8`` is a
    virtual node of eight.

    ``numerics`` selects how the tensor cores of a virtual GPU round sums: ``"exact"`` or ``"hardware"``, see `launch`;
    a real GPU ignores it.

    Raises UsageError for any other name, and for ``cuda`` without a GPU or without the package cuda-core.
    """
    if not isinstance(name, str):
        raise UsageError(_no_device(name))
    if name.startswith("cuda"):
        return cuda.device(name)
    if targets.split_node(name)[0] not in targets.DEVICES:
        raise UsageError(f"given device {name!r}; expected one of {', '.join(targets.DEVICES)}, cuda")
    return vgpu.Device(targets.device(name), numerics)


def resolve(given: Device | str | None, target: str = "", *, virtual: bool = False) -> Device:
    """Returns ``given`` as a Device. The default is the first real GPU that runs ``target``, unless ``virtual``, else
    the virtual GPU of that target; without a target ``b200``."""
    if given is not None:
        return device(given) if isinstance(given, str) else check_device(given)
    real = [] if virtual else [gpu for gpu in cuda.devices() if not target or targets.runs(target, gpu.spec.arch)]
    if real:
        return real[0]
    arch = targets.ARCHS.get(target)
    return device(_first(arch) if arch else DEFAULT)


def _first(arch: targets.Arch) -> str:
    """Returns the name of the first virtual GPU of the family that runs code for ``arch``."""
    known = (spec for spec in targets.DEVICES.values() if spec.limits.family == arch.family)
    return next(spec.name for spec in known if targets.runs(arch.name, spec.arch))


def check_device(given: Any) -> Device:
    """Returns ``given``. Raises UsageError if it is no Device."""
    if not hasattr(given, "spec"):
        raise UsageError(_no_device(given))
    checked: Device = given
    return checked


def _no_device(given: Any) -> str:
    """Returns the error for ``given`` in place of a device; torch's device has the name of ours as text."""
    name = f"cuda:{given}" if isinstance(given, int) else str(given) if str(given).startswith("cuda") else "cuda:0"
    return f"given device={given!r}; expected a name or a Device: write device={name!r}, or 'h200' for a virtual GPU"
