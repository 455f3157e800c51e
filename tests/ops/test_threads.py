"""Operators called by several threads at once."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warpwright.arrays import libraries
from warpwright.ops import binding
from warpwright.ops.attention import arrays
from warpwright.ops.attention.bound_call import BoundCall

Launches = Sequence[Callable[[], None]]


def call_attention(launches: Launches) -> None:
    """Call attention from the memo, which starts the launches."""
    BoundCall(
        pointer=lambda _: 0,
        stream=lambda: 0,
        new_result=lambda: np.zeros(1),
        swap=None,
        nbytes=(),
        new_lse=None,
        workspace=lambda _: 0,
        bound=lambda values, stream: launches,
    )("qkv")


@pytest.mark.parametrize("start", [binding.start, call_attention])
def test_the_launches_of_a_call_follow_each_other(start: Callable[[Launches], None]) -> None:
    """The second launch of a call reads what the first left in the workspace of the stream."""
    order, begun = list[str](), threading.Event()

    def first() -> None:
        order.append("first")
        begun.set()
        time.sleep(0.05)

    def other() -> None:
        begun.wait()
        start([lambda: order.append("other")] * 2)

    thread = threading.Thread(target=other)
    thread.start()
    start([first, lambda: order.append("second")])
    thread.join()
    assert order == ["first", "second", "other", "other"]


class Words(np.ndarray):
    """An array that a weak reference can follow."""


def slow_zeros(shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    time.sleep(0.02)
    return np.zeros(shape, dtype).view(Words)


def never(stream: int) -> bool:
    """No graph captures a stream."""
    return False


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(arrays, "_WORKSPACES", {})
    return SimpleNamespace(name="own", zeros=slow_zeros, pointer=lambda array: array.ctypes.data)


def test_threads_share_the_workspace_of_a_stream(library: Any) -> None:
    found: list[int] = []

    def get() -> None:
        found.append(arrays._workspace(library, None, "cuda:0", 5, 100, never)[1])

    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1


def test_a_workspace_that_is_replaced_stays(library: Any) -> None:
    """A thread may have its address, and not have started its launch."""
    small = weakref.ref(arrays._workspace(library, None, "cuda:0", 5, 100, never)[2][0])
    words, _, kept = arrays._workspace(library, None, "cuda:0", 5, 200, never)
    assert small() is kept[0] and words == len(kept[1]) == 256


def test_an_array_while_another_thread_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        """A type that no call has seen."""

    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # without Tensor so far
    assert libraries.library_of(Own()) is None
