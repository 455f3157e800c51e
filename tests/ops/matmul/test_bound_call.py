"""The launches that a call of the memo starts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from warpwright.ops.matmul.bound_call import BoundCall


class Run:
    """Stands for a bound plan; records its launches."""

    def __init__(self) -> None:
        self.started: list[Any] = []

    def __call__(self, values: tuple[Any, ...], stream: int) -> list[Any]:
        return [partial(self.started.append, (*values, stream))]


class Refusing(Run):
    """A bound plan whose launches the driver refuses."""

    def __call__(self, values: tuple[Any, ...], stream: int) -> list[Any]:
        return [lambda: 1 // 0]


def call_of(run: Run, d: Any = 65536, offsets: Any = ((0, 0, 0),), allocator: Any = None) -> BoundCall:
    """Returns a call for operands and D of 512 bytes; an address stands for an array."""
    return BoundCall(run, int, lambda: 5, lambda: d, allocator, (512, 512, 512, 64), offsets)


NOTHING = (0, 0, 0, 1.0, 0, 5)


@pytest.mark.parametrize(
    ("a", "d", "starts"),
    [(4096, 8192, True), (4098, 8192, False), (4096, 8200, False), (4096, 4096 + 512, True), (4096, 4096 + 496, False)],
)
def test_a_bound_call_runs_where_addresses_allow(a: int, d: int, starts: bool) -> None:
    """Multiples of 16 bytes, and a result that shares no byte with an operand."""
    run = Run()
    assert call_of(run, offsets=((0, 0, 0), (256, 0, 128)))(a, 65536, d) == (d if starts else None)
    assert run.started == ([(a, 65536, d, *NOTHING), (a + 256, 65536, d + 128, *NOTHING)] if starts else [])


def test_a_result_and_scratch_memory_are_new_at_each_call() -> None:
    run, results, given_back = Run(), iter([1024, 2048]), []
    allocator = (lambda stream: 256 * stream + 256 * len(given_back), given_back.append)
    call = BoundCall(run, int, lambda: 5, lambda: next(results), allocator, (16,) * 4, ((0, 0, 0),))
    assert [call(4096, 8192), call(4096, 8192)] == [1024, 2048]
    assert run.started == [(4096, 8192, 1024, *NOTHING[:4], 1280, 5), (4096, 8192, 2048, *NOTHING[:4], 1536, 5)]
    assert given_back == [1280, 1536]


def test_memory_is_given_back_when_a_launch_is_refused() -> None:
    given_back: list[int] = []
    call = call_of(Refusing(), allocator=(lambda stream: 256, given_back.append))
    with pytest.raises(ZeroDivisionError):
        call(4096, 8192)
    assert given_back == [256]


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ((None, 0.5, 2), (0, 0, 0, 1.0)),
        ((1 << 20, None, None), (1 << 20, 0, 0, 1.0)),
        ((1 << 20, 0.5, np.int64(4096)), (1 << 20, 0, 4096, 0.5)),
        ((np.int64(4100), None, None), None),
        ((65536 + 504, None, None), None),
        ((65536 - 64, None, None), (65536 - 64, 0, 0, 1.0)),
        ((None, 1e30, 1e30), None),
        ((None, float("nan"), None), None),
        ((None, -0.0, None), None),
    ],
)
def test_what_follows_the_sums(given: tuple[Any, Any, Any], more: Any) -> None:
    """Scales on the host are numbers, scales on the GPU addresses; np.int64 stands for an array on the GPU."""
    run = Run()
    assert call_of(run)(4096, 8192, 65536, *given) == (None if more is None else 65536)
    assert run.started == ([] if more is None else [(4096, 8192, 65536, *more, 0, 5)])
