"""`device_array` of torch, the CUDA array interface and DLPack; no GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright.arrays.device import DeviceArray, device_array, spans
from warpwright.types import bf16


def tensor(shape: tuple[int, ...], stride: tuple[int, ...], dtype: str, *, is_cuda: bool = True) -> Any:
    """The attributes of a torch tensor that `device_array` reads."""
    return SimpleNamespace(
        data_ptr=lambda: 4096, is_cuda=is_cuda, dtype=f"torch.{dtype}", shape=shape, stride=lambda: stride,
        device=SimpleNamespace(index=1),
    )  # fmt: skip


def test_torch_tensors() -> None:
    given = tensor((3, 4), (8, 1), "bfloat16")
    found = device_array(given)
    assert found == DeviceArray(4096, (3, 4), (16, 2), np.dtype(ml_dtypes.bfloat16), 1, given)
    assert (found.size, found.itemsize, found.dense) == (12, 2, False)
    assert device_array(tensor((3, 4), (4, 1), "float8_e4m3fn")).dense
    assert device_array(tensor((3,), (1,), "float32", is_cuda=False)) is None
    with pytest.raises(ww.UsageError) as caught:
        device_array(tensor((3,), (1,), "quint8"))
    assert str(caught.value) == "given elements of type quint8; expected one that NumPy or ml_dtypes has"


def test_the_cuda_array_interface() -> None:
    facts = {"data": (512, False), "shape": (2, 3), "typestr": "<f4", "strides": None, "version": 3}
    given = SimpleNamespace(__cuda_array_interface__=facts)
    assert device_array(given) == DeviceArray(512, (2, 3), (12, 4), np.dtype(np.float32), None, given)
    cupy = SimpleNamespace(
        __cuda_array_interface__=facts | {"typestr": "<V2", "strides": (64, 2)},
        dtype=np.dtype(ml_dtypes.bfloat16),
        device=SimpleNamespace(id=2),
    )
    assert device_array(cupy) == DeviceArray(512, (2, 3), (64, 2), np.dtype(ml_dtypes.bfloat16), 2, cupy)


def test_what_is_no_device_array() -> None:
    for value in (np.zeros(3), [1, 2], 7, "text", None):
        assert device_array(value) is None


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3), (12, 4), True),
        ((1, 3), (999, 4), True),
        ((2, 3), (16, 4), False),
        ((0, 3), (7, 7), True),
        ((), (), True),
    ],
)
def test_dense_arrays(shape: tuple[int, ...], strides: tuple[int, ...], dense: bool) -> None:
    assert DeviceArray(0, shape, strides, np.dtype(np.float32), None, None).dense is dense


def test_spans_hold_the_gaps_between_rows_and_join_what_overlaps() -> None:
    base = np.arange(48, dtype=np.uint8).reshape(8, 6)
    first, second, apart = base[1:3, 2:5], base[2:4, ::-1], base[6:, :2]
    found = spans([apart, second, base[:0], first])
    assert [span.arrays for span in found] == [[first, second], [apart]]
    assert [np.asarray(span).tolist() for span in found] == [list(range(8, 24)), list(range(36, 44))]


def test_a_tensor_map_over_a_device_array() -> None:
    tensor_map = ww.TensorMap(tensor((40, 64), (96, 1), "bfloat16"), (16, 64), swizzle=128)
    assert (tensor_map.dims, tensor_map.strides, tensor_map.dtype) == ((64, 40), (192,), bf16)
    assert tensor_map.array.pointer == 4096
    with pytest.raises(ww.UsageError) as caught:
        ww.TensorMap([1, 2], (2,))
    assert str(caught.value) == "given a list; expected an array of NumPy, torch, CuPy or DLPack: np.asarray(x)"
