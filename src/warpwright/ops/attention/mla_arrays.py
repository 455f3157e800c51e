"""The arrays of `attention_mla`: checks, and the latent rows with an axis of one head."""

from __future__ import annotations

from collections.abc import Mapping

from warpwright.arrays.libraries import OTHER, Library, View
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention.problem import DTYPES, LATENT_DIM, LATENT_VALUES
from warpwright.kernels.attention.sm90.plan import STRIP
from warpwright.ops.attention import arrays, plan
from warpwright.ops.attention.paged_arrays import (
    KERNELS,
    check_locations,
    check_page_size,
    check_strides,
    check_tables,
)
from warpwright.ops.binding import as_strided

__all__ = ["check_arrays", "with_head"]

Views = Mapping[str, View]


def with_head(view: View) -> View:
    """Returns latent rows (…, rows, columns) as (…, rows, 1, columns)."""
    if len(view.shape) != 3:
        return view
    (*before, columns), (*steps, step) = view.shape, view.strides
    return as_strided(view, (*before, 1, columns), (*steps, columns * step, step))


def check_arrays(library: Library, views: Views, device: Device | str | None) -> Device:
    """Returns the device that computes; ``kv`` has an axis of heads. Raises UsageError unless the arrays fit."""
    _check_shapes(views)
    _check_dtypes(library, views)
    check_locations(views)
    target = _target(library, views, device)
    if "block_table" in views:
        check_page_size("kv", views["kv"])
    check_strides("kv", views["kv"], "pages" if "block_table" in views else "sequences")
    check_tables(library, {"k_pages": views["kv"]} | dict(views), False)
    if "out" in views:
        arrays.check_out(views["out"], {name: views[name] for name in ("q", "kv")}, columns=LATENT_VALUES)
    return target


def _check_shapes(views: Views) -> None:
    q, kv, paged = views["q"], views["kv"], "block_table" in views
    of_rows = f"(pages, page_size, {LATENT_DIM})" if paged else f"(sequences, rows, {LATENT_DIM})"
    if len(q.shape) != 4 or q.shape[3] != LATENT_DIM or q.shape[2] < 1 or not 1 <= q.shape[1] <= STRIP:
        raise UsageError(
            f"attention: q has shape {tuple(q.shape)}; expected (sequences, q_len, heads, {LATENT_DIM}), "
            f"{LATENT_VALUES} columns for the latent row and 64 for positions, and at most {STRIP} queries a sequence: "
            "for prompts, project the latent rows to keys and values of each head, and warpwright.attention"
        )
    if len(kv.shape) != 4 or kv.shape[3] != LATENT_DIM or kv.shape[2] != 1:
        raise UsageError(
            f"attention: kv has shape {tuple(kv.shape)}; expected {of_rows}, one head of latent rows for all of q: "
            "torch.cat([latent, positions], -1)"
        )
    if paged and "lengths" not in views:
        raise UsageError("attention: given block_table and no lengths; expected lengths=, the keys of each sequence")
    if not paged and kv.shape[0] != q.shape[0]:
        raise UsageError(
            f"attention: q has {q.shape[0]} sequences and kv {kv.shape[0]}; expected the same, or block_table= for "
            "latent rows in pages"
        )


def _check_dtypes(library: Library, views: Views) -> None:
    for name in ("q", "kv"):
        if views[name].dtype not in DTYPES:
            raise UsageError(
                f"attention: {name} is {views[name].dtype}; expected bfloat16 or float16: {name}{library.rounding} (8 "
                "significant bits)"
            )
    if views["kv"].dtype != views["q"].dtype:
        raise UsageError(f"attention: q is {views['q'].dtype} and kv is {views['kv'].dtype}; expected one dtype")


def _target(library: Library, views: Views, device: Device | str | None) -> Device:
    of_rows = {"q": views["q"], "k": views["kv"], "v": views["kv"]}
    otherwise = "project the latent rows to keys and values of each head, and warpwright.attention"
    target = arrays.target_for(of_rows, device, "latent rows", KERNELS, otherwise)
    if plan.setting() is False:
        raise UsageError(
            f"attention: given latent rows and {plan.SETTING}=0; expected 1 or -1, for their kernel copies by TMA: "
            "unset it"
        )
    if library is OTHER:
        raise UsageError(
            "attention: given latent rows of a library without a workspace; expected arrays of torch or CuPy: "
            "torch.from_dlpack(…)"
        )
    return target
