"""torch's device "cuda" is the CPU while a program runs on a virtual GPU.

Programs ask ``torch.cuda`` for the device, its properties and its streams, and create tensors with ``device="cuda"``.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch.overrides import TorchFunctionMode

from warpwright.interop.torch_graph import CUDAGraph, graph
from warpwright.targets import Device

__all__ = ["OnCpu", "opened", "start"]


IS_CUDA = torch.Tensor.is_cuda.__get__


def _on_cpu(value: Any) -> Any:
    """Returns a device argument of a torch function, with "cuda" as the CPU."""
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Calls torch's functions with "cuda" replaced by the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func == IS_CUDA:
            return args[0].device.type == "cpu"
        args = tuple(_on_cpu(value) for value in args)
        return func(*args, **{key: _on_cpu(value) for key, value in (kwargs or {}).items()})


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


def stand_ins(spec: Device) -> dict[str, Any]:
    """Returns the functions of ``torch.cuda`` for one device, the virtual one."""
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda other: None)
    major, minor = spec.capability
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
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 0),
        "empty_cache": lambda: None,
    }


def _under_mode(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``func`` under `OnCpu`, which is off in what torch's functions call: backward passes and operators."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with OnCpu():
            return func(*args, **kwargs)

    return call


_register = CustomOpDef.register_kernel


def _register_kernel(operator: Any, device_types: Any, func: Any = None, /) -> Any:
    """Registers the kernel of a custom operator: one for "cuda" is one for the CPU too."""
    if "cuda" not in ([device_types] if isinstance(device_types, str) else device_types or ()):
        return _register(operator, device_types, func)
    if func is None:
        return lambda func: _register_kernel(operator, device_types, func)
    _register(operator, device_types, func)
    return _register(operator, "cpu", _under_mode(func))


def _replaced(spec: Device) -> Iterator[tuple[Any, str, Any]]:
    """Yields objects, the names of their attributes, and what these are for one CUDA device, the virtual one."""
    yield torch.autograd, "_engine_run_backward", _under_mode(torch.autograd._engine_run_backward)
    yield CustomOpDef, "register_kernel", _register_kernel
    for name, value in stand_ins(spec).items():
        yield torch.cuda, name, value


def _move_operators() -> None:
    """Register the kernels for "cuda" of known custom operators for the CPU too."""
    for operator in list(OPDEFS.values()):
        kernels = operator._backend_fns
        if "cuda" in kernels and "cpu" not in kernels:
            _register(operator, "cpu", _under_mode(kernels["cuda"]))


def start(device: Any) -> None:
    """Let torch's functions see one CUDA device, ``device``, until the process ends."""
    OnCpu().__enter__()
    for place, name, value in _replaced(device.spec):
        setattr(place, name, value)


@contextlib.contextmanager
def opened(session: Any) -> Iterator[None]:
    """torch's functions see one CUDA device, whose memory is the host's."""
    _move_operators()
    with contextlib.ExitStack() as stack:
        for place, name, value in _replaced(session.device.spec):
            stack.enter_context(mock.patch.object(place, name, value))
        stack.enter_context(OnCpu())
        yield
