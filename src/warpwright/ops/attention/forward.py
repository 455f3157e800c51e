"""`attention`: scaled dot-product attention on arrays, by the kernel that suits device, extents and type."""

from __future__ import annotations

import functools
from typing import Any

from warpwright.arrays.device import DeviceArray, reach
from warpwright.arrays.libraries import OTHER, Library, View, common_library
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import Problem, Window
from warpwright.ops.attention.arrays import (
    FLOAT32,
    address,
    axes,
    check_extents,
    check_out,
    device_for,
    logical,
    made,
    memory,
    plain,
    shape_made,
)
from warpwright.ops.attention.bound_call import CALLS, Kept
from warpwright.ops.attention.plan import Job, explained, geometry, given_setting, job_of, ready, run, setting, usable

__all__ = ["attention"]

Array = Any
Axes = tuple[int, int]


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
    the GPU that holds the arrays, else a real GPU if there is one, else ``b200``). Gives the result; with
    ``return_lse`` also the log-sum-exp of each row, (batch, heads, q_len) of float32, natural logarithms; with
    ``explain`` also an `Explanation`: which kernel ran, and why.

    The environment variable WARPWRIGHT_ATTENTION_TMA, read at every call, says whether a kernel with TMA runs: 1, 0, or
    -1, the default: where there are more than 512 keys, or 64 where its tensor cores are others (Hopper, Blackwell).

    Raises UsageError for arrays of two libraries, places or dtypes, and for extents that do not fit together.
    """
    if scale is not None or window is not None:
        scale, window = plain(scale, window)
    given = (q, k, v) if out is None else (q, k, v, out)
    options = causal, scale, window, layout, device, return_lse, given_setting()
    done = None if explain else CALLS.again(given, options)
    if done is not None:
        return done
    library = common_library("attention", {"q": q, "k": k, "v": v, "out": out}, ("out",))
    at = heads, rows = axes(layout)
    views = {name: logical(library, name, each, heads, rows) for name, each in (("q", q), ("k", k), ("v", v))}
    target = device_for(views, device)
    shape = views["q"].shape
    result = made(library, q, heads, rows) if out is None else out
    view_out = logical(library, "out", result, heads, rows)
    if out is not None:
        check_out(view_out, views)
    lse = library.empty(shape[:3], FLOAT32, q) if return_lse else None
    job = _job(views, causal, scale, window, target, library is not OTHER)
    if job is not None:
        _run(job, library, {"q": q, "k": k, "v": v, "out": result}, views | {"out": view_out}, lse, target, at)
        _remember(job, library, given, options, views | {"out": view_out}, lse, target, at)
    found = [result, *([lse] if return_lse else []), *([explained(job, target.name)] if explain else [])]
    return found[0] if len(found) == 1 else tuple(found)


def _job(
    views: dict[str, View], causal: bool, scale: float | None, window: Window | None, target: Device, memory: bool
) -> Job | None:
    """The launch, which may take ``memory``; None where the result has no element."""
    q, k, v = (views[name] for name in "qkv")
    check_extents(q, k, v)
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = q.shape, k.shape
    if kv_len and 0 in q.shape:
        return None
    extents = batch, heads, kv_heads, q_len, kv_len, head_dim
    problem = _problem(extents, q.dtype, bool(causal), window, scale)
    return job_of(problem, target.spec.arch, target.spec.sms, setting(), memory)


@functools.lru_cache(maxsize=1024)
def _problem(extents: tuple[int, ...], *options: Any) -> Problem:
    return Problem(*extents, *options)  # type: ignore[arg-type]  # six extents, then dtype, causal, window, scale


def _run(
    job: Job,
    library: Library,
    arrays: dict[str, Array],
    views: dict[str, View],
    lse: Array | None,
    target: Device,
    at: Axes,
) -> None:
    """The launch; what the kernel cannot read or write in place goes through a dense copy."""
    copies = {}
    for name, view in views.items():
        if not usable(view):
            copies[name] = library.empty(tuple(arrays[name].shape), view.dtype, arrays[name])
            if name != "out":
                copies[name][...] = arrays[name]
            views[name] = logical(library, name, copies[name], *at)
    on_gpu = isinstance(views["q"], DeviceArray)
    stream = library.stream(arrays["q"])() if on_gpu else 0
    own = memory(library, arrays["q"], target.name, stream, job.words) if on_gpu and job.words else None
    four = [views[name] for name in ("q", "k", "v", "out")]
    lent = [None if each is None else library.view(each) for each in (lse, own)]
    run(job, four, lent[0], target, lent[1], stream)
    if "out" in copies:
        arrays["out"][...] = copies["out"]


def _remember(
    job: Job,
    library: Library,
    given: tuple[Array, ...],
    options: tuple[Any, ...],
    views: dict[str, View],
    lse: Array | None,
    target: Device,
    at: Axes,
) -> None:
    """Keep the launch of a call on a GPU whose arrays were all used in place."""
    alike = [found for found in map(library.alike, given) if found is not None]
    on_gpu = isinstance(views["q"], DeviceArray)
    if not on_gpu or len(alike) < len(given) or not all(map(usable, views.values())):
        return
    q, layouts = given[0], tuple(map(geometry, views.values()))
    shape, turned = shape_made(library, q, *at)
    makes = len(given) == 3
    kept = Kept(
        pointer=library.pointer,
        stream=library.stream(q),
        made=library.maker(shape, views["q"].dtype, q) if makes else None,
        turned=turned if makes else None,
        nbytes=tuple(map(reach, layouts)),
        lse=None if lse is None else library.maker(tuple(lse.shape), FLOAT32, q),
        memory=address(library, q, target.name, job.words or 0),
        at=ready(job, layouts, target.name),
    )
    CALLS.keep(given, options, tuple(alike), kept)
