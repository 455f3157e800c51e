"""Operand types of tensor cores as float32, and the rounding model (`hardware.ll`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["FORMATS", "TYPES", "Model", "as_float"]

Floats = NDArray[np.float32]

# bytes of an element
TYPES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "u8": 1, "s8": 1}

_BYTE_TYPES: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "u8": np.uint8,
    "s8": np.int8,
}
# fraction bits and least exponent of normal numbers
FORMATS = {
    "f16": (10, -14),
    "bf16": (7, -126),
    "tf32": (10, -126),
    "e4m3": (3, -6),
    "e5m2": (2, -14),
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
    values: Floats = _byte_values(type)[data]
    return values


@cache
def _byte_values(type: str) -> Floats:
    values: Floats = np.arange(256, dtype=np.uint8).view(_BYTE_TYPES[type]).astype(np.float32)
    return values
