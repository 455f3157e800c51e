"""The plan of a product of two block-scaled matrices, D = activation(scale · A·Bᵀ + bias), one launch."""

from __future__ import annotations

from collections.abc import Mapping
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
from warpwright.kernels.gemm.sm100 import L2_PROMOTION
from warpwright.kernels.gemm.sm100 import scaled as sm100
from warpwright.kernels.gemm.sm100.scaled.configs import ROW_BYTES
from warpwright.kernels.gemm.sm120 import scaled as sm120
from warpwright.layout import scale_tiles
from warpwright.ops.binding import Geometry, Launch, Plan
from warpwright.ops.matmul.epilogue import FLOAT32_MAX, EpilogueArgs
from warpwright.ops.matmul.quantized import Quantized, format_of

__all__ = [
    "LADDERS",
    "Config",
    "check_pair",
    "check_target",
    "config_for",
    "empty_result",
    "output_format",
    "plan_scaled",
    "scale_lines",
    "with_global_scales",
]

LINE_BYTES = 128  # of scale factors in a row of their tensor map
FLOAT32_TINY = float(np.finfo(np.float32).tiny)
EPILOGUE = "bias", "scale_a", "scale_b", "alpha"

Formats = tuple[Format, Format]
Config = sm100.Config | sm120.Config
FAMILIES: dict[str, Any] = {"sm_100a": sm100, "sm_120a": sm120}  # modules with the same functions
LADDERS: dict[str, Mapping[int, Config]] = {"sm_100a": sm100.LEVELS, "sm_120a": sm120.LEVELS}


def plan_scaled(
    config: Config,
    formats: Formats,
    a: Geometry,
    b: Geometry,
    d: Geometry,
    sms: int,
    arch: str,
    epilogue: Epilogue = PLAIN,
    columns: int = 0,
    output: Format | None = None,
) -> Plan:
    """Returns the plan of ``config`` for data of A (M, K) and B (N, K) and D (M, N), or its data in ``output``."""
    (m, width), (n, _), family = a[0], b[0], FAMILIES[targets.kernels_of(arch)]
    tiles = *family.clusters_of(config, m, n), -(-width // ROW_BYTES)
    how: dict[str, Any] = {"output": output} if output else {"out": types.of_dtype(d[2])}
    kernel = family.kernel_of(config).trace(arch, formats=formats, epilogue=epilogue, **how)
    grid = family.grid_of(config, m, n, sms), 1, 1
    extents = ("sfd", m, n) if output else ()
    launch = Launch(kernel, grid, ("a", "b", "sfa", "sfb", "d", *tiles, columns, *EPILOGUE, *extents))
    return Plan((launch,), config, l2_promotion=L2_PROMOTION)


def config_for(level: Any, a: Quantized, n: int, sms: int, arch: str) -> Config:
    """Returns the configuration of a level, or the one with the fewest estimated cycles.

    Raises UsageError for a level that the ladder of scaled matrices does not have.
    """
    family = FAMILIES[targets.kernels_of(arch)]
    if level is not None and not isinstance(level, int | family.Config):
        raise UsageError(
            "matmul: given a Config of another GEMM as level=; expected a level, or a Config of "
            f"{family.__name__} for scaled matrices"
        )
    if level is None:
        chosen: Config = family.choose(a.shape[0], n, a.data.shape[1], FORMATS[a.format], sms)
        return chosen
    found: Config = family.config_of(level)
    return found


def output_format(name: str | None, a: Quantized, config: Config, shape: tuple[int, int]) -> Format | None:
    """Returns the format of the result: ``name``, that of ``a`` if ``config`` quantizes, or None.

    Raises UsageError for a format that no epilogue has, for a kernel without one, and for columns that are no blocks.
    """
    if name is None and not getattr(config, "quantizes", False):
        return None
    format = format_of(name or a.format)
    if not isinstance(config, sm100.Config):
        raise UsageError(
            f"matmul: out_format={format.name!r} for sm_120a, whose kernels do not quantize; expected device='b200' "
            "or 'b300', or ww.quantize of the result"
        )
    if format.scale is not types.ue8m0:
        raise UsageError(
            f"matmul: out_format={format.name!r} needs the largest element of the whole result first; expected "
            "'mxfp8', 'mxfp8_e5m2' or 'mxfp4', or ww.quantize of the result"
        )
    if shape[1] % format.step:
        raise UsageError(
            f"matmul: out_format={format.name!r} of {shape[1]} columns; expected a multiple of {format.step}: pad w "
            "with rows of zeros"
        )
    return format


def empty_result(shape: tuple[int, int], format: Format) -> Quantized:
    """Returns the arrays of a result of ``shape``, whose scale factors are 0."""
    dtype = np.dtype(np.uint8) if format.packed == 2 else np.dtype(format.dtype.dtype)
    codes = np.zeros((shape[0], shape[1] // format.block), format.scale.dtype)
    return Quantized(np.empty((shape[0], shape[1] // format.packed), dtype), scale_tiles(codes), format.name)


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
    if targets.kernels_of(target.spec.arch) not in FAMILIES:
        raise UsageError(
            f"matmul: a and b are {a.format}, which no kernel for {target.name} ({target.spec.arch}) multiplies; "
            "expected device='b200', 'b300' or 'rtx5090', or the operands as a.dequantize() and b.dequantize()"
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
