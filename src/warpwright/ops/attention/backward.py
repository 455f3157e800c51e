"""`gradients`: the gradients of attention by q, k and v, by the kernels of `OWN`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from warpwright import types
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.arrays.libraries import Library, View, views_of
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.mods import NO_MODS, Mods
from warpwright.kernels.attention.problem import Problem, Window
from warpwright.kernels.attention.sm90 import backward as sm90
from warpwright.kernels.attention.sm90 import backward_plan as sm90_plan
from warpwright.kernels.attention.sm90 import block_lists
from warpwright.kernels.attention.sm100 import backward as sm100
from warpwright.kernels.attention.sm100 import backward_plan as sm100_plan
from warpwright.kernels.attention.sm120 import backward as sm120
from warpwright.kernels.attention.sm120 import backward_plan as sm120_plan
from warpwright.lang.trace import Traced
from warpwright.ops import binding
from warpwright.ops.attention import arrays
from warpwright.ops.attention import mods as of_user
from warpwright.ops.attention.bound_call import bind_gradients
from warpwright.ops.memo import MEMO
from warpwright.targets import kernels_of

__all__ = [
    "GREATEST_HEADS",
    "ORDERED_HEADS",
    "OWN",
    "begin_gradients",
    "choose",
    "describe",
    "gradients",
    "launch_of",
]

HALVES, STATS = ("q", "k", "v", "o", "do"), ("lse", "dlse")
RESULTS = ("dq", "dk", "dv")
OTHERWISE = "torch's own scaled_dot_product_attention has gradients elsewhere"
Array = Any

# Targets with kernels for gradients: their plan, and the kernels of a configuration and bounds.
OWN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sm_90a": (sm90_plan.plan, sm90.kernels_of),
    "sm_100a": (sm100_plan.plan, sm100.kernels_of),
    "sm_120a": (sm120_plan.plan, sm120.kernels_of),
}
GREATEST_HEADS = {
    "sm_90a": sm90_plan.GREATEST_HEAD,
    "sm_100a": sm100_plan.GREATEST_HEAD,
    "sm_120a": sm120_plan.GREATEST_HEAD,
}
DEPENDENT = (
    ("sm_90a", "gradients"),
    ("sm_90a", "gradients_wide"),
    ("sm_90a", "convert"),
)  # they wait for the launch before themselves
# Columns of the widest heads for which parts of dQ may be added in a fixed order.
ORDERED_HEADS = {"sm_90a": sm90_plan.WIDE, "sm_100a": 0, "sm_120a": sm120_plan.GREATEST_HEAD}


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
    softcap: float | None = None,
    sinks: Array | None = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    deterministic: bool = False,
) -> tuple[Array, ...]:
    """The gradients by q, k and v of `warpwright.attention` with the same options, which returned ``o`` and ``lse``.

    ``do``, of the shape and dtype of o, is the gradient by o; ``dlse``, of the shape of lse in float32, that by lse.
    The gradients have the shapes, the dtype and the order of axes in memory of q, k and v. Head dimensions are computed
    as 64 or 128, on Hopper also as 96, 192 or 256. Sums are in float32; on sm_90a and sm_100a the gradient by q is
    summed in any order, so its last bit may differ from run to run. With ``deterministic`` all gradients have the same
    bits in every run: on sm_90a by kernels that sum in a fixed order, on sm_120a in any case.

    Arrays on a GPU are used there, on the library's current stream, without waiting; ``device`` is as in
    `warpwright.attention`, but arrays of the host go to the virtual ``h200`` where there is no real Hopper GPU and no
    ``device`` is named.

    On Hopper ``softcap``, ``sinks``, ``score_mod`` and ``mask_mod`` may be given too. The derivative of ``score_mod``
    by its score is that of its instructions; arrays that it captures get no gradient. With ``sinks`` a fourth result is
    their gradient, float32 (heads,).

    Raises UsageError for a head dimension above 256, or above 128 on a GPU that is no Hopper, a GPU without a kernel
    for this, arrays that do not fit together, and ``deterministic`` on sm_100a, with ``mask_mod``, or for a head
    dimension above 128.
    """
    scale, window = arrays.plain_options(scale, window)
    given = (q, k, v, o, do, lse) if dlse is None else (q, k, v, o, do, lse, dlse)
    options: tuple[Any, ...] = "gradients", causal, scale, window, layout, device, deterministic
    if softcap is not None or sinks is not None or score_mod is not None or mask_mod is not None:
        changes, captured = of_user.memo_key(q, softcap, sinks, score_mod, mask_mod)
        given, options = (*given[:6], *captured, *given[6:]), (*options, changes)
    bound = MEMO.get(given, options)
    found: tuple[Array, ...] | None = None if bound is None else bound(given)
    if found is not None:
        return found
    keywords: dict[str, Any] = {"causal": causal, "scale": scale, "window": window, "layout": layout, "device": device}
    keywords |= {"deterministic": deterministic, "softcap": softcap, "sinks": sinks}
    keywords |= {"score_mod": score_mod, "mask_mod": mask_mod}
    call = describe(q, k, v, o, lse, do, dlse=dlse, **keywords)
    results: tuple[Array, ...] = call.run(given, options)
    return results


def begin_gradients(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    *,
    dq: Array,
    causal: bool,
    scale: float | None,
    deterministic: bool,
) -> Callable[[], tuple[Array, ...]]:
    """Start the launch of `gradients` that reads neither k nor v, and return a function that starts the others.

    The function returned, called on the same stream, returns the gradients; that by q is in ``dq``, of the shape and
    dtype of q, which overlaps no input. The first call with arrays of these shapes starts all its launches there.
    """
    scale, window = arrays.plain_options(scale, None)
    given, options = (q, k, v, o, do, lse, dq), ("begin_gradients", causal, scale, deterministic)
    bound: Any = MEMO.get(given, options)
    end: Callable[[], tuple[Array, ...]] | None = None if bound is None else bound.begin(given)
    if end is not None:
        return end
    keywords: dict[str, Any] = {"causal": causal, "scale": scale, "window": window, "deterministic": deterministic}
    call = describe(q, k, v, o, lse, do, dlse=None, layout="bhsd", device=None, dq=dq, **keywords)
    return functools.partial(call.run, given, options)


def describe(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    *,
    dlse: Array | None,
    causal: bool,
    scale: float | None,
    window: Window | None,
    layout: str,
    device: Device | str | None,
    deterministic: bool = False,
    dq: Array | None = None,
    **functions: Any,
) -> binding.Call:
    """Returns the call of `gradients` with these arguments, which has started nothing yet. ``dq`` is as in
    `begin_gradients`."""
    given = dict(zip((*HALVES, *STATS), (q, k, v, o, do, lse, dlse), strict=True))
    library, memory = views_of("attention", given, ("dlse",))
    views = arrays.inputs_of(library, memory, HALVES, layout)
    target = arrays.target_for(views, device, "gradients", OWN, OTHERWISE)
    rows = tuple(views["q"].shape[arrays.BHSD - len(memory["q"].shape) : 3])
    _check(views, {name: memory[name] for name in STATS if name in memory}, rows)
    (batch, count, q_len, head_dim), (_, kv_heads, kv_len, _) = views["q"].shape, views["k"].shape
    changes = of_user.given_mods(library, views["q"], count, **functions)
    if changes is not None:
        of_user.check_target(target.spec.arch, target.name, max(q_len, kv_len))
    sinks = [] if changes is None or not changes.mods.sinks else [((count,), arrays.FLOAT32)]
    if 0 in views["q"].shape:
        shapes = [(tuple(memory[name].shape), memory[name].dtype) for name in "qkv"]
        return binding.Call(target, library, tuple(library.zeros(*each, q) for each in (*shapes, *sinks)))
    problem = Problem(batch, count, kv_heads, q_len, kv_len, head_dim, views["q"].dtype, causal, window, scale)
    made = [name for name in "qkv" if dq is None or name != "q"]
    results = [] if dq is None else [dq]
    results += [arrays.new_result(library, given[name], memory[name], layout) for name in made]
    results += [library.empty(*each, q) for each in sinks]
    call = binding.Call(target, library, tuple(results))
    mods = NO_MODS if changes is None else changes.mods
    config = _order(target, problem, mods) if deterministic else None
    chosen = choose(problem, target.spec.arch, config, mods)
    in_place = _prepare(call, chosen, library, given, layout, {} if changes is None else changes.arrays)
    if in_place and isinstance(views["q"], DeviceArray):
        in_memory = [arrays.result_shape(memory[name], layout) for name in made]
        call.entry = functools.partial(bind_gradients, call, library, q, in_memory, dlse is not None, dq is not None)
    return call


def _order(target: Device, problem: Problem, mods: Mods) -> Any:
    """Returns the configuration whose gradients have the same bits in every run, None if every one is so."""
    arch = kernels_of(target.spec.arch)
    if not ORDERED_HEADS[arch]:
        raise UsageError(
            f"attention: given deterministic=True on {target.name}, whose kernel sums the gradient by q in any order; "
            f"expected deterministic=False, or a GPU of {', '.join(each for each in OWN if ORDERED_HEADS[each])}"
        )
    if mods.mask is not None:
        raise UsageError(
            "attention: given deterministic=True and mask_mod, with which the gradient by q is summed in any order; "
            "expected deterministic=False, or causal=True or window=(left, right) instead of mask_mod"
        )
    return sm90_plan.in_order(problem) if arch == "sm_90a" else None


def _check(views: Mapping[str, View], stats: Mapping[str, View], rows: tuple[int, ...]) -> None:
    """Raise UsageError unless o and do fit q, and the row statistics have the shape ``rows``."""
    q = views["q"]
    arrays.check_extents(views)
    for name in ("o", "do"):
        if (views[name].shape, views[name].dtype) != (q.shape, q.dtype):
            raise UsageError(
                f"attention: {name} is {arrays.extents(views[name])} of {views[name].dtype}; expected the shape and "
                f"dtype of q, {arrays.extents(q)} of {q.dtype}"
            )
    for name, each in stats.items():
        if (tuple(each.shape), each.dtype) != (rows, arrays.FLOAT32):
            raise UsageError(
                f"attention: {name} is {arrays.extents(each)} of {each.dtype}; expected batch × heads × rows of q, "
                f"{' × '.join(map(str, rows))} of float32"
            )


@functools.lru_cache(maxsize=1024)
def choose(problem: Problem, arch: str, config: Any = None, mods: Mods = NO_MODS) -> binding.Plan:
    """Returns the plan of ``problem`` with ``mods`` on ``arch``, by ``config`` or by the fastest configuration."""
    planned, kernels = OWN[kernels_of(arch)]
    found = planned(problem, config=config, **({} if mods == NO_MODS else {"modified": True}))
    traced = kernels(found.config, found.bounds, *([] if mods == NO_MODS else [mods]))
    dtype, scratch, scalars = types.of_dtype(problem.dtype), dict(found.scratch), dict(found.scalars)
    steps = [(each.trace(arch, dtype=dtype), grid) for each, grid in zip(traced, found.grids, strict=True)]
    if mods.mask is not None:
        shape = of_user.list_shape(problem, mods, found.config.tile)
        scratch["lists"], (scalars["of_batch"], scalars["of_head"]) = shape, of_user.list_steps(shape)
        lists = block_lists.kernel_of(found.config.tile, mods, by_keys=True).trace(arch, bounds=found.bounds)
        steps.insert(0, (lists, shape[2::-1]))
    if mods.sinks:
        scalars |= {"batch": problem.batch, "padded": found.scratch["means"][1]}
        steps.append((sm90.sink_gradients.trace(arch), (problem.heads, 1, 1)))
    launches = tuple(launch_of(kernel, grid, scalars, kernels_of(arch)) for kernel, grid in steps)
    return binding.Plan(launches, found.config, scratch=scratch)


def launch_of(kernel: Traced, grid: binding.Grid, scalars: Mapping[str, Any], arch: str) -> binding.Launch:
    """Returns a launch with ``scalars`` and arrays by the names of the parameters."""
    arguments = tuple(scalars.get(name, name) for name, _ in kernel.params)
    return binding.Launch(kernel, grid, arguments, dependent=(arch, kernel.entry) in DEPENDENT)


def _prepare(
    call: binding.Call,
    chosen: binding.Plan,
    library: Library,
    given: Mapping[str, Array],
    layout: str,
    extra: Mapping[str, View],
) -> bool:
    """Set the steps of ``call``; returns whether kernels read all arrays in place, else copies are made."""
    used, like = {name: array for name, array in given.items() if array is not None}, given["q"]
    views = {name: library.view(array) for name, array in used.items()}
    halves = arrays.inputs_of(library, views, HALVES, layout)
    sparse = [name for name in STATS if name in views and not _dense(views[name])]  # row statistics must be dense
    copied = [*binding.unmappable(halves, HALVES), *sparse]
    for name in copied:
        copy = library.empty(tuple(used[name].shape), views[name].dtype, like)
        copy[...] = used[name]
        views[name] = library.view(copy)
    results = dict(zip((*RESULTS, "dsinks"), map(library.view, call.result), strict=False))
    staged = binding.unmappable(arrays.inputs_of(library, results, RESULTS, layout), RESULTS)  # a given dq at most
    for name in staged:
        copy, whole = library.empty(tuple(results[name].shape), results[name].dtype, like), call.result[0]
        call.finish.append(functools.partial(whole.__setitem__, ..., copy))
        results[name] = library.view(copy)
    scratch = {
        name: library.empty(shape, arrays.WORD if name == "lists" else arrays.FLOAT32, like)
        for name, shape in chosen.scratch.items()
    }
    values: dict[str, Any] = {
        **arrays.inputs_of(library, views, HALVES, layout),
        **results,
        **arrays.inputs_of(library, results, RESULTS, layout),
        **{name: views.get(name, 0) for name in STATS},
        **{name: library.view(array) for name, array in scratch.items()},
        **extra,
    }
    call.stream = library.stream(like)() if isinstance(values["q"], DeviceArray) else 0
    call.steps = [(chosen, values)]
    return not copied and not staged


def _dense(view: View) -> bool:
    return tuple(view.strides) == dense_strides(view.shape, view.itemsize)
