"""CuTe DSL on a virtual GPU: its host code runs unmodified, and its calls of the CUDA runtime are served here.

CuTe DSL compiles a function of Python to host code and a library of kernels. The host code calls functions of the
libraries that ``CUTE_DSL_LIBS`` names; `cute_runtime.c` stands for them, and `cute_calls` answers. Tensors of the host
pass as the GPU's, so that code which asks for them compiles as it does for a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from cutlass._mlir._mlir_libs._cutlass_ir import _execution_engine
from cutlass.base_dsl import compiler, jit_executor
from cutlass.base_dsl.dsl import DSLSingletonMeta
from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule
from cutlass.base_dsl.tvm_ffi_builder.tvm_ffi_builder import TVMFFIFunctionBuilder
from cutlass.cute import runtime
from cutlass.cutlass_dsl import CuTeDSL, cuda_jit_executor
from cutlass.utils import HardwareInfo

from warpwright import folders
from warpwright.interop import cuda_bindings
from warpwright.interop.cute_calls import ERRORS, Calls, Functions, keep_ptx
from warpwright.interop.memory import host_array
from warpwright.programs.c_library import build
from warpwright.targets import TIMINGS, Device

__all__ = ["opened"]

CUDA = 2  # DLDeviceType
SOURCE = Path(__file__).with_name("cute_runtime.c")

_kept: list[Functions] = []  # of contexts that are over: compiled functions may still call them


_apply, _compile = compiler.CompileOptions.apply_envar_settings, compiler.Compiler.compile


@contextlib.contextmanager
def _compiling(arch: str, library: str) -> Iterator[None]:
    """CuTe DSL compiles for ``arch``, keeps the PTX, and links host code with ``library``."""
    with contextlib.ExitStack() as stack:
        dumps = stack.enter_context(tempfile.TemporaryDirectory())

        def compile_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
            for ptx in Path(dumps).glob("*.ptx"):  # of a compilation that failed
                ptx.unlink()
            module = _compile(self, *args, **kwargs)
            for ptx in Path(dumps).glob("*.ptx"):
                keep_ptx(module, ptx.read_bytes())
            return module

        def apply_and_keep(options: Any, settings: Any, name: str) -> None:
            options.options[compiler.KeepPTX].value = True
            options.options[compiler.DumpDir].value = dumps
            _apply(options, settings, name)

        stack.enter_context(mock.patch.object(compiler.CompileOptions, "apply_envar_settings", apply_and_keep))
        stack.enter_context(mock.patch.object(compiler.Compiler, "compile", compile_and_keep))
        CuTeDSL._get_dsl()  # before CUTE_DSL_ARCH is set: CuTe DSL reads the variable once
        for dsl in DSLSingletonMeta._instances.values():
            # `arch` is a property; a patch of it would end with the variable's value.
            stack.enter_context(mock.patch.multiple(dsl.envar, _arch=arch, shared_libs=library))
        quack = str(folders.cache() / "quack" / arch)  # QuACK's names of compiled kernels do not tell GPUs apart
        names = {"CUTE_DSL_ARCH": arch, "CUTE_DSL_LIBS": library, "QUACK_CACHE_DIR": quack}
        stack.enter_context(mock.patch.dict(os.environ, names))
        if "quack.cache" in sys.modules:
            stack.enter_context(mock.patch.object(sys.modules["quack.cache"], "CACHE_DIR", quack))
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
        device_type = pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)  # after the address of DLTensor
        ctypes.c_int32.from_address(device_type).value = CUDA
        return capsule


_init_tensor = runtime._Tensor.__init__


def _init(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
    if hasattr(tensor, "__dlpack__"):
        self.on_host, tensor = host_array(tensor), _OnGpu(tensor)
    _init_tensor(self, tensor, *args, **kwargs)


_decode_param_tensor = TVMFFIFunctionBuilder.decode_param_tensor


def _decode(builder: Any, block: Any, param: Any, *args: Any) -> Any:
    """Let the host code accept tensors in host memory: its check of the device type compares the expected type with
    itself."""
    expected = param.dlpack_device_type
    with mock.patch.object(builder, "load_dltensor_device_type", lambda tensor: builder.i32(expected)):
        return _decode_param_tensor(builder, block, param, *args)


@contextlib.contextmanager
def _running(spec: Device) -> Iterator[None]:
    """Python parts of CuTe DSL's runtime see one device, and errors of `Calls` are raised."""

    def raising(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_raise(*args: Any, **kwargs: Any) -> Any:
            ERRORS.clear()
            try:
                return run(*args, **kwargs)
            except Exception:
                if ERRORS:
                    raise ERRORS.pop() from None
                raise

        return run_and_raise

    def clusters(info: Any, cluster_size: int, stream: Any = None) -> int:
        return TIMINGS[spec.name].clusters(cluster_size)

    def load(function: Any) -> list[Any]:
        """Loads the kernels; returns no handle, since the driver does not know it and could not free it."""
        loaded(function)
        return []

    compiled = cuda_jit_executor.CudaDialectJitCompiledFunction
    loaded = compiled._load_cuda_library
    with contextlib.ExitStack() as stack:
        for place, name, value in cuda_bindings.replaced(spec):
            stack.enter_context(mock.patch.object(place, name, value))
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
    served = Functions.in_dll(ctypes.CDLL(str(path)), "warpwright_calls")
    before = Functions.from_buffer_copy(served)
    _kept.append(calls.functions())
    ctypes.pointer(served)[0] = _kept[-1]
    try:
        with _compiling(session.device.spec.arch, str(path)), _running(session.device.spec):
            yield
    finally:
        calls.session = None
        if before.launch:  # the context around this one
            ctypes.pointer(served)[0] = before
