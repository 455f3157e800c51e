"""What the host code of CuTe DSL asks the CUDA runtime, answered for a virtual GPU (see `cute_runtime.c`).

A library of kernels is a fatbin with machine code. Its PTX is in the cache folder, by the digest of the fatbin: object
files that programs keep, such as QuACK's, find their PTX again.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm_ffi.libinfo import find_libtvm_ffi

from warpwright import folders
from warpwright.errors import UsageError
from warpwright.interop import cuda_bindings
from warpwright.interop.memory import Memory
from warpwright.isa.operands import bits_of
from warpwright.ptx.nodes import Variable
from warpwright.run.launch import Entry, PtxModule, load_ptx

__all__ = ["ERRORS", "Calls", "Functions", "keep_ptx"]

FAILED = -1  # the error is Python's already, `cute_runtime.c` too
RAISED = "warpwright"  # the kind of an error of `Calls`, for TVM FFI
FATBIN = (0xBA55ED50).to_bytes(4, "little")
HEADER = 16  # bytes of a fatbin before its content
CLUSTER = 4  # cudaLaunchAttributeClusterDimension
STATIC_SMEM, MOST_THREADS = 1, 0  # CUfunction_attribute

ERRORS: list[BaseException] = []  # the error of the last call; TVM FFI makes an object of the class that it knows
tvm_ffi.register_error(RAISED, type("Raised", (), {"__new__": lambda kind, message: ERRORS.pop()}))

_Pointer = ctypes.c_void_p


class _Config(ctypes.Structure):
    """``cudaLaunchConfig_t``."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem", ctypes.c_size_t),
        ("stream", _Pointer),
        ("attributes", _Pointer),
        ("count", ctypes.c_uint),
    ]


class _Attribute(ctypes.Structure):
    """``cudaLaunchAttribute``."""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


_CALLS = {
    "load": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Pointer), _Pointer),
    "kernel": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Pointer), _Pointer, ctypes.c_char_p),
    "attribute": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "kernel_attribute": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, _Pointer),
    "launch": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Config), _Pointer, ctypes.POINTER(_Pointer)),
}


class Functions(ctypes.Structure):
    """``struct calls`` of `cute_runtime.c`."""

    _fields_ = list(_CALLS.items())


class Calls:
    """What host code asks the CUDA runtime, answered for the virtual GPU of a `Session`.

    Handles of libraries and kernels are positions in the lists, from 1 on. ``session`` is None after its context.
    """

    def __init__(self, session: Any) -> None:
        self.session: Any = session
        self.modules: list[PtxModule] = []
        self.entries: list[Entry] = []
        self.raise_in_ffi = ctypes.CDLL(find_libtvm_ffi()).TVMFFIErrorSetRaisedFromCStr

    def functions(self) -> Functions:
        """Returns the calls as functions of C."""
        return Functions(*(kind(self._guard(getattr(self, name))) for name, kind in _CALLS.items()))

    def _guard(self, call: Callable[..., None]) -> Callable[..., int]:
        def guarded(*args: Any) -> int:
            try:
                if self.session is None:
                    raise UsageError(
                        "given a function that CuTe DSL compiled inside virtual(), after its context; call it inside, "
                        "or compile it again"
                    )
                call(*args)
            except BaseException as error:
                ERRORS[:] = [error]
                self.raise_in_ffi(RAISED.encode(), str(error).encode())
                return FAILED
            return 0

        return guarded

    def load(self, library: Any, binary: int) -> None:
        """Load the PTX of a library of kernels (``cudaLibraryLoadData``)."""
        self.modules.append(load_ptx(_ptx_of(_fatbin(binary))))
        library[0] = len(self.modules)

    def kernel(self, kernel: Any, library: int, name: bytes) -> None:
        """Find a kernel of a library (``cudaLibraryGetKernel``)."""
        self.entries.append(self.modules[library - 1][name.decode()])
        kernel[0] = len(self.entries)

    def attribute(self, value: Any, attribute: int) -> None:
        """Tell an attribute of the device (``cudaDeviceGetAttribute``)."""
        known = cuda_bindings.attributes(self.session.device.spec)
        if attribute not in known:
            raise UsageError(f"CuTe DSL asks for attribute {attribute} of the device; expected one of {sorted(known)}")
        value[0] = known[attribute]

    def kernel_attribute(self, value: Any, attribute: int, kernel: int) -> None:
        """Tell an attribute of a kernel (``cuKernelGetAttribute``)."""
        known = {STATIC_SMEM: 0, MOST_THREADS: self.session.device.spec.max_threads_per_block}
        if attribute not in known:
            raise UsageError(f"CuTe DSL asks for attribute {attribute} of a kernel; expected one of {sorted(known)}")
        value[0] = known[attribute]

    def launch(self, config: Any, kernel: int, args: Any) -> None:
        """Launch a kernel (``cudaLaunchKernelExC``); its arguments are known by their bytes only."""
        entry, shape, memory = self.entries[kernel - 1], config.contents, Memory()
        given = [ctypes.string_at(args[at], _nbytes(param)) for at, param in enumerate(entry.function.params)]
        for data in given:
            memory.find(data)
        self.session.launch(
            entry,
            [_value(param, data) for param, data in zip(entry.function.params, given, strict=True)],
            grid=tuple(shape.grid),
            block=tuple(shape.block),
            cluster=_cluster(shape),
            smem=shape.smem,
            memory=memory.arrays(),
        )


def _cluster(config: _Config) -> tuple[int, ...]:
    if not config.count:
        return (1, 1, 1)
    attributes = ctypes.cast(config.attributes, ctypes.POINTER(_Attribute * config.count)).contents
    sizes = (tuple(each.value[:3]) for each in attributes if each.id == CLUSTER)
    return next(sizes, (1, 1, 1))


def _nbytes(param: Variable) -> int:
    return bits_of(param.type) // 8 * int(np.prod(param.dims, dtype=int))


def _value(param: Variable, data: bytes) -> Any:
    """Returns the bytes of a parameter as `ww.launch` takes them."""
    if param.dims:
        return data
    return np.frombuffer(data, f"{'f' if param.type[0] == 'f' else 'u'}{len(data)}")[0]


def _fatbin(binary: int) -> bytes:
    """Returns a library of kernels by its address."""
    header = ctypes.string_at(binary, HEADER)
    if header[:4] != FATBIN:
        raise UsageError(
            f"CuTe DSL loads kernels that begin with {header[:4].hex()}; expected a fatbin, {FATBIN.hex()}"
        )
    return ctypes.string_at(binary, _size(header))


def _size(header: bytes) -> int:
    """Returns the bytes of a fatbin: those of its header, and those that follow."""
    return int.from_bytes(header[6:8], "little") + int.from_bytes(header[8:16], "little")


def _path(binary: bytes) -> Path:
    return folders.cache() / "cute" / hashlib.sha256(binary).hexdigest()


def _ptx_of(binary: bytes) -> str:
    """Returns the PTX of a library of kernels."""
    text = folders.read_code(_path(binary))
    if text is None:
        raise UsageError(
            "given kernels that CuTe DSL compiled outside virtual(), of which only machine code is left; expected PTX: "
            "remove the cache of the program that compiled them, and run it again"
        )
    return text.decode()


def keep_ptx(module: Any, ptx: bytes) -> None:
    """Put the PTX of a compiled module (MLIR) into the cache."""
    for each in module.body.operations:
        if "value" in each.attributes:
            data = getattr(each.attributes["value"], "value_bytes", b"")
            if data[:4] == FATBIN:
                folders.write_code(_path(data[: _size(data)]), ptx.rstrip(b"\0"))
