"""Which attention kernel runs a problem, and its launch, prepared where arrays are on a GPU.

Q, K, V and O are seen as (batch, heads, rows, head_dim), of any strides with dense rows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpwright import cuda, types
from warpwright.arrays import DeviceArray, dense_strides
from warpwright.cuda.driver import driver
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention import sm90, sm90_plan, sm100, sm100_plan, sm120, sm120_plan
from warpwright.kernels.attention.problem import Problem
from warpwright.lang.trace import Traced
from warpwright.launch import entry_point, launch
from warpwright.libraries import View
from warpwright.tensormap import TensorMap

__all__ = ["SETTING", "Choice", "Job", "capturing", "choose", "geometry", "job_of", "ready", "run", "usable"]

SETTING = "WARPWRIGHT_ATTENTION_TMA"
SETTINGS = {"0": False, "1": True, "-1": None}
AUTO_ABOVE = {"sm_90a": 64, "sm_100a": 64, "sm_120a": 512}  # keys from which on TMA pays: measured on an H200 only
MAP_BYTES = 16  # addresses and strides of tensor maps, and of cp.async
MAP_STRIDE = 1 << 40
KEPT_ADDRESSES = 1024

# Targets with tensor cores of their own: the name of the kernel, its plan, and the kernel of a configuration.
OWN: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "sm_90a": ("sm90.attention", sm90_plan.plan, sm90.kernel_of),
    "sm_100a": ("sm100.attention", sm100_plan.plan, sm100.kernel_of),
}

Geometry = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which kernel runs, whether it copies by TMA, and why."""

    kernel: str
    tma: bool
    why: str


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A launch that only lacks arrays. ``mapped``: Q, K, V and O are tensor maps, else addresses and strides;
    ``counted``: the kernel takes the address of a counter, and with ``counts`` it uses it; ``config`` is the kernel's
    configuration."""

    choice: Choice
    kernel: Traced
    grid: tuple[int, int, int]
    config: Any
    scalars: tuple[int | float, ...]
    mapped: bool
    counted: bool = False
    counts: bool = False


def setting() -> bool | None:
    """What the environment says about TMA, read anew each time: on, off, or None, as it suits best.

    Raises UsageError for a value without meaning.
    """
    given = os.environ.get(SETTING, "-1")
    if given not in SETTINGS:
        raise UsageError(
            f"attention: {SETTING}={given!r}; expected 0 (off), 1 (on) or -1 (on where it is faster): unset it"
        )
    return SETTINGS[given]


def choose(problem: Problem, arch: str, tma: bool | None) -> Choice:
    """The kernel for ``problem`` on ``arch``, with or without ``tma``, or as it suits best.

    Raises UsageError for a target without a kernel.
    """
    if arch not in AUTO_ABOVE:
        known = ", ".join(AUTO_ABOVE)
        raise UsageError(f"attention has no kernel for {arch}; expected {known}: device='h200', or 'cuda'")
    above = AUTO_ABOVE[arch]
    use = problem.kv_len > above if tma is None else tma
    why = f"{problem.kv_len} keys are {'more' if use else 'no more'} than {above}"
    why = why if tma is None else f"{SETTING}={int(tma)}"
    if not use:
        return Choice("sm120.attention_cp_async", False, why)
    return Choice(OWN[arch][0] if arch in OWN else "sm120.attention", True, why)


@functools.lru_cache(maxsize=1024)
def job_of(problem: Problem, arch: str, sms: int, tma: bool | None) -> Job:
    """The launch of ``problem`` on a device of ``sms`` SMs."""
    choice, dtype = choose(problem, arch, tma), types.of_dtype(problem.dtype)
    if choice.tma and arch in OWN:
        _, planned, kernel_of = OWN[arch]
        plan = planned(problem, sms=sms)
        kernel = kernel_of(plan.config).trace(dtype=dtype, bounds=plan.bounds)
        counted = any(name == "counter" for name, _ in kernel.params)
        counts = counted and plan.uneven
        return Job(choice, kernel, plan.grid, plan.config, plan.scalars, True, counted, counts)
    found = sm120_plan.plan(problem, tma=choice.tma, arch=arch)
    traced = sm120.kernel_of(found.config).trace(arch=arch, dtype=dtype)
    return Job(choice, traced, found.grid, found.config, found.scalars, choice.tma)


def usable(view: View) -> bool:
    """Whether a kernel reads and writes an array in place: dense rows that begin at multiples of 16 bytes.

    Host memory is copied to the GPU, so there only distances count.
    """
    shape, strides = view.shape, view.strides
    dense = strides[-1] == view.itemsize or shape[-1] == 1
    spaced = all(
        extent == 1 or (step % MAP_BYTES == 0 and 0 < step < MAP_STRIDE)
        for extent, step in zip(shape[:-1], strides[:-1], strict=True)
    )
    return dense and spaced and (not isinstance(view, DeviceArray) or view.pointer % MAP_BYTES == 0)


def geometry(view: View) -> Geometry:
    """Shape, strides and dtype; axes of one element have the strides of a dense array, for theirs mean nothing."""
    dense = dense_strides(view.shape, view.itemsize)
    strides = tuple(
        fallback if extent == 1 else step
        for extent, step, fallback in zip(view.shape, view.strides, dense, strict=True)
    )
    return view.shape, strides, view.dtype


def run(job: Job, views: Sequence[View], lse: View | None, device: Device, counter: View | None, stream: int) -> None:
    """Attention of arrays of the host, or of a GPU, where it is only started on ``stream``.

    ``views`` are Q, K, V and O; ``lse`` (batch, heads, q_len) of float32; ``counter`` one u32 of zero.
    """
    on_gpu = [view for view in views if isinstance(view, DeviceArray)]
    if len(on_gpu) == len(views):
        layouts = tuple(geometry(view) for view in views)
        at = ready(job, layouts, device.name)
        at_lse, at_counter = (each.pointer if isinstance(each, DeviceArray) else 0 for each in (lse, counter))
        at(tuple(view.pointer for view in on_gpu), at_lse, at_counter, stream)()
        return
    host = [view for view in views if isinstance(view, np.ndarray)]
    given: list[Any] = mapped(job, host) if job.mapped else strided(host)
    # CTAs of a virtual GPU take every n-th tile: with a counter, those of a representative wave would take them all
    own = np.zeros(1, np.uint32) if job.counts and device.name.startswith("cuda") else 0
    tail = [0 if lse is None else lse, *([own] if job.counted else [])]
    launch(job.kernel, job.grid, args=[*given, *tail, *job.scalars], device=device)
    if not job.mapped:
        host[-1][...] = given[3]


def mapped(job: Job, views: Sequence[View]) -> list[TensorMap]:
    """Tensor maps of Q, K, V and O."""
    uses = [job.kernel.maps[name] for name in "qkvo"]
    return [TensorMap(view, use.box, swizzle=use.swizzle) for view, use in zip(views, uses, strict=True)]


def strided(views: Sequence[Any]) -> list[Any]:
    """Dense copies of arrays of the host, their strides in elements, and the head dimension."""
    dense = [np.ascontiguousarray(view) for view in views]
    return [*dense, *_steps([geometry(view) for view in dense]), views[0].shape[-1]]


def _steps(layouts: Sequence[Geometry]) -> list[int]:
    return [step // dtype.itemsize for _, strides, dtype in layouts for step in strides[:-1]]


@functools.lru_cache(maxsize=1024)
def ready(job: Job, layouts: tuple[Geometry, ...], gpu: str) -> Callable[[tuple[int, ...], int, int, int], cuda.Launch]:
    """The launch on ``gpu`` of arrays that lie so: made of their addresses, those of log-sum-exp and counter (0 for
    none), and the stream."""
    device, entry = cuda.device(gpu), entry_point(job.kernel)
    function = device.function(entry.module, entry.name, job.kernel.threads, job.kernel.cluster, job.kernel.smem_bytes)
    head_dim = layouts[0][0][-1]
    nowhere = [DeviceArray(0, *layout, None, None) for layout in layouts]
    encoders = [
        functools.lru_cache(KEPT_ADDRESSES)(functools.partial(cuda.encode, tensor))
        for tensor in (mapped(job, nowhere) if job.mapped else ())
    ]
    steps = () if job.mapped else (*_steps(layouts), head_dim)

    def at(places: tuple[int, ...], lse: int, counter: int, stream: int) -> cuda.Launch:
        function.enter()  # a new thread has no context yet, without which the driver makes no tensor map
        given = tuple(encode(place) for encode, place in zip(encoders, places, strict=True)) if encoders else places
        more = (lse, counter) if job.counted else (lse,)
        return function.at(job.grid, (*given, *steps, *more, *job.scalars), stream)

    return at


def capturing(stream: int) -> bool:
    """Whether what goes to a stream of a real GPU is captured in a graph, or nothing can be asked for a capture."""
    status, state = driver().cuStreamIsCapturing(stream)
    return bool(status.value or state.value)
