"""`virtual`: kernels of Triton and Gluon run on a virtual GPU, without a GPU and without a change of the program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
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
    """Run kernels of Triton and Gluon on a virtual GPU inside the context: ``with virtual("h200"): kernel[grid](x)``.

    ``name`` is one of ``b200``, ``gb200`` (sm_100a), ``h200`` (sm_90a) and ``rtx5090`` (sm_120a). Tensors are torch's
    on the CPU. torch's device "cuda" is the CPU inside the context, so programs that name it run unmodified. With
    ``check`` each launch gets a verdict, with ``profile`` a predicted time; ``launches`` of the session that the
    context returns has both. Autotuning compares predicted times.

    Raises UsageError without Triton or torch, or for another name.
    """
    for library in ("torch", "triton"):
        if find_spec(library) is None:
            raise UsageError(f"virtual() runs kernels of Triton, and {library} is absent; pip install torch triton")
    session = Session(device(name), check, profile)
    doors: list[Callable[[Session], Any]] = [
        import_module(f"warpwright.interop.{door}").opened for door in ("triton", "torch_cuda")
    ]
    with contextlib.ExitStack() as stack:
        for door in doors:
            stack.enter_context(door(session))
        yield session
