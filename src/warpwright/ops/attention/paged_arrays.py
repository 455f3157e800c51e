"""The arrays of `attention_paged`: checks, and views of their rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from warpwright.arrays.libraries import Library, View, check_writable, location
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import DTYPES
from warpwright.kernels.attention.sm90.paged_plan import PAGE_STEP
from warpwright.ops import binding
from warpwright.ops.attention import arrays, plan
from warpwright.ops.binding import as_strided

__all__ = [
    "KERNELS",
    "check_arrays",
    "check_both",
    "check_locations",
    "check_page_size",
    "check_strides",
    "check_tables",
    "rows_of",
]

INT32 = np.dtype(np.int32)
KERNELS = ("sm_90a",)
INPUTS = ("q", "k_pages", "v_pages")
Views = Mapping[str, View]


def rows_of(view: View) -> Any:
    """Returns (sequences, rows, heads, head_dim) as (rows, heads, head_dim); None if that takes a copy."""
    if len(view.shape) == 3:
        return view
    (count, rows, *rest), (far, near, *steps) = view.shape, binding.geometry(view)[1]
    if count > 1 and rows > 1 and far != rows * near:
        return None
    return as_strided(view, (count * rows, *rest), (far if rows == 1 else near, *steps))


def check_arrays(library: Library, views: Views, device: Device | str | None) -> Device:
    """Returns the device that computes. Raises UsageError unless the arrays fit together."""
    packed = "cu_seqlens_q" in views
    _check_shapes(views, packed)
    for name in INPUTS:
        if views[name].dtype not in DTYPES:
            raise UsageError(
                f"attention: {name} is {views[name].dtype}; expected bfloat16 or float16: {name}{library.rounding} (8 "
                "significant bits)"
            )
    check_locations(views)
    target = _target(views, device)
    _check_pages(views)
    check_tables(library, views, packed)
    _check_new(views)
    if "out" in views:
        arrays.check_out(views["out"], {name: views[name] for name in INPUTS})
    return target


def _target(views: Views, device: Device | str | None) -> Device:
    of_pages = {"q": views["q"], "k": views["k_pages"], "v": views["v_pages"]}
    otherwise = "gather the pages, k_pages[block_table[i]].reshape(-1, kv_heads, head_dim), and warpwright.attention"
    target = arrays.target_for(of_pages, device, "keys in pages", KERNELS, otherwise)
    if plan.setting() is False:
        raise UsageError(
            f"attention: given keys in pages and {plan.SETTING}=0; expected 1 or -1, for their kernels copy by TMA: "
            "unset it"
        )
    return target


def _check_shapes(views: Views, packed: bool) -> None:
    of_rows = "(sequences, q_len, heads, head_dim), or (total_q, heads, head_dim) with cu_seqlens_q="
    of_rows = "(total_q, heads, head_dim) with cu_seqlens_q" if packed else of_rows
    expected = {
        "q": (3 if packed else 4, of_rows),
        "k_pages": (4, "(pages, page_size, kv_heads, head_dim)"),
        "v_pages": (4, "(pages, page_size, kv_heads, head_dim)"),
        "block_table": (2, "(sequences, width), the pages of each sequence"),
        "lengths": (1, "(sequences,), the keys of each sequence"),
    }
    for name, (dimensions, shape) in expected.items():
        if len(views[name].shape) != dimensions:
            raise UsageError(f"attention: {name} has shape {tuple(views[name].shape)}; expected {shape}")


def check_locations(views: Views) -> None:
    """Raise UsageError unless all arrays are where q is."""
    for name in views:
        if location(views[name]) != location(views["q"]):
            raise UsageError(
                f"attention: q is on {location(views['q'])} and {name} on {location(views[name])}; expected all on one "
                "device"
            )


def _check_pages(views: Views) -> None:
    arrays.check_alike({name: views[name] for name in INPUTS})
    check_page_size("k_pages", views["k_pages"])
    for name in ("k_pages", "v_pages"):
        check_strides(name, views[name], "pages")


def check_page_size(name: str, view: View) -> None:
    """Raise UsageError unless ``view`` (pages, page_size, …) has pages of a size that kernels have."""
    count, size = view.shape[:2]
    if count < 1 or size < 1 or size % PAGE_STEP:
        raise UsageError(
            f"attention: {name} has {count} pages of {size} rows; expected at least one, of a multiple of {PAGE_STEP} "
            "rows: block_size=16 of the cache"
        )


def check_strides(name: str, view: View, what: str) -> None:
    """Raise UsageError unless ``view`` (pages, page_size, heads, head_dim) can be used in place; ``what`` it has."""
    _, steps, _ = binding.geometry(view)
    whole = steps[1] > 0 and steps[0] % steps[1] == 0
    if not (whole and binding.mappable(view) and binding.mappable(view.swapaxes(1, 2))):
        raise UsageError(
            f"attention: {name} has strides of {tuple(view.strides)} bytes; expected dense rows at multiples of 16 "
            f"bytes, and {what} that are a whole number of rows apart, for {what} are not copied"
        )


def check_tables(library: Library, views: Views, packed: bool) -> None:
    """Raise UsageError unless those of ``block_table``, ``lengths`` and ``cu_seqlens_q`` that are given fit."""
    mend = ".int()" if library.name == "torch" else ".astype(np.int32)"
    sequences = views["cu_seqlens_q"].shape[0] - 1 if packed else views["q"].shape[0]
    for name in (name for name in ("block_table", "lengths", "cu_seqlens_q") if name in views):
        view = views[name]
        if view.dtype != INT32:
            raise UsageError(f"attention: {name} is {view.dtype}; expected int32: {name}{mend}")
        found = view.shape[0] - (name == "cu_seqlens_q")
        if found != sequences or 0 in view.shape:
            raise UsageError(
                f"attention: {name} has shape {tuple(view.shape)}; expected an entry for each of {sequences} sequences"
            )
    if isinstance(views.get("lengths"), np.ndarray):
        _check_values(views)


def _check_values(views: Views) -> None:
    lengths, (count, size) = np.asarray(views["lengths"]), views["k_pages"].shape[:2]
    width = views["block_table"].shape[1] if "block_table" in views else 1
    wrong = np.flatnonzero((lengths < 0) | (lengths > width * size))
    if len(wrong):
        of = f"{width} pages of {size}" if "block_table" in views else "a sequence"
        raise UsageError(
            f"attention: lengths[{wrong[0]}] is {lengths[wrong[0]]}; expected 0 to {width * size}, the rows of {of}"
        )
    if "block_table" not in views:
        return
    table = np.asarray(views["block_table"])
    used = np.arange(table.shape[1]) * size < lengths[:, None]
    places = np.argwhere(used & ((table < 0) | (table >= count)))
    if len(places):
        row, column = map(int, places[0])
        raise UsageError(
            f"attention: block_table[{row}, {column}] is {table[row, column]}; expected a page from 0 to {count - 1}"
        )


def check_both(given: Collection[str]) -> None:
    """Raise UsageError if one of ``k`` and ``v`` is ``given`` without the other one."""
    for name, other in (("k", "v"), ("v", "k")):
        if name in given and other not in given:
            raise UsageError(f"attention: given {name} alone; expected k and v, the new rows, or neither")


def _check_new(views: Views) -> None:
    check_both(views)
    given = [name for name in ("k", "v") if name in views]
    for name in given:
        view, pages, q = views[name], views["k_pages"], views["q"]
        shape = (*q.shape[:-2], *pages.shape[2:])
        free = 1 if len(shape) == 4 else None  # new rows of a sequence need not be as many as its queries
        found = tuple(extent for axis, extent in enumerate(view.shape) if axis != free)
        if found != tuple(extent for axis, extent in enumerate(shape) if axis != free) or 0 in view.shape:
            raise UsageError(
                f"attention: {name} is {arrays.extents(view)}; expected {' × '.join(map(str, shape))}, new rows of the "
                "sequences of q"
            )
        if view.dtype != pages.dtype:
            raise UsageError(f"attention: {name} is {view.dtype}; expected {pages.dtype}, the dtype of the pages")
    if given:
        check_writable("attention", views["k_pages"])
        check_writable("attention", views["v_pages"])
