"""`gradients`: those of attention by q, k and v, in three launches, on a Hopper GPU or a virtual one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from warpwright import cuda, types
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.arrays.libraries import Library, View, common_library
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import Problem, Window
from warpwright.kernels.attention.sm90.backward import kernels_of
from warpwright.kernels.attention.sm90.backward_plan import GREATEST_HEAD, BackwardConfig, BackwardPlan, plan
from warpwright.lang.trace import Traced
from warpwright.layout.tensor_map import TensorMap
from warpwright.ops.attention.arrays import (
    FLOAT32,
    axes,
    check_extents,
    device_for,
    extents,
    logical,
    made,
    plain,
    shape_made,
)
from warpwright.ops.attention.bound_backward import CALLS, Kept
from warpwright.ops.attention.plan import KEPT_ADDRESSES, Geometry, geometry, usable
from warpwright.run.devices import resolve
from warpwright.run.launch import entry_point, launch

__all__ = ["ARCH", "GREATEST_HEAD", "BackwardJob", "backward_job", "differentiate", "gradients"]

ARCH = "sm_90a"
GIVEN = "q", "k", "v", "o", "do", "lse", "dlse"
ALIGNED = 512  # bytes, as allocators align an array
NO_ARRAY = {"dlse": 0}  # addresses of arrays that may be left out
Array = Any
Launches = tuple[tuple[Traced, tuple[int, int, int]], ...]
Layouts = tuple[tuple[str, Geometry], ...]
Places = tuple[int, ...]


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
    given, options = [q, k, v, o, do, lse], (causal, *plain(scale, window), layout, device)
    if dlse is not None:
        given.append(dlse)
    done = CALLS.again(given, options)
    return _computed(given, *options) if done is None else done


def _computed(
    given: list[Array],
    causal: bool,
    scale: float | None,
    window: Window | None,
    layout: str,
    device: Device | str | None,
) -> tuple[Array, Array, Array]:
    """The gradients, of ``given`` q, k, v, o, do, lse and, where there is one, dlse."""
    arrays = dict(zip(GIVEN, given, strict=False))
    halves, stats = ({name: arrays[name] for name in names if name in arrays} for names in (GIVEN[:5], GIVEN[5:]))
    library = common_library("attention", {**halves, "lse": arrays["lse"]}, ())
    heads, rows = axes(layout)
    views = {name: logical(library, name, each, heads, rows) for name, each in halves.items()}
    target = _target(views, device)
    (batch, count, q_len, head_dim), (_, kv_heads, kv_len, _) = views["q"].shape, views["k"].shape
    _check(views, {name: library.view(array) for name, array in stats.items()})
    if 0 in views["q"].shape:
        dq, dk, dv = (library.zeros(tuple(arrays[name].shape), views[name].dtype, arrays[name]) for name in "qkv")
        return dq, dk, dv
    sizes = batch, count, kv_heads, q_len, kv_len, head_dim
    job = backward_job(Problem(*sizes, views["q"].dtype, causal, window, scale))
    found = {f"d{name}": made(library, arrays[name], heads, rows) for name in "qkv"}
    memory = {name: library.empty(shape, FLOAT32, arrays["q"]) for name, shape in job.memory.items()}
    used = {name: _usable(library, array, views[name]) for name, array in halves.items()}
    views = {name: logical(library, name, array, heads, rows) for name, array in (used | found).items()}
    dense = {name: _dense(library, array) for name, array in stats.items()}
    views |= {name: library.view(array) for name, array in (dense | memory).items()}
    on_gpu = isinstance(views["q"], DeviceArray)
    differentiate(job, views, target, library.stream(arrays["q"])() if on_gpu else 0)
    in_place = all(array is each for array, each in zip((used | dense).values(), given, strict=True))
    if on_gpu and in_place:
        options = causal, scale, window, layout, device
        _remember(job, library, given, options, views, target, (heads, rows))
    return found["dq"], found["dk"], found["dv"]


def _remember(
    job: BackwardJob,
    library: Library,
    given: list[Array],
    options: tuple[Any, ...],
    views: Mapping[str, View],
    target: Device,
    at: tuple[int, int],
) -> None:
    """Keep the launches of a call on a GPU whose arrays were all used in place."""
    alike = [each for each in map(library.alike, given) if each is not None]
    if len(alike) < len(given):
        return
    shapes = [shape_made(library, array, *at) for array in given[:3]]
    sizes = (-(-FLOAT32.itemsize * prod(shape) // ALIGNED) * ALIGNED for shape in job.memory.values())
    ends = list(accumulate(sizes, initial=0))
    kept = Kept(
        pointer=library.pointer,
        stream=library.stream(given[0]),
        makers=tuple(library.maker(shape, views["q"].dtype, given[0]) for shape, _ in shapes),
        turned=tuple(turned for _, turned in shapes),
        lender=library.lender(ends[-1], given[0]),
        offsets=tuple(ends[:-1]),
        at=_ready(job, _layouts(views), target.name),
    )
    CALLS.keep(given, options, tuple(alike), kept)


def _target(views: Mapping[str, View], device: Device | str | None) -> Device:
    """The device that computes, which must be a Hopper GPU."""
    on_host = not isinstance(views["q"], DeviceArray)
    target = resolve(None, ARCH) if on_host and device is None else device_for(dict(views), device)
    if target.spec.arch != ARCH:
        raise UsageError(
            f"attention: given gradients on {target.name} ({target.spec.arch}); expected {ARCH}, the only one with a "
            "kernel for them: torch's own scaled_dot_product_attention has gradients elsewhere"
        )
    return target


def _check(views: Mapping[str, View], stats: Mapping[str, View]) -> None:
    q = views["q"]
    check_extents(q, views["k"], views["v"])
    for name in ("o", "do"):
        if (views[name].shape, views[name].dtype) != (q.shape, q.dtype):
            raise UsageError(
                f"attention: {name} is {extents(views[name])} of {views[name].dtype}; expected the shape and dtype of "
                f"q, {extents(q)} of {q.dtype}"
            )
    for name, each in stats.items():
        if (tuple(each.shape), each.dtype) != (tuple(q.shape[:3]), FLOAT32):
            raise UsageError(
                f"attention: {name} is {extents(each)} of {each.dtype}; expected batch × heads × rows of q, "
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
    on_gpu = [view for view in views.values() if isinstance(view, DeviceArray)]
    if len(on_gpu) == len(views):
        for launched in _ready(job, _layouts(views), device.name)(tuple(view.pointer for view in on_gpu), stream):
            launched()
        return
    values: dict[str, Any] = {**NO_ARRAY, **job.plan.scalars, **views}
    for kernel, grid in job.launches:
        launch(kernel, grid, args=[values[name] for name, _ in kernel.params], device=device)


def _layouts(views: Mapping[str, View]) -> Layouts:
    return tuple((name, geometry(view)) for name, view in views.items())


@functools.lru_cache(maxsize=1024)
def _ready(job: BackwardJob, layouts: Layouts, gpu: str) -> Callable[[Places, int], tuple[cuda.Launch, ...]]:
    """The launches on ``gpu`` of arrays that lie so: made of their addresses, in this order, and the stream."""
    nowhere = {name: DeviceArray(0, *layout, None, None) for name, layout in layouts}
    made = [_launch_at(kernel, grid, {**NO_ARRAY, **job.plan.scalars}, nowhere, gpu) for kernel, grid in job.launches]
    return lambda places, stream: tuple(at(places, stream) for at in made)


def _launch_at(
    kernel: Traced,
    grid: tuple[int, int, int],
    scalars: Mapping[str, int | float],
    nowhere: Mapping[str, DeviceArray],
    gpu: str,
) -> Callable[[Places, int], cuda.Launch]:
    entry = entry_point(kernel)
    function = cuda.device(gpu).function(entry.module, entry.name, kernel.threads, kernel.cluster, kernel.smem_bytes)
    values = [_value(kernel, name, scalars, nowhere) for name, _ in kernel.params]

    def at(places: Places, stream: int) -> cuda.Launch:
        function.enter()  # a new thread, such as autograd's, has no context yet: the driver makes no tensor map there
        return function.at(grid, tuple(value(places) for value in values), stream)

    return at


def _value(
    kernel: Traced, name: str, scalars: Mapping[str, int | float], nowhere: Mapping[str, DeviceArray]
) -> Callable[[Places], Any]:
    """What a parameter is, of the addresses of arrays: a number, an address, or a tensor map."""
    if name not in nowhere:
        number = scalars[name]
        return lambda places: number
    use, index = kernel.maps.get(name), list(nowhere).index(name)
    if use is None:
        return lambda places: places[index]
    tensor = TensorMap(nowhere[name], use.box, swizzle=use.swizzle)
    encode = functools.lru_cache(KEPT_ADDRESSES)(cuda.MovableMap(tensor))
    return lambda places: encode(places[index])
