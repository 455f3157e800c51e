"""The parts of all operators: the plan of a problem, the call that runs it, and a plan bound to a GPU.

A `Plan` is pure data: launches whose arguments name arrays. `bind` loads its kernels on a GPU and encodes its tensor
maps; the bound plan lacks only addresses and the stream. A `Call` joins plans with the arrays of one call.
"""

from __future__ import annotations

import functools
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from warpwright import cuda, ptx
from warpwright.arrays import libraries
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import View
from warpwright.gpu import Device
from warpwright.lang.ops.tma import Map, MapUse
from warpwright.lang.trace import Traced
from warpwright.layout.tensor_map import TensorMap, ragged
from warpwright.ops.memo import ABSENT, MEMO, Guard

__all__ = [
    "MAP_BYTES",
    "NUMBERS",
    "TOGETHER",
    "Bound",
    "Call",
    "Geometry",
    "Grid",
    "Launch",
    "Layouts",
    "Plan",
    "Stride",
    "as_strided",
    "bind",
    "geometry",
    "guard_of",
    "in_place",
    "launches_at",
    "layouts_of",
    "mappable",
    "start",
    "unmappable",
    "values_of",
]

MAP_BYTES = 16  # alignment of addresses and strides of tensor maps, and of cp.async
MAP_STRIDE = 1 << 40  # strides of tensor maps are smaller
PACKED_DIMENSIONS = 3  # of packed sequences for a ragged tensor map: heads, rows, columns
KEPT_ADDRESSES = 1024
KEPT_LAUNCHES = 4096
# Calls of several threads may share a stream and its workspace: between the launches of one there is no other.
TOGETHER = threading.Lock()
NUMBERS = (float, int)

Shape = tuple[int, ...]
Grid = tuple[int, int, int]
Geometry = tuple[Shape, Shape, np.dtype[Any]]  # shape, strides in bytes, dtype
Layouts = tuple[tuple[str, Geometry | None], ...]  # of named values; None for a value that is no array
Bound = Callable[[tuple[Any, ...], int], tuple[cuda.Launch, ...]]


class Stride(NamedTuple):
    """Stands for the stride of an array along an axis, in elements."""

    array: str
    axis: int


@dataclass(frozen=True, eq=False, slots=True)
class Launch:
    """One kernel launch: ``ww.launch(x.kernel, x.grid, args=x.args)`` runs it, and so do `ww.check` and `ww.profile`.

    In a `Plan` an argument is a number, the name of an array, or a `Stride`. ``dependent``: on a real GPU the launch
    may begin before its predecessor has ended (programmatic dependent launch).
    """

    kernel: Traced
    grid: Grid
    args: tuple[Any, ...]
    dependent: bool = False

    def __repr__(self) -> str:
        return f"Launch({self.kernel!r}, grid={self.grid})"


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """The launches of a problem, in order, without arrays.

    ``config`` is the kernel's configuration. ``words`` counts the
    32-bit words of workspace whose counters are 0 before and after every call; None: the kernels take no workspace.
    ``scratch`` has the shapes of arrays that live between the launches. ``kernel``, ``tma`` and ``why`` say
    which kernel was chosen. Tensor maps have ``l2_promotion``, cover arrays as ``mapped`` returns them, and are
    those of packed sequences if ``ragged``, except for arrays of two dimensions.
    """

    launches: tuple[Launch, ...]
    config: Any
    words: int | None = None
    scratch: Mapping[str, Shape] = field(default_factory=dict)
    kernel: str = ""
    tma: bool = True
    why: str = ""
    l2_promotion: int = 0
    mapped: Callable[[Mapping[str, View]], Mapping[str, View]] | None = None
    ragged: bool = False

    def on(self, values: Mapping[str, Any]) -> Iterator[Launch]:
        """Returns the launches with ``values`` in place of names."""
        mapped = self.mapped(values) if self.mapped else values
        for launch in self.launches:
            args = []
            for (name, annotation), argument in zip(launch.kernel.params, launch.args, strict=True):
                use = use_of(launch.kernel, name, annotation, mapped.get(argument))
                args.append(resolve(argument, values) if use is None else self.tensor_map(mapped[argument], use))
            yield replace(launch, args=tuple(args))

    def tensor_map(self, view: View, use: MapUse) -> TensorMap:
        """Returns the tensor map of an array as `mapped` returns it."""
        if self.ragged and len(view.shape) == PACKED_DIMENSIONS:
            return ragged(view, use.box, swizzle=use.swizzle)
        return TensorMap(view, use.box, swizzle=use.swizzle, l2_promotion=self.l2_promotion)

    def unmapped(self) -> set[str]:
        """Returns the names of arrays that a kernel takes the address of."""
        return {
            argument
            for launch in self.launches
            for (_, annotation), argument in zip(launch.kernel.params, launch.args, strict=True)
            if isinstance(argument, str) and not is_map(annotation)
        }


@dataclass(eq=False, slots=True)
class Call:
    """One call of an operator: iterate over its launches and run each; then ``result`` is what the operator returns.

    ``library`` is that of the arrays. ``steps`` are plans with the values of their names; ``finish``, last first,
    copies staged results to the caller's arrays. ``stream`` is the handle of the current stream, 0 for arrays of the
    host. ``entry`` binds the call for the memo; None where arrays are copied or lie on the host.
    """

    device: Device
    library: libraries.Library
    result: Any
    steps: list[tuple[Plan, Mapping[str, Any]]] = field(default_factory=list)
    finish: list[Callable[[], None]] = field(default_factory=list)
    stream: int = 0
    entry: Callable[[], Callable[..., Any] | None] | None = None

    def __repr__(self) -> str:
        entries = [launch.kernel.entry for plan, _ in self.steps for launch in plan.launches]
        return f"Call({', '.join(entries) or 'no launch'} on {self.device.name})"

    def __iter__(self) -> Iterator[Launch]:
        for plan, values in self.steps:
            dense = dict(values)
            for name in plan.unmapped():
                if isinstance(values[name], np.ndarray):
                    dense[name] = np.ascontiguousarray(values[name])
            yield from plan.on(dense)
            for name, array in dense.items():
                if array is not values[name] and values[name].flags.writeable:
                    values[name][...] = array
        self._finish()

    def run(self, arrays: Sequence[Any], options: tuple[Any, ...]) -> Any:
        """Run the call and put it into the memo, as the call of ``arrays`` and ``options``; returns the result."""
        self.start()
        guards = [guard for guard in map(guard_of, arrays) if guard is not None] if self.entry else []
        bound = self.entry() if self.entry and len(guards) == len(arrays) else None
        if bound is not None:
            MEMO.put(arrays, options, tuple(guards), bound)
        return self.result

    def start(self) -> None:
        """Start every launch; on a GPU without waiting."""
        if any(isinstance(value, DeviceArray) for _, values in self.steps for value in values.values()):
            for plan, values in self.steps:
                start(bind(plan, layouts_of(values), self.device)(values_of(values), self.stream))
            self._finish()
            return
        for launch in self:
            kernel, module = launch.kernel, ptx.load_once(launch.kernel.ptx)
            sizes = kernel.threads, kernel.cluster
            self.device.launch(module, kernel.entry, launch.grid, *sizes, smem=kernel.smem_bytes, args=launch.args)

    def _finish(self) -> None:
        for copy in reversed(self.finish):
            copy()
        self.result = self.library.result(self.result)


def is_map(annotation: Any) -> bool:
    """Returns whether a parameter is a tensor map."""
    return typing.get_origin(annotation) is Map


def use_of(kernel: Traced, name: str, annotation: Any, view: View | None) -> MapUse | None:
    """Returns how a kernel uses its tensor map over ``view``; None for another parameter."""
    if view is None or not is_map(annotation):
        return None
    return kernel.maps.get(name) or MapUse.any(view.shape, view.itemsize, typing.get_args(annotation)[0])


def resolve(argument: Any, values: Mapping[str, Any]) -> Any:
    """Returns an argument of a `Plan`'s launch with ``values`` in place of names."""
    if isinstance(argument, Stride):
        array = values[argument.array]
        return array.strides[argument.axis] // array.itemsize
    value = values[argument] if isinstance(argument, str) else argument
    return 0 if value is None else value


def guard_of(value: Any) -> Guard | None:
    """Returns the guard of a number, an absent argument or an array on a GPU; None if the memo cannot know it."""
    kind = value.__class__
    if value is None:
        return ABSENT
    if kind in NUMBERS:
        return lambda other: other.__class__ is kind
    library = libraries.library_of(value)
    on_gpu = library is not None and isinstance(library.view(value), DeviceArray)
    return library.guard(value) if library is not None and on_gpu else None


def geometry(view: View) -> Geometry:
    """Returns shape, strides and dtype; an axis of one element gets the stride of a dense array."""
    strides, dense = list[int](), view.itemsize
    for extent, step in zip(reversed(view.shape), reversed(view.strides), strict=True):
        strides.append(dense if extent == 1 else step)
        dense *= extent
    return view.shape, tuple(reversed(strides)), view.dtype


def mappable(view: View) -> bool:
    """Returns whether a tensor map covers the array: dense rows in ascending order that begin at multiples of 16 bytes.

    The address of a host array does not count: the array is copied to the GPU.
    """
    (*batch, rows, columns), (*steps, row, step) = view.shape, view.strides
    dense = columns == 1 or step == view.itemsize
    spaced = all(
        extent == 1 or (far % MAP_BYTES == 0 and 0 < far < MAP_STRIDE)
        for extent, far in zip((*batch, rows), (*steps, row), strict=True)
    )
    apart = rows == 1 or row >= columns * view.itemsize
    return dense and spaced and apart and (not isinstance(view, DeviceArray) or view.pointer % MAP_BYTES == 0)


def unmappable(views: Mapping[str, View], names: Iterable[str]) -> list[str]:
    """Returns those ``names`` of arrays that no tensor map covers."""
    return [name for name in names if not mappable(views[name])]


def in_place(view: View, majors: Sequence[str]) -> tuple[View, str] | None:
    """Returns (…, rows, K) as a tensor map covers it, and its major: "k", or "mn" for the transposed matrices; None if
    no tensor map of ``majors`` covers it. Leading dimensions of stride 0 do not count."""
    own = [axis for axis, step in enumerate(view.strides) if step or axis >= len(view.shape) - 2]
    narrow = view
    if len(own) < len(view.shape):
        narrow = as_strided(view, tuple(view.shape[axis] for axis in own), tuple(view.strides[axis] for axis in own))
    for major in majors:
        if mappable(narrow if major == "k" else narrow.swapaxes(-1, -2)):
            return view if major == "k" else view.swapaxes(-1, -2), major
    return None


def as_strided(view: View, shape: Shape, strides: Shape) -> View:
    """Returns the memory of ``view`` with another shape and other strides in bytes."""
    if isinstance(view, DeviceArray):
        return replace(view, shape=shape, strides=strides)
    bits = view.view(f"u{view.itemsize}")  # NumPy cannot read the name of float8_e5m2 back
    return np.lib.stride_tricks.as_strided(bits, shape, strides).view(view.dtype)


def layouts_of(values: Mapping[str, Any]) -> Layouts:
    """Returns the geometry of each array among ``values``."""
    return tuple((name, geometry(value) if isinstance(value, DeviceArray) else None) for name, value in values.items())


def values_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns ``values`` as a bound plan takes them: addresses and numbers."""
    return tuple(value.pointer if isinstance(value, DeviceArray) else value or 0 for value in values.values())


def start(launches: Sequence[cuda.Launch]) -> None:
    """Start ``launches`` one after the other, under `TOGETHER`."""
    with TOGETHER:
        for launch in launches:
            launch()


def bind(plan: Plan, layouts: Layouts, device: Device) -> Bound:
    """Returns the plan on ``device``, a real GPU, for arrays of ``layouts``: a function of their addresses, other
    values in the order of ``layouts``, and the stream. The function returns the launches and starts none."""
    bound: Bound = _bound(plan, layouts, device)  # type: ignore[arg-type]  # a real GPU is hashable
    return bound


@functools.lru_cache(maxsize=1024)
def _bound(plan: Plan, layouts: Layouts, device: Any) -> Bound:
    bound = [_bind(plan, launch, layouts, device) for launch in plan.launches]
    if len(bound) == 1:
        (only,) = bound
        return lambda values, stream: (only(values, stream),)
    return lambda values, stream: tuple([at(values, stream) for at in bound])


@functools.lru_cache(maxsize=KEPT_LAUNCHES)
def launches_at(bound: Bound, values: tuple[Any, ...], stream: int) -> tuple[cuda.Launch, ...]:
    """Returns the launches of a bound plan; cached, because allocators return the same addresses repeatedly.

    Equal values give the same launches, so no value may be -0.0.
    """
    return bound(values, stream)


def _bind(plan: Plan, launch: Launch, layouts: Layouts, device: Any) -> Callable[[tuple[Any, ...], int], cuda.Launch]:
    kernel, names = launch.kernel, [name for name, _ in layouts]
    sizes = kernel.threads, kernel.cluster, kernel.smem_bytes
    function = device.function(ptx.load_once(kernel.ptx), kernel.entry, *sizes, dependent=launch.dependent)
    arrays = {name: DeviceArray(0, *layout, None, None) for name, layout in layouts if layout}
    mapped = plan.mapped(arrays) if plan.mapped else arrays
    encoders: list[tuple[Callable[[int], bytes], int]] = []
    numbers: list[Any] = []
    sources: list[tuple[int, int]] = []  # of each parameter: maps, values or numbers, and the position there
    for (param, annotation), argument in zip(kernel.params, launch.args, strict=True):
        use = use_of(kernel, param, annotation, mapped.get(argument))
        if use is not None:
            encode = functools.lru_cache(KEPT_ADDRESSES)(cuda.MovableMap(plan.tensor_map(mapped[argument], use)))
            sources.append((0, len(encoders)))
            encoders.append((encode, names.index(argument)))
        elif isinstance(argument, str):
            sources.append((1, names.index(argument)))
        else:
            sources.append((2, len(numbers)))
            numbers.append(resolve(argument, arrays))
    begins = 0, len(encoders), len(encoders) + len(names)
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]] = itemgetter(*(begins[kind] + at for kind, at in sources))

    def at(values: tuple[Any, ...], stream: int) -> cuda.Launch:
        function.enter()  # a new thread has no context, without which the driver encodes no tensor map
        maps = [encode(values[index]) for encode, index in encoders]
        started: cuda.Launch = function.at(launch.grid, pick((*maps, *values, *numbers)), stream)
        return started

    return at
