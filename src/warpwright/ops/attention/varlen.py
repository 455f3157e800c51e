"""`attention_varlen`: attention of sequences of any lengths, packed one behind the other, on a Hopper GPU or a virtual
one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from warpwright import cuda, types
from warpwright.arrays.device import DeviceArray, dense_strides, place, reach
from warpwright.arrays.libraries import OTHER, Library, View, common_library
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import DTYPES, Problem, Window
from warpwright.kernels.attention.sm90.plan import plan_varlen
from warpwright.kernels.attention.sm90.varlen import kernel_of
from warpwright.layout.tensor_map import TensorMap, ragged
from warpwright.ops.attention.arrays import FLOAT32, address, check_alike, check_out, device_for, plain
from warpwright.ops.attention.bound_call import CALLS, Kept
from warpwright.ops.attention.plan import (
    COUNTER,
    KEPT_ADDRESSES,
    SETTING,
    Choice,
    Geometry,
    Job,
    explained,
    geometry,
    given_setting,
    setting,
    usable,
)
from warpwright.run.devices import resolve
from warpwright.run.launch import entry_point, launch

__all__ = ["attention_varlen", "ready", "varlen_job"]

ARCH = "sm_90a"
INT32 = np.dtype(np.int32)
STARTS = ("cu_seqlens_q", "cu_seqlens_k")
FOUR = ("q", "k", "v", "out")
Array = Any
Views = Mapping[str, View]


def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    device: Device | str | None = None,
    out: Array | None = None,
    return_lse: bool = False,
    explain: bool = False,
) -> Any:
    """`warpwright.attention` of sequences of any lengths in one launch, each by itself, packed without padding.

    ``q`` is (total_q, heads, head_dim), ``k`` and ``v`` are (total_k, kv_heads, head_dim). Sequence i has the queries
    ``q[cu_seqlens_q[i]:cu_seqlens_q[i + 1]]`` and the keys ``k[cu_seqlens_k[i]:cu_seqlens_k[i + 1]]``: both are arrays
    (sequences + 1) of int32, sums of lengths, which may be 0, from 0 on. Its last query stands at its last key; a query
    of a sequence without keys has output 0. The longest sequence need not be told.

    On a GPU ``cu_seqlens_q`` and ``cu_seqlens_k`` are there too. Nobody waits for their values, so nobody checks them:
    rows that belong to no sequence are left as they are, and no place beyond the arrays is read or written. Those of
    the host are checked. All else is as for `warpwright.attention`, but arrays of the host go to the virtual ``h200``
    where there is no real GPU of its kind and no ``device`` is named.

    Gives the result (total_q, heads, head_dim); with ``return_lse`` also the log-sum-exp (heads, total_q) of float32;
    with ``explain`` also an `Explanation`.

    Raises UsageError for a GPU other than Hopper, the only one with a kernel for this, and as `warpwright.attention`.
    """
    if scale is not None or window is not None:
        scale, window = plain(scale, window)
    arrays = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "out": out}
    given = tuple(array for name, array in arrays.items() if name != "out" or array is not None)
    options = causal, scale, window, device, return_lse, given_setting()
    done = None if explain else CALLS.again(given, options)
    if done is not None:
        return done
    library = common_library("attention", arrays, ("out",))
    views = {name: library.view(array) for name, array in arrays.items() if array is not None}
    target = _target(views, device)
    _check_rows(library, views)
    _check_starts(library, views)
    if out is not None:
        check_out(views["out"], {name: views[name] for name in "qkv"})
    job = _job_of(views, bool(causal), scale, window, target)
    rows, heads, _ = views["q"].shape
    result = library.empty(tuple(views["q"].shape), views["q"].dtype, q) if out is None else out
    lse = library.empty((heads, rows), FLOAT32, q) if return_lse else None
    if job is not None:
        _run(job, library, arrays | {"out": result, "lse": lse}, target)
        _remember(job, library, given, options, views | {"out": library.view(result)}, lse, target)
    elif 0 not in views["q"].shape:
        result[...] = 0
        if lse is not None:
            lse[...] = -np.inf
    found = [result, *([lse] if return_lse else []), *([explained(job, target.name)] if explain else [])]
    return found[0] if len(found) == 1 else tuple(found)


def _target(views: Views, device: Device | str | None) -> Device:
    """The device that computes, which must be a Hopper GPU."""
    on_host = not isinstance(views["q"], DeviceArray)
    target = resolve(None, ARCH) if on_host and device is None else device_for(dict(views), device)
    if target.spec.arch != ARCH:
        raise UsageError(
            f"attention: given packed sequences on {target.name} ({target.spec.arch}); expected {ARCH}, the only one "
            "with a kernel for them: warpwright.attention(q[None, first:stop], …, layout='bshd') for each sequence"
        )
    if setting() is False:
        raise UsageError(
            f"attention: given packed sequences and {SETTING}=0; expected 1 or -1, for their kernel copies by TMA: "
            "unset it"
        )
    return target


def _check_rows(library: Library, views: Views) -> None:
    q, k, v = (views[name] for name in "qkv")
    for name in "qkv":
        if len(views[name].shape) != 3:
            raise UsageError(
                f"attention: {name} has shape {tuple(views[name].shape)}; expected three dimensions, (rows, heads, "
                "head_dim), the rows of all sequences one behind the other"
            )
    if q.dtype not in DTYPES:
        raise UsageError(
            f"attention: q is {q.dtype}; expected bfloat16 or float16: q{library.rounding} (8 significant bits)"
        )
    check_alike(q, k, v)


def _check_starts(library: Library, views: Views) -> None:
    for name, rows in zip(STARTS, "qk", strict=True):
        starts = views[name]
        if starts.dtype != INT32:
            mend = ".int()" if library.name == "torch" else ".astype(np.int32)"
            raise UsageError(f"attention: {name} is {starts.dtype}; expected int32: {name}{mend}")
        if len(starts.shape) != 1 or starts.shape[0] < 2:
            raise UsageError(
                f"attention: {name} has shape {tuple(starts.shape)}; expected (sequences + 1,), the first row of each "
                "sequence and the end of the last one"
            )
        if place(starts) != place(views["q"]):
            raise UsageError(
                f"attention: q is on {place(views['q'])} and {name} on {place(starts)}; expected all on one device"
            )
        if isinstance(starts, np.ndarray):
            _check_values(name, starts, rows, views[rows].shape[0])
    sequences = [views[name].shape[0] - 1 for name in STARTS]
    if sequences[0] != sequences[1]:
        raise UsageError(
            f"attention: cu_seqlens_q has {sequences[0]} sequences and cu_seqlens_k {sequences[1]}; expected as many"
        )


def _check_values(name: str, starts: np.ndarray[Any, Any], array: str, rows: int) -> None:
    first, last = int(starts[0]), int(starts[-1])
    if first:
        raise UsageError(f"attention: {name} begins with {first}; expected 0, the first row of {array}")
    falls = np.flatnonzero(np.diff(starts) < 0)
    if len(falls):
        at = int(falls[0])
        raise UsageError(
            f"attention: {name} falls from {starts[at]} to {starts[at + 1]} at element {at + 1}; expected sums of "
            "lengths: np.cumsum([0, *lengths])"
        )
    if last != rows:
        raise UsageError(f"attention: {name} ends with {last}; expected {rows}, the rows of {array}")


def _job_of(views: Views, causal: bool, scale: float | None, window: Any, target: Device) -> Job | None:
    """The launch; None where the result has no element, or there are no keys."""
    (total_q, heads, head_dim), (total_k, kv_heads, _) = views["q"].shape, views["k"].shape
    sequences = views["cu_seqlens_q"].shape[0] - 1
    if 0 in (total_q, heads, head_dim):
        return None
    q_len, kv_len = (max(1, total // sequences) for total in (total_q, total_k))
    problem = Problem(sequences, heads, kv_heads, q_len, kv_len, head_dim, views["q"].dtype, causal, window, scale)
    return varlen_job(problem, total_q, total_k, target.spec.sms) if total_k else None


@functools.lru_cache(maxsize=1024)
def varlen_job(problem: Problem, total_q: int, total_k: int, sms: int) -> Job:
    """The launch for ``problem.batch`` sequences of ``total_q`` queries and ``total_k`` keys in all, on a device of
    ``sms`` SMs; lengths of ``problem`` are mean ones."""
    found = plan_varlen(problem, total_q, total_k, sms=sms)
    kernel = kernel_of(found.config).trace(dtype=types.of_dtype(problem.dtype), bounds=found.bounds)
    choice = Choice("sm90.attention_varlen", True, f"{problem.batch} sequences are packed")
    return Job(choice, kernel, found.grid, found.config, found.scalars, COUNTER)


def _run(job: Job, library: Library, arrays: dict[str, Array], target: Device) -> None:
    """The launch; what the kernel cannot read or write in place goes through a dense copy."""
    held = {name: _placed(library, name, array) for name, array in arrays.items() if array is not None}
    views = {name: library.view(array) for name, array in held.items()}
    four = _four(views)
    if isinstance(views["q"], DeviceArray):
        stream = library.stream(arrays["q"])()
        counter = 0 if library is OTHER else address(library, arrays["q"], target.name, COUNTER)(stream)
        places = {name: view.pointer for name, view in views.items() if isinstance(view, DeviceArray)}
        at = ready(job, tuple(map(geometry, four)), target.name)
        at(tuple(places[name] for name in (*FOUR, *STARTS)), places.get("lse", 0), counter, stream)()
    else:
        more = [views.get("lse", 0), np.zeros(COUNTER, np.uint32), *(views[name] for name in STARTS)]
        launch(job.kernel, job.grid, args=[*_mapped(job, four), *more, *job.scalars], device=target)
    if held["out"] is not arrays["out"]:
        arrays["out"][...] = held["out"]


def _four(views: Views) -> list[Any]:
    """Q, K, V and O as (heads, rows, head_dim)."""
    return [views[name].swapaxes(0, 1) for name in FOUR]


def _placed(library: Library, name: str, array: Array) -> Array:
    """The array, or a dense one in its place: of Q, K, V and O where a tensor map cannot describe it."""
    view = library.view(array)
    if _in_place(name, view):
        return array
    made = library.empty(tuple(view.shape), view.dtype, array)
    if name != "out":
        made[...] = array
    return made


def _in_place(name: str, view: View) -> bool:
    dense = tuple(view.strides) == dense_strides(view.shape, view.itemsize)
    return dense or (name in FOUR and usable(view))


def _remember(
    job: Job,
    library: Library,
    given: tuple[Array, ...],
    options: tuple[Any, ...],
    views: Views,
    lse: Array | None,
    target: Device,
) -> None:
    """Keep the launch of a call on a GPU whose arrays were all used in place."""
    alike = [found for found in map(library.alike, given) if found is not None]
    on_gpu = isinstance(views["q"], DeviceArray)
    if not on_gpu or len(alike) < len(given) or not all(_in_place(*each) for each in views.items()):
        return
    q, layouts = given[0], tuple(map(geometry, _four(views)))
    makes = len(given) == len(FOUR) - 1 + len(STARTS)
    kept = Kept(
        pointer=library.pointer,
        stream=library.stream(q),
        made=library.maker(tuple(views["q"].shape), views["q"].dtype, q) if makes else None,
        turned=None,
        nbytes=tuple(map(reach, layouts)),
        lse=None if lse is None else library.maker(tuple(lse.shape), FLOAT32, q),
        memory=address(library, q, target.name, COUNTER),
        at=ready(job, layouts, target.name),
    )
    CALLS.keep(given, options, tuple(alike), kept)


def _mapped(job: Job, views: list[Any]) -> list[TensorMap]:
    """Ragged tensor maps of Q, K, V and O."""
    uses = [job.kernel.maps[name] for name in "qkvo"]
    return [ragged(view, use.box, swizzle=use.swizzle) for view, use in zip(views, uses, strict=True)]


@functools.lru_cache(maxsize=1024)
def ready(job: Job, layouts: tuple[Geometry, ...], gpu: str) -> Callable[[tuple[int, ...], int, int, int], cuda.Launch]:
    """The launch on ``gpu`` of arrays that lie so: made of the addresses of Q, K, V, O and the first rows, those of
    log-sum-exp and of a counter (0 for none), and the stream."""
    device, entry = cuda.device(gpu), entry_point(job.kernel)
    function = device.function(entry.module, entry.name, job.kernel.threads, job.kernel.cluster, job.kernel.smem_bytes)
    nowhere = [DeviceArray(0, *layout, None, None) for layout in layouts]
    encoders = [functools.lru_cache(KEPT_ADDRESSES)(cuda.MovableMap(tensor)) for tensor in _mapped(job, nowhere)]

    def at(places: tuple[int, ...], lse: int, counter: int, stream: int) -> cuda.Launch:
        function.enter()  # as in `sdpa_launch.ready`
        given = [encode(place) for encode, place in zip(encoders, places, strict=False)]
        return function.at(job.grid, (*given, lse, counter, *places[len(encoders) :], *job.scalars), stream)

    return at
