"""The scalar types of PTX as classes, used as annotations (``tiles_m: u32``) and as plain data.

Names and sizes: PTX ISA 9.1 section 5.2. The types are classes without instances; each has these attributes:

=========  ====================================================================================================
name       the PTX type suffix, ``"f32"``
bits       size of one value; ``pred`` has 1 and no memory form
nbytes     size in memory, 0 for ``pred`` and the packed types of tensor maps
kind       ``"unsigned"``, ``"signed"``, ``"bits"``, ``"float"`` or ``"pred"``
dtype      the NumPy (or ml_dtypes) dtype with the same bytes, or None
tma        the CUtensorMapDataType code (CUDA 13.0 cuda.h), or None if a tensor map cannot have the element type
=========  ====================================================================================================
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from warpwright.errors import KernelError, UsageError

__all__ = [
    "PACKED",
    "PADDED",
    "Scalar",
    "b4x16",
    "b4x16_p64",
    "b6x16_p32",
    "b8",
    "b16",
    "b32",
    "b64",
    "b128",
    "bf16",
    "bf16x2",
    "e2m1x2",
    "e4m3",
    "e5m2",
    "f16",
    "f16x2",
    "f32",
    "f32x2",
    "f64",
    "of_dtype",
    "of_name",
    "pred",
    "s8",
    "s16",
    "s32",
    "s64",
    "tf32",
    "u8",
    "u16",
    "u32",
    "u64",
    "ue4m3",
    "ue8m0",
]

_BY_NAME: dict[str, type[Scalar]] = {}


class Scalar:
    """Base class of the scalar types; the table in the module's docstring explains the attributes."""

    name: ClassVar[str]
    bits: ClassVar[int]
    nbytes: ClassVar[int]
    kind: ClassVar[str]
    dtype: ClassVar[np.dtype[Any] | None] = None
    tma: ClassVar[int | None] = None

    def __new__(cls, *given: Any) -> Scalar:
        frame, name, value = sys._getframe(1), cls.__name__, given[0] if given else 0
        raise KernelError(
            f"given {name}(…), and {name} is a type; write cvt({value!r}, {name}) for a constant, x.to({name}) for a "
            f"run-time value, or var({name}, {value!r}) for a variable"
            if not given or isinstance(value, int | float)
            else f"given {name}(x), and {name} is a type; write x.to({name}) to convert a run-time value",
            where=f"{frame.f_code.co_filename}:{frame.f_lineno}",
        )

    def __init_subclass__(cls, *, bits: int, kind: str, dtype: Any = None, tma: int | None = None) -> None:
        cls.name = cls.__name__
        cls.bits, cls.kind, cls.tma = bits, kind, tma
        cls.nbytes = bits // 8
        cls.dtype = None if dtype is None else np.dtype(dtype)
        _BY_NAME[cls.name] = cls


class u8(Scalar, bits=8, kind="unsigned", dtype=np.uint8, tma=0): ...


class u16(Scalar, bits=16, kind="unsigned", dtype=np.uint16, tma=1): ...


class u32(Scalar, bits=32, kind="unsigned", dtype=np.uint32, tma=2): ...


class u64(Scalar, bits=64, kind="unsigned", dtype=np.uint64, tma=4): ...


class s8(Scalar, bits=8, kind="signed", dtype=np.int8, tma=0): ...


class s16(Scalar, bits=16, kind="signed", dtype=np.int16, tma=1): ...


class s32(Scalar, bits=32, kind="signed", dtype=np.int32, tma=3): ...


class s64(Scalar, bits=64, kind="signed", dtype=np.int64, tma=5): ...


class b8(Scalar, bits=8, kind="bits", dtype=np.uint8, tma=0): ...


class b16(Scalar, bits=16, kind="bits", dtype=np.uint16, tma=1): ...


class b32(Scalar, bits=32, kind="bits", dtype=np.uint32, tma=2): ...


class b64(Scalar, bits=64, kind="bits", dtype=np.uint64, tma=4): ...


class b128(Scalar, bits=128, kind="bits"): ...


class f16(Scalar, bits=16, kind="float", dtype=np.float16, tma=6): ...


class f32(Scalar, bits=32, kind="float", dtype=np.float32, tma=7): ...


class f64(Scalar, bits=64, kind="float", dtype=np.float64, tma=8): ...


class bf16(Scalar, bits=16, kind="float", dtype=ml_dtypes.bfloat16, tma=9): ...


class tf32(Scalar, bits=32, kind="float", dtype=np.float32, tma=11): ...


class e4m3(Scalar, bits=8, kind="float", dtype=ml_dtypes.float8_e4m3fn, tma=0): ...


class e5m2(Scalar, bits=8, kind="float", dtype=ml_dtypes.float8_e5m2, tma=0): ...


# Types of block-scaled MMAs: a byte with two 4-bit floats, the low bits first, and scale factors (PTX ISA 9.1 section
# 9.7.16.10.7).
class e2m1x2(Scalar, bits=8, kind="float", dtype=np.uint8, tma=0): ...


class ue4m3(Scalar, bits=8, kind="float", dtype=ml_dtypes.float8_e4m3fn, tma=0): ...


class ue8m0(Scalar, bits=8, kind="float", dtype=ml_dtypes.float8_e8m0fnu, tma=0): ...


class f16x2(Scalar, bits=32, kind="float"): ...


class bf16x2(Scalar, bits=32, kind="float"): ...


class f32x2(Scalar, bits=64, kind="float"): ...


# Sub-byte types of tensor maps alone (PTX ISA 9.1 section 5.5.1.1): 16 values in 8 or 12 bytes of global memory, and in
# shared memory in 8 bytes, or in the first 8 or 12 of 16.
class b4x16(Scalar, bits=4, kind="bits", tma=13): ...


class b4x16_p64(Scalar, bits=4, kind="bits", tma=14): ...


class b6x16_p32(Scalar, bits=6, kind="bits", tma=15): ...


class pred(Scalar, bits=1, kind="pred"): ...


PACKED = (b4x16, b4x16_p64, b6x16_p32)
PADDED = (b4x16_p64, b6x16_p32)


_OF_DTYPE = {
    scalar.dtype: scalar
    for scalar in (u8, u16, u32, u64, s8, s16, s32, s64, f16, f32, f64, bf16, e4m3, e5m2, ue8m0)
    if scalar.dtype is not None
}


def of_name(name: str) -> type[Scalar]:
    """Returns the type whose PTX suffix is ``name`` (without the dot). Raises UsageError for an unknown name."""
    found = _BY_NAME.get(name)
    if found is None:
        raise UsageError(f"given type name {name!r}; expected one of {', '.join(_BY_NAME)}")
    return found


def of_dtype(dtype: Any) -> type[Scalar]:
    """Returns the scalar type of a NumPy or ml_dtypes ``dtype`` (``np.float16`` -> ``f16``).

    Raises UsageError for a dtype without a scalar type (complex, structured, big-endian, bool).
    """
    found = _OF_DTYPE.get(np.dtype(dtype))
    if found is None:
        names = ", ".join(str(known) for known in _OF_DTYPE)
        raise UsageError(f"given dtype {np.dtype(dtype)}; expected one of {names}; convert the array with .astype(…)")
    return found
