"""SMs of a GPC: the clusters in each GPC, and the L2 bandwidth that their common requests cost.

L2 merges concurrent requests for the same bytes from SMs of one GPC (tiles.one.* and tiles.two.* of bench/micro.py); it
does not merge the boxes of a multicast. CTAs of a GPC request the same bytes at the same time only while they advance
together: beside a CTA with less to load, because its boxes lie partly outside the array, the requests are not merged
(docs/log/2026-11.md, 300 × 5000 × 8192 on an H200).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.targets import Timing
from warpwright.vgpu.timing.cache import CONCURRENT, Visit, order_of, stream

__all__ = ["contention", "gpcs_of", "l2_costs"]

Floats = NDArray[np.float64]


def gpcs_of(timing: Timing, ranks: int) -> list[int]:
    """The GPC of each set of SMs, in the order in which clusters are placed on them.

    Single CTAs fill one GPC after the other, clusters alternate between GPCs (launch.places.* of bench/micro.py).
    """
    sizes = [sms // ranks for sms in timing.gpcs]
    if ranks == 1:
        return [gpc for gpc, size in enumerate(sizes) for _ in range(size)]
    turns = range(max(sizes, default=0))
    return [gpc for turn in turns for gpc, size in enumerate(sizes) if turn < size]


def contention(timing: Timing, resident: int, *, later: bool) -> tuple[float, float]:
    """The L2 cost of a merged request as a share of the first one's, and the extra share of time of device memory.

    ``resident``: CTAs on an SM; ``later``: clusters that start when those of the first wave end.
    """
    costs, common = timing.merged_cost, timing.hbm_common_share
    if later:
        costs, common = timing.merged_later, timing.hbm_common_later
    return costs[min(resident, len(costs)) - 1], timing.hbm_share / common - 1


def l2_costs(wave: Sequence[Visit], homes: Sequence[int], cost: float, timing: Timing) -> list[Floats]:
    """Returns for each cluster of a wave the L2 cost of its requests, as a share of their bytes.

    ``homes``: the GPC of each cluster. Of concurrent requests in a GPC the first costs its bytes and each other one
    ``cost`` of them; the requests share the sum equally.
    """
    order = order_of(wave)
    where = np.repeat(np.array(homes), [len(visit.keys) for visit in wave])
    runs = np.empty(len(order), np.int64)
    runs[order] = _runs(stream("keys", wave)[order], where[order], CONCURRENT * len(wave))
    together = np.bincount(runs)[runs]
    flat = np.where(_in_step(wave, runs), (1 + cost * (together - 1)) / together, 1.0)
    found, start = [], 0
    for visit in wave:
        share = np.empty(len(visit.keys))
        share[visit.order] = flat[start : start + len(share)]
        found.append(np.where(visit.copies > 1, timing.multicast_cost, np.where(visit.reads, share, 1.0)))
        start += len(share)
    return found


def _in_step(wave: Sequence[Visit], runs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns for each access whether the CTAs of its run advance together.

    They do unless one of them, at this access or at the one before or after it, is in a run whose CTAs have different
    bytes to load. ``runs``: the run of each access, cluster by cluster.
    """
    outside = [visit.outside[visit.order] for visit in wave]
    bytes_less = np.concatenate([_around(each, np.add) for each in outside])
    least, most = np.zeros((2, len(runs)), np.int64)
    least[runs], most[runs] = bytes_less, bytes_less
    np.minimum.at(least, runs, bytes_less)
    np.maximum.at(most, runs, bytes_less)
    ends = np.cumsum([len(each) for each in outside])[:-1]
    apart = [_around(each, np.logical_or) for each in np.split((least < most)[runs], ends)]
    ahead: NDArray[np.bool_] = np.bincount(runs, np.concatenate(apart)) > 0
    return ~ahead[runs]


def _around(values: NDArray[Any], join: np.ufunc) -> NDArray[Any]:
    """Returns each value of a cluster joined with the one before and the one after it: A and B of a k-block."""
    found = values.copy()
    found[1:] = join(found[1:], values[:-1])
    found[:-1] = join(found[:-1], values[1:])
    return found


def _runs(keys: NDArray[np.int64], homes: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Returns for each access of a stream the number of its run: accesses of one GPC to the same data, each less than
    ``window`` accesses after the one before."""
    order = np.lexsort((np.arange(len(keys)), homes, keys))
    apart = np.diff(order) >= window
    other = (np.diff(keys[order]) != 0) | (np.diff(homes[order]) != 0)
    found = np.empty(len(keys), np.int64)
    found[order] = np.concatenate([[0], np.cumsum(apart | other)])
    return found
