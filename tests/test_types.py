"""Scalar types: names, sizes and their NumPy and tensor-map counterparts."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from warpwright import types
from warpwright.errors import UsageError


def test_every_type_has_the_size_that_its_name_says() -> None:
    packed = {"e4m3": 8, "e5m2": 8, "f16x2": 32, "bf16x2": 32, "pred": 1, "b4x16": 4, "b4x16_p64": 4, "b6x16_p32": 6}
    packed |= {"f32x2": 64, "e2m1x2": 8, "ue4m3": 8, "ue8m0": 8}
    for scalar in types.Scalar.__subclasses__():
        expected = packed.get(scalar.name) or int(re.sub(r"\D", "", scalar.name))
        assert scalar.bits == expected, scalar.name
        assert scalar.nbytes == expected // 8


def test_the_dtype_has_the_same_size() -> None:
    for scalar in types.Scalar.__subclasses__():
        if scalar.dtype is not None:
            assert scalar.dtype.itemsize == scalar.nbytes, scalar.name


@pytest.mark.parametrize(
    ("dtype", "scalar"),
    [
        (np.float16, types.f16),
        ("float32", types.f32),
        (ml_dtypes.bfloat16, types.bf16),
        (ml_dtypes.float8_e4m3fn, types.e4m3),
        (ml_dtypes.float8_e5m2, types.e5m2),
        (ml_dtypes.float8_e8m0fnu, types.ue8m0),
        (np.int8, types.s8),
        (np.uint64, types.u64),
    ],
)
def test_of_dtype(dtype: object, scalar: type[types.Scalar]) -> None:
    assert types.of_dtype(dtype) is scalar


def test_of_dtype_names_what_it_knows() -> None:
    known = (
        "uint8, uint16, uint32, uint64, int8, int16, int32, int64, float16, float32, float64, bfloat16, "
        "float8_e4m3fn, float8_e5m2, float8_e8m0fnu"
    )
    with pytest.raises(UsageError) as caught:
        types.of_dtype(np.complex64)
    assert str(caught.value) == f"given dtype complex64; expected one of {known}; convert the array with .astype(…)"


def test_tensor_map_codes_are_those_of_the_driver() -> None:
    codes = {
        "u8": 0,
        "u16": 1,
        "u32": 2,
        "s32": 3,
        "u64": 4,
        "s64": 5,
        "f16": 6,
        "f32": 7,
        "f64": 8,
        "bf16": 9,
        "tf32": 11,
    }
    assert {name: types.of_name(name).tma for name in codes} == codes
    assert types.e4m3.tma == types.e5m2.tma == types.u8.tma
    assert types.pred.tma is None


def test_of_name_refuses_an_unknown_name() -> None:
    with pytest.raises(UsageError, match=r"^given type name 'float'; expected one of u8, u16, .*, pred$"):
        types.of_name("float")
