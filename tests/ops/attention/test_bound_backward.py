"""Repeated calls of gradients on a GPU; the GPU is host memory, and its kernels are NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.backward_helpers import random, verify
from tests.ops.attention.test_bound_call import OnGpu, aligned, guard, on_gpu, viewed
from tests.ops.host_kernels import bind_host, memory
from warpwright import targets
from warpwright.arrays import libraries
from warpwright.arrays.device import dense_strides
from warpwright.arrays.libraries import LIBRARIES
from warpwright.kernels.attention import Problem, reference
from warpwright.ops import binding
from warpwright.ops.attention import arrays as attention_arrays
from warpwright.ops.attention import backward
from warpwright.ops.attention.backward import begin_gradients, gradients
from warpwright.ops.memo import MEMO

PROBLEM = Problem(2, 4, 2, 20, 70, 64, causal=True)


@pytest.fixture
def launches(monkeypatch) -> Iterator[list[Any]]:
    """The started launches: the stream of each, and the number of memory blocks allocated for it."""
    started, lent = list[Any](), dict[int, Any]()

    def note(plan: Any, at: dict[str, Any], stream: int) -> None:
        started.append((stream, len(lent)))
        array = {name: memory(at[name], dense(shape)) for name, shape in plan.scratch.items()}
        for block in lent.values():
            assert all(spans(block, each) for each in array.values())
        for number, each in enumerate(array.values()):
            each[...] = number
        assert [(each == number).all() for number, each in enumerate(array.values())] == [True] * 4

    def allocator(nbytes: int, _: Any) -> Any:
        def allocate(stream: int) -> int:
            block = aligned((nbytes,), np.uint8)
            return lent.setdefault(block.ctypes.data, block).ctypes.data

        return allocate, lent.pop

    library = replace(
        LIBRARIES["numpy"],
        view=viewed,
        guard=guard,
        stream=lambda _: lambda: 5,
        maker=lambda shape, dtype, _: lambda: aligned(shape, dtype),
        allocator=allocator,
    )
    target = SimpleNamespace(name="cuda:0", spec=targets.device("h200"))
    monkeypatch.setattr(libraries, "library_of", lambda _: library)
    monkeypatch.setattr(attention_arrays, "resolve", lambda *_: target)
    monkeypatch.setattr(binding, "bind", bind_host(lambda *_: PROBLEM, note))
    MEMO.clear()
    yield started
    assert not lent
    MEMO.clear()


def dense(shape: Any) -> Any:
    return shape, dense_strides(shape, 4), np.dtype(np.float32)


def spans(block: Any, array: Any) -> bool:
    """Whether an array lies in a block of memory."""
    low, high = np.lib.array_utils.byte_bounds(block)
    first, end = np.lib.array_utils.byte_bounds(array)
    return bool(low <= first and end <= high)


def given(seed: int = 0, turned: bool = False) -> tuple[Any, Any, Any, Any, Any, Any]:
    """q, k, v, o, lse and do."""
    q, k, v, do = random(PROBLEM, seed)
    o, lse = reference.attention(PROBLEM, q, k, v)
    halves = [
        on_gpu(x.swapaxes(1, 2)).swapaxes(1, 2) if turned else on_gpu(x) for x in (q, k, v, o.astype(q.dtype), do)
    ]
    return (*halves[:4], on_gpu(lse.astype(np.float32)), halves[4])


@pytest.mark.parametrize("turned", [False, True])
def test_a_call_is_made_again_with_other_arrays(launches, monkeypatch, turned) -> None:
    for seed in range(3):
        arrays = given(seed, turned)
        found = gradients(*arrays, causal=True)
        verify(PROBLEM, random(PROBLEM, seed), found)
        assert [x.strides for x in found] == [x.strides for x in arrays[:3]]
        monkeypatch.setattr(backward, "views_of", None)  # from now on only calls that were made before
    assert launches == [(5, 0), (5, 1), (5, 1)]


def test_other_calls_go_the_long_way(launches, monkeypatch) -> None:
    arrays = given()
    gradients(*arrays, causal=True)
    long_way: list[Any] = []
    library = backward.views_of
    monkeypatch.setattr(backward, "views_of", lambda *given: long_way.append(1) or library(*given))
    gradients(*arrays, causal=True)
    assert not long_way
    raw = np.zeros(arrays[0].size + 8, arrays[0].dtype).view(OnGpu)
    shifted = raw[1 : 1 + arrays[0].size].reshape(arrays[0].shape)
    shifted = shifted if shifted.ctypes.data % 16 else raw[2 : 2 + arrays[0].size].reshape(arrays[0].shape)
    shifted[...] = arrays[0]
    for others, options in (
        (arrays, {"scale": 0.5}),
        (arrays, {"window": [30, None]}),
        (arrays, {"dlse": on_gpu(np.zeros((2, 4, 20), np.float32))}),
        ((shifted, *arrays[1:]), {}),
    ):
        gradients(*others, causal=True, **options)
    assert len(long_way) == 4


@pytest.mark.parametrize("turned", [False, True])
def test_a_call_in_two_parts(launches, monkeypatch, turned) -> None:
    """The gradient by q is in the array given, rows of other heads beside it; repeated calls skip the long way."""
    for seed in range(3):
        q, k, v, o, lse, do = given(seed, turned)
        batch, heads, rows, columns = q.shape
        whole = on_gpu(np.full((batch, 2 * heads, rows, columns), np.nan, q.dtype))
        dq = whole[:, heads:]
        found = begin_gradients(q, k, v, o, lse, do, dq=dq, causal=True, scale=None, deterministic=False)()
        assert found[0] is dq and np.isnan(whole[:, :heads].astype(np.float32)).all()
        verify(PROBLEM, random(PROBLEM, seed), found)
        monkeypatch.setattr(backward, "views_of", None)
    assert launches == [(5, 0), (5, 1), (5, 1)]


def test_a_gradient_that_no_tensor_map_covers_is_copied(launches) -> None:
    arrays = given()
    dq = on_gpu(np.full((*arrays[0].shape[:3], 2 * 64), np.nan, arrays[0].dtype))[..., ::2]
    for _ in range(2):
        found = begin_gradients(*arrays, dq=dq, causal=True, scale=None, deterministic=False)()
        assert found[0] is dq
        verify(PROBLEM, random(PROBLEM, 0), found)
        dq[...] = np.nan
    assert launches == [(5, 0), (5, 0)]
