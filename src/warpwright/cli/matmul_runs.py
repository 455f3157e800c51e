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
from warpwright.ops.launches import launches
from warpwright.ops.matmul.call import matmul
from warpwright.ops.matmul.plan import Level
from warpwright.report.verdict import Verdict, judge
from warpwright.vgpu.timing import Profile

__all__ = ["matmul_profile", "operands", "title_of"]

Array = NDArray[Any]


def matmul_profile(
    device: Device,
    shape: tuple[int, int, int],
    level: Level | None,
    fast: bool,
    seed: int = 0,
    sustained: bool = False,
    warm: bool = False,
) -> tuple[Profile, Verdict | None]:
    """Returns the profile of the longest launch of a bfloat16 matmul (M, N, K), named after its level, and for a full
    run, with standard normal operands, the verdict on the result."""
    if device.name.startswith("cuda"):
        raise UsageError(f"given device {device.name}; expected a virtual one, such as h200: a profile is predicted")
    a, b = operands(shape, None if fast else seed)
    call = launches(matmul, a, b.T, device=device, level=level)
    longest = max(profile_each(call, device, fast, sustained, warm), key=lambda each: each.time_us)
    verdict = None if fast else judge(call.result, a, b.T)
    return replace(longest, kernel=title_of(shape, level)).count_useful(2 * math.prod(shape)), verdict


def title_of(shape: tuple[int, int, int], level: Level | None) -> str:
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
