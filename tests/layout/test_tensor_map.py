"""Tensor maps: geometry from arrays and every rule of the driver."""

# ruff: noqa: E501 - one sentence a line

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpwright import types
from warpwright.errors import UsageError
from warpwright.layout.tensor_map import RAGGED_ROWS, TensorMap, ragged

HALF = np.zeros((128, 64), np.float16)


def test_a_matrix_is_innermost_first() -> None:
    tensor = TensorMap(HALF, (32, 64), swizzle=128)
    assert (tensor.dims, tensor.strides, tensor.box) == ((64, 128), (128,), (64, 32))
    assert tensor.dtype is types.f16
    assert tensor.nbytes == 32 * 64 * 2
    assert tensor.array is HALF


def test_a_row_slice_keeps_the_stride_of_its_parent() -> None:
    view = np.zeros((100, 256), ml_dtypes.bfloat16)[10:20, 64:128]
    tensor = TensorMap(view, (8, 64))
    assert (tensor.dims, tensor.strides, tensor.dtype) == ((64, 10), (512,), types.bf16)


def test_float8_travels_as_bytes() -> None:
    tensor = TensorMap(np.zeros((16, 128), ml_dtypes.float8_e4m3fn), (8, 128), swizzle=128)
    assert tensor.dtype.tma == types.u8.tma
    assert tensor.nbytes == 1024


def test_a_single_row_may_have_any_length() -> None:
    assert TensorMap(np.zeros((1, 100), np.float16), (1, 64)).strides == (208,)


def test_element_strides_divide_the_box_except_its_innermost_dimension() -> None:
    tensor = TensorMap(HALF, (7, 64), element_strides=(2, 2))
    assert tensor.box_elements == (64, 4)
    assert tensor.nbytes == 4 * 64 * 2


def test_another_view_of_the_same_memory() -> None:
    tensor = TensorMap(HALF, (2, 16, 32), dims=(32, 128, 2), strides=(128, 64))
    assert (tensor.rank, tensor.box) == (3, (32, 16, 2))


@settings(deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    dtype=st.sampled_from([np.uint8, np.float16, np.float32, np.float64]),
)
def test_geometry_describes_the_array(shape: list[int], dtype: Any) -> None:
    shape[-1] *= 16
    array = np.zeros(shape, dtype)
    tensor = TensorMap(array, [1] * (len(shape) - 1) + [16])
    assert tensor.dims == tuple(reversed(array.shape))
    for dim, stride, own in zip(tensor.dims[1:], tensor.strides, reversed(array.strides[:-1]), strict=True):
        assert stride == own or dim == 1
    assert tensor.nbytes == 16 * array.itemsize


def test_the_coordinates_of_a_ragged_map_address_its_rows() -> None:
    """R times the outermost stride subtracts R rows, modulo 2^64."""
    array = np.zeros((5, 300, 64), np.float16).swapaxes(0, 1)[:, 1:4]
    tensor = ragged(array.swapaxes(0, 1), (1, 1, 1, 32, 64), swizzle=128)
    assert tensor.dims == (64, RAGGED_ROWS, 3, 301, RAGGED_ROWS + 1)
    assert tensor.strides == (128, 300 * 128, 128, 2**34 - 128) and tensor.wraps
    row, length, stop = 7, 20, 250
    places = (0, RAGGED_ROWS - length + row, 2, stop, RAGGED_ROWS)
    found = sum(place * stride for place, stride in zip(places, (2, *tensor.strides), strict=True)) % 2**64
    assert found == (stop - length + row) * 128 + 2 * 300 * 128


def test_a_ragged_map_has_few_rows() -> None:
    rows = np.broadcast_to(np.zeros((1, 64), np.float16), (RAGGED_ROWS + 1, 64))
    with pytest.raises(UsageError) as caught:
        ragged(rows, (1, 1, 32, 64))
    assert str(caught.value) == "given 1073741825 rows; expected at most 1073741824; pass fewer"


IMAGES = np.zeros((2, 10, 12, 64), np.float16)


def test_packed_values_are_counted_one_by_one() -> None:
    array = np.zeros((16, 192), np.uint8)
    four, six = (TensorMap(array, (8, 128), dtype=dtype, swizzle=128) for dtype in (types.b4x16_p64, types.b6x16_p32))
    assert (four.dims, four.strides, four.nbytes) == ((384, 16), (192,), 8 * 64)
    assert (six.dims, six.strides, six.nbytes) == ((256, 16), (192,), 8 * 96)


def test_a_map_of_images() -> None:
    tensor = TensorMap(IMAGES, (1024, 32), corners=((-1, -2), (3, 4)), element_strides=(1, 2, 3, 1))
    assert (tensor.dims, tensor.strides, tensor.box) == ((64, 12, 10, 2), (128, 1536, 15360), (32, 1024))
    assert (tensor.corners, tensor.elem_strides) == (((-2, -1), (4, 3)), (1, 3, 2, 1))
    assert tensor.nbytes == 1024 * 32 * 2


F32, BYTES = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.uint8)
REFUSALS = [
    (HALF[:, ::2], (8, 8), {}, "given an array whose last axis has stride 4 bytes; expected a dense last axis, 2 bytes; pass its transpose or np.ascontiguousarray(array)"),
    (HALF.T, (8, 8), {}, "given an array whose last axis has stride 128 bytes; expected a dense last axis, 2 bytes; pass its transpose or np.ascontiguousarray(array)"),
    (np.zeros((8, 65), np.float16), (8, 8), {}, "given a stride of 130 bytes in dimension 1 (innermost is 0); expected a multiple of 16; pad the rows of the array to a multiple of 16 bytes"),
    (HALF[::-1], (8, 8), {}, "given a stride of -128 bytes in dimension 1 (innermost is 0); expected 0 to 2^40 - 1; pass a copy with ascending addresses"),
    (HALF, (8, 64, 1), {}, "given 3 entries in box for 2 dimensions; expected 2; pass one entry per dimension"),
    (HALF, (300, 64), {}, "given a box of 300 elements in dimension 1 (innermost is 0); expected 1 to 256; copy several boxes"),
    (HALF, (0, 64), {}, "given a box of 0 elements in dimension 1 (innermost is 0); expected 1 to 256; copy several boxes"),
    (HALF, (8, 4), {}, "given an innermost box of 4 f16 (8 bytes); expected a multiple of 16 bytes; use a multiple of 8 elements"),
    (HALF, (8, 64), {"swizzle": 64}, "given an innermost box of 64 f16 (128 bytes) with swizzle=64; expected at most 64 bytes; use at most 32 elements or a wider swizzle"),
    (HALF, (8, 64), {"swizzle": 16}, "given swizzle=16; expected one of 0, 32, 64, 128, '128B_ATOM_32B', '128B_ATOM_64B'"),
    (HALF, (8, 64), {"fill": "one"}, "given fill='one'; expected one of 'zero', 'nan'"),
    (HALF, (8, 64), {"l2_promotion": 32}, "given l2_promotion=32; expected one of 0, 64, 128, 256"),
    (HALF, (8, 64), {"interleave": "16B"}, "given 2 dimensions with interleave='16B'; expected at least 3; use interleave='none'"),
    (HALF, (8, 64), {"interleave": "32B"}, "given swizzle=0 with interleave='32B'; expected swizzle=32; set swizzle=32"),
    (HALF, (8, 64), {"element_strides": (9, 1)}, "given element stride 9 in dimension 1 (innermost is 0); expected 1 to 8; pass a strided view of the array"),
    (HALF, (8, 64), {"dtype": types.f32}, "given dtype=f32 (4 bytes) for an array of float16 (2); expected an element type of the same size; view the array in that type first"),
    (HALF, (8, 64), {"strides": (128,)}, "given strides without dims; expected both or neither; give dims too, innermost first"),
    (HALF, (8, 64), {"dims": (64, 129), "strides": (128,)}, "given dims=(64, 129) and strides=(128,), which reach 16512 bytes; expected a view inside the array's 16384 bytes; pass the array that owns the memory"),
    (BYTES, (8, 64), {"fill": "nan"}, "given fill='nan' for elements of type u8; expected one of f16, bf16, f32, f64, tf32; use fill='zero'"),
    (F32, (8, 8.5), {}, "given box=(8, 8.5); expected a sequence of integers, one per dimension"),
    (F32, (8, 8), {"dtype": types.f16x2}, "given element type f16x2; expected an element type of tensor maps (8 to 64 bits, float8 as bytes, or a packed type of 4 or 6 bits); view the array as unsigned integers of the same size"),
    (HALF, (8, 64), {"dtype": types.b4x16}, "given dtype=b4x16 (0 bytes) for an array of float16 (2); expected an element type of the same size; view the array in that type first"),
    (BYTES, (8, 64), {"dtype": types.b4x16_p64}, "given an innermost box of 64 values of b4x16_p64; expected 128; copy boxes of 128"),
    (BYTES, (8, 128), {"dtype": types.b6x16_p32}, "given 85 values of b6x16_p32; expected a multiple of 128; pad the rows"),
    (BYTES, (8, 128), {"dtype": types.b4x16_p64, "swizzle": 64}, "given swizzle=64 for b4x16_p64; expected 0 or a swizzle of 128 bytes; use swizzle=128"),
    (BYTES, (8, 16), {"dtype": types.b4x16}, "given an innermost box of 16 b4x16 (8 bytes); expected a multiple of 16 bytes; use a multiple of 32 elements"),
    (np.zeros((8, 80), np.uint8)[:, :64], (8, 128), {"dtype": types.b4x16_p64}, "given a stride of 80 bytes in dimension 1 (innermost is 0); expected a multiple of 32; pad the rows of the array to a multiple of 32 bytes"),
    (np.zeros((0, 64), np.float16), (8, 64), {}, "given dimension 1 of 0 elements; expected 1 to 2^32; pass a non-empty array"),
    (IMAGES, (16, 32), {"corners": ((0,), (0,))}, "given corners=((0,), (0,)) for 4 dimensions; expected two corners of 2 entries; leave out the axes of images and channels"),
    (IMAGES, (16, 32), {"corners": ((0, -129), (0, 0))}, "given a corner of -129 pixels in dimension 1 (innermost is 0); expected -128 to 127 for 4 dimensions; copy a part of the image"),
    (IMAGES, (16, 32), {"corners": ((0, 0), (-10, 0))}, "given corners 0 and -10 in dimension 2 (innermost is 0) of 10 pixels; expected a box of at least one pixel; count the upper corner from the last pixel"),
    (IMAGES, (1025, 32), {"corners": ((0, 0), (0, 0))}, "given a box of 1025 elements in dimension 1 (innermost is 0); expected 1 to 1024; copy several boxes"),
    (IMAGES, (1, 16, 32), {"corners": ((0, 0), (0, 0))}, "given 3 entries in box for 4 dimensions; expected 2; pass one entry per dimension"),
    (HALF, (16, 32), {"corners": ((), ())}, "given 2 dimensions with corners; expected 3 to 5; add the axis of images or channels"),
    (np.zeros((1,) * 6, np.float64), (1,) * 6, {}, "given 6 dimensions; expected 1 to 5; reshape the array"),
]  # fmt: skip


@pytest.mark.parametrize(("array", "box", "options", "message"), REFUSALS, ids=lambda value: str(value)[:40])
def test_every_rule_is_one_sentence(array: Any, box: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        TensorMap(array, box, **options)
    assert str(caught.value) == message
