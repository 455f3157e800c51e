"""Which attention kernel runs a problem, and its launch, prepared where arrays are on a GPU.

Q, K, V and O are seen as (batch, heads, rows, head_dim), of any strides with dense rows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warpwright import cuda, types
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.arrays.libraries import View
from warpwright.cuda.driver import driver
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import Problem
from warpwright.kernels.attention.sm90 import decode as sm90_decode
from warpwright.kernels.attention.sm90 import decode_plan as sm90_decode_plan
from warpwright.kernels.attention.sm90 import forward as sm90
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.kernels.attention.sm100 import kernel as sm100
from warpwright.kernels.attention.sm100 import plan as sm100_plan
from warpwright.kernels.attention.sm120 import kernel as sm120
from warpwright.kernels.attention.sm120 import plan as sm120_plan
from warpwright.lang.trace import Traced
from warpwright.layout.tensor_map import TensorMap
from warpwright.run.launch import entry_point, launch

__all__ = [
    "COUNTER",
    "KEPT_ADDRESSES",
    "MAP_BYTES",
    "SETTING",
    "Choice",
    "Explanation",
    "Job",
    "capturing",
    "choose",
    "explained",
    "geometry",
    "given_setting",
    "job_of",
    "ready",
    "run",
    "setting",
    "usable",
]

SETTING = "WARPWRIGHT_ATTENTION_TMA"
SETTINGS = {"0": False, "1": True, "-1": None}
# What os.environ keeps, by encoded names: its own get encodes and raises inside, 0.7 µs of every call.
ENVIRONMENT, NAME = os.environ._data, os.environ.encodekey(SETTING)  # type: ignore[attr-defined]
AUTO_ABOVE = {"sm_90a": 64, "sm_100a": 64, "sm_120a": 512}  # keys from which on TMA pays: measured on an H200 only
MAP_BYTES = 16  # addresses and strides of tensor maps, and of cp.async
MAP_STRIDE = 1 << 40
KEPT_ADDRESSES = 1024
ARRAYS = "qkvo"
COUNTER = 1  # word, of kernels that can do without it

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
    """A launch that only lacks arrays: of those of Q, K, V and O that ``kernel`` has maps for a tensor map, of others
    the address, strides, and the head dimension. ``config`` is the kernel's configuration.

    ``words`` of 32 bits is the memory that it takes the address of, None where it takes none: a `COUNTER`, or a
    workspace that begins with counters. Those are 0 before the first launch and after each. ``then`` is a second
    launch, which takes what the first takes from O on, but for the last scalar.
    """

    choice: Choice
    kernel: Traced
    grid: tuple[int, int, int]
    config: Any
    scalars: tuple[int | float, ...]
    words: int | None = None
    then: tuple[Traced, tuple[int, int, int]] | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """How an attention ran: ``kernel`` and its ``config``, ``device``, whether it copied by ``tma``, and ``why``."""

    kernel: str
    config: Any
    device: str
    tma: bool
    why: str

    def __str__(self) -> str:
        options = ", ".join(f"{name} {value}" for name, value in self.config.keywords.items())
        return f"{self.kernel} on {self.device}: {options}; TMA {'on' if self.tma else 'off'}: {self.why}"


def explained(job: Job | None, device: str) -> Explanation | None:
    """How ``job`` ran on ``device``; None where there was nothing to run."""
    if job is None:
        return None
    return Explanation(job.choice.kernel, job.config, device, job.choice.tma, job.choice.why)


def given_setting() -> Any:
    """What the environment says about TMA now, as it stands there."""
    return ENVIRONMENT.get(NAME)


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
def job_of(problem: Problem, arch: str, sms: int, tma: bool | None, memory: bool = True) -> Job:
    """The launch of ``problem`` on a device of ``sms`` SMs; ``memory``: there can be some for what it needs itself."""
    choice, dtype = choose(problem, arch, tma), types.of_dtype(problem.dtype)
    if choice.tma and arch == "sm_90a" and memory and sm90_decode_plan.suits(problem, sms=sms):
        return _shared_out(problem, sms, choice)
    if choice.tma and arch in OWN:
        _, planned, kernel_of = OWN[arch]
        plan = planned(problem, sms=sms)
        kernel = kernel_of(plan.config).trace(dtype=dtype, bounds=plan.bounds)
        counted = any(name == "counter" for name, _ in kernel.params)
        words = COUNTER * (memory and plan.uneven) if counted else None
        return Job(choice, kernel, plan.grid, plan.config, plan.scalars, words)
    found = sm120_plan.plan(problem, tma=choice.tma, arch=arch)
    traced = sm120.kernel_of(found.config).trace(arch=arch, dtype=dtype)
    return Job(choice, traced, found.grid, found.config, found.scalars)


def _shared_out(problem: Problem, sms: int, choice: Choice) -> Job:
    """The launch where keys are shared out to CTAs."""
    found = sm90_decode_plan.plan(problem, sms=sms)
    options: dict[str, Any] = {"dtype": types.of_dtype(problem.dtype), "bounds": found.bounds}
    kernel = sm90_decode.kernel_of(found.config).trace(**options)
    why = f"{choice.why}; tiles of queries: {found.tiles}, CTAs that share out their keys: {found.grid[0]}"
    choice = Choice("sm90_decode.attention", True, why)
    last = found.combine_grid
    then = (sm90_decode.combine_of(found.config).trace(**options), last) if last else None
    return Job(choice, kernel, found.grid, found.config, found.scalars, found.words, then)


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


def run(job: Job, views: Sequence[View], lse: View | None, device: Device, memory: View | None, stream: int) -> None:
    """Attention of arrays of the host, or of a GPU, where it is only started on ``stream``.

    ``views`` are Q, K, V and O; ``lse`` (batch, heads, q_len) of float32; ``memory`` the words that the job takes.
    """
    on_gpu = [view for view in views if isinstance(view, DeviceArray)]
    if len(on_gpu) == len(views):
        layouts = tuple(geometry(view) for view in views)
        at = ready(job, layouts, device.name)
        at_lse, at_memory = (each.pointer if isinstance(each, DeviceArray) else 0 for each in (lse, memory))
        at(tuple(view.pointer for view in on_gpu), at_lse, at_memory, stream)()
        return
    host = [view for view in views if isinstance(view, np.ndarray)]
    near = [x if name in job.kernel.maps else np.ascontiguousarray(x) for name, x in zip(ARRAYS, host, strict=True)]
    given: list[Any] = [near[i] if tensor is None else tensor for i, tensor in enumerate(mapped(job, near))]
    steps = _steps(job, [geometry(array) for array in near])
    own = [] if job.words is None else [np.zeros(job.words, np.uint32) if job.words else 0]
    more = [*steps, 0 if lse is None else lse, *own]
    launch(job.kernel, job.grid, args=[*given, *more, *job.scalars], device=device)
    if job.then:
        launch(*job.then, args=[given[-1], *more, *job.scalars[:-1]], device=device)
    if near[-1] is not host[-1]:
        host[-1][...] = near[-1]


def mapped(job: Job, views: Sequence[View]) -> list[TensorMap | None]:
    """Tensor maps of Q, K, V and O, None for those that the kernel takes no map of."""
    maps: list[TensorMap | None] = []
    for name, view in zip(ARRAYS, views, strict=True):
        use = job.kernel.maps.get(name)
        if use is not None and len(use.box) > len(view.shape):
            view = _grouped(view, views[1].shape[1])
        maps.append(TensorMap(view, use.box, swizzle=use.swizzle) if use else None)
    return maps


def _grouped(view: View, kv_heads: int) -> View:
    """(batch, heads, rows, head_dim) as (batch, kv_heads, group, rows, head_dim)."""
    (batch, heads, *rest), (far, step, *near) = view.shape, view.strides
    group = heads // kv_heads
    shape, strides = (batch, kv_heads, group, *rest), (far, group * step, step, *near)
    if isinstance(view, DeviceArray):
        return replace(view, shape=shape, strides=strides)
    return np.lib.stride_tricks.as_strided(view, shape, strides)


def _steps(job: Job, layouts: Sequence[Geometry]) -> list[int]:
    """Of the arrays that the kernel takes no map of: their strides in elements, and the head dimension."""
    apart = [layout for name, layout in zip(ARRAYS, layouts, strict=True) if name not in job.kernel.maps]
    steps = [step // dtype.itemsize for _, strides, dtype in apart for step in strides[:-1]]
    return [*steps, layouts[0][0][-1]] if apart else []


@functools.lru_cache(maxsize=1024)
def ready(
    job: Job, layouts: tuple[Geometry, ...], gpu: str
) -> Callable[[tuple[int, ...], int, int, int], Callable[[], None]]:
    """The launch on ``gpu`` of arrays that lie so: made of their addresses, those of log-sum-exp and its own memory (0
    for none), and the stream."""
    function = _function(job.kernel, gpu)
    last, last_grid = (_function(job.then[0], gpu, dependent=True), job.then[1]) if job.then else (None, (0, 0, 0))
    nowhere = [DeviceArray(0, *layout, None, None) for layout in layouts]
    encoders: list[Callable[[int], Any]] = [
        int if tensor is None else functools.lru_cache(KEPT_ADDRESSES)(cuda.MovableMap(tensor))
        for tensor in mapped(job, nowhere)
    ]
    steps, takes = _steps(job, layouts), job.words is not None

    def at(places: tuple[int, ...], lse: int, memory: int, stream: int) -> Callable[[], None]:
        function.enter()  # a new thread has no context yet, without which the driver makes no tensor map
        given = [encode(place) for encode, place in zip(encoders, places, strict=True)]
        more = (*steps, lse, memory) if takes else (*steps, lse)
        launch = function.at(job.grid, (*given, *more, *job.scalars), stream)
        if last is None:
            return launch
        then = last.at(last_grid, (given[-1], *more, *job.scalars[:-1]), stream)

        def both() -> None:
            launch()
            then()

        return both

    return at


def _function(kernel: Traced, gpu: str, *, dependent: bool = False) -> cuda.Function:
    entry, sizes = entry_point(kernel), (kernel.threads, kernel.cluster, kernel.smem_bytes)
    return cuda.device(gpu).function(entry.module, entry.name, *sizes, dependent=dependent)


def capturing(stream: int) -> bool:
    """Whether what goes to a stream of a real GPU is captured in a graph, or nothing can be asked for a capture."""
    return any(driver().cuStreamIsCapturing(stream))
