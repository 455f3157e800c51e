"""SMs of a GPC: which clusters run in which one, and what L2 has to hand out for all of them together.

Requests for the same bytes from SMs of one GPC are joined while they are on their way (tiles.one.* and tiles.two.* of
bench/micro.py); the boxes of a multicast are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warpwright.targets import Timing
from warpwright.vgpu.timing.cache import CONCURRENT, Visit, order_of, streamed

__all__ = ["crowded", "handed_out", "homes_of"]

Floats = NDArray[np.float64]


def homes_of(timing: Timing, ranks: int) -> list[int]:
    """The GPC of each set of SMs, in the order in which clusters are placed on them.

    Single CTAs fill one GPC after the other, clusters take GPCs in turn (launch.places.* of bench/micro.py).
    """
    sizes = [sms // ranks for sms in timing.gpcs]
    if ranks == 1:
        return [gpc for gpc, size in enumerate(sizes) for _ in range(size)]
    turns = range(max(sizes, default=0))
    return [gpc for turn in turns for gpc, size in enumerate(sizes) if turn < size]


def crowded(timing: Timing, resident: int, *, later: bool) -> tuple[float, float]:
    """What bytes cost L2 that others ask for too, as a share of the first, and what share longer device memory takes.

    ``resident`` CTAs are on an SM; ``later``: they start when those of the first wave end.
    """
    costs, common = timing.merged_cost, timing.hbm_common_share
    if later:
        costs, common = timing.merged_later, timing.hbm_common_later
    return costs[min(resident, len(costs)) - 1], timing.hbm_share / common - 1


def handed_out(wave: Sequence[Visit], homes: Sequence[int], cost: float, timing: Timing) -> list[Floats]:
    """For the positions of each cluster of a wave the bytes that L2 hands out for it, as a share of its own.

    ``homes``: the GPC of each cluster. Of those who ask together in a GPC the first costs L2 a whole, the others
    ``cost``, and all have equal shares.
    """
    order = order_of(wave)
    where = np.repeat(np.array(homes), [len(visit.keys) for visit in wave])
    together = _together(streamed("keys", wave)[order], where[order], CONCURRENT * len(wave))
    flat = np.empty(len(order))
    flat[order] = (1 + cost * (together - 1)) / together
    found, start = [], 0
    for visit in wave:
        share = np.empty(len(visit.keys))
        share[visit.order] = flat[start : start + len(share)]
        found.append(np.where(visit.copies > 1, timing.multicast_cost, np.where(visit.reads, share, 1.0)))
        start += len(share)
    return found


def _together(keys: NDArray[np.int64], homes: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """For each access of a stream how many of its GPC touch the same within ``window`` accesses of one another."""
    order = np.lexsort((np.arange(len(keys)), homes, keys))
    apart = np.diff(order) >= window
    other = (np.diff(keys[order]) != 0) | (np.diff(homes[order]) != 0)
    runs = np.concatenate([[0], np.cumsum(apart | other)])
    found = np.empty(len(keys), np.int64)
    found[order] = np.bincount(runs)[runs]
    return found
