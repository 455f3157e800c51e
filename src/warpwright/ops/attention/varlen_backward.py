"""`gradients_varlen`: the gradients of attention of packed sequences by q, k and v, on Hopper."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from warpwright import types
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import Library, View, views_of
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.mods import NO_MODS
from warpwright.kernels.attention.problem import Problem, Window
from warpwright.kernels.attention.sm90 import backward as sm90
from warpwright.kernels.attention.sm90.backward_plan import BackwardConfig, in_order, plan_varlen
from warpwright.ops import binding
from warpwright.ops.attention import arrays, varlen
from warpwright.ops.attention.backward import launch_of
from warpwright.ops.attention.bound_call import bind_gradients
from warpwright.ops.memo import MEMO
from warpwright.targets import kernels_of

__all__ = ["TARGETS", "choose", "describe", "gradients_varlen"]

TARGETS = ("sm_90a",)  # with a kernel for these gradients
OTHERWISE = "warpwright.ops.attention.backward.gradients for each sequence"
HALVES, STATS, RESULTS = ("q", "k", "v", "o", "do"), ("lse", "dlse"), ("dq", "dk", "dv")
STARTS = dict(zip(("cu_q", "cu_k"), varlen.STARTS, strict=True))  # arguments by the names of parameters
Array = Any
Three = tuple[Array, Array, Array]


def gradients_varlen(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    dlse: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    device: Device | str | None = None,
    deterministic: bool = False,
) -> Three:
    """The gradients by q, k and v of `warpwright.attention_varlen` with the same options, which returned ``o`` and
    ``lse``.

    ``do``, of the shape and dtype of o, is the gradient by o; ``dlse``, (heads, total_q) of float32, that by lse. Rows
    of no sequence are left unwritten. All else is as for `warpwright.ops.attention.backward.gradients`.

    Raises UsageError for a head dimension above 256, a GPU that is no Hopper, and arrays that do not fit together.
    """
    scale, window = arrays.plain_options(scale, window)
    inputs = q, k, v, o, do, lse, cu_seqlens_q, cu_seqlens_k
    given = inputs if dlse is None else (*inputs, dlse)
    options = "gradients_varlen", causal, scale, window, device, deterministic
    bound = MEMO.get(given, options)
    found: Three | None = None if bound is None else bound(given)
    if found is not None:
        return found
    keywords: dict[str, Any] = {"causal": causal, "scale": scale, "window": window, "device": device}
    keywords |= {"deterministic": deterministic}
    call = describe(q, k, v, o, lse, do, cu_seqlens_q, cu_seqlens_k, dlse=dlse, **keywords)
    dq, dk, dv = call.run(given, options)
    return dq, dk, dv


def describe(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    dlse: Array | None,
    causal: bool,
    scale: float | None,
    window: Window | None,
    device: Device | str | None,
    deterministic: bool = False,
) -> binding.Call:
    """Returns the call of `gradients_varlen` with these arguments, which has started nothing yet."""
    inputs = q, k, v, o, do, lse, dlse, cu_seqlens_q, cu_seqlens_k
    given = dict(zip((*HALVES, *STATS, *varlen.STARTS), inputs, strict=True))
    library, views = views_of("attention", given, ("dlse",))
    target = arrays.target_for(views, device, "gradients of packed sequences", TARGETS, OTHERWISE)
    varlen.check_rows(library, views)
    varlen.check_starts(library, views)
    _check(views)
    (total_q, heads, head_dim), (total_k, kv_heads, _) = views["q"].shape, views["k"].shape
    results = [(tuple(views[name].shape), views[name].dtype, given[name]) for name in "qkv"]
    if 0 in (total_q, total_k, heads, head_dim):
        return binding.Call(target, library, tuple(library.zeros(*each) for each in results))
    call = binding.Call(target, library, tuple(library.empty(*each) for each in results))
    sequences = views["cu_seqlens_q"].shape[0] - 1
    q_len, kv_len = (max(1, total // sequences) for total in (total_q, total_k))
    problem = Problem(sequences, heads, kv_heads, q_len, kv_len, head_dim, views["q"].dtype, causal, window, scale)
    chosen = choose(problem, total_q, total_k, target.spec.arch, in_order(problem) if deterministic else None)
    used = _prepare(call, chosen, library, given)
    if used and isinstance(views["q"], DeviceArray):
        shapes = [(shape, None) for shape, *_ in results]
        call.entry = functools.partial(bind_gradients, call, library, q, shapes, dlse is not None)
    return call


def _check(views: Mapping[str, View]) -> None:
    """Raise UsageError unless o, do and the row statistics fit q."""
    q = views["q"]
    rows = (q.shape[1], q.shape[0])
    expected = {"o": (q.shape, q.dtype), "do": (q.shape, q.dtype), **dict.fromkeys(STATS, (rows, arrays.FLOAT32))}
    for name, (shape, dtype) in expected.items():
        if name in views and (tuple(views[name].shape), views[name].dtype) != (tuple(shape), dtype):
            raise UsageError(
                f"attention: {name} is {arrays.extents(views[name])} of {views[name].dtype}; expected "
                f"{' × '.join(map(str, shape))} of {dtype}"
            )


@functools.lru_cache(maxsize=1024)
def choose(
    problem: Problem, total_q: int, total_k: int, arch: str, config: BackwardConfig | None = None
) -> binding.Plan:
    """Returns the plan for ``problem.batch`` packed sequences of ``total_q`` queries and ``total_k`` keys in all, by
    ``config`` or by the fastest configuration."""
    found = plan_varlen(problem, total_q, total_k, config=config)
    kernels = sm90.kernels_of(found.config, found.bounds, NO_MODS, packed=True)
    traced = (each.trace(arch, dtype=types.of_dtype(problem.dtype)) for each in kernels)
    launches = tuple(
        launch_of(kernel, grid, found.scalars, kernels_of(arch))
        for kernel, grid in zip(traced, found.grids, strict=True)
    )
    return binding.Plan(launches, found.config, scratch=found.scratch, mapped=_by_head, ragged=True)


def _by_head(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns arrays (rows, heads, head_dim) as (heads, rows, head_dim), all others as they are."""
    by_head = (*HALVES, *RESULTS)
    return {name: value.swapaxes(0, 1) if name in by_head else value for name, value in values.items()}


def _prepare(call: binding.Call, chosen: binding.Plan, library: Library, given: Mapping[str, Array]) -> bool:
    """Set the step of ``call``; returns whether kernels read all arrays in place, else copies are made."""
    used, direct = dict[str, Any](), True
    for name, argument in {**{each: each for each in (*HALVES, *STATS)}, **STARTS}.items():
        if given[argument] is None:
            continue
        view = library.view(given[argument])
        if not varlen.in_place("q" if name in HALVES else name, view):
            copy = library.empty(tuple(view.shape), view.dtype, given["q"])
            copy[...] = given[argument]
            view, direct = library.view(copy), False
        used[name] = view
    scratch = {name: library.empty(shape, arrays.FLOAT32, given["q"]) for name, shape in chosen.scratch.items()}
    values: dict[str, Any] = {name: used[name] for name in HALVES}
    values |= dict(zip(RESULTS, map(library.view, call.result), strict=True))
    values |= {name: used.get(name, 0) for name in STATS}
    values |= {name: library.view(array) for name, array in scratch.items()}
    values |= {name: used[name] for name in STARTS}
    call.stream = library.stream(given["q"])() if isinstance(values["q"], DeviceArray) else 0
    call.steps = [(chosen, values)]
    return direct
