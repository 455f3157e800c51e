"""Bytes of global memory that instructions of a cluster touch, all of them at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.layout.tensor_map_bytes import MAP_BYTES
from warpwright.vgpu.engines.box import Geometry, geometry
from warpwright.vgpu.engines.op import BoundMap
from warpwright.vgpu.engines.pixels import pixel_lines
from warpwright.vgpu.program.operation import values
from warpwright.vgpu.program.program import Inst, Register

__all__ = ["Allocations", "Touches", "boxes", "bytes_moved", "is_inside"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Allocations:
    """The allocations of a launch by host address, which rows of lanes contain. ``table`` as in `GlobalMemory`."""

    def __init__(self, table: Ints) -> None:
        hosts = table[:, :2] + table[:, 2:]
        self.virtual = table
        order = np.argsort(hosts[:, 0])
        self.low, self.high, self.shifts = hosts[order, 0], hosts[order, 1], table[order, 2]

    def of(self, hosts: Ints) -> Ints:
        """Returns the numbers of the allocations, -1 outside all of them."""
        found = np.searchsorted(self.low, hosts, "right") - 1
        inside = (found >= 0) & (hosts < self.high[np.maximum(found, 0)])
        return np.where(inside, found, -1)

    def virtual_of(self, hosts: Ints) -> Ints:
        """Returns the virtual addresses of host addresses; of others, what they are."""
        found = self.of(hosts)
        addresses: Ints = hosts - np.where(found < 0, 0, self.shifts[found])
        return addresses

    def host(self, addresses: Ints) -> Ints:
        """Returns the host addresses of virtual addresses that are allocated."""
        found = np.searchsorted(self.virtual[:, 0], addresses, "right") - 1
        hosts: Ints = addresses + self.virtual[np.maximum(found, 0), 2]
        return hosts


class Touches(NamedTuple):
    """Bytes ``low`` to ``high`` (host addresses) that instruction ``inst`` of a lane of a cluster touches, in its row
    ``row``, in turn ``turn`` of the machine, through ``proxy``, in scalars of ``unit`` bytes; ``op`` is the number of
    the asynchronous operation, -1 where it is the lane's own."""

    low: Ints
    high: Ints
    cluster: Ints
    turn: Ints
    row: Ints
    op: Ints
    inst: Ints
    lane: Ints
    proxy: Ints
    unit: Ints

    def select(self, which: Bools | Ints | slice) -> Touches:
        return Touches(*(part[which] for part in self))


def bytes_moved(inst: Inst, records: Ints) -> Ints:
    """Returns the bytes that linear copies move: of cp.async those of its source, of tensormap instructions the map."""
    if "size" not in inst.columns:
        return np.full(len(records), MAP_BYTES)
    size: Ints = values(inst, records, "size")[:, 0] & 0xFFFF_FFFF
    source = inst.find("src_size")
    if source is None:
        return size
    of_source = values(inst, records, "src_size")[:, 0]
    ignored = isinstance(source, Register) and source.bits == 1
    return np.where(of_source != 0, 0, size) if ignored else np.minimum(size, of_source & 0xFFFF_FFFF)


def boxes(bound: BoundMap, coords: Ints, filters: Ints, allocations: Allocations) -> tuple[Ints, Ints, Ints]:
    """Returns byte intervals of boxes at ``coords`` (boxes, dimensions; innermost first), clipped at the tensor's
    bounds: the box of each interval, its first byte and one past its last, as host addresses. ``filters``: the offsets
    of im2col mode."""
    box = geometry(bound.map)
    if box.packed:
        coords = np.hstack([coords[:, :1] * box.packed // 8, coords[:, 1:]])
    offset, inside = _pixels(box, coords, filters) if box.corners else _lines(box, coords)
    first = np.maximum(coords[:, 0], 0)
    last = np.minimum(coords[:, 0] + box.counts[0], box.dims[0])
    which, line = np.nonzero(inside & (last > first)[:, None])
    low = offset[which, line] + first[which] * box.size
    low = bound.host + low if is_inside(bound) else allocations.host(low + np.uint64(bound.address).astype(np.int64))
    return which, low, low + (last - first)[which] * box.size


def is_inside(bound: BoundMap) -> bool:
    """Returns whether every byte that a tensor map describes lies in the allocation where the map begins."""
    return geometry(bound.map).reach <= len(bound.data)


def _pixels(box: Geometry, coords: Ints, filters: Ints) -> tuple[Ints, Bools]:
    """Returns what `_lines` returns, for boxes of im2col mode, where each pixel is a line."""
    places = zip(coords[:, 1:].tolist(), filters.tolist(), strict=True)
    lines = [pixel_lines(box, [0, *at], offsets) for at, offsets in places]
    return np.stack([each.offset for each in lines]), np.stack([each.inside for each in lines])


def _lines(box: Geometry, coords: Ints) -> tuple[Ints, Bools]:
    """Returns the byte offset in the tensor of every line of every box, and whether the line is inside."""
    offset, inside = np.zeros((len(coords), 1), np.int64), np.ones((len(coords), 1), np.bool_)
    for axis in range(1, box.rank):
        at = coords[:, axis, None] + np.arange(box.counts[axis]) * box.steps[axis]
        here = (at >= 0) & (at < box.dims[axis])
        offset = (at[:, :, None] * box.pitches[axis] + offset[:, None, :]).reshape(len(coords), -1)
        inside = (here[:, :, None] & inside[:, None, :]).reshape(len(coords), -1)
    return offset, inside
