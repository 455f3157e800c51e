"""What the host code of CuTe DSL asks the CUDA runtime, answered for a virtual GPU (see `cute_runtime.c`).

A library of kernels is a fatbin with machine code. Its PTX is in the cache folder, by the digest of the fatbin: object
files that programs keep, such as QuACK's, find their PTX again.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm_ffi.libinfo import find_libtvm_ffi

from warpwright import folders
from warpwright.errors import UsageError
from warpwright.interop.memory import Memory
from warpwright.layout.tensor_map_bytes import MAP_BYTES, encode, fields_of_driver
from warpwright.programs.attributes import device_attributes
from warpwright.programs.properties import TOO_LARGE
from warpwright.run.arguments import nbytes_of, value_of
from warpwright.run.launch import Entry, PtxModule, load_ptx
from warpwright.vgpu.program.decode import static_shared

__all__ = ["ERRORS", "Calls", "Functions", "keep_ptx"]

FAILED = -1  # the error is Python's already, `cute_runtime.c` too
RAISED = "warpwright"  # the kind of an error of `Calls`, for TVM FFI
FATBIN = (0xBA55ED50).to_bytes(4, "little")
HEADER = 16  # bytes of a fatbin before its content
CLUSTER, COOPERATIVE = 4, 2  # cudaLaunchAttributeID
STATIC_SMEM, MOST_THREADS = 1, 0  # CUfunction_attribute
_OVER = (
    "given a function that CuTe DSL compiled inside virtual(), after its context; call it inside, or compile it again"
)
_handles = itertools.count(1)

ERRORS: list[BaseException] = []  # the error of the last call; TVM FFI makes an object of the class that it knows
tvm_ffi.register_error(RAISED, type("Raised", (), {"__new__": lambda kind, message: ERRORS.pop()}))

_Pointer = ctypes.c_void_p
_U64, _U32 = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)


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
    "occupancy": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), _Pointer, ctypes.c_int, ctypes.c_size_t),
    "launch": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Config), _Pointer, ctypes.POINTER(_Pointer)),
    "encode": ctypes.CFUNCTYPE(
        ctypes.c_int, _Pointer, ctypes.c_int, ctypes.c_int, _Pointer, *2 * [_U64], *2 * [_U32], *4 * [ctypes.c_int]
    ),
}


class Functions(ctypes.Structure):
    """``struct calls`` of `cute_runtime.c`."""

    _fields_ = list(_CALLS.items())


class Calls:
    """What host code asks the CUDA runtime, answered for the virtual GPU of a `Session`.

    Handles of libraries and kernels are numbers from 1 on, each of one session. ``session`` is None after its context.
    """

    def __init__(self, session: Any) -> None:
        self.session: Any = session
        self.modules: dict[int, PtxModule] = {}
        self.entries: dict[int, Entry] = {}
        self.raise_in_ffi = ctypes.CDLL(find_libtvm_ffi()).TVMFFIErrorSetRaisedFromCStr

    def functions(self) -> Functions:
        """Returns C function pointers for the calls."""
        return Functions(*(kind(self._guard(getattr(self, name))) for name, kind in _CALLS.items()))

    def _guard(self, call: Callable[..., int | None]) -> Callable[..., int]:
        def guarded(*args: Any) -> int:
            try:
                if self.session is None:
                    raise UsageError(_OVER)
                return int(call(*args) or 0)
            except BaseException as error:
                ERRORS[:] = [error]
                self.raise_in_ffi(RAISED.encode(), str(error).encode())
                return FAILED

        return guarded

    def load(self, library: Any, binary: int) -> None:
        """Load the PTX of a library of kernels (``cudaLibraryLoadData``)."""
        library[0] = next(_handles)
        self.modules[library[0]] = load_ptx(_ptx_of(_fatbin(binary)))

    def kernel(self, kernel: Any, library: int, name: bytes) -> None:
        """Find a kernel of a library (``cudaLibraryGetKernel``)."""
        kernel[0] = next(_handles)
        self.entries[kernel[0]] = self.modules[library][name.decode()]

    def _entry(self, kernel: int) -> Entry:
        if kernel not in self.entries:
            raise UsageError(_OVER)
        return self.entries[kernel]

    def attribute(self, value: Any, attribute: int) -> None:
        """Tell an attribute of the device (``cudaDeviceGetAttribute``)."""
        known = device_attributes(self.session.device.spec)
        if attribute not in known:
            raise UsageError(f"CuTe DSL asks for attribute {attribute} of the device; expected one of {sorted(known)}")
        value[0] = known[attribute]

    def kernel_attribute(self, value: Any, attribute: int, kernel: int) -> None:
        """Tell an attribute of a kernel (``cuKernelGetAttribute``)."""
        entry = self._entry(kernel)
        smem, threads = static_shared(entry.module, entry.name), self.session.device.spec.max_threads_per_block
        known = {STATIC_SMEM: smem, MOST_THREADS: threads}
        if attribute not in known:
            raise UsageError(f"CuTe DSL asks for attribute {attribute} of a kernel; expected one of {sorted(known)}")
        value[0] = known[attribute]

    def occupancy(self, count: Any, kernel: int, threads: int, smem: int) -> None:
        """Tell how many CTAs fit on an SM (``cudaOccupancyMaxActiveBlocksPerMultiprocessor``), whatever registers they
        take."""
        count[0] = self._fitting(self._entry(kernel), threads, smem)

    def _fitting(self, entry: Entry, threads: int, smem: int) -> int:
        limits = self.session.device.spec.limits
        used = static_shared(entry.module, entry.name) + smem + limits.smem_reserved_per_block
        return int(limits.fitting_ctas(threads, used))

    def launch(self, config: Any, kernel: int, args: Any) -> int:
        """Launch a kernel (``cudaLaunchKernelExC``); its arguments are known by their bytes only.

        Raises the error of a call before it, after which the host code went on."""
        if ERRORS:
            raise ERRORS[-1]
        entry, shape, memory = self._entry(kernel), config.contents, Memory()
        most = self.session.device.spec.sms * self._fitting(entry, math.prod(shape.block), shape.smem)
        if _attribute(shape, COOPERATIVE)[0] and math.prod(shape.grid) > most:
            return TOO_LARGE
        given = [ctypes.string_at(args[at], nbytes_of(param)) for at, param in enumerate(entry.function.params)]
        memory.find(given)
        self.session.launch(
            entry,
            [value_of(param, data) for param, data in zip(entry.function.params, given, strict=True)],
            grid=tuple(shape.grid),
            block=tuple(shape.block),
            cluster=tuple(size or 1 for size in _attribute(shape, CLUSTER)),
            smem=shape.smem,
            memory=memory.arrays(),
        )
        return 0

    def encode(self, place: int, dtype: int, rank: int, address: int | None, *args: Any) -> None:
        """Encode a tensor map (``cuTensorMapEncodeTiled``)."""
        lengths = rank, rank - 1, rank, rank
        dims, strides, box, steps = (tuple(array[:count]) for array, count in zip(args[:4], lengths, strict=True))
        interleave, swizzle, l2_promotion, fill = args[4:]
        fields = fields_of_driver(
            dtype, swizzle, address=address or 0, rank=rank, dims=dims, strides=strides, box=box, steps=steps,
            interleave=interleave, l2_promotion=l2_promotion, fill=fill, corners=(),
        )  # fmt: skip
        ctypes.memmove(place, encode(fields), MAP_BYTES)


def _attribute(config: _Config, number: int) -> tuple[int, ...]:
    """Returns the first three words of an attribute of a launch, zeros without it."""
    attributes = ctypes.cast(config.attributes, ctypes.POINTER(_Attribute))
    values = (tuple(each.value[:3]) for each in attributes[: config.count] if each.id == number)
    return next(values, (0, 0, 0))


def _fatbin(binary: int) -> bytes:
    """Returns a library of kernels by its address."""
    header = ctypes.string_at(binary, HEADER)
    if header[:4] != FATBIN:
        raise UsageError(
            f"CuTe DSL loads kernels that begin with {header[:4].hex()}; expected a fatbin, {FATBIN.hex()}"
        )
    return ctypes.string_at(binary, _size(header))


def _size(header: bytes) -> int:
    """Returns the size of a fatbin in bytes: its header and the content that the header announces."""
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
