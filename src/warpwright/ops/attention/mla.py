"""`attention_mla`: decoding of multi-head latent attention, with latent rows in pages or one after the other."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from warpwright import types
from warpwright.arrays.device import DeviceArray, dense_strides, reach
from warpwright.arrays.libraries import Library, View, views_of
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import LATENT_VALUES, LatentProblem
from warpwright.kernels.attention.sm90 import mla, mla_plan
from warpwright.ops import binding
from warpwright.ops.attention import arrays, plan
from warpwright.ops.attention.bound_call import BoundCall
from warpwright.ops.attention.mla_arrays import check_arrays, with_head
from warpwright.ops.binding import Launch, Plan, Stride, as_strided
from warpwright.ops.memo import MEMO

__all__ = ["attention_mla", "describe"]

Array = Any
Views = Mapping[str, View]
TABLES = ("block_table", "lengths")


class Latents(NamedTuple):
    """What a plan needs of the latent rows: rows of a page, 0 for none; pages; pages of a sequence, or its rows; rows
    from one page to the next; the arrays among `TABLES` that are given."""

    size: int
    pages: int
    width: int
    apart: int
    tables: tuple[str, ...]


def attention_mla(
    q: Array,
    kv: Array,
    *,
    scale: float,
    block_table: Array | None = None,
    lengths: Array | None = None,
    causal: bool = False,
    device: Device | str | None = None,
    out: Array | None = None,
    return_lse: bool = False,
    explain: bool = False,
) -> Any:
    """Decoding of multi-head latent attention (MLA, DeepSeek): softmax(``scale`` · q·rowᵀ)·row[:512], on Hopper.

    ``q`` is (sequences, q_len, heads, 576): up to 64 new queries a sequence, each head already multiplied by the
    projection of its keys (512 columns), and its rotary part (64). ``kv`` has one latent row of 576 columns a key,
    which all heads share; its first 512 columns are also the value. ``kv`` is (sequences, rows, 576); or with
    ``block_table`` (sequences, width) of int32 it is (pages, page_size, 576), in which a page size is a multiple of 16
    and row r of sequence i is row r % page_size of page ``block_table[i, r // page_size]``. An axis of one head may
    stand before the columns. Sequence i has ``lengths[i]`` keys, (sequences,) of int32; without ``lengths``, which
    pages need, all rows. The last query is at the position of the last key; ``causal``: no query sees a key after its
    own position.

    ``scale`` has no default, because it is that of the heads before the projection: 192**-0.5 for DeepSeek-V3, times
    the square of its factor for long contexts. The arrays are bfloat16 or float16, of one library and device. ``kv`` is
    used in place. Rows after the last key of a sequence are not read, and may contain anything. For arrays on a GPU the
    call does not wait for the values of ``block_table`` and ``lengths``; nothing outside the arrays is read or written.

    Returns (sequences, q_len, heads, 512), of which ``out`` may be given; with ``return_lse`` also the log-sum-exp
    (sequences, heads, q_len) of float32; with ``explain`` also an `Explanation`. A query that sees no key has output 0.
    There are no gradients.

    Raises UsageError for a GPU other than Hopper, and for arrays that do not fit together.
    """
    scale, _ = arrays.plain_options(scale, None)  # type: ignore[assignment]  # `describe` raises for None
    tables = [array for array in (block_table, lengths) if array is not None]
    given = (q, kv, kv, *tables) if out is None else (q, kv, kv, *tables, out)
    kinds = block_table is not None, lengths is not None, out is not None
    options = "attention_mla", causal, scale, device, return_lse, plan.read_setting(), kinds
    bound = None if explain else MEMO.get(given, options)
    if bound is not None:
        result = bound(given)
        if result is not None:
            return result
    keywords: dict[str, Any] = {"scale": scale, "block_table": block_table, "lengths": lengths, "causal": causal}
    keywords |= {"device": device, "out": out, "return_lse": return_lse, "explain": explain}
    return describe(q, kv, **keywords).run(given, options)


def describe(
    q: Array,
    kv: Array,
    *,
    scale: float,
    block_table: Array | None,
    lengths: Array | None,
    causal: bool,
    device: Device | str | None,
    out: Array | None,
    return_lse: bool,
    explain: bool,
) -> binding.Call:
    """Returns the call of `attention_mla` with these arguments, which has started nothing yet."""
    if scale is None:
        raise UsageError("attention: scale=None; expected a number, that of the heads before the projection: 192**-0.5")
    given = {"q": q, "kv": kv, "block_table": block_table, "lengths": lengths, "out": out}
    library, views = views_of("attention", given, (*TABLES, "out"))
    views["kv"] = with_head(views["kv"])
    target = check_arrays(library, views, device)
    (sequences, q_len, heads, columns), latents = views["q"].shape, _latents(views)
    shape = sequences, q_len, heads, LATENT_VALUES
    result = library.empty(shape, views["q"].dtype, q) if out is None else out
    lse = library.empty((sequences, heads, q_len), arrays.FLOAT32, q) if return_lse else None
    chosen = None
    if views["q"].size:
        keys, how = latents.width * max(latents.size, 1), (views["q"].dtype, bool(causal), None, scale, LATENT_VALUES)
        problem = LatentProblem(sequences, heads, 1, q_len, keys, columns, *how)
        chosen = choose(problem, latents, target.spec.arch, target.spec.sms)
    parts = [result, *([lse] if return_lse else []), *([plan.explain(chosen, target.name)] if explain else [])]
    call = binding.Call(target, library, parts[0] if len(parts) == 1 else tuple(parts))
    if chosen is not None:
        in_place = _prepare(call, chosen, library, given | {"out": result}, lse)
        if in_place and isinstance(views["q"], DeviceArray):
            call.entry = functools.partial(_entry, call, library, q, lse, out is None)
    return call


def _latents(views: Views) -> Latents:
    count, rows = views["kv"].shape[:2]
    far, near = binding.geometry(views["kv"])[1][:2]
    tables = tuple(name for name in TABLES if name in views)
    paged = "block_table" in views
    return Latents(rows * paged, count, views["block_table"].shape[1] if paged else rows, far // near, tables)


@functools.lru_cache(maxsize=1024)
def choose(problem: LatentProblem, latents: Latents, arch: str, sms: int) -> Plan:
    """Returns the plan of ``problem`` on a device of ``arch`` with ``sms`` SMs."""
    planned = mla_plan.plan(problem, sms=sms, equal="lengths" not in latents.tables)
    options: dict[str, Any] = {"dtype": types.of_dtype(problem.dtype), "size": latents.size, "causal": planned.causal}
    strides = (Stride("o", axis) for axis in (0, 2, 1))
    tables = *(name if name in latents.tables else 0 for name in TABLES), latents.width, latents.pages, latents.apart
    args = "q", "k", "o", *strides, "lse", "workspace", *tables, *planned.scalars
    launches = [Launch(mla.kernel_of(planned.config).trace(arch, **options), planned.grid, args)]
    if planned.combine_grid:
        last = mla.combine_of(planned.config).trace(arch, by_tile=planned.by_tile, **options)
        launches.append(Launch(last, planned.combine_grid, args[2:-1], dependent=True))
    why = f"latent rows are in pages of {latents.size} rows" if latents.size else "latent rows are not in pages"
    how: dict[str, Any] = {"kernel": "sm90.attention_mla", "why": why, "ragged": True}
    mapped = functools.partial(_as_rows, latents.apart)
    return Plan(tuple(launches), planned.config, planned.words, mapped=mapped, **how)


def _as_rows(apart: int, views: Views) -> Views:
    """Returns the latent rows as (1, rows, columns), all rows from the first page to the last; Q as (sequences, 1,
    heads, q_len, columns)."""
    found = dict(views)
    (count, size, _, columns), (_, row, _, column) = views["k"].shape, views["k"].strides
    shape = 1, (count - 1) * apart + size, columns
    found["k"] = as_strided(views["k"], shape, (shape[1] * row, row, column))
    (batch, rows, heads, columns), (far, row, head, column) = views["q"].shape, views["q"].strides
    found["q"] = as_strided(views["q"], (batch, 1, heads, rows, columns), (far, heads * head, head, row, column))
    return found


def _prepare(call: binding.Call, chosen: Plan, library: Library, given: Mapping[str, Array], lse: Array | None) -> bool:
    """Set the step of ``call``; returns whether kernels read and write all arrays in place, else copies are made."""
    latent, direct = with_head(library.view(given["kv"])), True
    values: dict[str, Any] = dict.fromkeys(("q", "k", "v", "o", "lse", "workspace"), latent)
    values["lse"] = 0 if lse is None else library.view(lse)
    tables = {name: name for name in TABLES if given[name] is not None}
    for parameter, name in ({"q": "q", "o": "out"} | tables).items():
        array, view = given[name], library.view(given[name])
        if not in_place(parameter, view):
            copy = library.empty(tuple(view.shape), view.dtype, given["q"])
            if name == "out":
                call.finish.append(functools.partial(array.__setitem__, ..., copy))
            else:
                copy[...] = array
            view, direct = library.view(copy), False
        values[parameter] = view
    call.stream = library.stream(given["q"])() if isinstance(values["q"], DeviceArray) else 0
    memory = library, given["q"], values["q"], call.device.name, call.stream, chosen.words
    values["workspace"] = arrays.workspace(*memory)
    call.steps = [(chosen, values)]
    return direct


def in_place(name: str, view: View) -> bool:
    """Returns whether kernels read or write Q, O or a table in place; latent rows always are (`check_arrays`)."""
    if name in TABLES:
        return tuple(view.strides) == dense_strides(view.shape, view.itemsize)
    return binding.mappable(view.swapaxes(1, 2))


def _entry(call: binding.Call, library: Library, q: Array, lse: Array | None, makes: bool) -> BoundCall:
    """Returns the call bound to the GPU; the latent rows stand for K and for V."""
    ((chosen, values),) = call.steps
    layouts = binding.layouts_of(values)
    return BoundCall(
        pointer=library.pointer,
        stream=library.stream(q),
        new_result=library.maker(tuple(values["o"].shape), values["o"].dtype, q) if makes else None,
        swap=None,
        nbytes=tuple(reach(layout) for _, layout in layouts[:4] if layout),
        new_lse=None if lse is None else library.maker(tuple(lse.shape), arrays.FLOAT32, q),
        workspace=arrays.workspace_address(library, q, call.device.name, chosen.words),
        bound=binding.bind(chosen, layouts, call.device),
    )
