"""What loads find in L2: boxes of the clusters that run together, in order of progress, through a cache of its size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Found", "Visit", "look_up"]

CONCURRENT = 2  # accesses of each cluster that are on their way at the same time as a miss


class Visit(NamedTuple):
    """The traffic of one cluster: what each position touches, its bytes, whether it reads, the order of positions."""

    keys: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    reads: NDArray[np.bool_]
    order: NDArray[np.int64]


class Found(NamedTuple):
    """For the positions of one cluster: its share of a miss (who comes first is chance, so those who come together have
    equal shares), and whether the data was not there yet."""

    miss: NDArray[np.float64]
    cold: NDArray[np.float64]


def look_up(waves: Sequence[Sequence[Visit]], capacity: int) -> list[list[Found]]:
    """What the clusters of each wave find, least recently used boxes leaving first."""
    streams = [_stream(wave) for wave in waves]
    keys = np.concatenate([stream[0] for stream in streams]) if streams else np.zeros(0, np.int64)
    nbytes = np.concatenate([stream[1] for stream in streams]) if streams else np.zeros(0, np.int64)
    _, firsts, which = np.unique(keys, return_index=True, return_inverse=True)
    fits = int(nbytes[firsts].sum()) <= capacity
    fetched = firsts[which] if fits else _least_recent(which.tolist(), nbytes.tolist(), capacity)
    found, start = [], 0
    for wave, stream in zip(waves, streams, strict=True):
        count = len(stream[0])
        here = slice(start, start + count)
        recent = np.arange(start, start + count) - fetched[here] < CONCURRENT * len(wave)
        together = np.bincount(fetched[here][recent], minlength=len(keys))
        shares = np.where(recent, 1.0 / np.maximum(together[fetched[here]], 1), 0.0)
        found.append(_split(wave, stream[2], shares, recent))
        start += count
    return found


def _stream(wave: Sequence[Visit]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.intp]]:
    """Keys and bytes of all clusters, those at the same share of their way together; and the order that makes it so."""
    progress = [np.arange(len(visit.order)) / max(1, len(visit.order)) for visit in wave]
    order = np.argsort(np.concatenate(progress), kind="stable") if wave else np.zeros(0, np.intp)
    keys = np.concatenate([visit.keys[visit.order] for visit in wave])[order]
    nbytes = np.concatenate([visit.nbytes[visit.order] for visit in wave])[order]
    return keys, nbytes, order


def _least_recent(keys: list[int], nbytes: list[int], capacity: int) -> NDArray[np.int64]:
    """For every access the number of the one that last fetched its box, its own number for a miss."""
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
    wave: Sequence[Visit], order: NDArray[np.intp], miss: NDArray[np.float64], cold: NDArray[np.bool_]
) -> list[Found]:
    """Back to clusters and positions."""
    flat = np.zeros((2, len(order)))
    flat[0, order], flat[1, order] = miss, cold
    found, start = [], 0
    for visit in wave:
        count = len(visit.order)
        rows = np.zeros((2, count))
        rows[:, visit.order] = flat[:, start : start + count]
        found.append(Found(rows[0], rows[1]))
        start += count
    return found
