"""Attention of float8: its plan, the scales of a call, and what a call may not have beside them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from warpwright import types
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.arrays.libraries import Library, View, library_of, location
from warpwright.errors import UsageError
from warpwright.kernels.attention.problem import DTYPES, FLOAT8, Problem
from warpwright.kernels.attention.sm90 import fp8, fp8_plan, fp8_values
from warpwright.ops.attention.plan import COUNTER, SETTING, setting
from warpwright.ops.binding import Launch, Plan, geometry
from warpwright.targets import kernels_of

__all__ = ["BYTE", "SCALES", "VALUES", "check_float8", "output_dtype", "plan_fp8", "scales_of"]

SCALES = {"q": "scale_q", "k": "scale_k", "v": "scale_v"}
VALUES = "values"  # V as the first launch transposes it for the second one
COLUMN_STEP = 16  # elements of float8 in 16 bytes, the alignment of a row of a tensor map
FLOAT32, BYTE = np.dtype(np.float32), np.dtype(np.uint8)


def check_float8(views: Mapping[str, View], scales: Mapping[str, Any], other: Mapping[str, Any], arch: str) -> None:
    """Raise UsageError for scales of arrays that are not float8, and for float8 with what its kernel does not have.

    ``other`` are the options by name that change scores.
    """
    dtype, given = views["q"].dtype, [name for name, value in scales.items() if value is not None]
    if dtype != FLOAT8:
        raise UsageError(
            f"attention: given {given[0]} and q of {dtype}; expected float8_e4m3fn, or {given[0]}= left out"
        )
    if kernels_of(arch) != "sm_90a":
        raise UsageError(
            f"attention: q is {dtype} and the device {arch}; expected sm_90a, the only one with a kernel for it: "
            "device='h200', or q, k and v of bfloat16"
        )
    for name, value in other.items():
        if value is not None:
            raise UsageError(
                f"attention: q is {dtype} and {name} is given; expected q, k and v of bfloat16 with {name}="
            )
    if setting() is False:
        raise UsageError(
            f"attention: q is {dtype} and {SETTING}=0; expected 1 or -1, for its kernel copies by TMA: unset it"
        )
    columns, most = views["q"].shape[-1], fp8_plan.HEAD_DIMS[-1]
    if columns > most or columns % COLUMN_STEP:
        raise UsageError(
            f"attention: q is {dtype} with head dimension {columns}; expected a multiple of {COLUMN_STEP} up to "
            f"{most}: q, k and v of bfloat16"
        )
    if views["v"].shape[-1] != columns:
        raise UsageError(
            f"attention: q is {dtype} of {columns} columns and v of {views['v'].shape[-1]}; expected as many columns, "
            "or q, k and v of bfloat16"
        )


def scales_of(library: Library, views: Mapping[str, View], scales: Mapping[str, Any]) -> dict[str, View]:
    """Returns the scales that are given, by name; ``views`` are Q, K and V as (batch, heads, rows, head_dim).

    Raises UsageError unless each is a dense array of float32, an element for each head.
    """
    return {
        SCALES[of]: _scale(library, of, views[of], scales[SCALES[of]])
        for of in SCALES
        if scales[SCALES[of]] is not None
    }


def _scale(library: Library, of: str, view: View, scale: Any) -> View:
    name, (batch, heads, *_) = SCALES[of], view.shape
    found = library.view(scale) if library_of(scale) is library else None
    shapes = [(batch, heads), *([(heads,)] if batch == 1 else [])]
    if found is None or found.shape not in shapes or found.dtype != FLOAT32 or location(found) != location(view):
        given = type(scale).__name__ if found is None else f"{found.dtype} {tuple(found.shape)} on {location(found)}"
        raise UsageError(
            f"attention: {name} is {given}; expected float32 ({batch}, {heads}) on {location(view)}, a positive number "
            f"for each head of {of}"
        )
    if isinstance(found, DeviceArray) and geometry(found)[1] != dense_strides(found.shape, found.itemsize):
        raise UsageError(
            f"attention: {name} has strides of {found.strides} bytes; expected a dense array: "
            f"{library.copying.format(name=name)}"
        )
    return found


def output_dtype(views: Mapping[str, View]) -> np.dtype[Any]:
    """Returns the dtype of the result: that of ``out``, or bfloat16."""
    return views["out"].dtype if "out" in views else DTYPES[0]


@lru_cache(maxsize=1024)
def plan_fp8(
    problem: Problem,
    scales: frozenset[str],
    out: np.dtype[Any],
    sms: int,
    workspace: bool,
    wants_lse: bool,
    config: fp8_plan.Fp8Config | None = None,
) -> Plan:
    """Returns the plan of ``problem`` with the named ``scales`` and a result of dtype ``out``, by ``config`` or else
    the fastest one: two launches, of which the first writes the array `VALUES`, of bytes. The log-sum-exp is written
    if the call ``wants_lse``."""
    found = fp8_plan.plan(problem, sms=sms, config=config)
    main, slabs = found.main, found.values_shape[1]
    transpose = fp8_values.kernel_of(main.config.head_dim).trace()
    first = Launch(transpose, found.values_grid, ("v", VALUES, slabs))
    kernel = fp8.kernel_of(found.config).trace(out=types.of_dtype(out), bounds=main.bounds, wants_lse=wants_lse)
    words = COUNTER if main.uneven and workspace else None
    factors = [name if name in scales else 0 for name in SCALES.values()]
    args = "q", "k", VALUES, "o", "lse", "workspace" if words else 0, *factors, *main.scalars, slabs
    how: dict[str, Any] = {"kernel": "sm90.attention_fp8", "why": f"q, k and v are {FLOAT8}"}
    launches = first, Launch(kernel, main.grid, args, dependent=True)
    return Plan(launches, main.config, words, {VALUES: found.values_shape}, **how)
