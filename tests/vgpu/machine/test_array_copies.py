"""Of which arrays a launch has a copy, and of which it works in their own memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import warpwright as ww
from warpwright.lang import Global, kernel, tid, u32
from warpwright.vgpu.machine.memory import GlobalMemory

Words = NDArray[np.uint32]


def read_only() -> list[Words]:
    array = np.ones((8, 8), np.uint32)
    array.flags.writeable = False
    return [array]


def sharing() -> list[Words]:
    array = np.ones((8, 8), np.uint32)
    return [array, array[2:]]


COPIED: dict[str, Callable[[], list[Words]]] = {
    "read-only": read_only,
    "with gaps between rows": lambda: [np.ones((8, 8), np.uint32)[:, :4]],
    "of shared memory": sharing,
    "not aligned": lambda: [np.ones(65, np.uint32)[1:]],
}


def in_place(arrays: list[Words], copy: str) -> list[bool]:
    memory = GlobalMemory()
    memory.upload(arrays, copy=copy)
    return [memory.view(memory.address(array)).ctypes.data == array.ctypes.data for array in arrays]


@pytest.mark.parametrize("what", COPIED)
def test_a_launch_copies_an_array(what: str) -> None:
    assert in_place(COPIED[what](), "parts") == [False] * len(COPIED[what]())
    assert all(in_place(COPIED[what](), "none"))


def test_a_whole_writable_array_is_not_copied() -> None:
    arrays = [np.ones((8, 8), np.uint32), np.ones((8, 8), np.uint32).T, np.ones((2, 3, 4), np.uint32).swapaxes(0, 1)]
    assert all(in_place(arrays, "parts"))
    assert not any(in_place(arrays, "all"))


@kernel("sm_100a", threads=32)
def mark_after(out: Global[u32], count: u32) -> None:
    out[tid.x % 4 + count] = tid.x


def test_a_kernel_does_not_reach_the_bytes_after_an_array() -> None:
    """The array is a part of a larger one, in place: what the kernel stores after it faults and changes nothing."""
    whole = np.zeros(64, np.uint32)
    assert in_place([whole[:32]], "parts") == [True]
    with pytest.raises(ww.DeviceError, match="past the end"):
        ww.launch(mark_after, 1, args=[whole[:32], 32], device="b200")
    assert not whole.any()


def test_a_check_leaves_arrays_as_they_are() -> None:
    whole = np.zeros(32, np.uint32)
    ww.check(mark_after, 1, args=[whole, 4], device="b200")
    assert not whole.any()
    ww.launch(mark_after, 1, args=[whole, 4], device="b200")
    assert whole[4:8].all()
