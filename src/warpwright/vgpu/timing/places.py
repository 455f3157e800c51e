"""The SMs of the clusters of a launch: how many are resident, which of them run, and which place each takes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warpwright.targets import Timing
from warpwright.vgpu.machine.schedule import ctas_per_sm, fitting_ctas
from warpwright.vgpu.timing.registers import pressure

if TYPE_CHECKING:
    from warpwright.vgpu.machine.launch import Launch

__all__ = ["WAVES", "Places", "assign_places", "choose_clusters", "later_wave", "places_of"]

WAVES = 2  # waves that are sampled, the first and one from the middle: the first has another L2


@dataclass(frozen=True, slots=True)
class Places:
    """Residency: ``together`` clusters share a set of ``ranks`` SMs; the chip has ``groups`` such sets.

    ``fitting``: as many as ``together``, or more if CTAs keep the permit to allocate tensor memory.
    """

    groups: int
    together: int
    ranks: int
    fitting: int

    @property
    def count(self) -> int:
        """Clusters resident at a time."""
        return self.groups * self.together


def places_of(launch: Launch, timing: Timing, columns: int = 0) -> Places:
    """How many clusters are resident, by threads, registers, shared and tensor memory, and the sizes of GPCs."""
    ranks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    limits, program = launch.spec.limits, launch.kernel.program
    warps = -(-launch.threads // limits.warp_size)
    by_registers = limits.registers_per_sm // (pressure(program) * warps * limits.warp_size)
    fitting = max(1, min(fitting_ctas(launch), by_registers))
    if columns:
        fitting = max(1, min(fitting, launch.spec.limits.tensor_memory_columns // columns))
    together = min(fitting, ctas_per_sm(launch))
    return Places(max(1, timing.clusters(ranks)), together, ranks, fitting)


def choose_clusters(launch: Launch, timing: Timing) -> Sequence[int] | None:
    """The clusters to run: those of the first wave and of a later one."""
    x, y, z = launch.clusters
    count = places_of(launch, timing).count
    if launch.takes_over:
        return range(min(x * y * z, WAVES * count))
    later = later_wave(x * y * z, count)
    return [*range(min(x * y * z, count)), *range(later * count, min(x * y * z, (later + 1) * count))]


def later_wave(clusters: int, count: int) -> int:
    """The wave that represents all waves but the first: the middle one, since kernels may loop up to their tile
    number."""
    return max(1, -(-clusters // count) // 2)


def assign_places(lengths: Sequence[int], places: int) -> list[int]:
    """The place of each cluster: a cluster starts at the place that is free first, by the lengths of the clusters. One
    that does nothing takes its place too."""
    free = [(0, place) for place in range(places)]
    found = []
    for length in lengths:
        end, place = heapq.heappop(free)
        found.append(place)
        heapq.heappush(free, (end + max(1, length), place))
    return found
