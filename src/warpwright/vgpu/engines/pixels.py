"""Boxes of im2col mode: which pixels of the images a copy moves (PTX ISA 9.1 section 5.5.4).

The second source is CUTLASS (`copy_traits_sm90_im2col.hpp`), whose tile coordinates are these pixels; the values of
Gluon's lesson on im2col agree.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines.box import Extents, Geometry, Lines, window

__all__ = ["offset_limit", "outside_corners", "part_inside", "pixel_lines"]

IntArray = NDArray[np.int64]


def part_inside(box: Geometry, coords: list[int], offsets: list[int]) -> Extents | Lines | None:
    """Returns the part of a box that is inside the tensor: of tile mode as `window`, of im2col mode its pixels.
    ``offsets``: of the filter; [] in tile mode."""
    return pixel_lines(box, coords, offsets) if box.corners else window(box, coords)


def pixel_lines(box: Geometry, coords: list[int], offsets: list[int]) -> Lines:
    """Returns the pixels that a copy moves, with byte offsets from the tensor's base to the first channel."""
    pixels = _walk(tuple(coords[1:]), *_bounds(box), box.steps[1:-1], box.counts[1]) + np.array([*offsets, 0])
    inside: NDArray[np.bool_] = np.all((pixels >= 0) & (pixels < box.dims[1:]), axis=1)
    channel, count = coords[0], box.counts[0]
    first, end = min(max(-channel, 0), count), max(min(box.dims[0] - channel, count), 0)
    return Lines(pixels @ np.array(box.pitches[1:]) + channel * box.size, inside, first, end)


def offset_limit(rank: int) -> int:
    """Returns one past the largest offset of a filter: 2^16, 2^8 or 2^5 for 3, 4 or 5 dimensions."""
    return 1 << 16 // (rank - 2)


def _bounds(box: Geometry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the first and the last pixel of the box in W, H and D, without the offsets of the filter."""
    lower, upper = box.corners
    return lower, tuple(dim - 1 + corner for dim, corner in zip(box.dims[1:-1], upper, strict=True))


def outside_corners(box: Geometry, coords: list[int]) -> list[str]:
    """Returns the dimensions in which coordinates are not between the corners, with their bounds."""
    first, last = _bounds(box)
    inner = zip("WHD", coords[1:-1], first, last, strict=False)
    return [f"{name} from {low} to {high}" for name, at, low, high in inner if not low <= at <= high]


@lru_cache(maxsize=1024)
def _walk(
    start: tuple[int, ...], first: tuple[int, ...], last: tuple[int, ...], steps: tuple[int, ...], count: int
) -> IntArray:
    """Returns the coordinates of pixels from ``start`` on, W fastest: a coordinate that leaves the box starts again at
    the first corner, and the next dimension takes a step. Images are all visited."""
    at, found = list(start), []
    for _ in range(count):
        found.append(tuple(at))
        for axis, step in enumerate(steps):
            at[axis] += step
            if at[axis] <= last[axis]:
                break
            at[axis] = first[axis]
        else:
            at[-1] += 1
    return np.array(found, np.int64)
