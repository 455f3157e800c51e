"""torch's device "cuda" is the CPU while a program runs on a virtual GPU.

Programs ask ``torch.cuda`` for the device, its properties and its streams, and create tensors with ``device="cuda"``.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from warpwright.targets import Device

__all__ = ["OnCpu", "capability", "opened", "start", "storages", "whole"]

_tensors: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def _on_cpu(value: Any) -> Any:
    """Returns a device argument of a torch function, with "cuda" as the CPU."""
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Calls torch's functions with "cuda" replaced by the CPU, and remembers the tensors that they return."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        args = tuple(_on_cpu(value) for value in args)
        result = func(*args, **{key: _on_cpu(value) for key, value in (kwargs or {}).items()})
        if isinstance(result, torch.Tensor):
            _tensors[id(result)] = result
        return result


def storages() -> list[torch.Tensor]:
    """Returns the memory of every living tensor that was made in the context, as tensors of bytes, each once."""
    found = {each.untyped_storage().data_ptr(): each for each in list(_tensors.values()) if each.device.type == "cpu"}
    return [whole(tensor) for address, tensor in found.items() if address]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns all memory that ``tensor`` is a view of, as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Event:
    """An event of a stream that completes at once: host time between two records."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        """Returns milliseconds."""
        return 1e3 * (end.at - self.at)


def capability(spec: Device) -> tuple[int, int]:
    """Returns the compute capability of a device: (10, 0) for sm_100a."""
    major, minor = divmod(int("".join(filter(str.isdigit, spec.arch))), 10)
    return major, minor


def stand_ins(spec: Device) -> dict[str, Any]:
    """Returns the functions of ``torch.cuda`` for one device, the virtual one."""
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda other: None)
    major, minor = capability(spec)
    properties = SimpleNamespace(
        name=spec.name,
        major=major,
        minor=minor,
        multi_processor_count=spec.sms,
        total_memory=spec.hbm_bytes,
        shared_memory_per_block_optin=spec.smem_per_block,
        warp_size=32,
    )
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: spec.name,
        "get_device_properties": lambda device=None: properties,
        "synchronize": lambda device=None: None,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "Stream": lambda *_, **__: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "device": lambda device: contextlib.nullcontext(),
        "Event": Event,
        "empty_cache": lambda: None,
    }


def start(device: Any) -> None:
    """Let torch's functions see one CUDA device, ``device``, until the process ends."""
    OnCpu().__enter__()
    for name, value in stand_ins(device.spec).items():
        setattr(torch.cuda, name, value)


@contextlib.contextmanager
def opened(session: Any) -> Iterator[None]:
    """torch's functions see one CUDA device, whose memory is the host's."""
    with OnCpu(), mock.patch.multiple(torch.cuda, **stand_ins(session.device.spec)):
        yield
