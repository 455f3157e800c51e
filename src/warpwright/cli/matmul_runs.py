"""Matmul for the commands: operands and the profile of the call."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright.cli.launches import profile_each
from warpwright.cli.problems import check_elements
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.layout import scale_tiles
from warpwright.ops.launches import launches
from warpwright.ops.matmul import scaled
from warpwright.ops.matmul.call import matmul
from warpwright.ops.matmul.plan import Level
from warpwright.ops.matmul.quantized import Quantized, format_of, quantize
from warpwright.report.verdict import Verdict, judge
from warpwright.vgpu.timing import Profile

__all__ = ["matmul_profile", "operands", "title_of"]

Array = NDArray[Any]
RESULTS = {"nvfp4": "mxfp4"}  # of level 7: the global scale of nvfp4 needs the whole result


def matmul_profile(
    device: Device,
    shape: tuple[int, int, int],
    level: Level | scaled.Config | None,
    fast: bool,
    seed: int = 0,
    sustained: bool = False,
    warm: bool = False,
    format: str | None = None,
) -> tuple[Profile, Verdict | None]:
    """Returns the profile of the longest launch of a bfloat16 matmul (M, N, K), named after its level, and for a full
    run, with standard normal operands, the verdict on the result. ``format``: of operands with block scales."""
    if device.name.startswith("cuda"):
        raise UsageError(f"given device {device.name}; expected a virtual one, such as h200: a profile is predicted")
    a, b = scaled_operands(shape, format, None if fast else seed) if format else operands(shape, None if fast else seed)
    results = {"out_format": RESULTS.get(format or "", format)} if getattr(level, "quantizes", False) else {}
    call = launches(matmul, a, b.T, device=device, level=level, **results)
    longest = max(profile_each(call, device, fast, sustained, warm), key=lambda each: each.time_us)
    verdict = None if fast else _judge(call.result, a, b, device, level)
    return replace(longest, kernel=title_of(shape, level)).count_useful(2 * math.prod(shape)), verdict


def _judge(result: Any, a: Any, b: Any, device: Device, level: Any) -> Verdict:
    """Returns the verdict on A·Bᵀ; of a quantized result, on the float32 product whose `quantize` it must equal."""
    left, right = (each.dequantize() if isinstance(each, Quantized) else each for each in (a, b))
    if not isinstance(result, Quantized):
        return judge(result, left, right.T)
    plain = matmul(a, b.T, device=device, level=replace(level, quantizes=False), out_dtype=np.float32)
    verdict, wanted = judge(plain, left, right.T), quantize(plain, result.format)
    pairs = (result.data, wanted.data), (result.scales, wanted.scales)
    equal = all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in pairs)
    return replace(verdict, verified=verdict.verified and equal)


def scaled_operands(shape: tuple[int, int, int], name: str, seed: int | None) -> tuple[Quantized, Quantized]:
    """Returns A (M, K) and B (N, K) in a format with block scales: standard normal, or zero without a seed."""
    if seed is not None:
        a, b = (quantize(each, name) for each in operands(shape, seed))
        return a, b
    format, (m, n, k) = format_of(name), shape
    check_elements((m + n) * k + m * n)
    if k % format.step:
        raise UsageError(f"given K={k}; expected a multiple of {format.step} for {name}")
    dtype = np.uint8 if format.packed == 2 else format.dtype.dtype
    a, b = (
        Quantized(
            np.zeros((rows, k // format.packed), dtype),
            scale_tiles(np.zeros((rows, k // format.block), format.scale.dtype)),
            name,
        )
        for rows in (m, n)
    )
    return a, b


def title_of(shape: tuple[int, int, int], level: Level | scaled.Config | None) -> str:
    """Returns one line with the level and the extents."""
    name = f"gemm level {level}" if isinstance(level, int) else "gemm"
    return f"{name}, {' × '.join(map(str, shape))}"


def operands(shape: tuple[int, int, int], seed: int | None) -> tuple[Array, Array]:
    """Returns A (M, K) and B (N, K), bfloat16: standard normal, or zero without a seed."""
    m, n, k = shape
    check_elements((m + n) * k + m * n)
    if seed is None:
        return np.zeros((m, k), ml_dtypes.bfloat16), np.zeros((n, k), ml_dtypes.bfloat16)
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal((rows, k), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return a, b
