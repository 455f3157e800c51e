"""Launches of equal clusters: a few of them run, and the traffic of the others is extrapolated.

Where no lane reads global memory, the rows of a cluster depend on its place in the grid alone. If the clusters that run
have equal rows, and the keys of their traffic are linear in their place, all clusters of the launch get these rows and
keys. The clusters that run are the corners of the grid, the neighbours of its first cluster, and some between. Where a
kernel has atomic operations that return a value, the launch ends as soon as a lane executes one, and all clusters run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.machine.launch import Dim3, Launch

__all__ = ["extrapolate", "representatives"]

BETWEEN = 3  # clusters that run between the corners, evenly spaced
SAVING = 3  # of so many clusters at most one runs, else all run


def representatives(launch: Launch, clusters: Sequence[int]) -> list[int]:
    """Returns the clusters to run first instead of ``clusters``; none if another cluster may have other rows anyhow."""
    if launch.takes_over or launch.loads_global:
        return []
    extents = launch.clusters
    ends = [(0, extent - 1) for extent in extents]
    corners = {(x, y, z) for x in ends[0] for y in ends[1] for z in ends[2]}
    steps = {tuple(int(axis == own and extents[own] > 1) for axis in range(3)) for own in range(3)}
    numbers = {x + extents[0] * (y + extents[1] * z) for x, y, z in corners | steps}
    numbers |= {clusters[at * (len(clusters) - 1) // BETWEEN] for at in range(BETWEEN + 1)} if clusters else set()
    return sorted(numbers) if SAVING * len(numbers) <= len(clusters) else []


def extrapolate(
    keys: Mapping[int, NDArray[np.int64]], extents: Dim3, others: Iterable[int]
) -> dict[int, NDArray[np.int64]] | None:
    """Returns the keys of the clusters ``others`` of a grid of ``extents``; None if the known keys are not linear."""
    units = (1, extents[0], extents[0] * extents[1])
    slopes = [keys[unit] - keys[0] if extent > 1 else 0 * keys[0] for unit, extent in zip(units, extents, strict=True)]

    def at(number: int) -> NDArray[np.int64]:
        place = number % extents[0], number // extents[0] % extents[1], number // (extents[0] * extents[1])
        found: NDArray[np.int64] = keys[0] + sum(c * slope for c, slope in zip(place, slopes, strict=True))
        return found

    if any(not np.array_equal(at(number), known) for number, known in keys.items()):
        return None
    return {number: at(number) for number in others}
