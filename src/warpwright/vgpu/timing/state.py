"""Inputs and results of a replay, and the warps and clusters that it runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from warpwright.vgpu.timing.steps import Program, Step
from warpwright.vgpu.timing.units import Barrier, Pipe, Scheduler, Units

__all__ = ["NEVER", "Layout", "Outcome", "Run", "Warp", "Work"]

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Layout:
    """The cluster's layout on its SMs: CTAs, warps of each, bytes from one CTA's shared memory to the next, and how
    many clusters share the same SMs; ``pace``: cycles between the starts of clusters."""

    ranks: int
    per_cta: int
    stride: int
    together: int
    pace: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One cluster to run: its steps, and for each position of its traffic: ``hbm``: device-memory time of its L2
    misses, as a share of its bytes; ``cold``: share of clusters that wait for device memory; ``fresh``: share that is
    the first to read the data in L2; ``l2``: bandwidth cost in L2, as a share of its bytes; ``link``: share of
    clusters whose data another GPU of the node has. Numbers of Python: sums of NumPy's take three times as long."""

    program: Program
    hbm: list[float]
    cold: list[float]
    fresh: list[float]
    l2: list[float]
    link: list[float]


@dataclass(slots=True)
class Outcome:
    """``ends``: the end of each cluster; ``units`` with their busy time; ``flops`` of MMAs; ``wasted``: flops of
    operand pairs that the same cluster multiplied before; start of the first MMA and end of the last; ``whole``:
    whether all steps were replayed."""

    ends: list[float]
    starts: list[float]
    units: Units
    flops: int = 0
    wasted: int = 0
    first_mma: float = NEVER
    last_mma: float = 0.0
    whole: bool = True

    def add_mma(self, begin: float, end: float, flops: int) -> None:
        """Add an MMA that occupied the tensor core from ``begin`` to ``end``."""
        self.flops += flops
        self.first_mma = min(self.first_mma, begin)
        self.last_mma = max(self.last_mma, end)


@dataclass(slots=True, eq=False)
class Warp:
    steps: list[Step]
    rank: int
    number: int
    run: Run
    scheduler: Scheduler
    half: Pipe
    special: Pipe
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
    half_mark: float = 0.0
    special_mark: float = 0.0


@dataclass(slots=True, eq=False)
class Run:
    """One running cluster. ``boxes``: for each CTA the offsets of boxes in shared memory; ``box_keys``: the key of the
    last box at each; ``wgmma_ends``: the ends of the MMAs of each warpgroup."""

    work: Work
    slot: int
    start: float
    first: bool
    alive: int = 0
    warps: list[Warp] = field(default_factory=list)
    live_warps: list[int] = field(default_factory=list)
    barriers: dict[int, Barrier] = field(default_factory=dict)
    named: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    cluster_phase: int = 0
    cluster_count: int = 0
    cluster_waiting: list[Warp] = field(default_factory=list)
    cluster_arrivals: dict[int, int] = field(default_factory=dict)
    boxes: list[list[int]] = field(default_factory=list)
    box_keys: dict[tuple[int, int], int] = field(default_factory=dict)
    tensor_end: list[float] = field(default_factory=list)
    in_flight: list[deque[float]] = field(default_factory=list)
    wgmma_ends: dict[int, list[float]] = field(default_factory=dict)
    issued_warps: dict[int, dict[int, int]] = field(default_factory=dict)
    wgmma_waiting: dict[int, list[tuple[Warp, int]]] = field(default_factory=dict)
    operand_pairs: set[int] = field(default_factory=set)
    last: float = 0.0
