"""Persistent clusters that walk the same list of tiles: the traffic of those that did not run.

Of n clusters, cluster c takes the tiles c, c + n, c + 2n, …. The rows of the clusters that ran show how many tiles each
took. If the keys of a tile's traffic are linear in the digits of the tile's number, such as its row and its column in a
group of rows, the keys of all tiles follow from a few. The radices of the digits are those that give every known key;
if several do, they must agree about every unknown key.

Tiles at an edge may have a few rows more or less, such as stores of fewer queries. Clusters with such tiles are like
those without, and the clusters that did not run count as without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Walk", "between_kinds", "extrapolate_tiles", "tiles_of_kinds", "usual_tiles", "walk_of"]

Keys = NDArray[np.int64]
DIGITS = 3  # of a tile: its row in a group of rows, its column, and its group
ALIKE = 0.01  # of the steps of a cluster, by which one with tiles at an edge may differ from one without


@dataclass(frozen=True, slots=True)
class Walk:
    """How clusters walk tiles. ``tile``: the positions of a tile in the traffic of each warp; ``counts``: the tiles of
    a cluster of the first group, and of the second, which has one less; ``groups``: the group of each known cluster, by
    number; ``usual``: the kind of each group whose clusters have whole tiles only."""

    tile: Keys
    counts: list[int]
    groups: dict[int, int]
    usual: tuple[int, int]

    def group(self, number: int) -> int:
        """Returns the group of the known cluster of the highest number up to ``number``."""
        return self.groups[max(each for each in self.groups if each <= number)]


def walk_of(kinds: Sequence[tuple[int, Keys, Sequence[int]]]) -> Walk | None:
    """Returns how clusters of these kinds walk tiles; None if they do not, or if it does not show.

    ``kinds``: for each the steps of a cluster, the positions of each warp in its traffic, and the clusters.
    """
    pairs = [pair for pair in permutations(range(len(kinds)), 2) if kinds[pair[0]][0] > kinds[pair[1]][0]]
    for usual in sorted(pairs, key=lambda pair: -sum(len(kinds[which][2]) for which in pair)):
        found = tiles_of_kinds([kinds[which][1] for which in usual])
        if found is not None:
            groups = _groups(kinds, [kinds[which][0] for which in usual])
            return Walk(*found, groups, usual) if groups else None
    return None


def _groups(kinds: Sequence[tuple[int, Keys, Sequence[int]]], steps: Sequence[int]) -> dict[int, int]:
    """Returns the group of each known cluster by its steps, as of `Walk`; none if a cluster is not like a group, or if
    the second group has a lower number than the first."""
    groups: dict[int, int] = {}
    for own, _, members in kinds:
        apart = [abs(own - usual) / usual for usual in steps]
        if min(apart) > ALIKE:
            return {}
        groups |= dict.fromkeys(members, apart.index(min(apart)))
    numbers: list[list[int]] = [[], []]
    for number, group in groups.items():
        numbers[group].append(number)
    return groups if max(numbers[0]) < min(numbers[1]) else {}


def between_kinds(kinds: Mapping[int, int]) -> int | None:
    """Returns the cluster in the middle between two neighbours of two kinds; None if all between them are known.
    ``kinds``: of the known clusters, by number."""
    for low, high in pairwise(sorted(kinds)):
        if kinds[low] != kinds[high] and high > low + 1:
            return (low + high) // 2
    return None


def tiles_of_kinds(positions: Sequence[Keys]) -> tuple[Keys, list[int]] | None:
    """Returns the positions that a tile has in the traffic of each warp, and how many tiles each kind takes.

    ``positions``: those of each warp, for the kind of the first clusters and for that of the last ones, which take one
    tile less. None if the positions are not those of whole tiles.
    """
    if len(positions) != 2 or len(positions[0]) != len(positions[1]):
        return None
    more, less = positions
    tile = more - less
    if (tile < 0).any() or not tile.any():
        return None
    count = int(more.sum() // tile.sum())
    whole = count > 1 and (more == count * tile).all()
    return (tile, [count, count - 1]) if whole else None


def extrapolate_tiles(
    known: Mapping[int, Keys], counts: Mapping[int, int], tile: Keys, clusters: int, others: Sequence[int]
) -> dict[int, Keys] | int | None:
    """Returns the keys of the clusters ``others`` of a grid of so many ``clusters``; the number of a cluster that must
    run, too, if the known ones leave several; None if no digits give the known ones.

    ``known``: of each known cluster rows of keys, by position; ``counts``: the tiles of each cluster; ``tile``: as of
    `tiles_of_kinds`.
    """
    numbers = {each: each + clusters * np.arange(counts[each]) for each in (*known, *others)}
    tiles = np.concatenate([numbers[each] for each in known])
    values = np.concatenate([_by_tile(keys, tile, counts[each]) for each, keys in known.items()])
    wanted = np.concatenate([numbers[each] for each in others])
    found = _linear(tiles, values, wanted)
    if found is None or isinstance(found, int):
        return None if found is None else int(wanted[found]) % clusters
    ends = np.cumsum([counts[each] for each in others])[:-1]
    return {each: _by_position(part, tile) for each, part in zip(others, np.split(found, ends), strict=True)}


def usual_tiles(
    known: Mapping[int, Keys], counts: Mapping[int, int], tile: Keys, others: Sequence[int]
) -> dict[int, Keys]:
    """Returns rows for the clusters ``others`` all of whose tiles have the medians of the known tiles, by position."""
    values = np.concatenate([_by_tile(rows, tile, counts[each]) for each, rows in known.items()])
    median = np.sort(values, axis=0)[len(values) // 2]
    return {each: _by_position(np.tile(median, (counts[each], 1)), tile) for each in others}


def _by_tile(keys: Keys, tile: Keys, count: int) -> Keys:
    """A row of keys for each tile, from rows of keys by position, warp by warp."""
    parts = np.split(keys, np.cumsum(count * tile)[:-1], axis=1)
    split = [part.reshape(len(keys), count, -1).swapaxes(0, 1).reshape(count, -1) for part in parts]
    return np.concatenate(split, axis=1)


def _by_position(values: Keys, tile: Keys) -> Keys:
    """The inverse of `_by_tile`."""
    count, rows = len(values), values.shape[1] // int(tile.sum())
    parts = np.split(values, np.cumsum(rows * tile)[:-1], axis=1)
    return np.concatenate([part.reshape(count, rows, -1).swapaxes(0, 1).reshape(rows, -1) for part in parts], axis=1)


def _linear(tiles: Keys, values: Keys, wanted: Keys) -> Keys | int | None:
    """Returns the values of the tiles ``wanted``; the place of one of them whose value the known ones leave open; None
    if no digits give all known values."""
    order = np.argsort(tiles)
    base = values[order[0]]
    steps, columns = np.unique(values[order] - base, axis=1, return_inverse=True)
    first: Keys | None = None
    for found in _by_digits(tiles[order] - tiles[order[0]], steps, wanted - tiles[order[0]], DIGITS):
        first = found if first is None else first
        several = np.flatnonzero((found != first).any(axis=1))
        if len(several):
            return int(several[0])
    return None if first is None else base + first[:, columns.ravel()]


def _by_digits(tiles: Keys, values: Keys, wanted: Keys, digits: int) -> Iterator[Keys]:
    """Yields the values of the tiles ``wanted`` by each choice of radices that gives the known ``values`` of the
    ascending ``tiles``: of one digit if that is enough, else of the lowest digit and those above it."""
    alone = _slope(tiles, values)
    if alone is not None:
        yield wanted[:, None] * alone
        return
    for radix in range(2, int(tiles.max()) + 1) if digits > 1 else ():
        upper = tiles // radix
        same = np.flatnonzero(np.diff(upper) == 0)
        lowest = _slope(np.diff(tiles)[same], np.diff(values, axis=0)[same])
        if lowest is not None:
            rest, firsts = values - (tiles % radix)[:, None] * lowest, np.flatnonzero(np.diff(upper, prepend=-1))
            for above in _by_digits(upper[firsts], rest[firsts], wanted // radix, digits - 1):
                yield (wanted % radix)[:, None] * lowest + above


def _slope(steps: Keys, values: Keys) -> Keys | None:
    """The values of one step, if the values of all ``steps`` are so many times as much; None too if they do not tell.
    Keys are sums modulo 2^64, so no value is divided: Euclid's algorithm combines steps until one is 1."""
    size, found = 0, np.zeros(values.shape[1], np.int64)
    for step, value in zip(steps.tolist(), values, strict=True):
        if size == 1:
            break
        while step:
            size, step, found, value = step, size % step, value, found - size // step * value
    fits = size == 1 and np.array_equal(steps[:, None] * found, values)
    return found if fits else None
