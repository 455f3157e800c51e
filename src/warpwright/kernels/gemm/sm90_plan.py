"""Configurations of the Hopper GEMM as data, and what a launch of one needs, computed from the problem alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpwright.errors import UsageError

__all__ = ["HopperConfig", "HopperPlan", "hopper_plan"]

ATOM = 64
ELEMENT_BYTES = 2
CONTROL_BYTES = 1024
WARPGROUP = 128
STAGING_BYTES = 2 * 64 * 128
ROW_BYTES = 16


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """One way to run `warpwright.kernels.gemm.sm90.gemm`.

    ``tile`` is (M, N) of one CTA; ``share`` the CTAs of a cluster along M (they share B) and along N (they share A);
    ``depth`` is how many atoms of 64 columns of A and B a stage holds, ``consumers`` the warpgroups that multiply, ``group`` the rows of clusters that are walked together.
    """

    tile: tuple[int, int] = (128, 256)
    share: tuple[int, int] = (2, 1)
    stages: int = 4
    consumers: int = 2
    group: int = 8
    depth: int = 1
    rotate: bool = False
    once: str = ""

    @property
    def cluster(self) -> int:
        """CTAs in a cluster."""
        return self.share[0] * self.share[1]

    @property
    def threads(self) -> int:
        """Threads of a CTA: a warpgroup that loads, and the consumers."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes: barriers, stages, and the blocks on their way to D."""
        return (
            CONTROL_BYTES
            + self.stages * sum(self.tile) * ATOM * self.depth * ELEMENT_BYTES
            + self.consumers * STAGING_BYTES
        )

    @property
    def keywords(self) -> dict[str, Any]:
        """What ``gemm.configure`` takes."""
        names = ("tile", "share", "stages", "consumers", "group", "depth", "rotate", "once", "cluster", "threads")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class HopperPlan:
    """One launch for D (m, n) = A (m, k) · B (n, k)ᵀ; ``scalars`` follow the three maps in the argument list."""

    grid: tuple[int, int, int]
    scalars: tuple[int, int, int]


def hopper_plan(config: HopperConfig, m: int, n: int, k: int, sms: int) -> HopperPlan:
    """The launch of ``config`` on a device of ``sms`` SMs: as many clusters as fit at once, or as there are tiles.

    Raises UsageError for an extent below 1, and for rows of A and B that are no multiple of 16 bytes.
    """
    if min(m, n, k) < 1:
        raise UsageError(f"given M={m}, N={n}, K={k}; expected each at least 1; an empty product needs no kernel")
    step = ROW_BYTES // ELEMENT_BYTES
    if k % step:
        padded = -(-k // step) * step
        raise UsageError(
            f"given K={k}; expected a multiple of {step} (rows of 16 bytes); pad A and B with zeros to K={padded}"
        )
    tiles_m, tiles_n, tiles_k = -(-m // config.tile[0]), -(-n // config.tile[1]), -(-k // (ATOM * config.depth))
    clusters = -(-tiles_m // config.share[0]) * -(-tiles_n // config.share[1])
    resident = max(1, sms // config.cluster)
    return HopperPlan((min(clusters, resident) * config.cluster, 1, 1), (tiles_m, tiles_n, tiles_k))
