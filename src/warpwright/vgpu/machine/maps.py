"""Tensor maps that a kernel changes with tensormap.replace (PTX ISA 9.1 section 9.7.9.28).

The layout of the 128 bytes of a map is undocumented. Here they hold a mark and a number (`map_bytes`). A changed map
gets a new number, so a copy of the bytes is a copy of the map. The fields are validated when a copy uses the map: until
then they may be changed one by one.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from warpwright.layout.tensor_map import TensorMap
from warpwright.types import Scalar, bf16, f16, f32, f64, s32, s64, tf32, u8, u16, u32, u64
from warpwright.vgpu.engines.op import BoundMap
from warpwright.vgpu.machine.memory import GlobalMemory

__all__ = ["CODED_FIELDS", "MAP_BYTES", "MAP_MAGIC", "RANKED_FIELDS", "ChangedMaps", "MapFields", "map_bytes"]

MAP_BYTES = 128
MAP_MAGIC = b"tensrmap"
_FIRST = 1 << 32  # numbers of changed maps; the numbers of kernel parameters are lower
# Codes of the element type in tensormap.replace, which are not the driver's.
_TYPES: tuple[type[Scalar], ...] = (u8, u16, u32, s32, u64, s64, f16, f32, f32, f64, bf16, tf32, tf32)
_SWIZZLES, _FILLS, _INTERLEAVES = (0, 32, 64, 128), ("zero", "nan"), ("none", "16B", "32B")
RANKED_FIELDS = {"box_dim": "box", "global_dim": "dims", "element_stride": "steps", "global_stride": "strides"}
CODED_FIELDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "elemtype": ("dtype", _TYPES),
    "swizzle_mode": ("swizzle", _SWIZZLES),
    "fill_mode": ("fill", _FILLS),
    "interleave_layout": ("interleave", _INTERLEAVES),
}


class MapFields(NamedTuple):
    """The fields of a tensor map. Tuples have five entries, innermost dimension first; the first ``rank`` count."""

    address: int
    rank: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    dtype: type[Scalar]
    swizzle: int
    fill: str
    interleave: str


def map_bytes(number: int) -> bytes:
    """Returns the 128 bytes that stand for a tensor map in memory."""
    return (MAP_MAGIC + struct.pack("<Q", number)).ljust(MAP_BYTES, b"\0")


@dataclass(slots=True)
class ChangedMaps:
    """The tensor maps that a kernel has changed. ``parameters``: those that are kernel parameters."""

    memory: GlobalMemory
    parameters: list[BoundMap]
    changed: list[MapFields] = field(default_factory=list)
    bound: dict[int, BoundMap] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fields: MapFields) -> int:
        """Returns the number of a new changed map."""
        with self.lock:
            self.changed.append(fields)
            return _FIRST + len(self.changed) - 1

    def resolve(self, number: int) -> BoundMap:
        """Returns a map by its number. Raises UsageError if its fields make no valid map."""
        if number < _FIRST:
            return self.parameters[number]
        if number not in self.bound:
            self.bound[number] = _bound(self.memory, self.changed[number - _FIRST])
        return self.bound[number]

    def fields(self, number: int) -> MapFields:
        """Returns the fields of a map by its number."""
        if number >= _FIRST:
            return self.changed[number - _FIRST]
        map = self.parameters[number].map
        dims, strides, box, steps = (_five(part) for part in (map.dims, map.strides, map.box, map.elem_strides))
        address = self.memory.address(map.array)
        return MapFields(address, map.rank, dims, strides, box, steps, map.dtype, map.swizzle, map.fill, map.interleave)


def _five(values: tuple[int, ...]) -> tuple[int, ...]:
    return (*values, *(1,) * (5 - len(values)))


def _bound(memory: GlobalMemory, fields: MapFields) -> BoundMap:
    data = memory.view(fields.address)
    rank, size = fields.rank, fields.dtype.nbytes
    map = TensorMap(
        data[: len(data) // size * size].view(fields.dtype.dtype),
        fields.box[:rank][::-1],
        swizzle=fields.swizzle,
        element_strides=fields.steps[:rank][::-1],
        fill=fields.fill,
        interleave=fields.interleave,
        dims=fields.dims[:rank],
        strides=fields.strides[: rank - 1],
        dtype=fields.dtype,
    )
    return BoundMap(map, data, data.ctypes.data)
