"""`virtual`: kernels of the language, Triton, Gluon, CuTe DSL, cuda.core and CuPy on a virtual GPU, without a GPU or a
change of the program."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from warpwright.run.devices import device
from warpwright.run.launch import redirect
from warpwright.run.session import Session

__all__ = ["serve", "virtual"]


@contextlib.contextmanager
def virtual(name: str = "b200", *, check: bool = False, profile: bool = False) -> Iterator[Session]:
    """Run kernels of the language, of Triton, Gluon, CuTe DSL, cuda.core and CuPy on a virtual GPU inside the context:
    ``with virtual("h200"): f(x)``.

    ``name`` is one of ``warpwright devices``, such as ``b200`` (sm_100a), ``h200`` or ``rtx5090``. Tensors are torch's
    on the CPU; ``from_dlpack`` of CuTe DSL takes arrays of NumPy too. torch's device "cuda" is the CPU inside the
    context, so programs that name it run unmodified, and so do libraries such as FlashAttention-4 and QuACK, which run
    on CuTe DSL; both remember the GPU of the process, so a process that calls them has one device. A CUDA graph of
    torch repeats operators and launches. With ``check`` each launch gets a verdict, with ``profile`` a predicted time;
    ``launches`` of the session that the context returns has both. Triton's autotuner compares predicted times. A launch
    of ``ww.launch`` that names another virtual GPU runs there; the operators, such as ``ww.matmul``, are not recorded.

    Programs of cuda.core and ``cuda.bindings.driver`` find a CUDA driver that has the virtual GPU alone, until the
    process ends. Kernels take their memory, or torch's tensors. The context must begin before they load NVRTC. So do
    programs of CuPy 14, which they import inside the context. On a machine with a GPU only ``warpwright run`` serves
    these three, for a process has one CUDA driver.

    Kernels of Triton and CuTe DSL need torch. Raises UsageError without the C compiler that CuTe DSL, cuda.core and
    CuPy need once, for CuPy imported before, or for another name.
    """
    with serve(Session(device(name), check, profile)) as session:
        yield session


@contextlib.contextmanager
def serve(session: Session, whole_process: bool = False) -> Iterator[Session]:
    """Run the launches of `ww.launch` and kernels of Triton, Gluon, CuTe DSL, cuda.core and CuPy on the session's
    virtual GPU inside the context. ``whole_process``: the process uses no other GPU. Raises as `virtual` does."""
    found = [library for library in _DOORS if _is_installed(library)]
    if GPU.exists() and not whole_process:
        found = [library for library in found if library not in OF_DRIVER]
    with contextlib.ExitStack() as stack:
        stack.enter_context(redirect(session.take))
        if _is_installed("torch"):
            stack.enter_context(import_module("warpwright.interop.torch_cuda").opened(session))
        for library in found:
            _open(stack, session, library, _DOORS[library])
        yield session


GPU = Path("/dev/nvidiactl")  # NVIDIA's driver
BINDINGS = "cuda.bindings.driver"  # cuda.core imports it
CUPY = "cupy_backends.cuda.api.runtime"  # other modules of CuPy look up its functions
OF_DRIVER = {BINDINGS, CUPY}  # they find the CUDA driver, of which a process has one
_DOORS = {
    BINDINGS: "cuda_core",
    CUPY: "cupy",
    "triton": "triton",
    "cutlass": "cute",
}  # the modules here that serve a library


def _is_installed(library: str) -> bool:
    try:
        return library in sys.modules or find_spec(library) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _open(stack: contextlib.ExitStack, session: Session, library: str, door: str) -> None:
    """Enter the context of a library: now if the program has imported it, else when the program imports it."""

    def enter() -> None:
        stack.enter_context(import_module(f"warpwright.interop.{door}").opened(session))

    if library in sys.modules:
        enter()
    else:
        finder = _AtImport(library, enter)
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)


class _AtImport(MetaPathFinder):
    """Calls a function once, after the import of a module."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        self.name = ""
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_call(module: ModuleType) -> None:
            run(module)
            self.then()

        spec.loader.exec_module = run_and_call  # type: ignore[method-assign]
        return spec
