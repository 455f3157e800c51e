"""CuTe DSL on a virtual GPU: its host code runs unmodified, and its calls of the CUDA runtime are served here.

CuTe DSL compiles a function of Python to host code and a library of kernels. The host code calls functions of the
libraries that ``CUTE_DSL_LIBS`` names; `cute_runtime.c` stands for them. The library of kernels holds machine code, so
the PTX of each library is kept, beside it in the compiler's dump folder, and later in the cache folder by the digest of
the machine code: libraries that programs cache are found again.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tvm_ffi
from cutlass._mlir._mlir_libs._cutlass_ir import _execution_engine
from cutlass.base_dsl import compiler, jit_executor
from cutlass.base_dsl.dsl import DSLSingletonMeta
from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule
from cutlass.base_dsl.tvm_ffi_builder.tvm_ffi_builder import TVMFFIFunctionBuilder
from cutlass.cute import runtime
from cutlass.cutlass_dsl import CuTeDSL, cuda_jit_executor
from cutlass.utils import HardwareInfo
from tvm_ffi.libinfo import find_libtvm_ffi

from warpwright import folders
from warpwright.errors import UsageError
from warpwright.interop import cuda_bindings
from warpwright.interop.c_library import build
from warpwright.interop.memory import Memory
from warpwright.isa.operands import bits_of
from warpwright.ptx.nodes import Variable
from warpwright.run.launch import Entry, PtxModule, load_ptx

__all__ = ["opened"]

FAILED = -1  # the error is Python's already, `cute_runtime.c` too
RAISED = "warpwright"  # the kind of an error of `Calls`, for TVM FFI
FATBIN = 0xBA55ED50
CUDA = 2  # DLDeviceType
CLUSTER, COOPERATIVE = 4, 2  # cudaLaunchAttributeID
STATIC_SMEM, MOST_THREADS = 1, 0  # CUfunction_attribute

SOURCE = Path(__file__).with_name("cute_runtime.c")

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


class _Functions(ctypes.Structure):
    """``struct calls`` of `cute_runtime.c`."""

    _fields_ = list(_CALLS.items())


class Calls:
    """What host code asks the CUDA runtime, answered for the virtual GPU of a `Session`.

    Handles of libraries and kernels are positions in the lists, from 1 on. ``errors`` has the error of the last call.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self.modules: list[PtxModule] = []
        self.entries: list[Entry] = []
        self.errors: list[BaseException] = []
        self.raise_in_ffi = ctypes.CDLL(find_libtvm_ffi()).TVMFFIErrorSetRaisedFromCStr

    def functions(self) -> _Functions:
        """Returns the calls as functions of C."""
        return _Functions(*(kind(self._guard(getattr(self, name))) for name, kind in _CALLS.items()))

    def _guard(self, call: Callable[..., None]) -> Callable[..., int]:
        def guarded(*args: Any) -> int:
            try:
                call(*args)
            except BaseException as error:
                self.errors[:] = [error]
                self.raise_in_ffi(RAISED.encode(), str(error).encode())
                return FAILED
            return 0

        return guarded

    def load(self, library: Any, binary: int) -> None:
        """cudaLibraryLoadData"""
        self.modules.append(load_ptx(_ptx_of(_fatbin(binary))))
        library[0] = len(self.modules)

    def kernel(self, kernel: Any, library: int, name: bytes) -> None:
        """cudaLibraryGetKernel"""
        self.entries.append(self.modules[library - 1][name.decode()])
        kernel[0] = len(self.entries)

    def attribute(self, value: Any, attribute: int) -> None:
        """cudaDeviceGetAttribute"""
        known = cuda_bindings.attributes(self.session.device.spec)
        if attribute not in known:
            raise UsageError(f"CuTe DSL asks for attribute {attribute} of the device; expected one of {sorted(known)}")
        value[0] = known[attribute]

    def kernel_attribute(self, value: Any, attribute: int, kernel: int) -> None:
        """cuKernelGetAttribute"""
        known = {STATIC_SMEM: 0, MOST_THREADS: self.session.device.spec.max_threads_per_block}
        if attribute not in known:
            raise UsageError(f"CuTe DSL asks for attribute {attribute} of a kernel; expected one of {sorted(known)}")
        value[0] = known[attribute]

    def launch(self, config: Any, kernel: int, args: Any) -> None:
        """cudaLaunchKernelExC"""
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
    """Returns a library of kernels by its address: a header of 16 bytes that has the number of bytes that follow."""
    magic, sizes = ctypes.c_uint32.from_address(binary).value, (ctypes.c_uint16 * 8).from_address(binary)
    if magic != FATBIN:
        raise UsageError(f"CuTe DSL loads kernels that begin with {magic:#x}; expected a fatbin, {FATBIN:#x}")
    return ctypes.string_at(binary, sizes[3] + int.from_bytes(bytes(sizes)[8:16], "little"))


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


def _keep_ptx(module: Any, ptx: Path) -> None:
    """Put the PTX of a compiled module into the cache."""
    for each in module.body.operations:
        if "value" in each.attributes:
            data = getattr(each.attributes["value"], "value_bytes", b"")
            if data[:4] == FATBIN.to_bytes(4, "little"):
                size = int.from_bytes(data[6:8], "little") + int.from_bytes(data[8:16], "little")
                folders.write_code(_path(data[:size]), ptx.read_bytes().rstrip(b"\0"))


@contextlib.contextmanager
def _compiling(arch: str, library: str) -> Iterator[None]:
    """CuTe DSL compiles for ``arch``, keeps the PTX, and links host code with ``library``."""
    with contextlib.ExitStack() as stack:
        dumps = stack.enter_context(tempfile.TemporaryDirectory())
        apply, compile = compiler.CompileOptions.apply_envar_settings, compiler.Compiler.compile

        def compile_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
            module = compile(self, *args, **kwargs)
            for ptx in Path(dumps).glob("*.ptx"):
                _keep_ptx(module, ptx)
                ptx.unlink()
            return module

        def apply_and_keep(options: Any, settings: Any, name: str) -> None:
            options.options[compiler.KeepPTX].value = True
            options.options[compiler.DumpDir].value = dumps
            apply(options, settings, name)

        stack.enter_context(mock.patch.object(compiler.CompileOptions, "apply_envar_settings", apply_and_keep))
        stack.enter_context(mock.patch.object(compiler.Compiler, "compile", compile_and_keep))
        quack = str(folders.cache() / "quack" / arch)  # QuACK's names of compiled kernels do not tell GPUs apart
        names = {"CUTE_DSL_ARCH": arch, "CUTE_DSL_LIBS": library, "QUACK_CACHE_DIR": quack}
        stack.enter_context(mock.patch.dict(os.environ, names))
        if "quack.cache" in sys.modules:
            stack.enter_context(mock.patch.object(sys.modules["quack.cache"], "CACHE_DIR", quack))
        CuTeDSL._get_dsl()
        for dsl in DSLSingletonMeta._instances.values():
            stack.enter_context(mock.patch.multiple(dsl.envar, arch=arch, shared_libs=library))
        yield


def _renamed(engine: Any) -> Callable[..., Any]:
    """Returns the constructor of an engine for object code whose calls have the second names of `cute_runtime.c`."""
    found = re.findall(r"^NAMED\((.), (\w+)\)", SOURCE.read_text(), re.MULTILINE)
    names = [(first + name).encode() for first, name in found]

    def make(code: bytes, *args: Any) -> Any:
        for name in names:
            code = code.replace(b"\0" + name + b"\0", b"\0W" + name[1:] + b"\0")
        return engine(code, *args)

    return make


class _OnGpu:
    """An object with ``__dlpack__`` whose memory lies on the host, described as the memory of GPU 0."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.tensor.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        device_type = pointer(capsule, b"dltensor") + ctypes.sizeof(_Pointer)  # after the address of DLTensor
        ctypes.c_int32.from_address(device_type).value = CUDA
        return capsule


_init_tensor = runtime._Tensor.__init__


def _init(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
    _init_tensor(self, _OnGpu(tensor) if hasattr(tensor, "__dlpack__") else tensor, *args, **kwargs)


_decode_param_tensor = TVMFFIFunctionBuilder.decode_param_tensor


def _decode(builder: Any, block: Any, param: Any, *args: Any) -> Any:
    """Tensors of the host pass as the GPU's: the check of the device type compares the expected type with itself."""
    expected = param.dlpack_device_type
    with mock.patch.object(builder, "load_dltensor_device_type", lambda tensor: builder.i32(expected)):
        return _decode_param_tensor(builder, block, param, *args)


@contextlib.contextmanager
def _running(calls: Calls) -> Iterator[None]:
    """Python parts of CuTe DSL's runtime see one device, and errors of a call are those of `Calls`."""
    spec = calls.session.device.spec
    tvm_ffi.register_error(RAISED, type("Raised", (), {"__new__": lambda kind, message: calls.errors.pop()}))

    def raising(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_raise(*args: Any, **kwargs: Any) -> Any:
            try:
                return run(*args, **kwargs)
            except Exception:
                if calls.errors:
                    raise calls.errors.pop() from None
                raise

        return run_and_raise

    def load(function: Any) -> list[Any]:
        """Loads the kernels; returns no handle, since the driver does not know it and could not free it."""
        loaded(function)
        return []

    compiled = cuda_jit_executor.CudaDialectJitCompiledFunction
    loaded = compiled._load_cuda_library
    with contextlib.ExitStack() as stack:
        for place, name, value in cuda_bindings.replaced(spec):
            stack.enter_context(mock.patch.object(place, name, value))
        clusters = lambda self, cluster_size, stream=None: spec.sms // cluster_size  # noqa: E731
        stack.enter_context(mock.patch.object(HardwareInfo, "get_max_active_clusters", clusters))
        stack.enter_context(mock.patch.object(compiled, "_load_cuda_library", load))
        engine = _renamed(_execution_engine.BinaryExecutionEngine)
        stack.enter_context(mock.patch.object(_execution_engine, "BinaryExecutionEngine", engine))
        provider = ExternalBinaryModule.load_provider
        stack.enter_context(mock.patch.object(provider, "execution_engine_constructor", engine))
        stack.enter_context(mock.patch.object(runtime._Tensor, "__init__", _init))
        stack.enter_context(mock.patch.object(TVMFFIFunctionBuilder, "decode_param_tensor", _decode))
        for kind in (jit_executor.JitExecutor, jit_executor.JitCompiledFunction):
            run = raising(kind.run_compiled_program)
            stack.enter_context(mock.patch.object(kind, "run_compiled_program", run))
        yield


@contextlib.contextmanager
def opened(session: Any) -> Iterator[None]:
    """CuTe DSL compiles for the session's virtual GPU and launches there."""
    path = build(SOURCE, "libcute_dsl_runtime.so")  # CuTe DSL looks for this name
    calls = Calls(session)
    served = _Functions.in_dll(ctypes.CDLL(str(path)), "warpwright_calls")
    functions = calls.functions()
    before = _Functions.from_buffer_copy(served)
    ctypes.pointer(served)[0] = functions
    try:
        with _compiling(session.device.spec.arch, str(path)), _running(calls):
            yield
    finally:
        ctypes.pointer(served)[0] = before
