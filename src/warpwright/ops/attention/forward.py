"""`attention`: scaled dot-product attention, by the kernel that suits device, extents and dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from warpwright import targets
from warpwright.arrays.device import DeviceArray, reach
from warpwright.arrays.libraries import OTHER, Library, views_of
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import DTYPES, FLOAT8, Problem, Window
from warpwright.ops import binding
from warpwright.ops.attention import arrays, fp8, mods, plan
from warpwright.ops.attention.bound_call import BoundCall
from warpwright.ops.memo import MEMO

__all__ = ["attention", "describe", "one_after_the_other"]

Array = Any
Axes = tuple[int, int]

TEMPORARY = ("lists", fp8.VALUES)  # what one launch of a call writes for the next one


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
    softcap: float | None = None,
    sinks: Array | None = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    scale_q: Array | None = None,
    scale_k: Array | None = None,
    scale_v: Array | None = None,
) -> Any:
    """softmax(``scale`` · q·kᵀ)·v, one pass over the keys, sums in float32.

    ``q`` is (batch, heads, q_len, head_dim), ``k`` and ``v`` are (batch, kv_heads, kv_len, head_dim); with
    ``layout="bshd"`` heads and rows are exchanged in all of them and in the result. All of them may lack the batch, and
    so do the results then. ``heads`` is a multiple of ``kv_heads``: as many neighbouring heads of q share one of k and
    v. The arrays are NumPy (with ml_dtypes), torch or
    CuPy, and so is the result; arrays on a GPU are used there, on the library's current stream, without waiting. Arrays
    of any strides are used in place where rows are dense and begin at multiples of 16 bytes; others are copied.

    The last query is at the position of the last key. ``causal``: no query sees a key after its own position
    (bottom-right aligned; torch aligns top left, which differs if the lengths differ). ``window`` (left, right): a
    query sees at most so many keys to either side; None for all. A query that sees no key has output 0. The default of
    ``scale`` is 1 / √head_dim.

    The dtype is bfloat16 or float16; head_dim is a multiple of 8 up to 256, computed as 64, 128 or 256, on Hopper and
    sm_100a also 96 and 192. On Hopper ``v`` may have other columns than q and k, up to 128 beside up to 192; so has the
    result then. ``out`` is an array for the result, which overlaps no input. ``device`` is a name or Device
    (default: the GPU that holds the arrays, else a real GPU if there is one, else ``b200``). Returns the result;
    with ``return_lse`` also the log-sum-exp of each row, (batch, heads, q_len) of float32, natural logarithms; with
    ``explain`` also an `Explanation`: which kernel ran, and why.

    On Hopper, ``score_mod(score, batch, head, q, k)`` returns the score (f32) that takes the place of a scaled score,
    and ``mask_mod(batch, head, q, k)`` whether query q sees key k (pred). Both are Python functions in the kernel
    language, whose indices are s32 from 0 on; they become part of the kernel. Arrays that they capture, of the library
    of q and on its device, are read by the kernel: ``bias[head, q, k]`` loads an element, f32, s32 or pred. Key blocks
    that no query of a tile sees are skipped. ``softcap`` c makes c · tanh(score / c) of each score. ``sinks``, float32
    (heads,), adds exp(sink) to the sum of each row of a head, as a key whose value is 0.

    On Hopper, ``q``, ``k`` and ``v`` may be float8_e4m3fn, head_dim a multiple of 16 up to 128. ``scale_q`` (batch,
    heads), ``scale_k`` and ``scale_v`` (batch, kv_heads) are float32 arrays of positive numbers, by which the elements
    of each head are multiplied. The result is bfloat16, or float16 if ``out`` is. Weights are rounded to float8.

    The environment variable WARPWRIGHT_ATTENTION_TMA, read at every call, selects kernels with TMA: 1 always, 0 never,
    -1 (the default) for more than 512 keys, on Hopper and Blackwell (B200) for more than 64. These are the values of
    PYGPUKIT_FA3_TMA, which is not read, nor are PYGPUKIT_FA3 and PYGPUKIT_FLASH_ATTENTION.

    Raises UsageError for arrays of two libraries, devices or dtypes, and for extents that do not fit together.
    """
    if scale is not None or window is not None:
        scale, window = arrays.plain_options(scale, window)
    given = (q, k, v) if out is None else (q, k, v, out)
    options: tuple[Any, ...] = "attention", causal, scale, window, layout, device, return_lse, plan.read_setting()
    if softcap is not None or sinks is not None or score_mod is not None or mask_mod is not None:
        changes, captured = mods.memo_key(q, softcap, sinks, score_mod, mask_mod)
        given, options = (q, k, v, *captured, *given[3:]), (*options, changes)
    scales: dict[str, Any] = {"scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v}
    if scale_q is not None or scale_k is not None or scale_v is not None:
        some = {name: scale for name, scale in scales.items() if scale is not None}
        given, options = (q, k, v, *some.values(), *given[3:]), (*options, *some)
    bound = None if explain else MEMO.get(given, options)
    if bound is not None:
        result = bound(given)
        if result is not None:
            return result
    keywords: dict[str, Any] = {"causal": causal, "scale": scale, "window": window, "layout": layout, "device": device}
    keywords |= {"softcap": softcap, "sinks": sinks, "score_mod": score_mod, "mask_mod": mask_mod}
    call = describe(q, k, v, **keywords, **scales, out=out, return_lse=return_lse, explain=explain)
    return call.run(given, options)


def describe(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool,
    scale: float | None,
    window: Window | None,
    layout: str,
    device: Device | str | None,
    out: Array | None,
    return_lse: bool,
    explain: bool,
    softcap: float | None = None,
    sinks: Array | None = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    scale_q: Array | None = None,
    scale_k: Array | None = None,
    scale_v: Array | None = None,
) -> binding.Call:
    """Returns the call of `attention` with these arguments, which has started nothing yet."""
    given = {"q": q, "k": k, "v": v} | ({} if out is None else {"out": out})
    library, views = views_of("attention", given)
    inputs = arrays.inputs_of(library, views, given, layout, (*DTYPES, FLOAT8))
    target = arrays.target_of(inputs, device)
    functions: dict[str, Any] = {"softcap": softcap, "sinks": sinks, "score_mod": score_mod, "mask_mod": mask_mod}
    scales = {"scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v}
    dtype = _check_dtypes(inputs, scales, functions, target.spec.arch)
    problem = arrays.problem_of(inputs, bool(causal), window, scale)
    columns = inputs["v"].shape[3]
    result = arrays.new_result(library, q, views["q"], layout, columns, dtype) if out is None else out
    rows = tuple(inputs["q"].shape[arrays.BHSD - len(views["q"].shape) : 3])
    lse = library.empty(rows, arrays.FLOAT32, q) if return_lse else None
    memory = {"o": library.view(result), "lse": None if lse is None else library.view(lse)}
    changes = mods.given_mods(library, inputs["q"], inputs["q"].shape[1], **functions)
    if changes is not None:
        mods.check_target(target.spec.arch, target.name, max(inputs[name].shape[2] for name in "qk"))
    plans, own = (
        _plans_and_arrays(problem, changes, scales, library, inputs, q, dtype, target.spec, return_lse)
        if problem
        else ([], {})
    )
    chosen = plans[-1] if plans else None
    parts = [result, *([lse] if return_lse else []), *([plan.explain(chosen, target.name)] if explain else [])]
    call = binding.Call(target, library, parts[0] if len(parts) == 1 else tuple(parts))
    if plans:
        operands = {"q": q, "k": k, "v": v, "o": result}
        in_place = _prepare(call, plans, library, operands, views | memory | own, layout)
        if in_place and isinstance(inputs["q"], DeviceArray):
            shape = arrays.result_shape(views["q"], layout, columns)
            call.entry = functools.partial(_entry, call, library, tuple(given.values()), lse, shape)
    return call


def _check_dtypes(
    inputs: Mapping[str, Any], scales: Mapping[str, Any], functions: Mapping[str, Any], arch: str
) -> np.dtype[Any]:
    """Returns the dtype of the result. Raises UsageError for what float8 may not have, and for an ``out`` that does not
    fit."""
    narrow = inputs["q"].dtype == FLOAT8
    if narrow or any(value is not None for value in scales.values()):
        fp8.check_float8(inputs, scales, functions, arch)
    dtype: np.dtype[Any] = fp8.output_dtype(inputs) if narrow else inputs["q"].dtype
    if "out" in inputs:
        arrays.check_out(inputs["out"], {name: inputs[name] for name in "qkv"}, dtype)
    return dtype


def _plans_and_arrays(
    problem: Problem,
    changes: mods.Given | None,
    scales: Mapping[str, Any],
    library: Library,
    inputs: Mapping[str, Any],
    q: Array,
    dtype: np.dtype[Any],
    spec: targets.Device,
    wants_lse: bool,
) -> tuple[list[binding.Plan], dict[str, Any]]:
    """Returns the plans of a call, the attention itself last, and the arrays that they take besides Q, K, V and O."""
    workspace = library is not OTHER
    if changes is not None:
        lists, own = _lists_and_arrays(problem, changes, library, q, spec.arch)
        return [*lists, mods.plan_modified(problem, changes.mods, spec.arch, spec.sms, workspace)], own
    if problem.dtype == FLOAT8:
        own = {**fp8.scales_of(library, inputs, scales)}
        chosen = fp8.plan_fp8(problem, frozenset(own), dtype, spec.sms, workspace, wants_lse)
        return [chosen], own | {fp8.VALUES: library.view(library.empty(chosen.scratch[fp8.VALUES], fp8.BYTE, q))}
    return [plan.choose(problem, spec.arch, spec.sms, plan.setting(), workspace)], {}


def _prepare(
    call: binding.Call,
    plans: list[binding.Plan],
    library: Library,
    given: dict[str, Array],
    views: dict[str, Any],
    layout: str,
) -> bool:
    """Set the steps of ``call``; returns whether kernels read and write all arrays in place, else copies are made."""
    q = given["q"]
    call.stream = library.stream(q)() if isinstance(views["q"], DeviceArray) else 0
    values: dict[str, Any] = {**arrays.inputs_of(library, views, given, layout, (*DTYPES, FLOAT8))}
    values["lse"] = views["lse"]
    values["workspace"] = arrays.workspace(library, q, views["q"], call.device.name, call.stream, plans[-1].words)
    values |= {name: view for name, view in views.items() if name not in (*values, "out")}
    copied = binding.unmappable(values, given)
    for name in copied:
        copy = library.empty(tuple(given[name].shape), views[name].dtype, q)
        if name == "o":
            call.finish.append(functools.partial(given["o"].__setitem__, ..., copy))
        else:
            copy[...] = given[name]
        values |= arrays.inputs_of(library, {name: library.view(copy)}, [name], layout, (*DTYPES, FLOAT8))
    call.steps = [(each, values) for each in plans]
    return not copied


def _lists_and_arrays(
    problem: Problem, changes: mods.Given, library: Library, q: Array, arch: str
) -> tuple[list[binding.Plan], dict[str, Any]]:
    """Returns the plan that writes the lists of key blocks, if a mask function needs them, and the arrays of
    ``changes``, the lists last."""
    if changes.mods.mask is None:
        return [], dict(changes.arrays)
    lists = library.view(library.empty(mods.list_shape(problem, changes.mods), arrays.WORD, q))
    return [mods.plan_lists(problem, changes.mods, arch)], {**changes.arrays, "lists": lists}


def _entry(
    call: binding.Call,
    library: Library,
    given: tuple[Array, ...],
    lse: Array | None,
    result: tuple[tuple[int, ...], Axes | None],
) -> BoundCall:
    """Returns the call bound to the GPU."""
    (*lists, (chosen, values)), (shape, swap), q = call.steps, result, given[0]
    temporary = next((values[name] for name in TEMPORARY if name in values), None)
    layouts, makes = binding.layouts_of(values), len(given) == 3
    bound = [binding.bind(each, layouts, call.device) for each, _ in call.steps]
    return BoundCall(
        pointer=library.pointer,
        stream=library.stream(q),
        new_result=library.maker(shape, values["o"].dtype, q) if makes else None,
        swap=swap if makes else None,
        nbytes=tuple(reach(layout) for _, layout in layouts[:4] if layout),
        new_lse=None if lse is None else library.maker(tuple(lse.shape), arrays.FLOAT32, q),
        workspace=arrays.workspace_address(library, q, call.device.name, chosen.words),
        bound=bound[0] if not lists else one_after_the_other(*bound),
        allocator=None if temporary is None else library.allocator(temporary.itemsize * temporary.size, q),
    )


def one_after_the_other(first: binding.Bound, second: binding.Bound) -> binding.Bound:
    """Returns two bound plans as one."""
    return lambda values, stream: (*first(values, stream), *second(values, stream))
