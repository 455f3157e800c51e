"""Intervals of time: union, intersection and total length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Extent", "intersection", "length", "union"]

Extent = tuple[float, float]


def union(extents: Iterable[Extent]) -> list[Extent]:
    """Returns the union as ascending intervals without overlap."""
    merged: list[Extent] = []
    for start, end in sorted(extents):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > start:
            merged.append((start, end))
    return merged


def intersection(left: Sequence[Extent], right: Sequence[Extent]) -> list[Extent]:
    """Returns the intersection of two ascending sequences of disjoint intervals."""
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
    """Returns the sum of the lengths; an interval that ends before it starts has length 0."""
    return sum(max(end - start, 0.0) for start, end in extents)
