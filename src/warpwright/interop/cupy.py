"""CuPy on a virtual GPU: its arrays, and the kernels that NVRTC compiles for it.

CuPy finds the driver by its name, and `driver` serves that. CuPy's runtime is linked into one of its modules, which
asks the driver for undocumented tables. Other modules call that module through ``__pyx_capi__``, Cython's table of C
functions by name: `cupy_runtime.c` has the functions that take their place before other modules look them up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from cupy_backends.cuda.api import runtime

from warpwright.errors import UsageError
from warpwright.interop import driver
from warpwright.programs.attributes import device_attributes
from warpwright.programs.c_library import build
from warpwright.programs.memory import DEVICE, DeviceMemory, memory_of_process
from warpwright.run.session import Session
from warpwright.targets import Device

__all__ = ["opened"]

# Kernels of NVRTC as PTX, and none that are machine code in CuPy's package.
ENVIRONMENT = {"CUPY_COMPILE_WITH_PTX": "1", "CUPY_ACCELERATORS": ""}
RELEASE_THRESHOLD, POOL_BYTES = 4, (5, 6, 7, 8)  # of cudaMemPoolAttr
PROPERTIES = {  # of a device, by the numbers of their attributes
    "sharedMemPerBlock": 8, "totalConstMem": 9, "warpSize": 10, "regsPerBlock": 12, "maxThreadsPerBlock": 1,
    "clockRate": 13, "multiProcessorCount": 16, "integrated": 18, "canMapHostMemory": 19, "concurrentKernels": 31,
    "ECCEnabled": 32, "l2CacheSize": 38, "maxThreadsPerMultiProcessor": 39, "asyncEngineCount": 40,
    "unifiedAddressing": 41, "major": 75, "minor": 76, "streamPrioritiesSupported": 78,
    "sharedMemPerMultiprocessor": 81, "regsPerMultiprocessor": 82, "managedMemory": 83, "cooperativeLaunch": 95,
    "sharedMemPerBlockOptin": 97, "maxBlocksPerMultiProcessor": 106, "reservedSharedMemPerBlock": 111,
}  # fmt: skip
TYPES = {
    "intptr_t": ctypes.c_ssize_t, "size_t": ctypes.c_size_t, "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint, "float": ctypes.c_float, "cudaMemcpyKind": ctypes.c_int,
}  # fmt: skip

_new_capsule, _capsule_name = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetName
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_address_in = ctypes.pythonapi.PyCapsule_GetPointer
_address_in.restype, _address_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _type(text: str) -> Any:
    """Returns the type of ctypes for one of C as Cython writes it."""
    return ctypes.py_object if "*" in text else TYPES[text.strip()]


def _signature(name: str) -> tuple[bytes, Any, list[str]]:
    """Returns a function's types: as Cython writes them, the result, and the arguments."""
    text = _capsule_name(runtime.__pyx_capi__[name])
    result, args = text.decode().rstrip(")").split("(", 1)
    own = re.sub(r"(, )?int __pyx_skip_dispatch.*|^void$", "", args)
    return text, _type(result), own.split(", ") if own else []


def _put(name: str, function: Any, call: Callable[..., Any]) -> None:
    """Have CuPy's modules call ``function``, of ctypes, and scripts ``call`` in place of a function of the runtime."""
    text = _signature(name)[0]
    _kept.append((text, function))
    address = ctypes.cast(function, ctypes.c_void_p).value
    runtime.__pyx_capi__[name] = _new_capsule(address, text, None)
    setattr(runtime, name, call)


_kept: list[Any] = []  # what CuPy's modules have the addresses of


def _put_function_of_c(library: ctypes.CDLL, name: str) -> None:
    """Put a function of `cupy_runtime.c` in the table. Raises UsageError if CuPy's has other types."""
    _, result, args = _signature(name)
    ours = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, f"types_{name}"))).decode()
    if re.sub(r" \w+(?=[,)])", "", ours) != f"({', '.join(args) or 'void'})":
        raise UsageError(
            f"the function {name} of CuPy has other types than in version 14; expected cupy-cuda13x>=14,<15"
        )
    function = ctypes.PYFUNCTYPE(result, *map(_type, args))((f"cupy_{name}", library))
    _put(name, function, lambda *values: function(*values[: len(args)]))


def _put_function_of_python(call: Callable[..., Any]) -> None:
    _, result, args = _signature(call.__name__)
    _put(call.__name__, ctypes.PYFUNCTYPE(result, *map(_type, args))(call), call)


@dataclass(frozen=True)
class Functions:
    """Functions of the runtime that take or return objects of Python; they raise nothing."""

    spec: Device
    memory: DeviceMemory
    library: ctypes.CDLL

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        limits, known = self.spec.limits, device_attributes(self.spec)
        return {
            "name": f"Warpwright {self.spec.name}".encode(),
            "totalGlobalMem": self.spec.hbm_bytes,
            "maxThreadsDim": tuple(limits.max_block_dim),
            "maxGridSize": tuple(limits.max_grid_dim),
            **{name: known[number] for name, number in PROPERTIES.items()},
        }

    def deviceGetPCIBusId(self, device: int) -> str:
        return "0000:01:00.0"

    def memGetInfo(self) -> tuple[int, int]:
        return self.memory.room - self.memory.used, self.memory.room

    def memPoolCreate(self, properties: Any) -> int:
        return DEVICE

    def memPoolGetAttribute(self, pool: int, attribute: int) -> int:
        """Returns the bytes that the pool keeps, for RELEASE_THRESHOLD, or a number of bytes in use; 0 for a flag."""
        keeps = dict.fromkeys(POOL_BYTES, self.memory.used)
        return {**keeps, RELEASE_THRESHOLD: self.memory.room}.get(attribute, 0)

    def memPoolSetAttribute(self, pool: int, attribute: int, value: Any) -> None:
        pass

    def pointerGetMemoryType(self, pointer: int) -> int:
        start = self.memory.find(pointer, 1)
        return 0 if start is None else self.memory.kinds[start]

    def pointerGetAttributes(self, pointer: int) -> Any:
        kind = self.pointerGetMemoryType(pointer)
        on_device, on_host = pointer if kind else 0, pointer if kind != DEVICE else 0
        return runtime.PointerAttributes(0 if kind else -2, on_device, on_host, kind)

    def launchHostFunc(self, stream: int, call: Any, argument: Any) -> None:
        self._launchHostFuncUnmanaged(stream, (call, argument))

    def _launchHostFuncUnmanaged(self, stream: int, call: tuple[Any, Any]) -> None:
        _call(*call)

    def streamAddCallback(self, stream: int, call: Any, argument: Any, flags: int = 0) -> None:
        _call(call, stream, self.streamQuery(stream), argument)

    def streamQuery(self, stream: int) -> int:
        return int(self.library.cuStreamQuery(None))

    def eventQuery(self, event: int) -> int:
        return self.streamQuery(0)


def _call(call: Any, *args: Any) -> None:
    """Call a function of the program where no exception can pass; one is printed, as CuPy does."""
    try:
        call(*args)
    except Exception:
        traceback.print_exc()


@cache
def _serve(spec: Device) -> None:
    """Put the functions in CuPy's table, where they stay until the process ends."""
    library = ctypes.CDLL(str(build(Path(__file__).with_name("cupy_runtime.c"), "cupy_runtime.so", "-std=gnu11")))
    check = runtime.__pyx_capi__["check_status"]
    ctypes.c_void_p.in_dll(library, "cupy_check_status").value = _address_in(check, _capsule_name(check))
    functions = Functions(spec, memory_of_process(), ctypes.CDLL(driver.DRIVER))
    for name in tuple(runtime.__pyx_capi__):
        if hasattr(functions, name):
            _put_function_of_python(getattr(functions, name))
        elif hasattr(library, f"types_{name}"):
            _put_function_of_c(library, name)


@contextlib.contextmanager
def opened(session: Session) -> Iterator[None]:
    """CuPy runs on the session's virtual GPU. Raises UsageError if CuPy is imported already."""
    if hasattr(sys.modules.get("cupy"), "ndarray") and not _kept:
        raise UsageError(
            "given CuPy imported before virtual(), with the functions of a GPU; expected the import inside the "
            "context, or the whole script: warpwright run --device b200 script.py"
        )
    with driver.opened(session) as serves, mock.patch.dict(os.environ, ENVIRONMENT):
        if serves:
            _serve(session.device.spec)
        yield
