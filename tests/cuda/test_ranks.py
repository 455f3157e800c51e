"""Arguments with the memory of all ranks on a real GPU, here with a fake driver."""

from __future__ import annotations

import struct
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright import cuda
from warpwright.arrays.device import DeviceArray
from warpwright.cuda import memory
from warpwright.lang import Global, If, Peers, elect_one, f32, kernel, smem, tma, u32
from warpwright.targets import DEVICES

FINE = SimpleNamespace(value=0, name="CUDA_SUCCESS")
FIRST, SECOND = 0x10000, 0x20000


@kernel("sm_90a", threads=32)
def send(x: Global[f32], all_x: Peers[f32], maps: tma.PeerMaps[f32], number: u32) -> None:
    tile = smem.tile(f32, (8, 32))
    x[0] = all_x[1][0]
    with If(elect_one()):
        tma.store(maps[number][0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)


def array(pointer: int, ordinal: int = 1) -> DeviceArray:
    return DeviceArray(pointer, (8, 32), (128, 4), np.dtype(np.float32), ordinal, None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU ``cuda:1`` that keeps the values of its launches in ``started``."""
    made: Any = object.__new__(cuda.Device)
    made.ordinal, made.spec, made.context, made.started = 1, DEVICES["h200"], 7, []
    made.function = lambda *_, **__: lambda grid, values, stream: made.started.append(values)
    driver = SimpleNamespace(cuCtxSetCurrent=lambda context: (FINE,))
    monkeypatch.setattr(sys.modules[cuda.Device.__module__], "require", lambda: driver)
    monkeypatch.setattr(memory, "encode", lambda tensor, pointer: struct.pack("<Q", pointer).ljust(128, b"\0"))
    return made


def test_a_parameter_gets_the_memory_of_all_ranks_or_of_its_own(gpu: Any) -> None:
    both = ww.PerRank([array(FIRST), array(SECOND)], rank=1)
    ww.launch(send, 1, args=[both, both, both, ww.PerRank([3, 4], rank=1)], device=gpu)
    ((own, peers, maps, number),) = gpu.started
    assert (own, number) == (SECOND, 4)
    assert struct.unpack("<8Q2I", peers) == (FIRST, SECOND, 0, 0, 0, 0, 0, 0, 1, 2)
    assert [struct.unpack_from("<Q", maps, 128 * rank)[0] for rank in range(8)] == [FIRST, SECOND, 0, 0, 0, 0, 0, 0]
    assert struct.unpack_from("<2I", maps, 1024) == (1, 2)


def test_what_a_real_gpu_refuses(gpu: Any) -> None:
    both = [array(FIRST), array(SECOND)]
    for given, sentence in (
        (
            ww.PerRank(both),
            "launch of 'send' on a real GPU: given PerRank(2 values); expected the rank of this GPU: "
            "ww.PerRank([x0, x1], rank=0)",
        ),
        (
            ww.PerRank([np.zeros((8, 32), np.float32), array(SECOND)], rank=1),
            "launch of 'send' on a real GPU: given PerRank(2 values) with an array of the host; expected the arrays of "
            "all ranks as this GPU addresses them: buffers of PyTorch's symmetric memory",
        ),
        (
            ww.PerRank([array(FIRST), array(SECOND, ordinal=0)], rank=1),
            "launch of 'send' on cuda:1: given an array on cuda:0; expected all arrays on cuda:1; copy it there",
        ),
    ):
        with pytest.raises(ww.LaunchError) as caught:
            ww.launch(send, 1, args=[given, given, given, 0], device=gpu)
        assert str(caught.value) == sentence


def test_a_virtual_node_runs_all_ranks() -> None:
    both = ww.PerRank([np.zeros((8, 32), np.float32)] * 2, rank=0)
    with pytest.raises(ww.UsageError) as caught:
        ww.launch(send, 1, args=[both, both, both, 0], device="h200x2")
    assert str(caught.value) == (
        "launch of 'send' on the virtual h200x2: given PerRank(…, rank=0); expected PerRank(…), for this launch runs "
        "all ranks; leave rank= out"
    )


def test_a_rank_is_one_of_the_values() -> None:
    with pytest.raises(ww.UsageError) as caught:
        ww.PerRank([1, 2], rank=2)
    assert str(caught.value) == "given PerRank(…, rank=2) of 2 values; expected a rank below 2"
