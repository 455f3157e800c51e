"""`attention`: scaled dot-product attention on arrays, by the kernel that suits device, extents and type."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpwright.arrays import DeviceArray, overlap, place
from warpwright.devices import resolve
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import DTYPES, Problem, Window
from warpwright.libraries import OTHER, Library, View, library_of
from warpwright.sdpa_launch import COUNTER, Job, capturing, geometry, job_of, ready, run, setting, usable
from warpwright.sdpa_repeats import Kept, again, keep

__all__ = ["Explanation", "attention"]

Array = Any

LAYOUTS = {"bhsd": (1, 2), "bshd": (2, 1)}  # axes of heads and of rows
FLOAT32, WORD = np.dtype(np.float32), np.dtype(np.uint32)


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


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    layout: str = "bhsd",
    device: Device | str | None = None,
    out: Array | None = None,
    return_lse: bool = False,
    explain: bool = False,
) -> Any:
    """softmax(``scale`` · q·kᵀ)·v, one pass over the keys, sums in float32.

    ``q`` is (batch, heads, q_len, head_dim), ``k`` and ``v`` are (batch, kv_heads, kv_len, head_dim); with
    ``layout="bshd"`` heads and rows are exchanged in all of them and in the result. ``heads`` is a multiple of
    ``kv_heads``: as many neighbouring heads of q share one of k and v. The arrays are NumPy (with ml_dtypes), torch or
    CuPy, and so is the result; what is on a GPU is used there, on the library's current stream, without waiting. Arrays
    of any strides are used as they are where rows are dense and begin at multiples of 16 bytes; others are copied.

    The last query stands at the last key. ``causal``: no query sees a key behind its own place (bottom-right aligned;
    torch aligns top left, which differs where lengths do). ``window`` (left, right): nor one further away than that, in
    keys; None for any distance. A query that sees no key has output 0. ``scale`` is 1 / √head_dim without a value.

    The dtype is bfloat16 or float16; head_dim is a multiple of 8 up to 256, computed as 64, 128 or 256, on Hopper also
    96 and 192. ``out`` is an array for the result, which overlaps no input. ``device`` is a name or Device (default:
    the GPU that holds the arrays, else a real GPU if there is one, else ``b200``).

    Gives the result; with ``return_lse`` also the log-sum-exp of each row, (batch, heads, q_len) of float32, natural
    logarithms; with ``explain`` also an `Explanation`: which kernel ran, and why.

    The environment variable WARPWRIGHT_ATTENTION_TMA, read at every call, says whether a kernel with TMA runs: 1, 0, or
    -1, the default: where there are more than 512 keys, or 64 where its tensor cores are others (Hopper, Blackwell).

    Raises UsageError for arrays of two libraries, places or dtypes, and for extents that do not fit together.
    """
    window = tuple(window) if isinstance(window, list) else window
    options = causal, scale, window, layout, device, return_lse
    done = again(q, k, v, options) if out is None and not explain else None
    if done is not None:
        return done
    library = _library({"q": q, "k": k, "v": v, "out": out})
    heads, rows = _axes(layout)
    views = {name: _logical(library, name, each, heads, rows) for name, each in (("q", q), ("k", k), ("v", v))}
    target = _place(views, device)
    shape = views["q"].shape
    result = _made(library, q, heads, rows) if out is None else out
    view_out = _logical(library, "out", result, heads, rows)
    if out is not None:
        _check_out(view_out, views)
    lse = library.empty(shape[:3], FLOAT32, q) if return_lse else None
    job = _job(views, causal, scale, window, target, library is not OTHER)
    if job is not None:
        _run(job, library, {"q": q, "k": k, "v": v, "out": result}, views | {"out": view_out}, lse, target, heads, rows)
        if out is None and isinstance(view_out, DeviceArray):
            _remember(job, library, (q, k, v), options, (result, view_out, lse), views, target, heads, rows)
    found = [result, *([lse] if return_lse else []), *([_explained(job, target)] if explain else [])]
    return found[0] if len(found) == 1 else tuple(found)


def _library(given: dict[str, Any]) -> Library:
    """The one library of all arrays."""
    found = {name: library_of(value) for name, value in given.items() if value is not None or name != "out"}
    for name, library in found.items():
        if library is None:
            raise UsageError(
                f"attention: {name} is a {type(given[name]).__name__}; expected an array of NumPy, torch or CuPy: "
                f"np.asarray({name})"
            )
        if library is not found["q"]:
            raise UsageError(
                f"attention: q is of {_module(given['q'])} and {name} of {_module(given[name])}; expected arrays of "
                "one library"
            )
    return found["q"] or OTHER


def _module(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _axes(layout: str) -> tuple[int, int]:
    """The axes of heads and of rows."""
    if layout not in LAYOUTS:
        raise UsageError(
            f"attention: layout={layout!r}; expected 'bhsd' for (batch, heads, rows, head_dim) or 'bshd' for (batch, "
            "rows, heads, head_dim)"
        )
    return LAYOUTS[layout]


def _logical(library: Library, name: str, array: Array, heads: int, rows: int) -> View:
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


def _place(views: dict[str, View], device: Device | str | None) -> Device:
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


def _made(library: Library, q: Array, heads: int, rows: int) -> Array:
    """An array for the result, dense, its axes in the order in memory that those of ``q`` have."""
    shape, turned = _shape_made(library, q, heads, rows)
    made = library.empty(shape, library.view(q).dtype, q)
    return made.swapaxes(*turned) if turned else made


def _shape_made(library: Library, q: Array, heads: int, rows: int) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """The shape of the dense array that the result is made as, and the axes that are then exchanged."""
    steps, shape = library.view(q).strides, list(q.shape)
    first, second = sorted((heads, rows))
    if steps[first] >= steps[second] or shape[first] == 1 or shape[second] == 1:
        return tuple(shape), None
    shape[first], shape[second] = shape[second], shape[first]
    return tuple(shape), (first, second)


def _check_out(out: View, views: dict[str, View]) -> None:
    q = views["q"]
    if (out.shape, out.dtype) != (q.shape, q.dtype):
        raise UsageError(
            f"attention: out is {_extents(out)} of {out.dtype}; expected the shape and dtype of q, {_extents(q)} of "
            f"{q.dtype}"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise UsageError("attention: out is read-only; expected an array that can be written")
    if place(out) != place(q):
        raise UsageError(f"attention: q is on {place(q)} and out on {place(out)}; expected all on one device")
    for name, view in views.items():
        if overlap(out, view):
            raise UsageError(f"attention: out overlaps {name}; expected memory of its own: leave out= out")


def _extents(view: View) -> str:
    return " × ".join(map(str, view.shape))


def _job(
    views: dict[str, View], causal: bool, scale: float | None, window: Window | None, target: Device, memory: bool
) -> Job | None:
    """The launch, which may take ``memory``; None where the result has no element."""
    q, k, v = (views[name] for name in "qkv")
    _check_extents(q, k, v)
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = q.shape, k.shape
    if kv_len and 0 in q.shape:
        return None
    extents = batch, heads, kv_heads, q_len, kv_len, head_dim
    problem = _problem(extents, q.dtype, bool(causal), window, scale)
    return job_of(problem, target.spec.arch, target.spec.sms, setting(), memory)


@functools.lru_cache(maxsize=1024)
def _problem(extents: tuple[int, ...], *options: Any) -> Problem:
    return Problem(*extents, *options)  # type: ignore[arg-type]  # six extents, then dtype, causal, window, scale


def _check_extents(q: View, k: View, v: View) -> None:
    _check_alike(q, k, v)
    if q.shape[0] != k.shape[0]:
        raise UsageError(
            f"attention: q has a batch of {q.shape[0]} and k of {k.shape[0]}; expected the same: expand k and v"
        )


def _check_alike(q: View, k: View, v: View) -> None:
    """What holds of arrays with a batch and of packed ones."""
    if k.shape != v.shape:
        raise UsageError(f"attention: k is {_extents(k)} and v is {_extents(v)}; expected one shape for both")
    if q.shape[-1] != k.shape[-1]:
        raise UsageError(
            f"attention: q has head dimension {q.shape[-1]} and k {k.shape[-1]}; expected the same, for their rows are "
            "multiplied"
        )
    for name, each in (("k", k), ("v", v)):
        if each.dtype != q.dtype:
            raise UsageError(f"attention: q is {q.dtype} and {name} is {each.dtype}; expected one dtype")


def _run(
    job: Job,
    library: Library,
    arrays: dict[str, Array],
    views: dict[str, View],
    lse: Array | None,
    target: Device,
    heads: int,
    rows: int,
) -> None:
    """The launch; what the kernel cannot read or write in place goes through a dense copy."""
    copies = {}
    for name, view in views.items():
        if not usable(view):
            copies[name] = library.empty(tuple(arrays[name].shape), view.dtype, arrays[name])
            if name != "out":
                copies[name][...] = arrays[name]
            views[name] = _logical(library, name, copies[name], heads, rows)
    on_gpu = isinstance(views["q"], DeviceArray)
    stream = library.stream(arrays["q"])() if on_gpu else 0
    memory = _memory(library, arrays["q"], target.name, stream, job.words) if on_gpu and job.words else None
    four = [views[name] for name in ("q", "k", "v", "out")]
    lent = [None if each is None else library.view(each) for each in (lse, memory)]
    run(job, four, lent[0], target, lent[1], stream)
    if "out" in copies:
        arrays["out"][...] = copies["out"]


def _remember(
    job: Job,
    library: Library,
    given: tuple[Array, Array, Array],
    options: tuple[Any, ...],
    made: tuple[Array, View, Array | None],
    views: dict[str, View],
    target: Device,
    heads: int,
    rows: int,
) -> None:
    """Keep the launch of a call on a GPU whose arrays were all used in place."""
    (q, k, v), (_, view_out, lse) = given, made
    four = [*(views[name] for name in "qkv"), view_out]
    of_q, of_k, of_v = (library.alike(array) for array in given)
    if of_q is None or of_k is None or of_v is None or not all(map(usable, four)):
        return
    shape, turned = _shape_made(library, q, heads, rows)

    def memory(stream: int) -> int:
        return library.pointer(_memory(library, q_like, target.name, stream, job.words)) if job.words else 0

    q_like = library.empty((1,), WORD, q)  # a small array stands for q, which is not kept alive
    kept = Kept(
        alike=(of_q, of_k, of_v),
        pointer=library.pointer,
        stream=library.stream(q),
        made=library.maker(shape, view_out.dtype, q),
        turned=turned,
        lse=None if lse is None else library.maker(tuple(lse.shape), FLOAT32, q),
        memory=memory,
        at=ready(job, tuple(geometry(view) for view in four), target.name),
    )
    keep(q, k, v, options, kept)


_MEMORY: dict[tuple[str, str, int, bool], Array] = {}


def _memory(library: Library, like: Array, gpu: str, stream: int, words: int) -> Array:
    """Memory for a launch, at first 0. Those of a stream follow each other, and each leaves its counters at 0: that of
    `COUNTER` words, or the first ones of a workspace, as many on one GPU for all of them. A graph has its own."""
    if capturing(stream):
        return library.zeros((words,), WORD, like)
    key = library.name, gpu, stream, words == COUNTER
    if key not in _MEMORY or _MEMORY[key].shape[0] < words:
        _MEMORY[key] = library.zeros((words,), WORD, like)
    return _MEMORY[key]


def _explained(job: Job | None, target: Device) -> Explanation | None:
    if job is None:
        return None
    return Explanation(job.choice.kernel, job.config, target.name, job.choice.tma, job.choice.why)
