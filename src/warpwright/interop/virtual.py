"""`virtual`: kernels of Triton, Gluon and CuTe DSL run on a virtual GPU, without a GPU or a change of the program."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.run.check import check
from warpwright.run.devices import device
from warpwright.run.launch import Entry, launch
from warpwright.run.profile import profile
from warpwright.vgpu.checks.findings import Verdict

__all__ = ["Launched", "Session", "virtual"]


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a foreign kernel: its name, its grid in CTAs, and what was asked for: verdict, predicted time."""

    name: str
    grid: tuple[int, ...]
    verdict: Verdict | None
    time_us: float | None


@dataclass
class Session:
    """What runs inside `virtual`: the device, what each launch is asked for, and the launches so far."""

    device: Device
    check: bool = False
    profile: bool = False
    launches: list[Launched] = field(default_factory=list)

    def launch(self, entry: Entry, args: Sequence[Any], **how: Any) -> Launched:
        """Run a kernel; check and profile it before, on copies of its memory, if the session does so."""
        given = {**how, "args": args, "device": self.device}
        verdict = check(entry, **given) if self.check else None
        time_us = profile(entry, **given).time_us if self.profile else None
        launch(entry, **given)
        done = Launched(entry.name, how["grid"], verdict, time_us)
        self.launches.append(done)
        return done


@contextlib.contextmanager
def virtual(name: str = "b200", *, check: bool = False, profile: bool = False) -> Iterator[Session]:
    """Run kernels of Triton, Gluon and CuTe DSL on a virtual GPU inside the context: ``with virtual("h200"): f(x)``.

    ``name`` is one of ``b200``, ``gb200`` (sm_100a), ``h200`` (sm_90a) and ``rtx5090`` (sm_120a). Tensors are torch's
    on the CPU. torch's device "cuda" is the CPU inside the context, so programs that name it run unmodified, and so do
    libraries such as FlashAttention-4 and QuACK, which run on CuTe DSL; both remember the GPU of the process, so a
    process that calls them has one device. With ``check`` each launch gets a verdict, with ``profile`` a predicted
    time; ``launches`` of the session that the context returns has both. Triton's autotuner compares predicted times.

    Raises UsageError without torch, without Triton and CuTe DSL, without the C compiler that CuTe DSL's host code
    needs once, or for another name.
    """
    missing = [library for library in ("torch", *_DOORS) if find_spec(library) is None]
    if "torch" in missing or len(missing) == len(_DOORS):
        raise UsageError(
            "virtual() runs kernels of Triton and CuTe DSL on tensors of torch; expected torch and one of them; "
            "pip install torch triton nvidia-cutlass-dsl"
        )
    session = Session(device(name), check, profile)
    with contextlib.ExitStack() as stack:
        stack.enter_context(import_module("warpwright.interop.torch_cuda").opened(session))
        for library, door in _DOORS.items():
            _open(stack, session, library, door)
        yield session


_DOORS = {"triton": "triton", "cutlass": "cute"}  # the modules here that serve a library


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
        assert spec is not None and spec.loader is not None
        run = spec.loader.exec_module

        def run_and_call(module: ModuleType) -> None:
            run(module)
            self.then()

        spec.loader.exec_module = run_and_call  # type: ignore[method-assign]
        return spec
