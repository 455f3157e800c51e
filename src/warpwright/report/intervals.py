"""Stretches of time: their union, what two unions have in common, and how long they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Extent", "common", "length", "union"]

Extent = tuple[float, float]


def union(extents: Iterable[Extent]) -> list[Extent]:
    """The same stretches, ascending and without overlap."""
    merged: list[Extent] = []
    for start, end in sorted(extents):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > start:
            merged.append((start, end))
    return merged


def common(left: Sequence[Extent], right: Sequence[Extent]) -> list[Extent]:
    """What lies in both of two ascending sequences."""
    found: list[Extent] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(extents: Iterable[Extent]) -> float:
    """The sum of the lengths; stretches that end before they start count nothing."""
    return sum(max(end - start, 0.0) for start, end in extents)
