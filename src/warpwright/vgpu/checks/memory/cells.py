"""Sets of cells of a memory, as compiled code takes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells", "cells_of", "joined", "span_of", "united"]

Ints = NDArray[np.int64]


class Cells:
    """Cells by their numbers: ``runs`` of consecutive numbers, each a first one and one past the last. The host address
    of the runs is ``where``."""

    __slots__ = ("count", "runs", "where")

    def __init__(self, runs: Ints) -> None:
        self.runs, self.count, self.where = runs, len(runs), runs.ctypes.data

    @property
    def numbers(self) -> Ints:
        """The numbers of the cells, one by one."""
        return np.concatenate([np.arange(first, end) for first, end in self.runs.tolist()] or [np.empty(0, np.int64)])


def cells_of(numbers: Ints) -> Cells:
    """Returns the cells of these numbers."""
    bounds = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts, ends = np.append(0, bounds), np.append(bounds, len(numbers))
    runs = np.stack([numbers[starts], numbers[ends - 1] + 1], axis=1) if len(numbers) else np.empty((0, 2), np.int64)
    return Cells(np.ascontiguousarray(runs, np.int64))


def joined(parts: Sequence[Cells]) -> list[Cells]:
    """Returns one set with the cells of all, in a list; an empty list for none."""
    return [Cells(np.concatenate([part.runs for part in parts]))] if parts else []


def united(parts: Sequence[Cells]) -> list[Cells]:
    """Returns the same with as few runs as there can be."""
    if len(parts) < 2:
        return [*parts]
    runs = np.concatenate([part.runs for part in parts])
    runs = runs[np.argsort(runs[:, 0])]
    ends = np.maximum.accumulate(runs[:, 1])
    firsts = np.flatnonzero(np.append(True, runs[1:, 0] > ends[:-1]))
    lasts = np.append(firsts[1:], len(runs)) - 1
    return [Cells(np.stack([runs[firsts, 0], ends[lasts]], axis=1))]


@lru_cache(maxsize=4096)
def span_of(first: int, end: int) -> Cells:
    """Returns the cells from a number up to another one."""
    return Cells(np.array([[first, end]] if first < end else np.empty((0, 2)), np.int64))
