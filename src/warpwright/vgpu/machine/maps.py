"""Tensor maps that a kernel changes: tensormap.replace and tensormap.cp_fenceproxy (PTX ISA 9.1 sections 9.7.9.28 and
9.7.13.16).

What the 128 bytes of a map hold is nowhere documented; here it is a mark and a number (`Launch.MAP_MAGIC`). A changed
map gets a number of its own, so a copy of the bytes is a copy of the map. Whether its fields make a map is asked when a
copy uses it: until then they may be changed one by one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from warpwright.errors import ProtocolError, UnsupportedInstruction, UsageError
from warpwright.layout.tensor_map import TensorMap
from warpwright.types import Scalar, bf16, f16, f32, f64, s32, s64, tf32, u8, u16, u32, u64
from warpwright.vgpu.engines.op import BoundMap, Op
from warpwright.vgpu.engines.place import check_inside, locate
from warpwright.vgpu.jit.state import SHARED_WINDOW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from warpwright.vgpu.device import Launch
    from warpwright.vgpu.machine.cluster import Cluster

__all__ = ["MAP_BYTES", "ChangedMaps", "publish", "refused", "replace_field"]

MAP_BYTES = 128
_FIRST = 1 << 32  # numbers of changed maps; those of given ones are below
# Codes of the element type in tensormap.replace, which are not the driver's.
_TYPES: tuple[type[Scalar], ...] = (u8, u16, u32, s32, u64, s64, f16, f32, f32, f64, bf16, tf32, tf32)
_SWIZZLES, _FILLS, _INTERLEAVES = (0, 32, 64, 128), ("zero", "nan"), ("none", "16B", "32B")
_RANKED = {"box_dim": "box", "global_dim": "dims", "element_stride": "steps", "global_stride": "strides"}
_CODED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "elemtype": ("dtype", _TYPES),
    "swizzle_mode": ("swizzle", _SWIZZLES),
    "fill_mode": ("fill", _FILLS),
    "interleave_layout": ("interleave", _INTERLEAVES),
}


class _Fields(NamedTuple):
    """What a map says; of five dimensions those below ``rank`` count, innermost first."""

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


@dataclass(slots=True)
class ChangedMaps:
    """The maps that a launch has made, and those that were copied with."""

    fields: list[_Fields] = field(default_factory=list)
    bound: dict[int, BoundMap] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fields: _Fields) -> int:
        """The number of a changed map."""
        with self.lock:
            self.fields.append(fields)
            return _FIRST + len(self.fields) - 1

    def resolve(self, launch: Launch, number: int) -> BoundMap:
        """A map by its number; raises UsageError for fields that make none."""
        if number < _FIRST:
            return launch.maps[number]
        if number not in self.bound:
            self.bound[number] = _bound(launch, self.fields[number - _FIRST])
        return self.bound[number]

    def of(self, launch: Launch, number: int) -> _Fields:
        """The fields of a map."""
        if number >= _FIRST:
            return self.fields[number - _FIRST]
        map = launch.maps[number].map
        return _Fields(
            launch.memory.address(map.array),
            map.rank,
            _five(map.dims),
            _five(map.strides),
            _five(map.box),
            _five(map.elem_strides),
            map.dtype,
            map.swizzle,
            map.fill,
            map.interleave,
        )


def _five(values: tuple[int, ...]) -> tuple[int, ...]:
    return (*values, *(1,) * (5 - len(values)))


def _bound(launch: Launch, fields: _Fields) -> BoundMap:
    data = launch.memory.view(fields.address)
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


def replace_field(cluster: Cluster, op: Op) -> bool:
    """tensormap.replace: one field of the map at an address becomes another."""
    launch = cluster.launch
    if launch.recorder is not None:
        raise cluster.failure(UnsupportedInstruction, op, "a profile does not follow changes of tensor maps.")
    place = _place(cluster, op, op.words[0], op.inst["space"])
    number = cluster.map_number(op, place, op.words[0])
    fields, name, value = launch.changed.of(launch, number), op.inst["field"], op.words[-1]
    changed: dict[str, Any] = {}
    if name == "global_address":
        changed["address"] = value
    elif name == "rank":
        changed["rank"] = _among(cluster, op, value, 5) + 1
    elif name in _RANKED:
        held = list(getattr(fields, _RANKED[name]))
        held[_among(cluster, op, op.words[1], 5)] = value
        changed[_RANKED[name]] = tuple(held)
    elif name in _CODED:
        attribute, codes = _CODED[name]
        changed[attribute] = codes[_among(cluster, op, value, len(codes))]
    else:
        raise cluster.failure(UnsupportedInstruction, op, f"field {name} is not changed by the virtual GPU.")
    place[:16] = np.frombuffer(launch.map_bytes_of(launch.changed.add(fields._replace(**changed))), np.uint8)[:16]
    return True


def _among(cluster: Cluster, op: Op, value: int, count: int) -> int:
    if value >= count:
        raise cluster.failure(ProtocolError, op, f"{op.inst['field']} is given {value}; expected 0 to {count - 1}.")
    return value


def _place(cluster: Cluster, op: Op, address: int, space: str) -> NDArray[np.uint8]:
    """The 128 bytes of a map in global or the CTA's own shared memory."""
    if not space.startswith("shared") and address >> 32 != SHARED_WINDOW >> 32:
        return cluster.global_memory(op, address, MAP_BYTES)
    rank, offset = locate(cluster, op, address, "tensor map")
    check_inside(cluster, op, "tensor map", rank, offset, MAP_BYTES)
    place: NDArray[np.uint8] = cluster.shared[rank, offset : offset + MAP_BYTES]
    return place


def publish(cluster: Cluster, op: Op) -> bool:
    """tensormap.cp_fenceproxy: a map comes from shared to global memory."""
    to, source, nbytes = op.words
    if nbytes != MAP_BYTES:
        raise cluster.failure(ProtocolError, op, f"{nbytes} bytes; expected {MAP_BYTES}, a tensor map.")
    _place(cluster, op, to, "global")[:] = _place(cluster, op, source, "shared::cta")
    return True


def refused(cluster: Cluster, op: Op, error: UsageError) -> Exception:
    """The error for a copy with a map whose fields make none."""
    return cluster.failure(ProtocolError, op, f"the tensor map was changed into none: {error}.")
