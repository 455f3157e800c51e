"""Copies of NumPy arrays to a GPU and back: aliasing is preserved, and all GPU memory is freed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_gpu import Driver
from warpwright.arrays.device import DeviceArray
from warpwright.cuda import memory
from warpwright.cuda.device import check_ordinals
from warpwright.cuda.memory import Transfers
from warpwright.errors import LaunchError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr(memory, "driver", lambda: made)
    yield made
    assert not made.held


def gpu_memory(pointer: int, count: int) -> Any:
    """Returns ``count`` numbers of the GPU's memory at ``pointer``."""
    return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(pointer))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_views_that_overlap_see_each_others_writes(order: tuple[int, int]) -> None:
    base = np.arange(100, dtype=np.int32)
    views = base[:60], base[40:]
    with Transfers("launch of 'k'", 0, [views[i] for i in order]) as transfers:
        first, second = (transfers.value(view) for view in views)
        assert second - first == 40 * 4
        np.testing.assert_array_equal(gpu_memory(second, 60), base[40:])
        gpu_memory(first, 60)[50] = -1
        gpu_memory(second, 60)[11] = -2
    assert base[49:53].tolist() == [49, -1, -2, 52]
    assert (np.delete(base, [50, 51]) >= 0).all()


def test_arrays_apart_are_apart(gpu: Driver) -> None:
    base = np.arange(100, dtype=np.int32)
    left, right, empty = base[:40], base[60:], base[50:50]
    with Transfers("launch of 'k'", 0, [left, 7, right, empty]) as transfers:
        assert sorted(buffer.size for buffer in gpu.held.values()) == [160, 160]
        assert [transfers.value(value) for value in (7, empty)] == [7, 0]
        gpu_memory(transfers.value(left), 40)[:] = -1
    assert (base[:40] == -1).all() and (base[40:] == np.arange(40, 100)).all()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("start", [0, 4])
def test_a_written_read_only_view_stays_as_it_was_and_is_reported(start: int) -> None:
    """Element 4 is part of the writable array too."""
    base = np.arange(10, dtype=np.int32)
    kept = base[:5]
    kept.flags.writeable = False
    with Transfers("launch of 'k'", 0, [kept, base[4:]]) as transfers:
        gpu_memory(transfers.value(kept), 10)[start:] = -1
    assert base.tolist() == [0, 1, 2, 3] + [-1] * 6
    assert [array is kept for array in transfers.written] == [True] * (start == 0)


@pytest.mark.usefixtures("gpu")
def test_a_read_only_array_alone_that_is_written_is_reported() -> None:
    kept = np.array([np.nan, 1, 2], np.float32)
    kept.flags.writeable = False
    for value in (1, 7):
        with Transfers("launch of 'k'", 0, [kept]) as transfers:
            gpu_memory(transfers.value(kept), 3)[1] = np.float32(value).view(np.int32)
        assert len(transfers.written) == (value == 7)
    assert kept[1] == 1


@pytest.mark.usefixtures("gpu")
def test_strides_of_any_kind_come_back() -> None:
    base = np.arange(60, dtype=np.int32).reshape(6, 10)
    view = base[::-2, 8:2:-3]
    with Transfers("launch of 'k'", 0, [view]) as transfers:
        at = transfers.value(view)
        assert gpu_memory(at, 1)[0] == view[0, 0]
        gpu_memory(at, 1)[0] = -1
        gpu_memory(at + view.strides[0], 1)[0] = -2
    assert view[:2, 0].tolist() == [-1, -2]
    assert (base < 0).sum() == 2


def test_a_fault_frees_the_memory_and_writes_nothing(gpu: Driver) -> None:
    x = np.arange(8, dtype=np.int32)
    with pytest.raises(RuntimeError), Transfers("launch of 'k'", 0, [x]) as transfers:
        gpu_memory(transfers.value(x), 8)[:] = -1
        raise RuntimeError
    assert x.tolist() == list(range(8))
    assert not gpu.held


def test_too_little_memory_is_one_clear_error_and_nothing_is_lost(gpu: Driver) -> None:
    gpu.room = 5000
    x, y = np.arange(1000, dtype=np.int32), np.arange(1000, dtype=np.int32)
    with pytest.raises(LaunchError) as caught, Transfers("launch of 'saxpy'", 0, [x, y]):
        pytest.fail("there is no room")
    assert str(caught.value) == (
        "launch of 'saxpy': 4,000 bytes of NumPy arrays: the GPU has too little free memory; free some "
        "(torch.cuda.empty_cache() frees torch's cache), or use smaller arrays"
    )
    assert not gpu.held and x[-1] == y[-1] == 999


def test_nothing_is_copied_while_a_stream_is_captured(gpu: Driver) -> None:
    gpu.capturing = 1
    with pytest.raises(LaunchError) as caught, Transfers("launch of 'k'", 0, [np.ones(4)]):
        pytest.fail("it must not be copied")
    assert str(caught.value) == (
        "launch of 'k': given a NumPy array while the stream is being captured; expected arrays on the GPU, "
        "because a captured launch copies nothing; copy the array to the GPU before the capture"
    )


def test_arrays_of_two_gpus_are_refused() -> None:
    device = SimpleNamespace(name="cuda:0", ordinal=0)
    here, unknown, elsewhere = (
        DeviceArray(256, (4,), (4,), np.dtype(np.float32), ordinal, None) for ordinal in (0, None, 1)
    )
    check_ordinals(device, "k", [here, unknown])
    with pytest.raises(LaunchError) as caught:
        check_ordinals(device, "k", [here, elsewhere])
    assert str(caught.value) == (
        "launch of 'k' on cuda:0: given an array on cuda:1; expected all arrays on cuda:0; copy it there"
    )
