"""Memory flow for the commands: operands, and the profile of one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.gpu import Device
from warpwright.kernels import memory_flow
from warpwright.report.verdict import Verdict, judge
from warpwright.run import profile
from warpwright.vgpu.timing import Profile

__all__ = ["flow_profile", "operands"]

Array = NDArray[Any]


def operands() -> tuple[Array, Array, Array]:
    """Returns A (128, 64) and B (128, 64), float16, standard normal, and D (128, 128), float32, not yet computed."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, memory_flow.K)).astype(np.float16) for rows in (memory_flow.M, memory_flow.N))
    return a, b, np.full((memory_flow.M, memory_flow.N), np.nan, np.float32)


def flow_profile(
    device: Device | None, fast: bool, sustained: bool = False, warm: bool = False
) -> tuple[Profile, Verdict | None]:
    """Returns the profile of one launch, and for a full run, of random operands, the verdict on D."""
    a, b, d = operands()
    args = memory_flow.arguments(a, b, d)
    how: dict[str, Any] = {"device": device, "fast": fast, "sustained": sustained, "warm": warm}
    predicted = profile.profile(memory_flow.memory_flow, 1, args=args, **how)
    return predicted, None if fast else judge(d, a, b.T)
