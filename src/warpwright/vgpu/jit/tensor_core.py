"""Operand types of tensor cores as float32, and the rounding model (`hardware.ll`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["FORMATS", "PADDED", "TYPES", "Model", "as_float", "byte_values", "container_values"]

Floats = NDArray[np.float32]

# bytes of an element; 16 elements of 4 or 6 bits fill the first 8 or 12 of 16 bytes; e2m1x2: a byte of two elements
TYPES = {"f16": 2, "bf16": 2, "tf32": 4}
TYPES |= dict.fromkeys(("e4m3", "e5m2", "u8", "s8", "e2m3", "e3m2", "e2m1", "e2m1x2"), 1)
PADDED = {"e2m3": 6, "e3m2": 6, "e2m1": 4}  # bits of an element

# NumPy type of a byte, and the bits that count
_BYTE_TYPES: dict[str, tuple[Any, int]] = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 0xFF),
    "e5m2": (ml_dtypes.float8_e5m2, 0xFF),
    "u8": (np.uint8, 0xFF),
    "s8": (np.int8, 0xFF),
    "e2m3": (ml_dtypes.float6_e2m3fn, 0x3F),
    "e3m2": (ml_dtypes.float6_e3m2fn, 0x3F),
    "e2m1": (ml_dtypes.float4_e2m1fn, 0x0F),
    "ue8m0": (ml_dtypes.float8_e8m0fnu, 0xFF),
    "ue4m3": (ml_dtypes.float8_e4m3fn, 0x7F),
}
# fraction bits and least exponent of normal numbers
FORMATS = {
    "f16": (10, -14),
    "bf16": (7, -126),
    "tf32": (10, -126),
    "e4m3": (3, -6),
    "e5m2": (2, -14),
    "e2m3": (3, 0),
    "e3m2": (2, -2),
    "e2m1": (1, 0),
    "f32": (23, -126),
}


@dataclass(frozen=True, slots=True)
class Model:
    """``fraction``: bits after the point of aligned terms; ``keep``: of results (10: float16, rounded to nearest)."""

    fraction: int
    a_type: str
    b_type: str
    d_type: str
    keep: int

    def words(self) -> NDArray[np.int32]:
        """The model as the words of ``hardware_multiply``."""
        formats = (*FORMATS[self.a_type], *FORMATS[self.b_type], FORMATS[self.d_type][1])
        return np.array([self.fraction, *formats, self.keep], np.int32)


def as_float(data: NDArray[np.uint8], type: str) -> Floats:
    """Bytes of a last axis as the float32 values of an operand type; exact. tf32 ignores its low 13 bits."""
    if type == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if type == "f16":
        return data.view(np.float16).astype(np.float32)
    if type == "tf32":
        return (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if type == "e2m1x2":
        return _pairs()[data].reshape(*data.shape[:-1], -1)
    if type in PADDED:
        return _unpacked(data.reshape(-1, 16), type).reshape(data.shape)
    values: Floats = byte_values(type)[data]
    return values


@cache
def byte_values(type: str) -> Floats:
    """The 256 values of a byte; of its low bits for types of 4, 6 or 7 bits."""
    dtype, mask = _BYTE_TYPES[type]
    values: Floats = (np.arange(256, dtype=np.uint8) & np.uint8(mask)).view(dtype).astype(np.float32)
    return values


def container_values(type: str) -> Floats:
    """The 256 values of a byte of registers: an element of 4 bits is in its central bits, one of 6 in the low ones (PTX
    ISA 9.1 section 9.7.14.5.14); of e2m1x2 those of both elements."""
    if type == "e2m1x2":
        return _pairs()
    values: Floats = byte_values(type)[np.arange(256) >> 2] if type == "e2m1" else byte_values(type)
    return values


@cache
def _pairs() -> Floats:
    """The two elements of a byte of e2m1x2: the low bits first."""
    low = byte_values("e2m1")
    return np.stack([low, low[np.arange(256) >> 4]], axis=1)


def _unpacked(slots: NDArray[np.uint8], type: str) -> Floats:
    """The 16 values of each slot of 16 bytes, packed from the lowest bit on."""
    if PADDED[type] == 4:
        return _pairs()[slots[:, :8]].reshape(-1, 16)
    low, middle, high = np.moveaxis(slots[:, :12].reshape(-1, 4, 3).astype(np.uint32), 2, 0)
    words = low | middle << 8 | high << 16
    codes = words[:, :, None] >> np.arange(0, 24, 6, dtype=np.uint32) & np.uint32(63)
    values: Floats = byte_values(type)[codes].reshape(-1, 16)
    return values
