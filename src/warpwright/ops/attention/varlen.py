"""`attention_varlen`: attention of packed sequences of any lengths, by the kernels of `OWN`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from warpwright import types
from warpwright.arrays.device import DeviceArray, dense_strides, reach
from warpwright.arrays.libraries import Library, View, location, views_of
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import DTYPES, Problem, Window
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.kernels.attention.sm90 import varlen as sm90
from warpwright.kernels.attention.sm100 import plan as sm100_plan
from warpwright.kernels.attention.sm100 import varlen as sm100
from warpwright.kernels.attention.sm120 import plan as sm120_plan
from warpwright.kernels.attention.sm120 import varlen as sm120
from warpwright.ops import binding
from warpwright.ops.attention import arrays, plan
from warpwright.ops.attention.bound_call import BoundCall
from warpwright.ops.memo import MEMO
from warpwright.targets import kernels_of

__all__ = ["OWN", "STARTS", "attention_varlen", "check_rows", "check_starts", "choose", "describe", "in_place"]

INT32 = np.dtype(np.int32)
STARTS = ("cu_seqlens_q", "cu_seqlens_k")
FOUR = ("q", "k", "v", "o")
Array = Any
Views = Mapping[str, View]

# Targets with a kernel for packed sequences: the kernel's name, its plan, and the kernel of a configuration.
OWN: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "sm_90a": ("sm90.attention_varlen", sm90_plan.plan_varlen, sm90.kernel_of),
    "sm_100a": ("sm100.attention_varlen", sm100_plan.plan_varlen, sm100.kernel_of),
    "sm_120a": ("sm120.attention_varlen", sm120_plan.plan_varlen, sm120.kernel_of),
}


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
    """`warpwright.attention` of sequences of any lengths in one launch, packed without padding.

    ``q`` is (total_q, heads, head_dim), ``k`` and ``v`` are (total_k, kv_heads, head_dim). Sequence i has the queries
    ``q[cu_seqlens_q[i]:cu_seqlens_q[i + 1]]`` and the keys ``k[cu_seqlens_k[i]:cu_seqlens_k[i + 1]]``: both are arrays
    (sequences + 1) of int32, sums of lengths, which may be 0, beginning with 0. Its last query is at the position of
    its last key; a query of a sequence without keys has output 0. The call needs no maximum length.

    For arrays on a GPU ``cu_seqlens_q`` and ``cu_seqlens_k`` are there too. The call does not wait for their values, so
    it does not check them: rows of no sequence are left unwritten, and nothing beyond the arrays is read or written.
    Values on the host are checked. All else is as for `warpwright.attention`, but arrays of the host go to the virtual
    ``h200`` where there is no real Hopper GPU and no ``device`` is named.

    Returns the result (total_q, heads, head_dim); with ``return_lse`` also the log-sum-exp (heads, total_q) of float32;
    with ``explain`` also an `Explanation`.

    Raises UsageError for a GPU without a kernel for this (`OWN` has the others), and as `warpwright.attention`.
    """
    if scale is not None or window is not None:
        scale, window = arrays.plain_options(scale, window)
    inputs = q, k, v, cu_seqlens_q, cu_seqlens_k
    given = inputs if out is None else (*inputs, out)
    options = "attention_varlen", causal, scale, window, device, return_lse, plan.read_setting()
    bound = None if explain else MEMO.get(given, options)
    if bound is not None:
        result = bound(given)
        if result is not None:
            return result
    keywords: dict[str, Any] = {"causal": causal, "scale": scale, "window": window, "device": device, "out": out}
    return describe(*inputs, **keywords, return_lse=return_lse, explain=explain).run(given, options)


def describe(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    causal: bool,
    scale: float | None,
    window: Window | None,
    device: Device | str | None,
    out: Array | None,
    return_lse: bool,
    explain: bool,
) -> binding.Call:
    """Returns the call of `attention_varlen` with these arguments, which has started nothing yet."""
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "out": out}
    library, views = views_of("attention", given, ("out",))
    target = _target(views, device)
    check_rows(library, views)
    check_starts(library, views)
    if out is not None:
        arrays.check_out(views["out"], {name: views[name] for name in "qkv"})
    rows, heads, _ = views["q"].shape
    result = library.empty(tuple(views["q"].shape), views["q"].dtype, q) if out is None else out
    lse = library.empty((heads, rows), arrays.FLOAT32, q) if return_lse else None
    chosen = _plan(views, bool(causal), scale, window, target)
    parts = [result, *([lse] if return_lse else []), *([plan.explain(chosen, target.name)] if explain else [])]
    call = binding.Call(target, library, parts[0] if len(parts) == 1 else tuple(parts))
    if chosen is not None:
        used = _prepare(call, chosen, library, given | {"out": result}, lse)
        if used and isinstance(views["q"], DeviceArray):
            inputs = tuple(array for array in given.values() if array is not None)
            call.entry = functools.partial(_entry, call, library, inputs, lse)
    elif 0 not in views["q"].shape:  # no keys
        result[...] = 0
        if lse is not None:
            lse[...] = -np.inf
    return call


def _target(views: Views, device: Device | str | None) -> Device:
    """Returns the device that computes, which must have a kernel of `OWN`."""
    otherwise = "warpwright.attention(q[None, first:stop], …, layout='bshd') for each sequence"
    target = arrays.target_for(views, device, "packed sequences", OWN, otherwise)
    if plan.setting() is False:
        raise UsageError(
            f"attention: given packed sequences and {plan.SETTING}=0; expected 1 or -1, for their kernel copies by "
            "TMA: unset it"
        )
    return target


def check_rows(library: Library, views: Views) -> None:
    """Raise UsageError unless q, k and v are rows of packed sequences that fit together."""
    q = views["q"]
    for name in "qkv":
        if len(views[name].shape) != 3:
            raise UsageError(
                f"attention: {name} has shape {tuple(views[name].shape)}; expected three dimensions, (rows, heads, "
                "head_dim), the rows of all sequences one after the other"
            )
    if q.dtype not in DTYPES:
        raise UsageError(
            f"attention: q is {q.dtype}; expected bfloat16 or float16: q{library.rounding} (8 significant bits)"
        )
    arrays.check_alike({name: views[name] for name in "qkv"})


def check_starts(library: Library, views: Views) -> None:
    """Raise UsageError unless both arrays of first rows fit q, k and v; values on the host are checked."""
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
        if location(starts) != location(views["q"]):
            raise UsageError(
                f"attention: q is on {location(views['q'])} and {name} on {location(starts)}; expected all on one "
                "device"
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


def _plan(views: Views, causal: bool, scale: float | None, window: Any, target: Device) -> binding.Plan | None:
    """Returns the plan; None if the result has no element, or there are no keys."""
    (total_q, heads, head_dim), (total_k, kv_heads, _) = views["q"].shape, views["k"].shape
    sequences = views["cu_seqlens_q"].shape[0] - 1
    if 0 in (total_q, heads, head_dim):
        return None
    q_len, kv_len = (max(1, total // sequences) for total in (total_q, total_k))
    problem = Problem(sequences, heads, kv_heads, q_len, kv_len, head_dim, views["q"].dtype, causal, window, scale)
    return choose(problem, total_q, total_k, target.spec.arch, target.spec.sms) if total_k else None


@functools.lru_cache(maxsize=1024)
def choose(problem: Problem, total_q: int, total_k: int, arch: str, sms: int) -> binding.Plan:
    """Returns the plan for ``problem.batch`` packed sequences of ``total_q`` queries and ``total_k`` keys in all, on a
    device of ``arch`` with ``sms`` SMs; lengths of ``problem`` are mean ones."""
    name, planned, kernel_of = OWN[kernels_of(arch)]
    found = planned(problem, total_q, total_k, sms=sms)
    kernel = kernel_of(found.config).trace(arch, dtype=types.of_dtype(problem.dtype), bounds=found.bounds)
    counted = "counter" in dict(kernel.params)
    args = *FOUR, "lse", *["workspace"] * counted, *STARTS, *found.scalars
    launches = (binding.Launch(kernel, found.grid, args),)
    how: dict[str, Any] = {"kernel": name, "why": f"{problem.batch} sequences are packed"}
    words = plan.COUNTER if counted else None
    return binding.Plan(launches, found.config, words, **how, mapped=_by_head, ragged=True)


def _by_head(views: Views) -> Views:
    """Returns Q, K, V and O, (rows, heads, head_dim), as (heads, rows, head_dim)."""
    return {name: views[name].swapaxes(0, 1) for name in FOUR}


def _prepare(
    call: binding.Call, chosen: binding.Plan, library: Library, given: Mapping[str, Array], lse: Array | None
) -> bool:
    """Set the steps of ``call``; returns whether kernels read and write all arrays in place, else copies are made."""
    q, direct = given["q"], True
    values: dict[str, Any] = {"q": 0, "k": 0, "v": 0, "o": 0, "lse": 0 if lse is None else library.view(lse)}
    values |= {"workspace": 0, **dict.fromkeys(STARTS, 0)}
    for name, parameter in zip(("q", "k", "v", "out", *STARTS), (*FOUR, *STARTS), strict=True):
        array, view = given[name], library.view(given[name])
        if not in_place(parameter, view):
            copy = library.empty(tuple(view.shape), view.dtype, q)
            if name == "out":
                call.finish.append(functools.partial(array.__setitem__, ..., copy))
            else:
                copy[...] = array
            view, direct = library.view(copy), False
        values[parameter] = view
    call.stream = library.stream(q)() if isinstance(values["q"], DeviceArray) else 0
    values["workspace"] = arrays.workspace(library, q, values["q"], call.device.name, call.stream, chosen.words)
    call.steps = [(chosen, values)]
    return direct


def in_place(name: str, view: View) -> bool:
    """Returns whether kernels read or write the array in place: all but Q, K, V and O must be dense."""
    dense = tuple(view.strides) == dense_strides(view.shape, view.itemsize)
    return dense or (name in FOUR and binding.mappable(view.swapaxes(0, 1)))


def _entry(call: binding.Call, library: Library, given: tuple[Array, ...], lse: Array | None) -> BoundCall:
    """Returns the call bound to the GPU."""
    ((chosen, values),), q = call.steps, given[0]
    layouts, makes = binding.layouts_of(values), len(given) == len(FOUR) - 1 + len(STARTS)
    return BoundCall(
        pointer=library.pointer,
        stream=library.stream(q),
        new_result=library.maker(tuple(values["q"].shape), values["q"].dtype, q) if makes else None,
        swap=None,
        nbytes=tuple(reach(layout) for _, layout in layouts[:4] if layout),
        new_lse=None if lse is None else library.maker(tuple(lse.shape), arrays.FLOAT32, q),
        workspace=arrays.workspace_address(library, q, call.device.name, chosen.words),
        bound=binding.bind(chosen, layouts, call.device),
    )
