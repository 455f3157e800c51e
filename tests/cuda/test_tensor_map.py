"""The driver calls for a TensorMap."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.conftest import FakeDriver, Result
from warpwright import TensorMap
from warpwright.cuda import MovableMap, encode, encode_fields
from warpwright.errors import LaunchError
from warpwright.types import bf16


def test_a_map_in_the_order_and_the_numbers_of_the_driver(fake_driver: FakeDriver) -> None:
    array = np.zeros((40, 128), ml_dtypes.bfloat16)[:, :72]
    tensor = TensorMap(array, (16, 64), swizzle=128, element_strides=(2, 1), fill="nan", l2_promotion=256)
    data = encode(tensor, 0x7F00_0000_0100)
    assert fake_driver.calls == [
        ("cuTensorMapEncodeTiled", (9, 2, 0x7F00_0000_0100, [72, 40], [256], [64, 16], [1, 2], 0, 3, 3, 1))
    ]
    assert data == b"".join(n.to_bytes(8, "little") for n in range(16))


def test_a_map_of_images_by_the_other_function(fake_driver: FakeDriver) -> None:
    array = np.zeros((3, 9, 10, 64), np.float32)
    encode(TensorMap(array, (100, 32), corners=((-1, -2), (3, 4)), element_strides=(1, 2, 3, 1)), 256)
    strides = [256, 2560, 23040]
    words = (7, 4, 256, [64, 10, 9, 3], strides, [-2, -1], [4, 3], 32, 100, [1, 3, 2, 1], 0, 0, 0, 0)
    assert fake_driver.calls == [("cuTensorMapEncodeIm2col", words)]


def test_a_map_of_one_dimension_still_gives_the_driver_strides(fake_driver: FakeDriver) -> None:
    encode(TensorMap(np.zeros(64, np.uint8), (32,)), 256)
    assert fake_driver.calls[0][1] == (0, 1, 256, [64], [0], [32], [1], 0, 0, 0, 0)


def test_maps_are_cached(fake_driver: FakeDriver) -> None:
    for pointer in (1024, 2048, 1024):
        encode_fields(pointer, bf16.tma, (64, 64), (128,), (64, 64), swizzle=128)
    assert [args[2] for _, args in fake_driver.calls] == [1024, 2048]


def test_a_movable_map_is_encoded_once(fake_driver: FakeDriver) -> None:
    moved = MovableMap(TensorMap(np.zeros((8, 64), np.uint8), (8, 64)))
    for pointer in (1024, 4096, 1024):
        assert moved(pointer) == b"".join(n.to_bytes(8, "little") for n in (pointer, *range(1, 16)))
    assert [name for name, _ in fake_driver.calls] == ["cuTensorMapEncodeTiled"] + 3 * ["cuTensorMapReplaceAddress"]
    fake_driver.status = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError) as caught:
        moved(0x1008)
    assert str(caught.value) == (
        "given a tensor map over address 0x1008; expected a multiple of 16 bytes; pass an aligned array, or a copy"
    )


def test_refusals_name_the_cause(fake_driver: FakeDriver) -> None:
    fake_driver.status = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError) as caught:
        encode_fields(0x1008, bf16.tma, (64, 64), (128,), (64, 64))
    assert str(caught.value) == (
        "given a tensor map over address 0x1008; expected a multiple of 16 bytes; pass an aligned array, or a copy"
    )
    with pytest.raises(LaunchError) as caught:
        encode_fields(0x1000, bf16.tma, (64, 64), (128,), (64, 64))
    assert str(caught.value) == "the CUDA driver refuses the tensor map: CUDA_ERROR_INVALID_VALUE"
