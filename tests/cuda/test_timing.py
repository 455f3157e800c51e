"""Timing of launches: in random order, from cold L2, without the first rounds; on a clock that the tests set."""

from __future__ import annotations

import contextlib
import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warpwright import cuda
from warpwright.cuda import timing
from warpwright.cuda.driver import REFUSALS
from warpwright.errors import LaunchError

OK = SimpleNamespace(value=0, name="CUDA_SUCCESS")


class Clock:
    """A fake driver whose events record ``now``, in milliseconds, and whose ``trace`` lists the calls."""

    def __init__(self) -> None:
        self.now, self.trace, self.events, self.allocated = 0.0, [], 0, 0

    def cuEventCreate(self, flags: int) -> tuple[Any, Any]:
        self.events += 1
        return OK, SimpleNamespace(at=0.0)

    def cuEventRecord(self, event: Any, stream: int) -> tuple[Any]:
        event.at = self.now
        return (OK,)

    def cuEventElapsedTime(self, start: Any, end: Any) -> tuple[Any, float]:
        return OK, end.at - start.at

    def cuEventDestroy(self, event: Any) -> None:
        self.events -= 1

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, int]:
        self.allocated += 1
        return OK, 4096

    def cuMemFree(self, pointer: int) -> None:
        self.allocated -= 1

    def cuMemsetD8Async(self, pointer: int, value: int, count: int, stream: int) -> tuple[Any]:
        self.now += 1000
        self.trace.append("cold")
        return (OK,)

    def cuStreamSynchronize(self, stream: int) -> tuple[Any]:
        return (OK,)

    @contextlib.contextmanager
    def clock_samples(self, device: Any, shape: tuple[int, int], stream: int) -> Any:
        """Stands for `clock.clock_samples`: 1000 MHz after the first call, 1001 after the next, and so on."""
        found = np.full(shape, np.nan)

        def sample(*index: int) -> None:
            found[index] = 1000.0 + np.isfinite(found).sum()

        yield sample, lambda: found

    def run(self, name: str, *milliseconds: float) -> Any:
        """Returns a call that takes the next of ``milliseconds``, and then always the last."""
        left = list(milliseconds)

        def start() -> None:
            self.trace.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "require", lambda: made)
    monkeypatch.setattr(timing, "clock_samples", made.clock_samples)
    return made


def test_medians_of_calls_that_take_turns(clock: Clock) -> None:
    runs = {"a": clock.run("a", 900, 900, 900, 5, 1, 2), "b": clock.run("b", 3)}
    assert cuda.medians(runs, rounds=3) == {"a": 0.002, "b": 0.003}
    assert clock.trace[::2] == ["cold"] * 12
    turns = [set(clock.trace[i : i + 4]) for i in range(0, 24, 4)]
    assert turns == [{"cold", "a", "b"}] * 6
    assert clock.trace[1::2] != ["a", "b"] * 6
    assert (clock.events, clock.allocated) == (0, 0)


def test_quartiles_of_calls_that_take_turns(clock: Clock) -> None:
    runs = {"a": clock.run("a", 900, 900, 900, 5, 1, 3, 9, 7), "b": clock.run("b", 3)}
    found = cuda.times(runs, device=None, rounds=5)
    order = [name for name in clock.trace if name != "cold"]
    after = {name: [1000.0 + i for i, other in enumerate(order) if other == name][3:] for name in runs}
    assert found == {
        "a": cuda.Times(0.005, 0.003, 0.007, statistics.median(after["a"])),
        "b": cuda.Times(0.003, 0.003, 0.003, statistics.median(after["b"])),
    }


def test_a_single_round_has_one_time(clock: Clock) -> None:
    found = cuda.times({"a": clock.run("a", 2)}, device=None, rounds=1)
    assert found == {"a": cuda.Times(0.002, 0.002, 0.002, 1003.0)}


def test_times_of_one_call_from_warm_l2(clock: Clock) -> None:
    assert cuda.measure(clock.run("a", 50, 4, 6), rounds=2, warmup=1, cold=False) == [0.004, 0.006]
    assert clock.trace == ["a"] * 3


def test_sustained_is_back_to_back_after_as_long_a_warm_up(clock: Clock) -> None:
    assert cuda.sustained_seconds(clock.run("a", *[9] * 5, 2), seconds=0.05, estimate=0.01) == 0.002
    assert clock.trace == ["a"] * 10


def test_memory_is_given_back_when_a_launch_is_refused(clock: Clock) -> None:
    def refused() -> None:
        raise LaunchError(REFUSALS[0])

    with pytest.raises(LaunchError):
        cuda.medians({"a": refused})
    assert clock.allocated == 0
