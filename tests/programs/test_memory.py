"""Device memory that a program and its virtual GPU share."""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import pytest

from warpwright.programs.calls import CALLS, Calls
from warpwright.programs.memory import GAP, START, DeviceMemory
from warpwright.run.devices import device
from warpwright.run.session import Session

if sys.platform != "linux":
    pytest.skip("programs run on Linux only", allow_module_level=True)


@pytest.fixture
def memory():
    memory = DeviceMemory(1 << 20)
    yield memory
    memory.close()


def test_allocations_are_apart_and_zero(memory: DeviceMemory) -> None:
    first, second, third = (memory.allocate(nbytes) for nbytes in (100, 5000, 512))
    assert first == START and first + 100 + GAP <= second and second + 5000 + GAP <= third
    assert second % mmap.PAGESIZE == 0 and third % GAP == 0
    assert [array.size for array in memory.arrays()] == [100, 5000, 512]
    assert all(not array.any() for array in memory.arrays())


def test_another_mapping_of_the_file_sees_the_bytes(memory: DeviceMemory) -> None:
    at = memory.allocate(64)
    memory.array(at, 64)[:] = np.arange(64)
    assert os.pread(memory.file, 64, at - START) == bytes(range(64))


def test_what_is_freed_is_gone_and_its_address_is_not_given_again(memory: DeviceMemory) -> None:
    at = memory.allocate(1 << 20)
    memory.array(at, 1 << 20)[:] = 1
    assert memory.allocate(1) == 0  # no room
    assert memory.free(at) and not memory.free(at)
    assert os.pread(memory.file, 16, 0) == bytes(16)
    assert memory.allocate(100) > at


def test_bytes_lie_in_one_allocation(memory: DeviceMemory) -> None:
    at = memory.allocate(100)
    assert memory.find(at, 100) == memory.find(at + 99, 1) == at
    assert memory.find(at, 101) is memory.find(at + 100, 1) is memory.find(at - 1, 1) is None


def test_no_room_for_the_variables_of_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    calls = Calls(Session(device("h200")), None)
    head = b".version 8.8\n.target sm_90a\n.address_size 64\n"
    assert calls.memory.allocate(calls.memory.room - 100)
    found = calls.answer(CALLS.index("image"), head + b".visible .global .align 4 .b8 table[512];\n")
    calls.memory.close()
    assert found == (2, b"")  # cudaErrorMemoryAllocation
    assert capsys.readouterr().err == (
        "warpwright: error: the variables of a module take 512 bytes of device memory, and 100 are left; free memory "
        "before the first use of the module, or allocate less\n"
    )
