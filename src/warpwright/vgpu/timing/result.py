"""The predicted time of a launch and its breakdown: plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from warpwright import display

__all__ = ["Conflict", "Phase", "Profile", "Region", "Resources", "Role", "Span", "Stall", "Usage"]

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A span on one track of the timeline, in cycles from the start of one representative cluster.

    ``track``: a role ("load"), an engine ("TMA", "tensor core") or a ring slot ("ab[3]"); ``cta``: rank in the cluster;
    ``where``: ``file:line``; ``nbytes``: bytes that a copy moves, or that an MMA reads from shared memory; ``phase``:
    of the mbarrier that a warp waits for, or that a slot fills in, -1 without one; ``released``: the index in
    ``Profile.phases`` of the phase whose end released a wait, -1 if the warp did not have to wait for it.
    """

    track: str
    cta: int
    name: str
    start: float
    end: float
    where: str
    nbytes: int = 0
    phase: int = -1
    released: int = -1


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of an mbarrier (``"ab.full[3]"`` of CTA ``cta``) that ended, in cycles. ``start``: the end of the phase
    before; ``nbytes``: bytes that copies delivered in it. The operation that ended it: its ``track``, the rank of its
    CTA (``by``), the cycle in which it was issued, and its line."""

    barrier: str
    cta: int
    number: int
    start: float
    end: float
    nbytes: int
    track: str
    by: int
    issued: float
    where: str


@dataclass(frozen=True, slots=True)
class Region:
    """A named part of the memory of CTA 0: bytes of ``"shared memory"``, or columns of ``"tensor memory"``."""

    memory: str
    name: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of an SM that a CTA takes: threads, 32-bit registers of a thread, bytes of shared memory with the
    reserve, and columns of tensor memory."""

    threads: int = 0
    registers: int = 0
    shared: int = 0
    columns: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """A reason for which warps of a role stalled: cycles, and share of the role's time. ``where``: the line with the
    most cycles; ``lines``: the cycles of each line, the longest first.

    ``reason``: "waits ab.full", "issues", "shared memory", "tensor memory", "global memory", "barrier", ….
    """

    reason: str
    cycles: float
    share: float
    where: str
    lines: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """Warps that run one part of a kernel. ``cycles``: their time a warp; ``busy``: the share in which they issue.
    ``stalls``: longest first."""

    name: str
    warps: int
    cycles: float
    busy: float
    stalls: tuple[Stall, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Utilisation over the whole launch, 0 to 1 of the peak of all SMs: tensor cores, L2 bandwidth (merged requests
    cost less, writes more), bandwidth of device and of shared memory, issue slots."""

    tensor: float
    l2: float
    hbm: float
    shared: float
    issue: float


@dataclass(frozen=True, slots=True)
class Conflict:
    """A shared-memory instruction with bank conflicts: its wavefronts over the run of one cluster, and the minimum for
    its bytes."""

    where: str
    wavefronts: int
    least: int


@dataclass(frozen=True, slots=True)
class Profile:
    """The prediction for a launch.

    ``time_us`` includes ``launch_us``; ``cycles`` are those of the SMs at ``clock_mhz``, without the launch. ``flops``
    counts all MMAs (2 a multiply-add), ``wasted_flops`` those of operand pairs that the cluster multiplied before,
    ``padded_flops`` those beyond the edges of the matrices, where the problem is known (`count_useful`); ``rate``: the
    flops of its MMAs for one of 16-bit MMAs in the same time; ``tflops`` is useful work over ``time_us``.
    ``ctas_per_sm``: CTAs that an SM runs at a time; ``ctas_fitting``: CTAs that fit on it, more if a CTA keeps its
    permit to allocate tensor memory. ``waves``: CTAs over resident CTAs; ``tail``: share of the SMs' time in which some
    are out of work. ``fast``: only one representative wave ran.
    ``warm``: predicted as one launch of many in a loop; ``launch_us`` is then the time between two of them.
    ``bytes_received`` from and ``bytes_sent`` to other GPUs of a node; ``ranks``: on a node the profiles of all ranks,
    of which the slowest one is this.
    ``phases`` of the mbarriers of the cluster of ``spans``; ``memory``: what is known of the memory of its first CTA.
    """

    kernel: str
    device: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    time_us: float
    cycles: float
    clock_mhz: float
    launch_us: float
    flops: int
    wasted_flops: int
    tflops: float
    bytes_hbm: int
    bytes_l2: int
    l2_hit: float
    usage: Usage
    ctas_per_sm: int
    ctas_fitting: int
    waves: float
    tail: float
    roles: tuple[Role, ...]
    spans: tuple[Span, ...]
    conflicts: tuple[Conflict, ...]
    fast: bool
    warm: bool = False
    padded_flops: int = 0
    rate: float = 1.0
    phases: tuple[Phase, ...] = ()
    memory: tuple[Region, ...] = ()
    resources: Resources = Resources()
    bytes_received: int = 0
    bytes_sent: int = 0
    ranks: tuple[Profile, ...] = ()

    @property
    def dropped(self) -> float:
        """The share of ``flops`` whose results are dropped, 0 to 1."""
        return (self.wasted_flops + self.padded_flops) / self.flops if self.flops else 0.0

    def count_useful(self, flops: int) -> Profile:
        """Returns the profile of a launch whose problem needs ``flops``."""
        padded = max(0, self.flops - self.wasted_flops - flops)
        return replace(self, padded_flops=padded, tflops=flops / self.time_us / 1e6)

    def __repr__(self) -> str:
        return f"Profile({self.kernel!r} on {self.device}, grid={self.grid}: {self.time_us:.2f} µs)"

    def _repr_html_(self) -> str:
        return display.html_of(self)

    def show(self, verdict: Any = None) -> Any:
        """Opens the report of the profile in a browser and returns its file; in a notebook, returns the report for the
        output of the cell. ``verdict``: what `ww.check` returned for the same launch, whose
        accesses the timeline marks.

        Raises UsageError if no browser opens.
        """
        return display.show(self, verdict)

    def as_dict(self) -> dict[str, Any]:
        """The profile as a dict, ready for JSON."""
        return asdict(self)
