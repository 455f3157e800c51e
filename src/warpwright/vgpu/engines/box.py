"""Boxes of tensor maps as lists of 16-byte chunks: the plans of the copy engine (PTX ISA 9.1 section 5.5).

A plan depends on the map, on the offset of the box in the swizzle pattern, and on the part of the box inside the
tensor; not on the coordinates. Offsets into shared memory count from the start of that pattern's period, offsets into
the tensor from the box's first element, so one plan serves every box of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from warpwright.layout import period, swizzle, width
from warpwright.layout.swizzle import Mode
from warpwright.layout.tensor_map import TensorMap
from warpwright.types import PACKED, PADDED, Scalar

__all__ = ["CHUNK", "Chunks", "Elements", "Extents", "Geometry", "Lines", "chunks", "elements", "geometry", "window"]

CHUNK = 16
Extents = tuple[tuple[int, int], ...]
IntArray = NDArray[np.int64]

NAN = 0x7FF7_7FF7_7FF7_7FF7  # out-of-bounds fill, for elements of every type: seen on an H200, not documented


@dataclass(slots=True, eq=False)
class Geometry:
    """Copy parameters of a tensor map, innermost dimension first.

    ``counts``: elements of the box, in im2col mode channels and pixels; ``corners``: those of `TensorMap`;
    ``steps``: element strides; ``pitches``: bytes from one element of the tensor to the next; ``latest``: last
    coordinate at which the box ends inside the tensor; ``reach``: bytes of the tensor from its base; ``row``: bytes
    from one row of the box to the next in shared memory, at least a swizzle span (seen on an H200; the transaction
    bytes stay those of the box); ``unit``: bytes of the tensor in 16 bytes of shared memory, fewer for padded types;
    ``packed``: bits of an element of a packed type, of which ``counts``, ``dims`` and ``pitches`` have bytes along the
    innermost dimension, 0 for other types; ``span``: bytes of shared memory from the first row to the last;
    ``period``: bytes after which the swizzle repeats. It does not refer to the map, whose array may be large.
    """

    dtype: type[Scalar]
    swizzle: Mode
    interleave: str
    rank: int
    size: int
    nbytes: int
    counts: tuple[int, ...]
    corners: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]
    dims: tuple[int, ...]
    pitches: tuple[int, ...]
    latest: tuple[int, ...]
    reach: int
    row: int
    unit: int
    packed: int
    span: int
    period: int
    pattern: IntArray
    pattern_at: int
    chunks: dict[tuple[int, Extents | None], Chunks] = field(default_factory=dict)
    elements: dict[tuple[int, Extents | None], Elements] = field(default_factory=dict)


class Lines(NamedTuple):
    """The rows of a box in shared memory: the byte offset of each in the tensor, whether it is inside, and the first
    and one past the last element of a row that are inside."""

    offset: IntArray
    inside: NDArray[np.bool_]
    first: int
    end: int


@dataclass(slots=True, eq=False)
class Chunks:
    """Chunk numbers of a copy and their host addresses (``*_at``).

    ``shared``/``tensor``: chunks wholly inside the tensor; ``fill``: chunks of shared memory that are not;
    ``shared_bytes``/``tensor_bytes``: the bytes inside the tensor of partial chunks; ``low``/``high``: first byte of
    shared memory that the box touches and one past the last.
    """

    shared: IntArray
    tensor: IntArray
    fill: IntArray
    same: IntArray
    shared_bytes: IntArray
    tensor_bytes: IntArray
    low: int
    high: int
    count: int
    shared_at: int
    tensor_at: int
    fill_at: int
    same_at: int


@dataclass(slots=True, eq=False)
class Elements:
    """Element numbers of the elements inside the tensor, in rounds without duplicate tensor elements."""

    rounds: list[tuple[IntArray, IntArray]]
    low: int
    high: int


_GEOMETRIES: WeakKeyDictionary[TensorMap, Geometry] = WeakKeyDictionary()


def geometry(tensor: TensorMap) -> Geometry:
    """The cached geometry of a tensor map. Maps are immutable: tensormap.replace makes another map."""
    cached = _GEOMETRIES.get(tensor)
    if cached is None:
        cached = _GEOMETRIES[tensor] = _geometry(tensor)
    return cached


def _geometry(tensor: TensorMap) -> Geometry:
    size, counts, dims = tensor.dtype.nbytes, tensor.box_elements, tensor.dims
    unit, packed = CHUNK, tensor.dtype.bits if tensor.dtype in PACKED else 0
    if packed:  # CuTe DSL and Triton count the bytes of the tensor in transactions, without the padding
        size, unit = 1, 2 * packed if tensor.dtype in PADDED else CHUNK
        counts, dims = ((extents[0] * packed // 8, *extents[1:]) for extents in (counts, dims))
    steps = (1, *tensor.elem_strides[1:])
    pitches = (size, *tensor.strides)
    reach = sum((dim - 1) * pitch for dim, pitch in zip(dims, pitches, strict=True)) + size
    pattern = np.full(2, NAN if tensor.fill == "nan" else 0, np.int64)
    row = max(counts[0] * size * CHUNK // unit, width(tensor.swizzle) if tensor.swizzle else 0)
    return Geometry(
        dtype=tensor.dtype,
        swizzle=tensor.swizzle,
        interleave=tensor.interleave,
        rank=tensor.rank,
        size=size,
        nbytes=tensor.nbytes,
        counts=counts,
        corners=tensor.corners,
        steps=steps,
        dims=dims,
        pitches=pitches,
        latest=() if tensor.corners else _latest(dims, counts, steps),
        reach=reach,
        row=row,
        unit=unit,
        packed=packed,
        span=row * prod(counts[1:]),
        period=max(period(tensor.swizzle), 128),
        pattern=pattern,
        pattern_at=pattern.ctypes.data,
    )


def _latest(dims: tuple[int, ...], counts: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim - 1 - (count - 1) * step for dim, count, step in zip(dims, counts, steps, strict=True))


def window(box: Geometry, coords: list[int]) -> Extents | None:
    """First and one past the last element of the box inside the tensor in each dimension; None if all are inside."""
    for coord, latest in zip(coords, box.latest, strict=True):
        if not 0 <= coord <= latest:
            break
    else:
        return None
    return tuple(
        (min(max(-(coord // step), 0), count), max(min(-((coord - dim) // step), count), 0))
        for coord, step, count, dim in zip(coords, box.steps, box.counts, box.dims, strict=True)
    )


def chunks(box: Geometry, phase: int, part: Extents | Lines | None) -> Chunks:
    """The plan of a copy whose shared-memory side starts ``phase`` bytes into the swizzle pattern; cached, but for
    ``Lines``."""
    if isinstance(part, Lines):
        return _chunks(box, phase, part)
    cached = box.chunks.get((phase, part))
    if cached is None:
        cached = box.chunks[phase, part] = _chunks(box, phase, _lines(box, part))
    return cached


def elements(box: Geometry, phase: int, part: Extents | Lines | None) -> Elements:
    """The plan of a reduction, element by element; cached, but for ``Lines``."""
    if isinstance(part, Lines):
        return _elements(box, phase, part)
    cached = box.elements.get((phase, part))
    if cached is None:
        cached = box.elements[phase, part] = _elements(box, phase, _lines(box, part))
    return cached


def _lines(box: Geometry, extents: Extents | None) -> Lines:
    """Returns the rows of a box of tile mode, with offsets from its first element."""
    extents = extents or tuple((0, count) for count in box.counts)
    offset, inside = np.zeros(1, np.int64), np.ones(1, bool)
    for axis in range(1, box.rank):
        index = np.arange(box.counts[axis], dtype=np.int64)
        step = index * (box.steps[axis] * box.pitches[axis])
        first, end = extents[axis]
        offset = (step[:, None] + offset).ravel()
        inside = (((index >= first) & (index < end))[:, None] & inside).ravel()
    return Lines(offset, inside, *extents[0])


def _chunks(box: Geometry, phase: int, lines: Lines) -> Chunks:
    line, (offset, inside) = box.counts[0] * box.size, lines[:2]
    first, end = lines.first * box.size, lines.end * box.size
    at = np.arange(0, line, box.unit)
    shared = swizzle(phase + np.arange(len(offset))[:, None] * box.row + at * CHUNK // box.unit, box.swizzle)
    tensor = offset[:, None] + at
    whole = inside[:, None] & (at >= first) & (at + CHUNK <= end) & (box.unit == CHUNK)
    partial = inside[:, None] & ~whole & (at < end) & (at + box.unit > first)
    byte = np.arange(box.unit)
    covered = partial[:, :, None] & ((at[:, None] + byte >= first) & (at[:, None] + byte < end))
    to, source, fill = shared[whole] // CHUNK, tensor[whole] // CHUNK, shared[~whole] // CHUNK
    same = np.zeros_like(fill)
    return Chunks(
        shared=to,
        tensor=source,
        fill=fill,
        same=same,
        shared_bytes=(shared[:, :, None] + byte)[covered],
        tensor_bytes=(tensor[:, :, None] + byte)[covered],
        low=int(shared.min()),
        high=int(shared.max()) + CHUNK,
        count=len(to),
        shared_at=to.ctypes.data,
        tensor_at=source.ctypes.data,
        fill_at=fill.ctypes.data,
        same_at=same.ctypes.data,
    )


def _elements(box: Geometry, phase: int, lines: Lines) -> Elements:
    offset, inside, first, end = lines
    index = np.arange(box.counts[0])
    shared = swizzle(phase + np.arange(len(offset))[:, None] * box.row + index * box.size, box.swizzle)
    tensor = offset[:, None] + index * box.size
    selected = inside[:, None] & (index >= first) & (index < end)
    rounds = _rounds(shared[selected] // box.size, tensor[selected] // box.size)
    return Elements(rounds, int(shared.min()), int(shared.max()) + box.size)


def _rounds(shared: IntArray, tensor: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Split elements into rounds without duplicates: a tensor with a stride of 0 repeats elements."""
    rounds = []
    while len(tensor):
        _, first = np.unique(tensor, return_index=True)
        rounds.append((shared[first], tensor[first]))
        rest = np.delete(np.arange(len(tensor)), first)
        shared, tensor = shared[rest], tensor[rest]
    return rounds
