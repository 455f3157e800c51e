"""Which calls of machine code keep the interpreter lock: workers that hand it to each other too often take twice the
time."""

from __future__ import annotations

import itertools
import os
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import out
from warpwright.vgpu.engines import box_batch, store_batch
from warpwright.vgpu.jit.runtime import BRIEF, function
from warpwright.vgpu.machine import cluster, inflight

KEEPS = 0x4  # ctypes: FUNCFLAG_PYTHONAPI, a call that keeps the lock
BODY = "mov.u32 %r10, %r2; st.global.u32 [%o], %r10; ret;"
CTAS = 128  # a call of lane code each


@pytest.mark.parametrize("name", ["run_cluster", "load_boxes"])
def test_a_brief_call_keeps_the_lock(name: str) -> None:
    assert function(name, True)._flags_ & KEEPS
    assert not function(name)._flags_ & KEEPS
    assert function("settle_cluster")._flags_ & KEEPS
    assert not function("accumulate")._flags_ & KEEPS


def kept(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> list[bool]:
    """Returns which calls of lane code keep the lock if they take these times, again and again, in one worker."""
    found: list[bool] = []
    steps = itertools.cycle(seconds)
    clock = itertools.accumulate(step for each in steps for step in (0.0, each))

    def follow(name: str, brief: bool = False) -> Any:
        if name == "run_cluster":
            found.append(brief)
        return function(name, brief)

    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(thread_time=lambda: next(clock)))
    monkeypatch.setattr(cluster, "function", follow)
    assert out(BODY, 32 * CTAS, grid=CTAS).tolist() == [*range(32)] * CTAS
    assert len(found) >= CTAS
    return found


def test_brief_turns_keep_the_lock_after_some(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kept(monkeypatch, [BRIEF / 10])
    assert not any(found[:10])
    assert all(found[40:])


def test_a_long_turn_now_and_then_does_not_change_that(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(kept(monkeypatch, [*[BRIEF / 10] * 24, 4 * BRIEF])[64:])


@pytest.mark.parametrize("seconds", [[20 * BRIEF], [*[BRIEF / 10] * 7, 20 * BRIEF]], ids=["each", "every eighth"])
def test_long_turns_release_the_lock(seconds: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(kept(monkeypatch, seconds))


@pytest.mark.parametrize(
    ("module", "routine", "level"), [(box_batch, "load_boxes", 3), (store_batch, "store_boxes", 10)]
)
def test_copies_keep_the_lock_up_to_their_limit(
    module: ModuleType, routine: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[bool] = set()

    def follow(name: str, brief: bool = False) -> Any:
        if name == routine:
            found.add(brief)
        return function(name, brief)

    monkeypatch.setattr(module, "function", follow)
    a = np.ones((256, 256), ml_dtypes.bfloat16)
    ww.matmul(a, a, level=level, device="b200")
    assert found == {True}
    found.clear()
    monkeypatch.setattr(module, "BRIEF_BYTES", 0)
    ww.matmul(a, a, level=level, device="b200")
    assert found == {False}


def test_evenly_spaced_records_are_taken_as_a_slice() -> None:
    queue, order = np.arange(8 * 16, dtype=np.uint64).reshape(8, 16), np.arange(8)
    for numbers in ([3], [0, 1, 2], [1, 3, 5, 7], [0, 1, 3]):
        which = inflight._evenly(np.array(numbers))
        assert isinstance(which, slice) == (numbers != [0, 1, 3])
        records, taken = inflight._taken(queue, order, which)
        assert taken.tolist() == numbers
        assert records.tolist() == queue[numbers].tolist()
        assert not np.shares_memory(records, queue), "the queue is used again"
