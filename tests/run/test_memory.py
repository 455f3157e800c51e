"""What a launch allocates is free when the launch is over, without the garbage collector: no reference cycle has it."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.races import deadlock_kernels, kernels
from warpwright.errors import DeviceError, UsageError
from warpwright.vgpu.checks.memory.accesses import Accesses, Shadow
from warpwright.vgpu.checks.watcher import Watcher
from warpwright.vgpu.machine.cluster import Cluster
from warpwright.vgpu.machine.events import EventLog
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.machine.memory import GlobalMemory
from warpwright.vgpu.timing.capture import Capture
from warpwright.vgpu.timing.engine import Replay
from warpwright.vgpu.timing.state import Run

LARGE = Accesses, Capture, Cluster, GlobalMemory, Launch, Replay, Run, Shadow, Watcher


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def launch(kernel: Any, grid: int, *args: Any, **how: Any) -> None:
    with suppress(DeviceError, UsageError):
        ww.launch(kernel, grid, args=args, device="h200", **how)


def check(kernel: Any, grid: int, *args: Any, **how: Any) -> None:
    assert ww.check(kernel, grid, args=args, device="h200", **how).kind


def profile(kernel: Any, grid: int, *args: Any, **how: Any) -> None:
    assert ww.profile(kernel, grid, args=args, device="h200", **how).time_us


def words() -> list[Any]:
    return [np.zeros(64, np.uint32)]


def boxes() -> list[Any]:
    return [np.zeros((32, 32), np.float32)]


def matrices() -> list[Any]:
    return [np.ones((64, 64), ml_dtypes.bfloat16) for _ in "ab"]


def rows() -> list[Any]:
    return [np.ones((1, 1, 64, 64), ml_dtypes.bfloat16) for _ in "qkv"]


def run_out_of_jumps(x: Any) -> None:
    check(deadlock_kernels.publish_polls, 1, x, off=["race", "grid-race"], limit=20_000)


RIGHT, WRONG = kernels.store_box.configure(right=True), kernels.neighbours
CASES: dict[str, tuple[Callable[[], Sequence[Any]], Callable[..., Any]]] = {
    "launch": (words, lambda x: launch(WRONG, 4, x)),
    "launch at host addresses": (words, lambda x: launch(WRONG, 4, x, memory=[x])),
    "observers": (words, lambda x: launch(WRONG, 4, x, observers=[EventLog()])),
    "tensor map": (boxes, lambda x: launch(RIGHT, 1, x)),
    "fault": (words, lambda x: launch(kernels.fault_in_first_cta, 4, x)),
    "refusal": (words, lambda x: launch(WRONG, 4, x, smem=1 << 30)),
    "check": (words, lambda x: check(WRONG, 4, x)),
    "check of a tensor map": (boxes, lambda x: check(RIGHT, 1, x)),
    "check of schedules": (words, lambda x: check(WRONG, 2, x, explore=2)),
    "check of a fault": (words, lambda x: check(kernels.fault_in_first_cta, 4, x)),
    "check of a deadlock": (boxes, lambda x: check(kernels.wait_before_init, 1, x)),
    "check up to a limit": (words, run_out_of_jumps),
    "profile": (words, lambda x: profile(WRONG, 4, x)),
    "profile of all": (boxes, lambda x: profile(RIGHT, 1, x, fast=False)),
    "matmul": (matrices, lambda a, b: ww.matmul(a, b, device="h200")),
    "attention": (rows, lambda q, k, v: ww.attention(q, k, v, device="h200")),
}


def alive() -> Counter[str]:
    """Counts large objects by type; ``isinstance`` would ask an object for ``__class__``, which torch's may refuse."""
    return Counter(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), LARGE))


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_a_launch_stays(name: str) -> None:
    arrays, run = CASES[name]
    args, before = arrays(), alive()
    known = [weakref.ref(array) for array in args]
    run(*args)
    del args
    assert all(each() is None for each in known)
    assert alive() == before


def test_the_errors_of_several_clusters_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict has the error of the first cluster only, here the last that stops."""
    first, end = threading.Event(), Watcher.end

    def wait(watcher: Watcher, cluster: Cluster, *error: Any) -> None:
        assert cluster.number or first.wait(20)
        end(watcher, cluster, *error)
        first.set()

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(Watcher, "end", wait)
    before = alive()
    (reason,) = ww.check(WRONG, 2, args=words(), device="h200", limit=1).reasons
    assert "limit" in reason
    assert alive() == before


def test_the_error_of_a_launch_has_no_cycle() -> None:
    """Its frames have the launch until the caller drops the error."""
    with pytest.raises(DeviceError) as caught:
        ww.launch(kernels.fault_in_first_cta, 4, args=words(), device="h200")
    error = weakref.ref(caught.value)
    del caught
    assert error() is None
