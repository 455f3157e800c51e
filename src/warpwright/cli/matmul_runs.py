"""Products on a device that profiles what it is given to launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright.cli.launches import Launch, Substitute
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.ops.matmul.call import matmul
from warpwright.report.verdict import Verdict, judge
from warpwright.run.profile import profile
from warpwright.vgpu.timing import Profile

__all__ = ["operands", "product_profile"]

Array = NDArray[Any]


def product_profile(
    device: Device,
    shape: tuple[int, int, int],
    level: int | None,
    fast: bool,
    seed: int = 0,
    sustained: bool = False,
) -> tuple[Profile, Verdict | None]:
    """The profile of a bfloat16 product (M, N, K), the longest where it takes several launches, under the name of its
    level; of a full run, with standard normal operands, also the verdict on its result."""
    if device.name.startswith("cuda"):
        raise UsageError(f"given device {device.name}; expected a virtual one, such as h200: a profile is predicted")
    made: list[Profile] = []

    def act(launch: Launch) -> None:
        made.append(profile(**launch, device=device, fast=fast, sustained=sustained))

    m, n, k = shape
    a, b = operands(shape, None if fast else seed)
    result = matmul(a, b.T, device=Substitute(device, act), level=level)
    verdict = None if fast else judge(result, a, b.T)
    longest = max(made, key=lambda each: each.time_us)
    rung = "gemm" if level is None else f"gemm level {level}"
    return replace(longest, kernel=f"{rung}, {m} × {n} × {k}"), verdict


def operands(shape: tuple[int, int, int], seed: int | None) -> tuple[Array, Array]:
    """A (M, K) and B (N, K), bfloat16: standard normal, or zero where there is no seed."""
    m, n, k = shape
    if seed is None:
        return np.zeros((m, k), ml_dtypes.bfloat16), np.zeros((n, k), ml_dtypes.bfloat16)
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal((rows, k), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return a, b
