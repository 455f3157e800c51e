"""Gradients on a GPU that are computed again; here the GPU is memory of the host, and its kernels are NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.backward_helpers import random, verify
from tests.ops.attention.test_bound_call import OnGpu, aligned, alike, memory, on_gpu, viewed
from warpwright import targets
from warpwright.arrays import libraries
from warpwright.arrays.libraries import LIBRARIES
from warpwright.kernels.attention import Problem, reference
from warpwright.ops.attention import arrays as sdpa_arrays
from warpwright.ops.attention import backward as sdpa_backward
from warpwright.ops.attention import bound_backward as sdpa_backward_repeats
from warpwright.ops.attention.backward import gradients

PROBLEM = Problem(2, 4, 2, 20, 70, 64, causal=True)


@pytest.fixture
def launches(monkeypatch) -> Iterator[list[Any]]:
    """The launches that were started: the stream of each, and how many blocks of memory were lent for it."""
    started, lent = list[Any](), dict[int, Any]()

    def ready(job: Any, layouts: Any, gpu: str) -> Any:
        known = dict(layouts)

        def at(places: tuple[int, ...], stream: int) -> tuple[Any, ...]:
            def launch() -> None:
                started.append((stream, len(lent)))
                array = {name: memory(place, known[name]) for name, place in zip(known, places, strict=True)}
                found = reference.gradients(PROBLEM, *(array[name] for name in ("q", "k", "v", "do")))
                for name, each in zip(("dq", "dk", "dv"), found, strict=True):
                    array[name][...] = each
                for block in lent.values():
                    assert all(spans(block, array[name]) for name in job.memory)
                for number, name in enumerate(job.memory):
                    array[name][...] = number
                assert [(array[name] == number).all() for number, name in enumerate(job.memory)] == [True] * 3

            return (launch,)

        return at

    def lender(nbytes: int, _: Any) -> Any:
        def lend(stream: int) -> int:
            block = aligned((nbytes,), np.uint8)
            return lent.setdefault(block.ctypes.data, block).ctypes.data

        return lend, lent.pop

    library = replace(
        LIBRARIES["numpy"],
        view=viewed,
        alike=alike,
        stream=lambda _: lambda: 5,
        maker=lambda shape, dtype, _: lambda: aligned(shape, dtype),
        lender=lender,
    )
    target = SimpleNamespace(name="cuda:0", spec=targets.device("h200"))
    monkeypatch.setattr(libraries, "library_of", lambda _: library)
    monkeypatch.setattr(sdpa_arrays, "resolve", lambda *_: target)
    monkeypatch.setattr(sdpa_backward, "_ready", ready)
    sdpa_backward_repeats.CALLS.clear()
    yield started
    assert not lent
    sdpa_backward_repeats.CALLS.clear()


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
        monkeypatch.setattr(sdpa_backward, "common_library", None)  # from now on only calls that were made before
    assert launches == [(5, 0), (5, 1), (5, 1)]


def test_other_calls_go_the_long_way(launches, monkeypatch) -> None:
    arrays = given()
    gradients(*arrays, causal=True)
    long_way: list[Any] = []
    library = sdpa_backward.common_library
    monkeypatch.setattr(sdpa_backward, "common_library", lambda *given: long_way.append(1) or library(*given))
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
