"""`gradients`: those of attention by q, k and v, in three launches, on a Hopper GPU or a virtual one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpwright import cuda, types
from warpwright.arrays import DeviceArray, dense_strides
from warpwright.devices import resolve
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import Problem, Window
from warpwright.kernels.attention.sm90_backward import kernels_of
from warpwright.kernels.attention.sm90_backward_plan import GREATEST_HEAD, BackwardConfig, BackwardPlan, plan
from warpwright.lang.trace import Traced
from warpwright.launch import entry_point, launch
from warpwright.libraries import Library, View
from warpwright.sdpa import _axes, _check_extents, _extents, _library, _logical, _made, _place
from warpwright.sdpa_launch import Geometry, geometry, usable
from warpwright.tensormap import TensorMap

__all__ = ["ARCH", "GREATEST_HEAD", "BackwardJob", "backward_job", "differentiate", "gradients"]

ARCH = "sm_90a"
FLOAT32 = np.dtype(np.float32)
NO_ARRAY = {"dlse": 0}  # addresses of arrays that may be left out
Array = Any
Launches = tuple[tuple[Traced, tuple[int, int, int]], ...]
Start = Callable[[Mapping[str, int], int], None]


@dataclass(frozen=True, eq=False, slots=True)
class BackwardJob:
    """Launches that only lack arrays: kernels and their grids, in order."""

    plan: BackwardPlan
    launches: Launches

    @property
    def memory(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the float32 arrays that live between the launches, by their names; nothing need be in them."""
        return {"sums": self.plan.sums_shape, "shifts": self.plan.stats_shape, "means": self.plan.stats_shape}


def gradients(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    *,
    dlse: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    layout: str = "bhsd",
    device: Device | str | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients by q, k and v of `warpwright.attention` with the same options, which gave ``o`` and ``lse``.

    ``do``, of the shape and dtype of o, is the gradient by o; ``dlse``, of the shape of lse in float32, that by lse.
    The gradients have the shapes, the dtype and the order of axes in memory of q, k and v. Sums are in float32; those
    of the first gradient come in any order, so its last bit may differ from run to run. Arrays on a GPU are used there,
    on the library's current stream, without waiting; ``device`` is as in `warpwright.attention`, but arrays of the host
    go to the virtual ``h200`` where there is no real GPU of its kind and none is named.

    Raises UsageError for a head dimension above 128, a GPU other than Hopper, and for arrays that do not fit together.
    """
    given = {"q": q, "k": k, "v": v, "o": o, "do": do}
    library = _library({**given, "lse": lse})
    heads, rows = _axes(layout)
    views = {name: _logical(library, name, each, heads, rows) for name, each in given.items()}
    target = _target(views, device)
    (batch, count, q_len, head_dim), (_, kv_heads, kv_len, _) = views["q"].shape, views["k"].shape
    stats = {"lse": lse} if dlse is None else {"lse": lse, "dlse": dlse}
    _check(views, {name: library.view(array) for name, array in stats.items()})
    if 0 in views["q"].shape:
        dq, dk, dv = (library.zeros(tuple(given[name].shape), views[name].dtype, given[name]) for name in "qkv")
        return dq, dk, dv
    extents = batch, count, kv_heads, q_len, kv_len, head_dim
    job = backward_job(Problem(*extents, views["q"].dtype, causal, window and (window[0], window[1]), scale))
    found = {f"d{name}": _made(library, given[name], heads, rows) for name in "qkv"}
    memory = {name: library.empty(shape, FLOAT32, q) for name, shape in job.memory.items()}
    kept = {name: _usable(library, array, views[name]) for name, array in given.items()}
    views = {name: _logical(library, name, array, heads, rows) for name, array in (kept | found).items()}
    dense = {name: _dense(library, array) for name, array in stats.items()}
    views |= {name: library.view(array) for name, array in (dense | memory).items()}
    differentiate(job, views, target, library.stream(q)() if isinstance(views["q"], DeviceArray) else 0)
    return found["dq"], found["dk"], found["dv"]


def _target(views: Mapping[str, View], device: Device | str | None) -> Device:
    """The device that computes, which must be a Hopper GPU."""
    on_host = not isinstance(views["q"], DeviceArray)
    target = resolve(None, ARCH) if on_host and device is None else _place(dict(views), device)
    if target.spec.arch != ARCH:
        raise UsageError(
            f"attention: given gradients on {target.name} ({target.spec.arch}); expected {ARCH}, the only one with a "
            "kernel for them: torch's own scaled_dot_product_attention has gradients elsewhere"
        )
    return target


def _check(views: Mapping[str, View], stats: Mapping[str, View]) -> None:
    q = views["q"]
    _check_extents(q, views["k"], views["v"])
    for name in ("o", "do"):
        if (views[name].shape, views[name].dtype) != (q.shape, q.dtype):
            raise UsageError(
                f"attention: {name} is {_extents(views[name])} of {views[name].dtype}; expected the shape and dtype of "
                f"q, {_extents(q)} of {q.dtype}"
            )
    for name, each in stats.items():
        if (tuple(each.shape), each.dtype) != (tuple(q.shape[:3]), FLOAT32):
            raise UsageError(
                f"attention: {name} is {_extents(each)} of {each.dtype}; expected batch × heads × rows of q, "
                f"{' × '.join(map(str, q.shape[:3]))} of float32"
            )


def _usable(library: Library, array: Array, view: View) -> Array:
    """The array, or a dense copy of one that a tensor map cannot describe."""
    return array if usable(view) else _copied(library, array, view)


def _dense(library: Library, array: Array) -> Array:
    view = library.view(array)
    strides = dense_strides(view.shape, view.itemsize)
    return array if tuple(view.strides) == strides else _copied(library, array, view)


def _copied(library: Library, array: Array, view: View) -> Array:
    made = library.empty(tuple(array.shape), view.dtype, array)
    made[...] = array
    return made


@functools.lru_cache(maxsize=1024)
def backward_job(problem: Problem, config: BackwardConfig | None = None) -> BackwardJob:
    """The launches of ``problem``, by ``config`` or the one that suits it best."""
    found, dtype = plan(problem, config=config), types.of_dtype(problem.dtype)
    prepare, gradients, convert = kernels_of(found.config)
    grids = found.query_grid, found.key_grid, found.query_grid
    traced = prepare.trace(dtype=dtype), gradients.trace(dtype=dtype, bounds=found.bounds), convert.trace(dtype=dtype)
    return BackwardJob(found, tuple(zip(traced, grids, strict=True)))


def differentiate(job: BackwardJob, views: Mapping[str, View], device: Device, stream: int) -> None:
    """Gradients of arrays of the host, or of a GPU, where this is only started on ``stream``.

    ``views``: q, k, v, o, do, dq, dk, dv (batch, heads, rows, head_dim) with dense rows; lse and, if there is one, its
    gradient dlse (batch, heads, q_len) of float32, dense; and ``job.memory``.
    """
    on_gpu = {name: view for name, view in views.items() if isinstance(view, DeviceArray)}
    if len(on_gpu) == len(views):
        layouts = tuple((name, geometry(view)) for name, view in on_gpu.items())
        _ready(job, layouts, device.name)({name: view.pointer for name, view in on_gpu.items()}, stream)
        return
    values: dict[str, Any] = {**NO_ARRAY, **job.plan.scalars, **views}
    for kernel, grid in job.launches:
        launch(kernel, grid, args=[values[name] for name, _ in kernel.params], device=device)


@functools.lru_cache(maxsize=1024)
def _ready(job: BackwardJob, layouts: tuple[tuple[str, Geometry], ...], gpu: str) -> Start:
    """The launches on ``gpu`` of arrays that lie so: called with their addresses and the stream."""
    nowhere = {name: DeviceArray(0, *layout, None, None) for name, layout in layouts}
    starts = [_start(kernel, grid, {**NO_ARRAY, **job.plan.scalars}, nowhere, gpu) for kernel, grid in job.launches]

    def start(places: Mapping[str, int], stream: int) -> None:
        for each in starts:
            each(places, stream)

    return start


def _start(
    kernel: Traced,
    grid: tuple[int, int, int],
    scalars: Mapping[str, int | float],
    nowhere: Mapping[str, DeviceArray],
    gpu: str,
) -> Start:
    entry = entry_point(kernel)
    function = cuda.device(gpu).function(entry.module, entry.name, kernel.threads, kernel.cluster, kernel.smem_bytes)
    values = [_value(kernel, name, scalars, nowhere) for name, _ in kernel.params]

    def start(places: Mapping[str, int], stream: int) -> None:
        function.enter()  # a new thread, such as autograd's, has no context yet: the driver makes no tensor map there
        function(grid, tuple(value(places) for value in values), stream)

    return start


def _value(
    kernel: Traced, name: str, scalars: Mapping[str, int | float], nowhere: Mapping[str, DeviceArray]
) -> Callable[[Mapping[str, int]], Any]:
    """What a parameter is, of the addresses of arrays: a number, an address, or a tensor map."""
    if name not in nowhere:
        number = scalars[name]
        return lambda places: number
    use = kernel.maps.get(name)
    if use is None:
        return lambda places: places[name]
    tensor = TensorMap(nowhere[name], use.box, swizzle=use.swizzle)
    return lambda places: cuda.encode(tensor, places[name])
