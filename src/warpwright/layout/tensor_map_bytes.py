"""The 128 bytes of a tensor map (``CUtensorMap``): one table of their bit fields, read in both directions.

NVIDIA does not document the layout. Sources: 429 maps of the CUDA driver 13.0 (`tests/conformance/tensor_maps.py`), and
what ptxas 13.0 makes of ``tensormap.replace`` (PTX ISA 9.1 section 9.7.9.28), loads and stores of these bits.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from warpwright.errors import UsageError
from warpwright.layout.swizzle import Mode
from warpwright.layout.tensor_map import FILLS, INTERLEAVES, L2_PROMOTIONS, SWIZZLES, TensorMap
from warpwright.types import PACKED, Scalar, bf16, f16, f32, f64, s32, s64, tf32, u8, u16, u32, u64

__all__ = [
    "MAP_BYTES", "USED_BYTES", "MapFields", "decode", "encode", "fields_of", "fields_of_driver", "replace", "tensor_of",
]  # fmt: skip

MAP_BYTES = 128
USED_BYTES = 64  # that have fields


class _Field(NamedTuple):
    """Where a field has its bits. ``parts``: the first bit, the number of bits, the distance to the bits of the next
    dimension; low bits first. The bits are ``value / unit - less``, of a ``signed`` field in two's complement;
    ``axes``: dimensions, 0 for a single value."""

    parts: tuple[tuple[int, int, int], ...]
    axes: int = 0
    less: int = 0
    unit: int = 1
    signed: bool = False

    def read(self, number: int, axis: int = 0) -> int:
        """Returns the field's value in a map's bytes as one little-endian number."""
        bits = shift = 0
        for first, width, apart in self.parts:
            bits |= (number >> (first + axis * apart) & ((1 << width) - 1)) << shift
            shift += width
        if self.signed:
            bits -= bits >> shift - 1 << shift
        return (bits + self.less) * self.unit

    def write(self, number: int, value: int, axis: int = 0) -> int:
        """Returns the number with another value of the field, which is `legal`."""
        bits = value // self.unit - self.less
        for first, width, apart in self.parts:
            mask = (1 << width) - 1
            at = first + axis * apart
            number = number & ~(mask << at) | (bits & mask) << at
            bits >>= width
        return number

    def legal(self, value: int) -> bool:
        """Whether the field has bits for a value."""
        return value % self.unit == 0 and self.smallest <= value <= self.largest

    @property
    def smallest(self) -> int:
        return (self.less - (1 << self._bits - 1 if self.signed else 0)) * self.unit

    @property
    def largest(self) -> int:
        return ((1 << self._bits - self.signed) - 1 + self.less) * self.unit

    @property
    def _bits(self) -> int:
        return sum(width for _, width, _ in self.parts)


FIELDS = {
    "address": _Field(((0, 64, 0),)),
    "version": _Field(((64, 4, 0),)),
    "rank": _Field(((68, 3, 0),), less=1),
    "type": _Field(((71, 4, 0),)),
    "interleave": _Field(((75, 2, 0),)),
    "swizzle": _Field(((77, 2, 0),)),
    "fill": _Field(((79, 1, 0),)),
    "tf32": _Field(((80, 1, 0),)),
    "l2_promotion": _Field(((81, 2, 0),)),
    "atom": _Field(((83, 2, 0),)),
    "flag": _Field(((85, 1, 0),)),
    "swizzle_96B": _Field(((86, 1, 0),)),
    "strides": _Field(((96, 32, 32), (224, 4, 4)), axes=4, unit=16),
    "dims": _Field(((256, 32, 32),), axes=5, less=1),
    "steps": _Field(((416, 3, 3),), axes=5, less=1),
    "box": _Field(((440, 8, 8),), axes=5, less=1),
}
IM2COL = 1  # the version of maps of im2col mode, which have other fields in the place of the box


def _table(version: int, rank: int) -> dict[str, _Field]:
    """Returns the fields of a map; the corners of im2col mode share 16 bits each, whatever their number."""
    if version != IM2COL:
        return FIELDS
    width, axes = 16 // (rank - 2), rank - 2
    return {name: field for name, field in FIELDS.items() if name != "box"} | {
        "channels": _Field(((440, 8, 0),), less=1),
        "lower": _Field(((448, width, width),), axes=axes, signed=True),
        "upper": _Field(((464, width, width),), axes=axes, signed=True),
        "pixels": _Field(((480, 10, 0),), less=1),
    }


# Element types by their codes in tensormap.replace: the type, and the fields that the code sets.
TYPES: tuple[tuple[type[Scalar], dict[str, int]], ...] = (
    *((scalar, {"type": code}) for code, scalar in enumerate((u8, u16, u32, s32, u64, s64, f16, f32, f32, f64, bf16))),
    *((tf32, {"type": code, "tf32": 1}) for code in (7, 8)),
    *((scalar, {"type": code}) for code, scalar in enumerate(PACKED, 11)),
)
TYPES_OF_DRIVER = (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 11, 12, 13, 14, 15)  # their codes by CUtensorMapDataType
_VALUES = {
    "global_address": "address", "box_dim": "box", "global_dim": "dims", "element_stride": "steps",
    "global_stride": "strides",
}  # fmt: skip
# Fields of tensormap.replace that take codes: the fields that each code sets. ptxas clears no other.
_CODES: dict[str, tuple[dict[str, int], ...]] = {
    "rank": tuple({"rank": code + 1} for code in range(5)),
    "elemtype": tuple(changes for _, changes in TYPES),
    "swizzle_mode": tuple({"swizzle": code, "swizzle_96B": 0} for code in range(4)),
    "swizzle_atomicity": tuple({"atom": code, "flag": 0} for code in range(4)),
    "interleave_layout": tuple({"interleave": code} for code in range(3)),
    "fill_mode": tuple({"fill": code} for code in range(2)),
}


class MapFields(NamedTuple):
    """The fields of a tensor map, named as in `FIELDS`. Tuples are innermost dimension first, with ``rank`` entries;
    ``strides`` (bytes) with one fewer. ``version`` is 2 in the maps of CuTe DSL 4.8, `IM2COL` in those of im2col mode:
    then ``box`` is (channels, pixels), and ``corners`` are the lower and the upper corner."""

    address: int
    rank: int
    type: int
    strides: tuple[int, ...]
    dims: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    fill: int = 0
    tf32: int = 0
    l2_promotion: int = 0
    atom: int = 0
    flag: int = 0
    swizzle_96B: int = 0
    version: int = 0
    corners: tuple[tuple[int, ...], ...] = ()


@lru_cache(maxsize=4096)
def encode(fields: MapFields) -> bytes:
    """Returns the 128 bytes of a map; the last 4096 results are cached.

    Raises UsageError for a value without bits.
    """
    number, values = 0, fields._asdict()
    if fields.version == IM2COL:
        values |= zip(("channels", "pixels", "lower", "upper"), (*fields.box, *fields.corners), strict=True)
    for name, field in _table(fields.version, fields.rank).items():
        value = values[name]
        for axis, each in enumerate(value if field.axes else (value,)):
            _check(name, field, each)
            number = field.write(number, each, axis)
    return number.to_bytes(USED_BYTES, "little") + _second_half(fields)


def _second_half(fields: MapFields) -> bytes:
    """Returns what the driver writes after the fields: bytes of a box (steps round down), and the alignment in shared
    memory. Copies need neither: CuTe DSL writes no second half."""
    bits = next((scalar.bits for scalar, changes in TYPES if changes["type"] == fields.type), 0)
    steps = (1, 1) if fields.version == IM2COL else fields.steps
    box = bits * prod(extent // step for extent, step in zip(fields.box, steps, strict=True)) // 8
    words = box & 0xFFFF_FFFF, 0, 16 if not fields.swizzle else 128 << fields.swizzle
    return struct.pack("<3I", *words).ljust(MAP_BYTES - USED_BYTES, b"\0")


def decode(raw: bytes) -> MapFields:
    """Returns the fields of 128 bytes. Raises UsageError for bytes that are no tensor map."""
    _require(len(raw) == MAP_BYTES, f"{len(raw)} bytes", f"{MAP_BYTES}, a tensor map")
    number = int.from_bytes(raw, "little")
    rank, version = FIELDS["rank"].read(number), FIELDS["version"].read(number)
    _require(rank <= 5, f"a tensor map of {rank} dimensions{_place('rank')}", "1 to 5")
    _require(
        version in (0, IM2COL, 2),
        f"a tensor map of kind {version}{_place('version')}",
        "0, 1 for im2col mode, or 2 as CuTe DSL writes it; other bytes are no tensor map",
    )
    _require(
        version != IM2COL or rank >= 3,
        f"a tensor map of im2col mode with {rank} dimensions{_place('rank')}",
        "3 to 5",
    )
    found: dict[str, Any] = {}
    for name, field in _table(version, rank).items():
        axes = range(min(field.axes, rank - (name == "strides")))
        found[name] = tuple(field.read(number, axis) for axis in axes) if field.axes else field.read(number)
    if version == IM2COL:
        found["box"] = found.pop("channels"), found.pop("pixels")
        found["corners"] = found.pop("lower"), found.pop("upper")
    return MapFields(**found)


def fields_of(tensor: TensorMap, address: int) -> MapFields:
    """Returns the fields of a tensor map over the memory at ``address``."""
    assert tensor.dtype.tma is not None
    return fields_of_driver(
        tensor.dtype.tma,
        SWIZZLES[tensor.swizzle],
        address=address,
        rank=tensor.rank,
        strides=tensor.strides,
        dims=tensor.dims,
        steps=tensor.elem_strides,
        box=tensor.box,
        interleave=INTERLEAVES.index(tensor.interleave),
        fill=FILLS.index(tensor.fill),
        l2_promotion=L2_PROMOTIONS.index(tensor.l2_promotion),
        corners=tensor.corners,
    )


def fields_of_driver(dtype: int, swizzle: int, **fields: Any) -> MapFields:
    """Returns the fields of a tensor map for the driver's numbers of element type (CUtensorMapDataType) and swizzle;
    the other fields have the same numbers there."""
    version = IM2COL if fields["corners"] else 0
    fields |= TYPES[TYPES_OF_DRIVER[dtype]][1]
    return MapFields(swizzle=min(swizzle, 3), atom=max(swizzle - 3, 0), version=version, **fields)


def tensor_of(fields: MapFields, memory: Any) -> TensorMap:
    """Returns a tensor map with the given fields. ``memory``: bytes from its address on, which may be fewer than the
    map describes, or none. Raises UsageError for fields that the virtual GPU does not execute, and as `TensorMap`."""
    scalar, mode = _scalar(fields), _mode(fields)
    for name, count, expected in (
        ("swizzle_96B", 1, "0, a swizzle of 0 to 128 bytes"),
        ("interleave", len(INTERLEAVES), "0 to 2"),
    ):
        value = getattr(fields, name)
        _require(value < count, f"a tensor map with {name} {value}{_place(name)}", expected)
    _require(fields.address % 16 == 0, f"a tensor map over address 0x{fields.address:x}", "a multiple of 16 bytes")
    size = max(scalar.nbytes, 1)
    return TensorMap(
        memory[: len(memory) // size * size].view(scalar.dtype or np.uint8),
        fields.box[::-1],
        swizzle=mode,
        element_strides=fields.steps[::-1],
        fill=FILLS[fields.fill],
        interleave=INTERLEAVES[fields.interleave],
        l2_promotion=L2_PROMOTIONS[fields.l2_promotion],
        dims=fields.dims,
        strides=fields.strides,
        dtype=scalar,
        wraps=True,
        corners=tuple(corner[::-1] for corner in fields.corners),
    )


def _mode(fields: MapFields) -> Mode:
    # PTX ISA 9.1 section 5.5.7 shows only in a figure which halves of 16 bytes atom 2 flips, so it is refused.
    found = {code: mode for mode, code in SWIZZLES.items()}.get(fields.swizzle + fields.atom)
    if found is None or (fields.swizzle != 3 and fields.atom):
        raise UsageError(
            f"given a tensor map with atom {fields.atom}{_place('atom')} and swizzle {fields.swizzle}"
            f"{_place('swizzle')}; expected atom 0 (16 bytes), or with swizzle 3 atom 1 (32 bytes) or 3 (64 bytes)"
        )
    return found


def _scalar(fields: MapFields) -> type[Scalar]:
    wanted = {"type": fields.type, **({"tf32": 1} if fields.tf32 else {})}
    found = next((scalar for scalar, bits in TYPES if bits == wanted), None)
    if found is None:
        where = f"{_place('type')} with tf32 {fields.tf32}{_place('tf32')}"
        raise UsageError(f"given a tensor map of element type {fields.type}{where}; expected one of 4 to 64 bits")
    return found


def _place(name: str) -> str:
    """Returns where the bits of a field are, for messages about the word at byte 8."""
    first, width, _ = FIELDS[name].parts[0]
    bits = f"bits {first - 64} to {first - 65 + width}" if width > 1 else f"bit {first - 64}"
    return f" ({bits} of the word at byte 8)"


def replace(raw: bytes, name: str, value: int, axis: int = 0) -> bytes:
    """Returns a map with one field changed as ``tensormap.replace`` does; ``name`` and ``value`` are PTX's.

    Raises UsageError for a value without bits, which ptxas's code would truncate.
    """
    if name in _CODES:
        codes = _CODES[name]
        if value >= len(codes):
            raise UsageError(f"{name} is given {value}; expected 0 to {len(codes) - 1}")
        changes = codes[value]
    else:
        value = value or 1 << 32 if name == "global_dim" else value
        changes = {_VALUES[name]: value}
        _check(name, FIELDS[_VALUES[name]], value)
    number = int.from_bytes(raw, "little")
    for field, each in changes.items():
        number = FIELDS[field].write(number, each, axis)
    return number.to_bytes(MAP_BYTES, "little")


def _check(name: str, field: _Field, value: int) -> None:
    if not field.legal(value):
        unit = f"a multiple of {field.unit} from " if field.unit > 1 else ""
        raise UsageError(f"{name} is given {value}; expected {unit}{field.smallest} to {field.largest}")


def _require(holds: bool, given: str, expected: str) -> None:
    if not holds:
        raise UsageError(f"given {given}; expected {expected}")
