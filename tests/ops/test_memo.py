"""Which calls the memo returns."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from warpwright.ops.memo import VARIANTS, Memo


def shaped(*shape: int) -> Any:
    return np.zeros(shape, np.float16)


def put(memo: Memo, *arrays: Any, options: tuple[Any, ...] = ()) -> Any:
    """A call for these very arrays."""

    def call() -> None: ...

    guards = tuple(partial(lambda one, other: one is other, array) for array in arrays)
    memo.put(arrays, options, guards, call)
    return call


def test_of_calls_alike_in_shape_the_one_whose_guards_pass_is_returned() -> None:
    memo, (a, b, c), bias = Memo(), (shaped(4, 4) for _ in range(3)), shaped(4)
    calls = [put(memo, a, b), put(memo, a, c), put(memo, a, b, bias), put(memo, a, b, options=("relu",))]
    asked = [((a, b), ()), ((a, c), ()), ((a, b, bias), ()), ((a, b), ("relu",))]
    assert [memo.get(*each) for each in asked] == calls
    for arrays in ((b, c), (a, b, c), (3, []), (a, 3)):
        assert memo.get(arrays, ()) is None
    assert memo.get((a, b), ([],)) is None  # options that are not hashable


def test_the_last_few_of_one_shape_are_kept_once_each() -> None:
    memo, a, others = Memo(), shaped(4, 4), [shaped(4, 4) for _ in range(VARIANTS + 1)]
    for b in (*others, *others[-2:]):
        put(memo, a, b)
    assert len(memo) == VARIANTS
    assert [memo.get((a, b), ()) is not None for b in others] == [False] + [True] * VARIANTS
    memo.clear()
    assert len(memo) == 0
