"""Products on a device that profiles what it is given to launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from warpwright import targets
from warpwright.errors import UsageError
from warpwright.gpu import Device, LaunchResult
from warpwright.launch import Entry
from warpwright.ops import matmul
from warpwright.profile import profile
from warpwright.ptx import nodes
from warpwright.report.verdict import Verdict, judge
from warpwright.vgpu.timing import Profile

__all__ = ["Profiled", "product_profile"]

Dim3 = tuple[int, int, int]


class Profiled:
    """A virtual device whose launches end up in ``profiles``; ``fast``: nothing is computed; ``sustained``: at the
    clock of a board under lasting load."""

    def __init__(self, device: Device, fast: bool, sustained: bool = False) -> None:
        if device.name.startswith("cuda"):
            raise UsageError(
                f"given device {device.name}; expected a virtual one, such as h200: a profile is predicted"
            )
        self.device, self.fast, self.sustained = device, fast, sustained
        self.profiles: list[Profile] = []

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def spec(self) -> targets.Device:
        return self.device.spec

    def launch(
        self,
        module: nodes.Module,
        entry: str,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3 = (1, 1, 1),
        smem: int = 0,
        args: Sequence[Any] = (),
        observers: Sequence[Any] = (),
        **more: Any,
    ) -> LaunchResult:
        """Profile what would be launched."""
        function = next(item for item in module.items if isinstance(item, nodes.Function) and item.name == entry)
        options: dict[str, Any] = {"device": self.device, "fast": self.fast, "sustained": self.sustained}
        self.profiles.append(profile(Entry(module, function), grid, block, cluster, smem, args, **options))
        return LaunchResult()


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
    m, n, k = shape
    profiled = Profiled(device, fast, sustained)
    if fast:
        a, b = np.zeros((m, k), ml_dtypes.bfloat16), np.zeros((n, k), ml_dtypes.bfloat16)
    else:
        random = np.random.default_rng(seed)
        a, b = (random.standard_normal((rows, k), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))
    result = matmul(a, b.T, device=profiled, level=level)
    verdict = None if fast else judge(result, a, b.T)
    longest = max(profiled.profiles, key=lambda made: made.time_us)
    rung = "gemm" if level is None else f"gemm level {level}"
    return replace(longest, kernel=f"{rung}, {m} × {n} × {k}"), verdict
