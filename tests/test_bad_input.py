"""Unusual input of `ww.matmul`: strides and addresses that need a copy, empty extents, arrays larger than memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright import targets, vgpu
from warpwright.report.verdict import judge

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DEVICES = ["h200", "b200"]


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(BFLOAT16)


def unaligned(rows: int, columns: int) -> Any:
    """A matrix that begins at an odd address."""
    data = np.zeros(rows * columns * 2 + 1, np.uint8)
    view = data[1:].view(BFLOAT16).reshape(rows, columns)
    view[...] = normal(rows, columns)
    return view


STRANGE: dict[str, Callable[[], Any]] = {
    "reversed": lambda: normal(40, 24)[::-1, ::-1],
    "every third": lambda: normal(120, 72)[::3, ::3],
    "one row for all": lambda: np.broadcast_to(normal(1, 24), (40, 24)),
    "one column for all": lambda: np.broadcast_to(normal(40, 1), (40, 24)),
    "a diagonal of planes": lambda: np.einsum("iji->ji", normal(24, 40, 24)),
    "Fortran order": lambda: np.asfortranarray(normal(40, 24)),
    "an odd address": lambda: unaligned(40, 24),
    "an odd column": lambda: normal(40, 25)[:, 1:],
    "read only": lambda: np.frombuffer(normal(40, 24).tobytes(), BFLOAT16).reshape(40, 24),
    "rows that overlap": lambda: np.lib.stride_tricks.sliding_window_view(normal(63).ravel(), 24),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strange", STRANGE)
def test_strides_and_addresses_of_any_kind(device: str, strange: str) -> None:
    a = STRANGE[strange]()
    before, b = a.copy(), normal(24, 33)
    assert a.shape == (40, 24)
    assert judge(ww.matmul(a, b, device=device), before, b).verified
    assert judge(ww.matmul(b.T, a.T, device=device), b.T, before.T).verified
    np.testing.assert_array_equal(a, before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 8), (8, 5)), ((3, 8), (8, 0)), ((3, 0), (0, 5)), ((0, 0), (0, 0)), ((2, 3, 0), (0, 5)), ((0, 3, 8), (8, 5))],
)
def test_empty_extents(device: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = normal(*left), normal(*right)
    expected = np.matmul(a.astype(np.float32), b.astype(np.float32))
    d = ww.matmul(a, b, device=device)
    assert (d.shape, d.dtype) == (expected.shape, BFLOAT16)
    assert not d.astype(np.float32).any()


def test_a_result_larger_than_memory() -> None:
    column = np.zeros((1 << 24, 1), BFLOAT16)
    with pytest.raises(MemoryError) as caught:
        ww.matmul(column, column.T, device="h200")
    assert str(caught.value) == (
        "Unable to allocate 512. TiB for an array with shape (16777216, 16777216) and data type bfloat16"
    )


@pytest.mark.parametrize("name", DEVICES)
def test_arrays_larger_than_the_memory_of_a_virtual_gpu(name: str) -> None:
    a, b = normal(64, 128), normal(128, 64)
    small = vgpu.Device(replace(targets.device(name), hbm_bytes=40_000))
    with pytest.raises(ww.LaunchError) as caught:
        ww.matmul(a, b.T.copy().T, device=small)
    assert str(caught.value) == (
        f"kernel gemm is given arrays of 40,960 bytes; {name} has 40,000 bytes of memory; use smaller arrays"
    )
    roomy = vgpu.Device(replace(targets.device(name), hbm_bytes=40_960))
    assert judge(ww.matmul(a, b.T.copy().T, device=roomy), a, b).verified
