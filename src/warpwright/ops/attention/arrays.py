"""The arrays of attention: checks of the inputs, new results, and the workspace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import OTHER, Library, View, check_writable, location, overlap
from warpwright.cuda.driver import driver
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import DTYPES, Problem, Window
from warpwright.ops.attention.plan import COUNTER, padding_of
from warpwright.ops.binding import as_strided
from warpwright.run.devices import check_device, resolve
from warpwright.targets import kernels_of

__all__ = [
    "BHSD",
    "FLOAT32",
    "WORD",
    "as_bhsd",
    "axes",
    "check_alike",
    "check_extents",
    "check_out",
    "device_for",
    "extents",
    "inputs_of",
    "new_result",
    "plain_options",
    "problem_of",
    "result_shape",
    "target_for",
    "target_of",
    "workspace",
    "workspace_address",
]

Array = Any
Axes = tuple[int, int]

BHSD = 4  # dimensions of an array with a batch
LAYOUTS = {"bhsd": (1, 2), "bshd": (2, 1)}  # axes of heads and of rows
FLOAT32, WORD = np.dtype(np.float32), np.dtype(np.uint32)


def plain_options(scale: Any, window: Any) -> tuple[float | None, Window | None]:
    """Returns scale and window as immutable Python values, because the memo keeps them; a scale may be a tensor."""
    window = tuple(window) if isinstance(window, list) else window
    if scale is None or scale.__class__ is float:
        return scale, window
    try:
        return float(scale), window
    except (TypeError, ValueError, OverflowError):
        return scale, window  # `Problem` raises


def axes(layout: str) -> Axes:
    """Returns the axes of heads and of rows."""
    if layout not in LAYOUTS:
        raise UsageError(
            f"attention: layout={layout!r}; expected 'bhsd' for (batch, heads, rows, head_dim) or 'bshd' for (batch, "
            "rows, heads, head_dim)"
        )
    return LAYOUTS[layout]


def inputs_of(
    library: Library,
    views: Mapping[str, View],
    names: Iterable[str],
    layout: str,
    dtypes: Collection[np.dtype[Any]] = DTYPES,
) -> dict[str, View]:
    """Returns the memory of named arrays, all with a batch or all without, as (batch, heads, rows, head_dim).

    ``dtypes``: those of q, k and v; others are of 16 bits.
    """
    (heads, rows), found = axes(layout), {name: views[name] for name in names}
    without, with_batch = ([name for name in found if len(found[name].shape) == n] for n in (BHSD - 1, BHSD))
    if without and with_batch:
        raise UsageError(
            f"attention: {with_batch[0]} has a batch and {without[0]} has none; expected one in all arrays or in none: "
            f"{without[0]}[None]"
        )
    taken = {name: dtypes if name in ("q", "k", "v") else DTYPES for name in found}
    return {name: as_bhsd(library, name, view, heads, rows, taken[name]) for name, view in found.items()}


def as_bhsd(
    library: Library, name: str, view: View, heads: int, rows: int, dtypes: Collection[np.dtype[Any]] = DTYPES
) -> View:
    """Returns an array's memory as (batch, heads, rows, head_dim); an array without a batch has a batch of one."""
    if len(view.shape) == BHSD - 1:
        view = as_strided(view, (1, *view.shape), (view.shape[0] * view.strides[0], *view.strides))
    if len(view.shape) != BHSD:
        raise UsageError(
            f"attention: {name} has shape {tuple(view.shape)}; expected (batch, heads, rows, head_dim), or with "
            "layout='bshd' (batch, rows, heads, head_dim), with or without the batch"
        )
    if view.dtype not in dtypes:
        of_out = "leave out= out" if name == "out" else f"{name}{library.rounding} (8 significant bits)"
        raise UsageError(f"attention: {name} is {view.dtype}; expected {_one_of(dtypes)}: {of_out}")
    return view if heads < rows else view.swapaxes(heads, rows)


def _one_of(dtypes: Collection[np.dtype[Any]]) -> str:
    """Returns ``"bfloat16, float16 or float8_e4m3fn"``."""
    *first, last = map(str, dtypes)
    return f"{', '.join(first)} or {last}"


def device_for(views: Mapping[str, View], device: Device | str | None) -> Device:
    """Returns the device that computes: the GPU that holds the arrays, or for host arrays the requested one."""
    where = dict(zip("qkv", map(location, (views["q"], views["k"], views["v"])), strict=True))
    for name in "kv":
        if where[name] != where["q"]:
            raise UsageError(f"attention: q is on {where['q']} and {name} on {where[name]}; expected all on one device")
    if not isinstance(views["q"], DeviceArray):
        return resolve(device)
    requested = device if isinstance(device, str) or device is None else check_device(device).name
    if requested not in (None, "cuda", where["q"]):
        raise UsageError(
            f"attention: q is on {where['q']} and device={requested!r}; expected that GPU: leave device= out, or pass "
            "copies on the host"
        )
    return resolve(where["q"])


def target_of(views: Mapping[str, View], device: Device | str | None) -> Device:
    """Returns the device that computes attention of q, k and v, of which v may have other columns."""
    of_k, of_v = views["k"].shape[3], views["v"].shape[3]
    if of_k == of_v:
        return device_for(views, device)
    what = f"keys of {of_k} and values of {of_v} columns"
    return target_for(views, device, what, ("sm_90a",), padding_of(of_k, of_v))


def target_for(
    views: Mapping[str, View], device: Device | str | None, what: str, known: Collection[str], otherwise: str
) -> Device:
    """Returns the device that computes ``what``, for which the ``known`` targets have kernels."""
    on_host = not isinstance(views["q"], DeviceArray)
    target = resolve(None, "sm_90a") if on_host and device is None else device_for(views, device)
    if kernels_of(target.spec.arch) not in known:
        raise UsageError(
            f"attention: given {what} on {target.name} ({target.spec.arch}); expected one of {', '.join(known)}, which "
            f"have kernels for them: {otherwise}"
        )
    return target


def new_result(
    library: Library,
    like: Array,
    view: View,
    layout: str,
    columns: int | None = None,
    dtype: np.dtype[Any] | None = None,
) -> Array:
    """Returns a dense array of the shape and dtype of ``like``, its axes in the same order in memory; of ``columns``
    columns and of ``dtype`` if given."""
    shape, swap = result_shape(view, layout, columns)
    found = library.empty(shape, dtype or view.dtype, like)
    return found.swapaxes(*swap) if swap else found


def result_shape(view: View, layout: str, columns: int | None = None) -> tuple[tuple[int, ...], Axes | None]:
    """Returns the shape of the dense array for a result, and the axes of it that are then exchanged."""
    steps, shape = view.strides, [*view.shape[:-1], view.shape[-1] if columns is None else columns]
    first, second = (axis + len(shape) - BHSD for axis in sorted(axes(layout)))
    if steps[first] >= steps[second] or shape[first] == 1 or shape[second] == 1:
        return tuple(shape), None
    shape[first], shape[second] = shape[second], shape[first]
    return tuple(shape), (first, second)


_Workspace = tuple[int, int, tuple[Array, ...]]  # words, address, and the array after those that it replaced
_Key = tuple[str, str, int, bool]  # library, GPU, stream, and whether the words are a counter alone
_WORKSPACES: dict[_Key, _Workspace] = {}
_GROWTH = threading.Lock()


def workspace(library: Library, like: Array, q: View, gpu: str, stream: int, words: int | None) -> Any:
    """Returns the workspace of a call: ``words`` zeros on the host, an address on a GPU, 0 for no words."""
    if not words or library is OTHER:
        return 0
    if not isinstance(q, DeviceArray):
        return np.zeros(words, WORD)
    return _workspace(library, like, gpu, stream, words, capturing)[1]


def workspace_address(library: Library, like: Array, gpu: str, words: int | None) -> Callable[[int], int]:
    """Returns a function of the current stream that returns the workspace's address there; 0 for no words."""
    if not words:
        return lambda stream: 0
    small = library.empty((1,), WORD, like)  # in place of ``like``, which must not be kept alive
    captures = library.captures(small, capturing)
    return lambda stream: _workspace(library, small, gpu, stream, words, captures)[1]


def _workspace(
    library: Library, like: Array, gpu: str, stream: int, words: int, captures: Callable[[int], bool]
) -> _Workspace:
    """Returns the words, the address and the array of the workspace of a stream; new ones are 0.

    Launches of a stream follow each other and leave their counters at 0, so they share a workspace: one for kernels
    that take a `COUNTER` alone, one for kernels whose workspace begins with counters, as many on one GPU for all of
    them. A graph that ``captures`` the stream gets its own. A replaced workspace stays: another thread may be about to
    use its address.
    """
    if captures(stream):
        return _zeros(library, like, words)
    key = library.name, gpu, stream, words == COUNTER
    found = _WORKSPACES.get(key)
    return _grow(library, like, words, key) if found is None or found[0] < words else found


def _grow(library: Library, like: Array, words: int, key: _Key) -> _Workspace:
    """Returns a workspace of at least so many ``words``, a new one unless another thread has just made it."""
    with _GROWTH:
        found = _WORKSPACES.get(key)
        if found is None or found[0] < words:
            old = found[2] if found else ()
            found = _WORKSPACES[key] = _zeros(library, like, 1 << (words - 1).bit_length(), old)
    return found


def capturing(stream: int) -> bool:
    """Returns whether a graph captures the stream, or whether the driver cannot say because one is captured."""
    return any(driver().cuStreamIsCapturing(stream))


def _zeros(library: Library, like: Array, words: int, old: tuple[Array, ...] = ()) -> _Workspace:
    array = library.zeros((words,), WORD, like)
    return words, library.pointer(array), (*old, array)


def check_out(
    out: View, inputs: Mapping[str, View], dtype: np.dtype[Any] | None = None, columns: int | None = None
) -> None:
    """Raise UsageError unless ``out`` can hold the result, and overlaps none of the ``inputs``.

    ``inputs`` have the names of the caller's arguments; the first one is q, the last one has the values. The result has
    the rows of q, is of ``dtype`` or that of q, and has ``columns`` columns or those of the values.
    """
    q, (of_values, values) = inputs["q"], list(inputs.items())[-1]
    shape, wanted = (*q.shape[:-1], values.shape[-1] if columns is None else columns), dtype or q.dtype
    if (tuple(out.shape), out.dtype) != (shape, wanted):
        of = "the shape and dtype of q" if wanted == q.dtype else "the shape of q"
        first = "" if columns is None else f"first {columns} "
        of = of if shape == q.shape else f"the rows of q with the {first}columns of {of_values}"
        raise UsageError(
            f"attention: out is {extents(out)} of {out.dtype}; expected {of}, {' × '.join(map(str, shape))} of {wanted}"
        )
    check_writable("attention", out)
    if location(out) != location(q):
        raise UsageError(f"attention: q is on {location(q)} and out on {location(out)}; expected all on one device")
    for name, view in inputs.items():
        if overlap(out, view):
            raise UsageError(f"attention: out overlaps {name}; expected memory of its own: leave out= out")


def problem_of(views: Mapping[str, View], causal: bool, window: Window | None, scale: float | None) -> Problem | None:
    """Returns the problem of q, k and v; None if the result has no element.

    Raises UsageError unless the arrays fit together.
    """
    q = views["q"]
    check_extents(views, same_columns=False)
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, columns) = q.shape, views["v"].shape
    if kv_len and 0 in (*q.shape, columns):
        return None
    value_dim = None if columns == head_dim else columns
    return Problem(batch, heads, kv_heads, q_len, kv_len, head_dim, q.dtype, causal, window, scale, value_dim)


def check_extents(views: Mapping[str, View], *, same_columns: bool = True) -> None:
    """Raise UsageError unless ``views`` q, k and v, arrays with a batch, fit together."""
    q, k = views["q"], views["k"]
    check_alike({name: views[name] for name in "qkv"}, same_columns=same_columns)
    if q.shape[0] != k.shape[0]:
        raise UsageError(
            f"attention: q has a batch of {q.shape[0]} and k of {k.shape[0]}; expected the same: expand k and v"
        )


def check_alike(views: Mapping[str, View], *, same_columns: bool = True) -> None:
    """Raise UsageError unless the three ``views`` fit together: q, keys and values by the names of the caller's
    arguments, with a batch, packed or in pages. Values may have other columns than keys if not ``same_columns``."""
    (of_q, q), (of_k, k), (of_v, v) = views.items()
    if k.shape[:-1] != v.shape[:-1] or (same_columns and k.shape != v.shape):
        raise UsageError(f"attention: {of_k} is {extents(k)} and {of_v} is {extents(v)}; expected one shape for both")
    if q.shape[-1] != k.shape[-1]:
        raise UsageError(
            f"attention: {of_q} has head dimension {q.shape[-1]} and {of_k} {k.shape[-1]}; expected the same, for "
            "their rows are multiplied"
        )
    for name, each in ((of_k, k), (of_v, v)):
        if each.dtype != q.dtype:
            raise UsageError(
                f"attention: {of_q} is {q.dtype} and {name} is {each.dtype}; expected one dtype for {of_q}, {of_k} and "
                f"{of_v}"
            )


def extents(view: View) -> str:
    """Returns the shape as text."""
    return " × ".join(map(str, view.shape))
