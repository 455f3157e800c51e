"""The plan of a product of two block-scaled matrices, D = activation(scale · A·Bᵀ + bias), one launch."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from warpwright import targets, types
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.gemm import PLAIN
from warpwright.kernels.gemm.epilogue import Epilogue
from warpwright.kernels.gemm.formats import FORMATS, Format
from warpwright.kernels.gemm.sm100 import L2_PROMOTION, scaled
from warpwright.kernels.gemm.sm100.scaled.configs import ROW_BYTES
from warpwright.ops.binding import Geometry, Launch, Plan
from warpwright.ops.matmul.epilogue import FLOAT32_MAX, EpilogueArgs
from warpwright.ops.matmul.quantized import Quantized

__all__ = ["check_pair", "check_target", "config_for", "plan_scaled", "scale_lines", "with_global_scales"]

LINE_BYTES = 128  # of scale factors in a row of their tensor map
FLOAT32_TINY = float(np.finfo(np.float32).tiny)
EPILOGUE = "bias", "scale_a", "scale_b", "alpha"

Formats = tuple[Format, Format]


def plan_scaled(
    config: scaled.Config,
    formats: Formats,
    a: Geometry,
    b: Geometry,
    d: Geometry,
    sms: int,
    arch: str,
    epilogue: Epilogue = PLAIN,
    columns: int = 0,
) -> Plan:
    """Returns the plan of ``config`` for data of A (M, K) and B (N, K) and D (M, N)."""
    (m, width), (n, _) = a[0], b[0]
    tiles = *scaled.clusters_of(config, m, n), -(-width // ROW_BYTES)
    kernel = scaled.kernel_of(config).trace(arch, formats=formats, out=types.of_dtype(d[2]), epilogue=epilogue)
    grid = scaled.grid_of(config, m, n, sms), 1, 1
    launch = Launch(kernel, grid, ("a", "b", "sfa", "sfb", "d", *tiles, columns, *EPILOGUE))
    return Plan((launch,), config, l2_promotion=L2_PROMOTION)


def config_for(level: Any, a: Quantized, n: int, sms: int) -> scaled.Config:
    """Returns the configuration of a level, or the one with the fewest estimated cycles.

    Raises UsageError for a level that the ladder of scaled matrices does not have.
    """
    if level is not None and not isinstance(level, int | scaled.Config):
        raise UsageError(
            "matmul: given a Config of another GEMM as level=; expected a level, or a Config of "
            "warpwright.kernels.gemm.sm100.scaled for scaled matrices"
        )
    if level is None:
        return scaled.choose(a.shape[0], n, a.data.shape[1], FORMATS[a.format], sms)
    return scaled.config_of(level)


def scale_lines(given: Quantized) -> Any:
    """Returns the scale factors as the kernels' tensor maps take them: four lines of 128 bytes for each tile."""
    rows, blocks, *tile = given.scales.shape
    return given.scales.reshape(rows, blocks * prod(tile) // LINE_BYTES, LINE_BYTES)


def check_pair(a: Any, b: Any) -> None:
    """Raises UsageError unless both are `Quantized`, with blocks along K, of formats that one MMA multiplies."""
    for name, one, other in (("b", a, b), ("a", b, a)):
        if not isinstance(other, Quantized):
            raise UsageError(
                f"matmul: {name} is a {type(other).__name__} and the other operand {one!r}; expected both quantized: "
                f"ww.quantize(x, {one.format!r}) and ww.quantize(w, {one.format!r}).T of w (N, K)"
            )
    if a.transposed or not b.transposed:
        raise UsageError(
            f"matmul: a is {_extents(a)} and b is {_extents(b)}; expected blocks along K in both: ww.quantize(x) of x "
            "(M, K) and ww.quantize(w).T of w (N, K)"
        )
    if a.shape[1] != b.shape[0]:
        raise UsageError(
            f"matmul: a is {_extents(a)} and b is {_extents(b)}; expected the columns of a to be the rows of b"
        )
    formats = {a.format, b.format}
    if len(formats) > 1 and not formats <= {"mxfp8", "mxfp8_e5m2"}:
        raise UsageError(f"matmul: a is {a.format} and b is {b.format}; expected one format, or mxfp8 and mxfp8_e5m2")


def check_target(a: Quantized, target: Device) -> None:
    """Raises UsageError for a device without a kernel for scaled matrices."""
    if targets.kernels_of(target.spec.arch) != "sm_100a":
        raise UsageError(
            f"matmul: a and b are {a.format}, which no kernel for {target.name} ({target.spec.arch}) multiplies; "
            "expected device='b200', 'gb200' or 'b300', or the operands as a.dequantize() and b.dequantize()"
        )


def with_global_scales(args: EpilogueArgs, a: Quantized, b: Quantized) -> EpilogueArgs:
    """Returns the epilogue with the global scales as factors. Raises UsageError for a product beyond float32."""
    if a.global_scale == b.global_scale == 1:
        return args
    alpha = args.alpha * a.global_scale * b.global_scale
    if alpha and not FLOAT32_TINY <= abs(alpha) <= FLOAT32_MAX:
        raise UsageError(
            f"matmul: the scales and the global scales of a and b are {alpha!r} together; expected a normal number of "
            "float32: scale an operand before it is quantized"
        )
    return replace(args, alpha=alpha, epilogue=replace(args.epilogue, scaled=True))


def _extents(given: Quantized) -> str:
    rows, columns = given.shape
    return f"{rows} × {columns} with blocks along the {'rows' if given.transposed else 'columns'}"
