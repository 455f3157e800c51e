"""Calls that are made again: which ones, and what they start."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from warpwright.ops.matmul import bound_call as repeats
from warpwright.ops.matmul.bound_call import Repeat, again, keep


class Run:
    """Notes what it starts."""

    def __init__(self) -> None:
        self.started: list[Any] = []

    def launches(self, *places: Any) -> list[Any]:
        return [partial(self.started.append, places)]


class Refusing(Run):
    """The driver refuses what it starts."""

    def launches(self, *places: Any) -> list[Any]:
        return [lambda: 1 // 0]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    repeats.REPEATS.clear()
    yield
    repeats.REPEATS.clear()


def repeat_of(run: Run, d: Any = 65536, alike: Any = (None,) * 6, offsets: Any = ((0, 0, 0),), **more: Any) -> Repeat:
    """A D of 512 bytes from operands of 512 bytes; an address stands for an array."""
    return Repeat(alike, run, int, lambda: 5, lambda: d, more.get("lender"), (512, 512, 512, 64), offsets)


NOTHING = (5, 0, 0, 0, 1.0, 0)


@pytest.mark.parametrize(
    ("a", "d", "starts"),
    [(4096, 8192, True), (4098, 8192, False), (4096, 8200, False), (4096, 4096 + 512, True), (4096, 4096 + 496, False)],
)
def test_a_prepared_launch_is_used_where_addresses_allow(a: int, d: int, starts: bool) -> None:
    """Multiples of 16 bytes, and a result that shares no byte with an operand."""
    run = Run()
    assert repeat_of(run, offsets=((0, 0, 0), (256, 0, 128)))(a, 65536, d) == (d if starts else None)
    assert run.started == ([(a, 65536, d, *NOTHING), (a + 256, 65536, d + 128, *NOTHING)] if starts else [])


def test_a_result_and_scratch_memory_are_new_at_each_call() -> None:
    run, results, given_back = Run(), iter([1024, 2048]), []
    lender = (lambda stream: 256 * stream + 256 * len(given_back), given_back.append)
    repeat = Repeat((None,) * 6, run, int, lambda: 5, lambda: next(results), lender, (16,) * 4, ((0, 0, 0),))
    assert [repeat(4096, 8192), repeat(4096, 8192)] == [1024, 2048]
    assert run.started == [(4096, 8192, 1024, *NOTHING[:-1], 1280), (4096, 8192, 2048, *NOTHING[:-1], 1536)]
    assert given_back == [1280, 1536]


def test_memory_is_given_back_when_a_launch_is_refused() -> None:
    given_back: list[int] = []
    repeat = repeat_of(Refusing(), lender=(lambda stream: 256, given_back.append))
    with pytest.raises(ZeroDivisionError):
        repeat(4096, 8192)
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
    """Numbers are known at the call; what is on the GPU is an address. Here np.int64 stands for such an array."""
    run = Run()
    assert repeat_of(run)(4096, 8192, 65536, *given) == (None if more is None else 65536)
    assert run.started == ([] if more is None else [(4096, 8192, 65536, 5, *more, 0)])


def shaped(*shape: int) -> Any:
    return np.zeros(shape, np.float16)


def kept(a: Any, b: Any, *more: Any, options: tuple[Any, ...] = ()) -> Run:
    """What a call with these arrays starts when it is made again: only with the same objects."""
    run = Run()
    given = (a, b, *more, *(None,) * (4 - len(more)))
    alike = tuple(None if value is None else partial(lambda one, other: one is other, value) for value in given)
    made = Repeat(alike, run, lambda x: 16 * (1 + id(x) % 9), lambda: 0, lambda: a, None, (0,) * 4, ((0, 0, 0),))
    keep(given, options, made)
    return run


def test_of_calls_alike_in_shape_the_one_that_fits_is_made_again() -> None:
    (a, b, c), bias = (shaped(4, 4) for _ in range(3)), shaped(4)
    runs = [kept(a, b), kept(a, c), kept(a, b, None, bias), kept(a, b, options=("relu",))]
    calls = [(a, b, None, None), (a, c, None, None), (a, b, None, bias), (a, b, None, None)]
    for number, (run, call) in enumerate(zip(runs, calls, strict=True)):
        options = ("relu",) if number == 3 else ()
        assert again(*call, None, None, *options) is a
        assert [len(each.started) for each in runs] == [int(before <= number) for before in range(4)]
        assert run.started
    assert again(b, c, None, None, None, None) is None
    assert again(a, b, None, c, None, None) is None
    assert again(3, [], None, None, None, None) is None


def test_the_last_few_of_one_shape_are_kept_once_each() -> None:
    a, others = shaped(4, 4), [shaped(4, 4) for _ in range(repeats.VARIANTS + 1)]
    for b in (*others, *others[-2:]):
        kept(a, b)
    (found,) = repeats.REPEATS.values()
    assert len(found) == repeats.VARIANTS
    assert [again(a, b, None, None, None, None) is a for b in others] == [False] + [True] * repeats.VARIANTS
