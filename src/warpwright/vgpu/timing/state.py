"""What a replay is given and gives, and the warps and clusters that it runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.timing.steps import Program, Step
from warpwright.vgpu.timing.units import Barrier, Turns, Units

__all__ = ["NEVER", "Layout", "Outcome", "Run", "Warp", "Work"]

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a cluster lies in its SMs: CTAs, warps of each, bytes from one CTA's shared memory to the next, and how many
    clusters share the same SMs."""

    ranks: int
    per_cta: int
    stride: int
    together: int
    pace: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One cluster to run: its steps, and for each position of its traffic what device memory could give in the time of
    what misses L2, as a share of its bytes, the shares of clusters that wait for device memory there and that are the
    first to read it in L2, and what L2 hands out for it, as a share of its bytes."""

    program: Program
    hbm: NDArray[np.float64]
    cold: NDArray[np.float64]
    fresh: NDArray[np.float64]
    l2: NDArray[np.float64]


@dataclass(slots=True)
class Outcome:
    """``ends``: when each cluster was done; ``units`` with what they served; flops of tensor instructions, and those
    whose operands were multiplied before in the same cluster; when the first of them began and the last was through."""

    ends: list[float]
    starts: list[float]
    units: Units
    flops: int = 0
    wasted: int = 0
    first_product: float = NEVER
    last_product: float = 0.0

    def multiplied(self, begin: float, end: float, flops: int) -> None:
        """A tensor instruction that was in the tensor core from ``begin`` to ``end``."""
        self.flops += flops
        self.first_product = min(self.first_product, begin)
        self.last_product = max(self.last_product, end)


@dataclass(slots=True, eq=False)
class Warp:
    steps: list[Step]
    rank: int
    number: int
    run: Run
    scheduler: Turns
    special: Turns
    at: int = 0
    since: float = 0.0
    ready: dict[int, float] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    early: dict[int, float] = field(default_factory=dict)
    tmem: float = 0.0
    copies: list[float] = field(default_factory=list)
    open_copy: float = 0.0
    groups: list[int] = field(default_factory=list)
    issued: int = 0
    mark: float = 0.0
    special_mark: float = 0.0


@dataclass(slots=True, eq=False)
class Run:
    """One cluster while it runs. ``boxes`` are, for each CTA, where boxes lie in shared memory, and ``filled`` what
    the last one there has brought; ``done``: ends of the tensor work of a CTA, or of the products of a warpgroup."""

    work: Work
    slot: int
    start: float
    first: bool
    alive: int = 0
    warps: list[Warp] = field(default_factory=list)
    living: list[int] = field(default_factory=list)
    barriers: dict[int, Barrier] = field(default_factory=dict)
    named: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    cluster_phase: int = 0
    cluster_count: int = 0
    cluster_waiting: list[Warp] = field(default_factory=list)
    cluster_owed: dict[int, int] = field(default_factory=dict)
    boxes: list[list[int]] = field(default_factory=list)
    filled: dict[tuple[int, int], int] = field(default_factory=dict)
    tensor_end: list[float] = field(default_factory=list)
    in_flight: list[deque[float]] = field(default_factory=list)
    products: dict[int, list[float]] = field(default_factory=dict)
    joined: dict[int, dict[int, int]] = field(default_factory=dict)
    group_waiting: dict[int, list[tuple[Warp, int]]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    last: float = 0.0
