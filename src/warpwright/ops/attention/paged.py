"""`attention_paged`: attention over keys and values in pages, and new rows that are written into the pages first."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from warpwright import types
from warpwright.arrays.device import DeviceArray, dense_strides, reach
from warpwright.arrays.libraries import OTHER, Library, View, views_of
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import Problem, Window
from warpwright.kernels.attention.sm90 import append, decode_plan, paged_decode, paged_plan, paged_varlen
from warpwright.kernels.attention.sm90.plan import STRIP
from warpwright.kernels.tiles import WARPS
from warpwright.ops import binding
from warpwright.ops.attention import arrays, plan
from warpwright.ops.attention.bound_call import BoundCall
from warpwright.ops.attention.forward import one_after_the_other
from warpwright.ops.attention.paged_arrays import check_arrays, rows_of
from warpwright.ops.binding import Launch, Plan, Stride, as_strided
from warpwright.ops.memo import MEMO

__all__ = ["attention_paged", "describe"]

Array = Any
Views = Mapping[str, View]
TABLES = ("block_table", "lengths")
BY_ROW = ("q", "o")


class Pages(NamedTuple):
    """What a plan needs of the arrays besides the problem: rows of a page, pages, width of the table, the rows of k and
    v from one page to the next, new rows of a sequence (1 if packed), rows of q, and whether sequences are packed."""

    size: int
    pages: int
    width: int
    apart: tuple[int, int]
    new: int
    total_q: int
    packed: bool


def attention_paged(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    block_table: Array,
    lengths: Array,
    *,
    cu_seqlens_q: Array | None = None,
    k: Array | None = None,
    v: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    device: Device | str | None = None,
    out: Array | None = None,
    return_lse: bool = False,
    explain: bool = False,
) -> Any:
    """`warpwright.attention` of sequences whose keys and values are in pages, on Hopper.

    ``k_pages`` and ``v_pages`` are (pages, page_size, kv_heads, head_dim), in which a page size is a multiple of 16.
    Row r of sequence i is row r % page_size of page ``block_table[i, r // page_size]``; ``block_table`` is (sequences,
    width) of int32. Sequence i has ``lengths[i]`` keys, (sequences,) of int32. Its last query is at the position of its
    last key.

    ``q`` is (sequences, q_len, heads, head_dim), as for decoding; or, with ``cu_seqlens_q`` as in
    `warpwright.attention_varlen`, (total_q, heads, head_dim), as for chunks of prompts. ``k`` and ``v`` are new rows of
    the sequences, (sequences, rows, kv_heads, head_dim), or packed as q: they are written into the pages after the
    ``lengths[i]`` keys that are there, and then are keys too.

    Pages of any strides are used in place, where a page is a whole number of rows away from the next: also
    (pages, kv_heads, page_size, head_dim) with its axes exchanged, and a half of an array with keys and values.
    Rows after the last key of a sequence are not read, and may contain anything. For arrays on a GPU the call does not
    wait for the values of ``block_table`` and ``lengths``; nothing outside the arrays is read or written. All else is
    as for `warpwright.attention_varlen`. The log-sum-exp is (sequences, heads, q_len), or (heads, total_q).

    Raises UsageError for a GPU other than Hopper, and as `warpwright.attention`.
    """
    if scale is not None or window is not None:
        scale, window = arrays.plain_options(scale, window)
    inputs = q, k_pages, v_pages, block_table, lengths
    given = *inputs, *(array for array in (cu_seqlens_q, k, v, out) if array is not None)
    kinds = cu_seqlens_q is not None, k is not None, v is not None, out is not None
    options = "attention_paged", causal, scale, window, device, return_lse, plan.read_setting(), kinds
    bound = None if explain else MEMO.get(given, options)
    if bound is not None:
        result = bound(given)
        if result is not None:
            return result
    keywords: dict[str, Any] = {"cu_seqlens_q": cu_seqlens_q, "k": k, "v": v, "causal": causal, "scale": scale}
    keywords |= {"window": window, "device": device, "out": out, "return_lse": return_lse, "explain": explain}
    return describe(*inputs, **keywords).run(given, options)


def describe(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    block_table: Array,
    lengths: Array,
    *,
    cu_seqlens_q: Array | None,
    k: Array | None,
    v: Array | None,
    causal: bool,
    scale: float | None,
    window: Window | None,
    device: Device | str | None,
    out: Array | None,
    return_lse: bool,
    explain: bool,
) -> binding.Call:
    """Returns the call of `attention_paged` with these arguments, which has started nothing yet."""
    given = {"q": q, "k_pages": k_pages, "v_pages": v_pages, "block_table": block_table, "lengths": lengths}
    given |= {"cu_seqlens_q": cu_seqlens_q, "k": k, "v": v, "out": out}
    library, views = views_of("attention", given, ("cu_seqlens_q", "k", "v", "out"))
    target = check_arrays(library, views, device)
    packed, size = "cu_seqlens_q" in views, views["k_pages"].shape[1]
    rows, heads, head_dim = views["q"].shape[-3:]
    sequences, width = views["block_table"].shape
    result = library.empty(tuple(views["q"].shape), views["q"].dtype, q) if out is None else out
    of_lse = (heads, rows) if packed else (sequences, heads, rows)
    lse = library.empty(of_lse, arrays.FLOAT32, q) if return_lse else None
    q_len, kv_heads = max(1, rows // sequences if packed else rows), views["k_pages"].shape[2]
    chosen, written = None, None
    if views["q"].size:
        of = sequences, heads, kv_heads, q_len, width * size, head_dim
        problem = Problem(*of, views["q"].dtype, bool(causal), window, scale)
        pages = _pages(views, packed, rows if packed else sequences * rows)
        chosen = choose(problem, pages, target.spec.arch, target.spec.sms, library is not OTHER)
        written = plan_append(pages, sequences, kv_heads, head_dim, target.spec.arch) if pages.new else None
    parts = [result, *([lse] if return_lse else []), *([plan.explain(chosen, target.name)] if explain else [])]
    call = binding.Call(target, library, parts[0] if len(parts) == 1 else tuple(parts))
    if chosen is not None:
        plans = [chosen] if written is None else [written, chosen]
        if _prepare(call, plans, library, given | {"out": result}, lse) and isinstance(views["q"], DeviceArray):
            inputs = tuple(array for array in given.values() if array is not None)
            call.entry = functools.partial(_entry, call, library, inputs, lse, out is None)
    return call


def _pages(views: Views, packed: bool, total_q: int) -> Pages:
    k = views["k_pages"]
    steps = [binding.geometry(views[name])[1] for name in ("k_pages", "v_pages")]
    new = (1 if packed else views["k"].shape[1]) if "k" in views else 0
    apart = steps[0][0] // steps[0][1], steps[1][0] // steps[1][1]
    return Pages(k.shape[1], k.shape[0], views["block_table"].shape[1], apart, new, total_q, packed)


@functools.lru_cache(maxsize=1024)
def choose(problem: Problem, pages: Pages, arch: str, sms: int, workspace: bool = True) -> Plan:
    """Returns the plan of ``problem`` on a device of ``arch`` with ``sms`` SMs; ``workspace``: kernels may take one."""
    few = not pages.packed and problem.q_len <= STRIP and decode_plan.suits(problem, sms=sms) and workspace
    tables = *TABLES, pages.width, pages.pages, pages.new, *pages.apart
    options: dict[str, Any] = {"dtype": types.of_dtype(problem.dtype), "size": pages.size}
    mapped = functools.partial(_as_rows, pages.apart, problem.group if few else 0)
    how: dict[str, Any] = {"why": f"keys are in pages of {pages.size} rows", "mapped": mapped, "ragged": True}
    if not few:
        found = paged_plan.plan_packed(problem, pages.total_q, problem.kv_len, sms=sms)
        options |= {"bounds": found.bounds, "packed": pages.packed}
        kernel = paged_varlen.kernel_of(found.config).trace(arch, **options)
        starts = "cu_seqlens_q" if pages.packed else 0
        args: tuple[Any, ...] = "q", "k", "v", "o", "lse", "workspace", starts, *tables, problem.q_len, *found.scalars
        launches = [Launch(kernel, found.grid, args)]
        return Plan(tuple(launches), found.config, plan.COUNTER, kernel="sm90.attention_paged", **how)
    planned = paged_plan.plan_few(problem, sms=sms)
    options["bounds"] = planned.bounds
    kernel = paged_decode.kernel_of(planned.config).trace(arch, **options)
    strides = *(Stride("o", axis) for axis in (0, 2, 1)), problem.head_dim
    args = "q", "k", "v", "o", *strides, "lse", "workspace", *tables, *planned.scalars
    launches = [Launch(kernel, planned.grid, args)]
    if planned.combine_grid:
        last = paged_decode.combine_of(planned.config).trace(arch, **options)
        launches.append(Launch(last, planned.combine_grid, args[3:-1], dependent=True))
    return Plan(tuple(launches), planned.config, planned.words, kernel="sm90_paged_decode.attention", **how)


@functools.lru_cache(maxsize=1024)
def plan_append(pages: Pages, sequences: int, kv_heads: int, head_dim: int, arch: str) -> Plan:
    """Returns the plan that writes new rows into the pages."""
    total, rows = (pages.total_q, 1) if pages.packed else (sequences * pages.new, pages.new)
    strides = [Stride(name, axis) for name in ("k_new", "v_new") for axis in (0, 1)]
    strides += [Stride(name, axis) for name in ("k", "v") for axis in (0, 1, 2)]
    starts = "cu_seqlens_q" if pages.packed else 0
    scalars = pages.width, pages.pages, rows, sequences, total, kv_heads
    args = "k_new", "v_new", "k", "v", *strides, head_dim, starts, *TABLES, *scalars
    kernel = append.append.configure(size=pages.size, packed=pages.packed).trace(arch)
    return Plan((Launch(kernel, (-(-total // WARPS), 2, 1), args),), None, kernel="sm90.append")


def _as_rows(apart: tuple[int, int], group: int, views: Views) -> Views:
    """Returns K and V as (kv_heads, rows, head_dim), all rows from the first page to the last; Q and O by head, and
    where ``group`` is not 0 Q as (sequences, kv_heads, group, q_len, head_dim)."""
    found = dict(views)
    for name, step in zip("kv", apart, strict=True):
        (count, size, heads, columns), (_, row, head, column) = views[name].shape, views[name].strides
        found[name] = as_strided(views[name], (heads, (count - 1) * step + size, columns), (head, row, column))
    if group:
        (batch, rows, heads, columns), (far, row, head, column) = views["q"].shape, views["q"].strides
        shape = batch, heads // group, group, rows, columns
        found["q"] = as_strided(views["q"], shape, (far, group * head, head, row, column))
    else:
        found |= {name: rows_of(views[name]).swapaxes(0, 1) for name in BY_ROW}
    return found


def _prepare(
    call: binding.Call, plans: Sequence[Plan], library: Library, given: Mapping[str, Array], lse: Array | None
) -> bool:
    """Set the steps of ``call``; returns whether kernels read and write all arrays in place, else copies are made."""
    names = {"q": "q", "k": "k_pages", "v": "v_pages", "o": "out", "lse": "", "workspace": ""}
    names |= {"block_table": "block_table", "lengths": "lengths"}
    names |= {"cu_seqlens_q": "cu_seqlens_q"} if given["cu_seqlens_q"] is not None else {}
    names |= {"k_new": "k", "v_new": "v"} if given["k"] is not None else {}
    values: dict[str, Any] = {"lse": 0 if lse is None else library.view(lse), "workspace": 0}
    direct = True
    for parameter, name in names.items():
        if not name:
            continue
        array, view = given[name], library.view(given[name])
        if not in_place(parameter, view):
            copy = library.empty(tuple(view.shape), view.dtype, given["q"])
            if name == "out":
                call.finish.append(functools.partial(array.__setitem__, ..., copy))
            else:
                copy[...] = array
            view, direct = library.view(copy), False
        values[parameter] = rows_of(view) if parameter in ("k_new", "v_new") else view
    values = {name: values[name] for name in names}
    call.stream = library.stream(given["q"])() if isinstance(values["q"], DeviceArray) else 0
    memory = library, given["q"], values["q"], call.device.name, call.stream, plans[-1].words
    values["workspace"] = arrays.workspace(*memory)
    call.steps = [(each, values) for each in plans]
    return direct


def in_place(name: str, view: View) -> bool:
    """Returns whether kernels read or write the array in place. Pages always are: `check_arrays` refuses others."""
    if name in "kv":
        return True
    if name in ("block_table", "lengths", "cu_seqlens_q"):
        return tuple(view.strides) == dense_strides(view.shape, view.itemsize)
    return rows_of(view) is not None and binding.mappable(rows_of(view).swapaxes(0, 1))


def _entry(call: binding.Call, library: Library, given: tuple[Array, ...], lse: Array | None, makes: bool) -> BoundCall:
    """Returns the call bound to the GPU."""
    (*_, (chosen, values)), q = call.steps, given[0]
    layouts = binding.layouts_of(values)
    bound = [binding.bind(each, layouts, call.device) for each, _ in call.steps]
    return BoundCall(
        pointer=library.pointer,
        stream=library.stream(q),
        new_result=library.maker(tuple(values["o"].shape), values["o"].dtype, q) if makes else None,
        swap=None,
        nbytes=tuple(reach(layout) for _, layout in layouts[:4] if layout),
        new_lse=None if lse is None else library.maker(tuple(lse.shape), arrays.FLOAT32, q),
        workspace=arrays.workspace_address(library, q, call.device.name, chosen.words),
        bound=bound[0] if len(bound) == 1 else one_after_the_other(*bound),
        aligned=0 if len(bound) == 1 else 2,  # the new rows
    )
