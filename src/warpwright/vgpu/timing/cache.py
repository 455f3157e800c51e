"""What loads find in L2: boxes of the clusters that run together, in order of progress, through a cache of its size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONCURRENT", "Found", "Visit", "look_up", "order_of", "streamed"]

CONCURRENT = 2  # accesses of each cluster that are on their way at the same time as a miss


class Visit(NamedTuple):
    """The traffic of one cluster: what each position touches, what comes to L2 with it, its bytes, whether it reads,
    how many CTAs get it, and the order of positions."""

    keys: NDArray[np.int64]
    lines: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    reads: NDArray[np.bool_]
    copies: NDArray[np.int64]
    order: NDArray[np.int64]


class Found(NamedTuple):
    """For the positions of one cluster: its share of a miss (who comes first is chance, so those who come together have
    equal shares), that share where others come too, whether the data was not there yet, and whether it was there but
    nobody had read it: it came with a line that another box began."""

    miss: NDArray[np.float64]
    common: NDArray[np.float64]
    cold: NDArray[np.float64]
    fresh: NDArray[np.float64]


def look_up(waves: Sequence[Sequence[Visit]], capacity: int) -> list[list[Found]]:
    """What the clusters of each wave find, least recently used lines leaving first."""
    orders = [order_of(wave) for wave in waves]
    keys = _streamed("keys", waves, orders)
    _, firsts, which = np.unique(_streamed("lines", waves, orders), return_index=True, return_inverse=True)
    _, read, same = np.unique(keys, return_index=True, return_inverse=True)
    boxes = np.bincount(np.unique(np.stack([which, keys]), axis=1)[0].astype(np.intp), minlength=len(firsts))[which]
    nbytes = _streamed("nbytes", waves, orders) * boxes
    fits = int(nbytes[firsts].sum()) <= capacity
    fetched = firsts[which] if fits else _least_recent(which.tolist(), nbytes.tolist(), capacity)
    found, start = [], 0
    for wave, order in zip(waves, orders, strict=True):
        here = slice(start, start + len(order))
        now, window = np.arange(start, here.stop), CONCURRENT * len(wave)
        recent = now - fetched[here] < window
        fresh = ~recent & (now - read[same][here] < window)
        together = np.bincount(fetched[here][recent], minlength=len(keys))
        shares = np.where(recent, boxes[here] / np.maximum(together[fetched[here]], 1), 0.0)
        common = np.where(together[fetched[here]] > 1, shares, 0.0)
        found.append(_split(wave, order, shares, common, recent, fresh))
        start = here.stop
    return found


def order_of(wave: Sequence[Visit]) -> NDArray[np.intp]:
    """The order in which clusters touch what they touch, one after another: those at the same share of their way
    together."""
    progress = [np.arange(len(visit.order)) / max(1, len(visit.order)) for visit in wave]
    return np.argsort(np.concatenate(progress), kind="stable") if wave else np.zeros(0, np.intp)


def _streamed(field: str, waves: Sequence[Sequence[Visit]], orders: Sequence[NDArray[np.intp]]) -> NDArray[np.int64]:
    """A field of all clusters of all waves, in the order of the accesses."""
    parts = [streamed(field, wave)[order] for wave, order in zip(waves, orders, strict=True) if wave]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def streamed(field: str, wave: Sequence[Visit]) -> NDArray[np.int64]:
    """A field of all clusters of a wave, cluster by cluster in the order of its accesses."""
    return np.concatenate([getattr(visit, field)[visit.order] for visit in wave])


def _least_recent(keys: list[int], nbytes: list[int], capacity: int) -> NDArray[np.int64]:
    """For every access the number of the one that last fetched its line, its own number for a miss."""
    held: OrderedDict[int, tuple[int, int]] = OrderedDict()
    room = capacity
    fetched = np.zeros(len(keys), np.int64)
    for number, (key, size) in enumerate(zip(keys, nbytes, strict=True)):
        box = held.get(key)
        if box is not None:
            held.move_to_end(key)
            fetched[number] = box[1]
            continue
        fetched[number] = number
        held[key] = size, number
        room -= size
        while room < 0:
            room += held.popitem(last=False)[1][0]
    return fetched


def _split(
    wave: Sequence[Visit], order: NDArray[np.intp], *columns: NDArray[np.float64] | NDArray[np.bool_]
) -> list[Found]:
    """Back to clusters and positions."""
    flat = np.zeros((len(columns), len(order)))
    flat[:, order] = columns
    found, start = [], 0
    for visit in wave:
        count = len(visit.order)
        rows = np.zeros((len(columns), count))
        rows[:, visit.order] = flat[:, start : start + count]
        found.append(Found(*rows))
        start += count
    return found
