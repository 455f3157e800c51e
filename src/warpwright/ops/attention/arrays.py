"""What attention asks of the arrays that it is given, and what it makes: results, and memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpwright.arrays.device import DeviceArray, overlap, place
from warpwright.arrays.libraries import Library, View
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import DTYPES, Window
from warpwright.ops.attention.plan import COUNTER, capturing
from warpwright.run.devices import resolve

__all__ = [
    "FLOAT32",
    "address",
    "axes",
    "check_alike",
    "check_extents",
    "check_out",
    "device_for",
    "extents",
    "logical",
    "made",
    "memory",
    "plain",
    "shape_made",
]

Array = Any

LAYOUTS = {"bhsd": (1, 2), "bshd": (2, 1)}  # axes of heads and of rows
FLOAT32, WORD = np.dtype(np.float32), np.dtype(np.uint32)


def plain(scale: Any, window: Any) -> tuple[float | None, Window | None]:
    """Scale and window in types that do not change under the hands of who keeps them: a scale may be a tensor."""
    window = tuple(window) if isinstance(window, list) else window
    if scale is None or scale.__class__ is float:
        return scale, window
    try:
        return float(scale), window
    except (TypeError, ValueError, OverflowError):
        return scale, window  # for `Problem`, which says what it expects


def axes(layout: str) -> tuple[int, int]:
    """The axes of heads and of rows."""
    if layout not in LAYOUTS:
        raise UsageError(
            f"attention: layout={layout!r}; expected 'bhsd' for (batch, heads, rows, head_dim) or 'bshd' for (batch, "
            "rows, heads, head_dim)"
        )
    return LAYOUTS[layout]


def logical(library: Library, name: str, array: Array, heads: int, rows: int) -> View:
    """An array's memory as (batch, heads, rows, head_dim)."""
    view = library.view(array)
    if len(view.shape) != 4:
        raise UsageError(
            f"attention: {name} has shape {tuple(view.shape)}; expected four dimensions, (batch, heads, rows, "
            f"head_dim) or with layout='bshd' (batch, rows, heads, head_dim): {name}[None] adds a batch"
        )
    if view.dtype not in DTYPES:
        raise UsageError(
            f"attention: {name} is {view.dtype}; expected bfloat16 or float16: {name}{library.rounding} (8 significant "
            "bits)"
        )
    return view if heads < rows else view.swapaxes(heads, rows)


def device_for(views: dict[str, View], device: Device | str | None) -> Device:
    """The device that computes: the GPU that holds the arrays, or for host memory the one that is asked for."""
    q = views["q"]
    for name in ("k", "v"):
        if place(views[name]) != place(q):
            raise UsageError(
                f"attention: q is on {place(q)} and {name} on {place(views[name])}; expected all on one device"
            )
    if not isinstance(q, DeviceArray):
        return resolve(device)
    asked = device if isinstance(device, str) or device is None else device.name
    if asked not in (None, "cuda", place(q)):
        raise UsageError(
            f"attention: q is on {place(q)} and device={asked!r}; expected that GPU: leave device= out, or pass copies "
            "on the host"
        )
    return resolve(place(q))


def made(library: Library, like: Array, heads: int, rows: int) -> Array:
    """An array of the shape of ``like``, dense, its axes in the order in memory that those of ``like`` have."""
    shape, turned = shape_made(library, like, heads, rows)
    found = library.empty(shape, library.view(like).dtype, like)
    return found.swapaxes(*turned) if turned else found


def shape_made(library: Library, like: Array, heads: int, rows: int) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """The shape of the dense array that a result is made as, and the axes that are then exchanged."""
    steps, shape = library.view(like).strides, list(like.shape)
    first, second = sorted((heads, rows))
    if steps[first] >= steps[second] or shape[first] == 1 or shape[second] == 1:
        return tuple(shape), None
    shape[first], shape[second] = shape[second], shape[first]
    return tuple(shape), (first, second)


_MEMORY: dict[tuple[str, str, int, bool], tuple[int, int, Array]] = {}  # words, address, and the array


def memory(library: Library, like: Array, gpu: str, stream: int, words: int) -> Array:
    """Memory for a launch, at first 0. Those of a stream follow each other, and each leaves its counters at 0: that of
    `COUNTER` words, or the first ones of a workspace, as many on one GPU for all of them. A graph has its own."""
    return _held(library, like, gpu, stream, words)[-1]


def _held(library: Library, like: Array, gpu: str, stream: int, words: int) -> tuple[int, int, Array]:
    if capturing(stream):
        return _zeros(library, like, words)
    key = library.name, gpu, stream, words == COUNTER
    found = _MEMORY.get(key)
    if found is None or found[0] < words:
        found = _MEMORY[key] = _zeros(library, like, words)
    return found


def _zeros(library: Library, like: Array, words: int) -> tuple[int, int, Array]:
    made = library.zeros((words,), WORD, like)
    return words, library.pointer(made), made


def address(library: Library, like: Array, gpu: str, words: int) -> Callable[[int], int]:
    """What gives the address of `memory` for a launch on a stream; 0 for no words."""
    if not words:
        return lambda stream: 0
    small = library.empty((1,), WORD, like)  # stands for ``like``, which is not kept alive
    return lambda stream: _held(library, small, gpu, stream, words)[1]


def check_out(out: View, views: dict[str, View]) -> None:
    """That ``out`` is an array for the result of ``views`` q, k and v."""
    q = views["q"]
    if (out.shape, out.dtype) != (q.shape, q.dtype):
        raise UsageError(
            f"attention: out is {extents(out)} of {out.dtype}; expected the shape and dtype of q, {extents(q)} of "
            f"{q.dtype}"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise UsageError("attention: out is read-only; expected an array that can be written")
    if place(out) != place(q):
        raise UsageError(f"attention: q is on {place(q)} and out on {place(out)}; expected all on one device")
    for name, view in views.items():
        if overlap(out, view):
            raise UsageError(f"attention: out overlaps {name}; expected memory of its own: leave out= out")


def check_extents(q: View, k: View, v: View) -> None:
    """What holds of arrays with a batch."""
    check_alike(q, k, v)
    if q.shape[0] != k.shape[0]:
        raise UsageError(
            f"attention: q has a batch of {q.shape[0]} and k of {k.shape[0]}; expected the same: expand k and v"
        )


def check_alike(q: View, k: View, v: View) -> None:
    """What holds of arrays with a batch and of packed ones."""
    if k.shape != v.shape:
        raise UsageError(f"attention: k is {extents(k)} and v is {extents(v)}; expected one shape for both")
    if q.shape[-1] != k.shape[-1]:
        raise UsageError(
            f"attention: q has head dimension {q.shape[-1]} and k {k.shape[-1]}; expected the same, for their rows are "
            "multiplied"
        )
    for name, each in (("k", k), ("v", v)):
        if each.dtype != q.dtype:
            raise UsageError(f"attention: q is {q.dtype} and {name} is {each.dtype}; expected one dtype")


def extents(view: View) -> str:
    """The shape, as an error says it."""
    return " × ".join(map(str, view.shape))
