"""L2 lookups: the boxes of clusters that run together, in order of progress, through an LRU cache of L2's size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONCURRENT", "Lookup", "Visit", "footprint", "look_up", "look_up_again", "order_of", "stream"]

CONCURRENT = 2  # accesses of each cluster in flight at the same time as a miss


class Visit(NamedTuple):
    """The traffic of one cluster. For each position: key of the data, key of the L2 line, bytes, of these the bytes
    outside the array, whether it reads, and how many CTAs receive it; ``order`` lists the positions in order of
    access."""

    keys: NDArray[np.int64]
    lines: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    outside: NDArray[np.int64]
    reads: NDArray[np.bool_]
    copies: NDArray[np.int64]
    order: NDArray[np.int64]


class Lookup(NamedTuple):
    """Lookup results for the positions of one cluster. ``miss``: share of a miss (the first read is random, so
    concurrent reads share the miss equally; stores fetch nothing); ``common``: that share where several reads are
    concurrent; ``cold``: the data was not in L2 yet; ``fresh``: the data was in L2 but unread, because it came with a
    line that another box fetched."""

    miss: NDArray[np.float64]
    common: NDArray[np.float64]
    cold: NDArray[np.float64]
    fresh: NDArray[np.float64]


def look_up(waves: Sequence[Sequence[Visit]], homes: Sequence[Sequence[int]], capacity: int) -> list[list[Lookup]]:
    """Look up the accesses of the clusters of each wave; the least recently used line is evicted first.

    ``homes``: the GPC of each cluster.
    """
    orders = [order_of(wave) for wave in waves]
    keys = _stream_all("keys", waves, orders)
    _, read, same = np.unique(keys, return_index=True, return_inverse=True)
    boxes, fetched = _fetches(waves, orders, same, capacity)
    reads = _stream_all("reads", waves, orders).astype(bool)
    found, start = [], 0
    for wave, places, order in zip(waves, homes, orders, strict=True):
        here = slice(start, start + len(order))
        now, window = np.arange(start, here.stop), CONCURRENT * len(wave)
        near = now - fetched[here] < window
        recent = near & reads[here] & reads[fetched[here]]
        fresh = ~near & (now - read[same][here] < window)
        together = np.bincount(fetched[here][recent], minlength=len(keys))
        shares = np.where(recent, boxes[here] / np.maximum(together[fetched[here]], 1), 0.0)
        where = np.repeat(np.array(places), [len(visit.keys) for visit in wave])[order]
        apart = _count_different(fetched[here][recent], where[recent], len(keys))
        common = np.where(apart[fetched[here]] > 1, shares, 0.0)
        found.append([Lookup(*rows) for rows in _split_by_cluster(wave, order, shares, common, recent, fresh)])
        start = here.stop
    return found


def look_up_again(
    waves: Sequence[Sequence[Visit]], homes: Sequence[Sequence[int]], capacity: int, kept: int, *, whole: bool
) -> list[list[Lookup]]:
    """Look up the accesses of a launch that an equal launch has preceded, whose last ``kept`` bytes are in L2.

    ``whole``: the waves are the whole launch. Else the second wave stands for the end of the launch before, too: what
    both waves access is in L2 at the start.
    """
    found = look_up(waves, homes, capacity)
    hits = _kept(waves, waves, kept) if whole else _kept(waves[1:], waves[:1], kept)
    for wave, those in zip(found, hits, strict=False):
        wave[:] = [
            Lookup(*(np.where(hit, 0.0, column) for column in each)) for each, hit in zip(wave, those, strict=True)
        ]
    return found


def _kept(
    before: Sequence[Sequence[Visit]], waves: Sequence[Sequence[Visit]], capacity: int
) -> list[list[NDArray[np.bool_]]]:
    """For each position of each cluster whether L2 still has the line from the waves ``before``."""
    all_waves = [*before, *waves]
    orders = [order_of(wave) for wave in all_waves]
    begin = sum(map(len, orders[: len(before)]))
    _, fetched = _fetches(all_waves, orders, _boxes(all_waves, orders), capacity)
    found, start = [], begin
    for wave, order in zip(waves, orders[len(before) :], strict=True):
        found.append(_split_by_cluster(wave, order, fetched[start : start + len(order)] < begin))
        start += len(order)
    return [[rows[0] > 0 for rows in wave] for wave in found]


def footprint(waves: Sequence[Sequence[Visit]]) -> int:
    """Returns the bytes of the different lines that the clusters of the waves access."""
    orders = [order_of(wave) for wave in waves]
    firsts, _, boxes = _lines(waves, orders, _boxes(waves, orders))
    return int((_stream_all("nbytes", waves, orders)[firsts] * boxes).sum())


def order_of(wave: Sequence[Visit]) -> NDArray[np.intp]:
    """The order of the accesses of all clusters: by the fraction of its accesses that each cluster has done."""
    progress = [np.arange(len(visit.order)) / max(1, len(visit.order)) for visit in wave]
    return np.argsort(np.concatenate(progress), kind="stable") if wave else np.zeros(0, np.intp)


def _boxes(waves: Sequence[Sequence[Visit]], orders: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    """For each access the number of its box."""
    return np.unique(_stream_all("keys", waves, orders), return_inverse=True)[1]


def _lines(
    waves: Sequence[Sequence[Visit]], orders: Sequence[NDArray[np.intp]], boxes: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """For each line the number of the first access to it; for each access the number of its line; for each line the
    number of different boxes in it."""
    _, firsts, which = np.unique(_stream_all("lines", waves, orders), return_index=True, return_inverse=True)
    return firsts, which, _count_different(which, boxes, len(firsts))


def _count_different(groups: NDArray[np.intp], values: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """For each of ``count`` groups the number of different values in it; neither numbers nor values are negative."""
    extent = int(values.max(initial=0)) + 1
    return np.bincount(np.unique(groups * extent + values) // extent, minlength=count)


def _fetches(
    waves: Sequence[Sequence[Visit]], orders: Sequence[NDArray[np.intp]], boxes: NDArray[np.intp], capacity: int
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """For each access the number of different boxes in its line, and the number of the access that fetched the line."""
    firsts, which, counts = _lines(waves, orders, boxes)
    nbytes = _stream_all("nbytes", waves, orders) * counts[which]
    fits = int(nbytes[firsts].sum()) <= capacity
    return counts[which], firsts[which] if fits else _least_recent(which.tolist(), nbytes.tolist(), capacity)


def _stream_all(field: str, waves: Sequence[Sequence[Visit]], orders: Sequence[NDArray[np.intp]]) -> NDArray[np.int64]:
    """A field of all clusters of all waves, in the order of the accesses."""
    parts = [stream(field, wave)[order] for wave, order in zip(waves, orders, strict=True) if wave]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def stream(field: str, wave: Sequence[Visit]) -> NDArray[np.int64]:
    """A field of all clusters of a wave, cluster by cluster in the order of its accesses."""
    return np.concatenate([getattr(visit, field)[visit.order] for visit in wave])


def _least_recent(keys: list[int], nbytes: list[int], capacity: int) -> NDArray[np.int64]:
    """For every access the number of the access that fetched its line last; a miss has its own number."""
    resident: OrderedDict[int, tuple[int, int]] = OrderedDict()
    room = capacity
    fetched = np.zeros(len(keys), np.int64)
    for number, (key, size) in enumerate(zip(keys, nbytes, strict=True)):
        box = resident.get(key)
        if box is not None:
            resident.move_to_end(key)
            fetched[number] = box[1]
            continue
        fetched[number] = number
        resident[key] = size, number
        room -= size
        while room < 0:
            room += resident.popitem(last=False)[1][0]
    return fetched


def _split_by_cluster(
    wave: Sequence[Visit], order: NDArray[np.intp], *columns: NDArray[np.float64] | NDArray[np.bool_]
) -> list[NDArray[np.float64]]:
    """Split columns in access order into the clusters and their positions."""
    flat = np.zeros((len(columns), len(order)))
    flat[:, order] = columns
    found, start = [], 0
    for visit in wave:
        count = len(visit.order)
        rows = np.zeros((len(columns), count))
        rows[:, visit.order] = flat[:, start : start + count]
        found.append(rows)
        start += count
    return found
