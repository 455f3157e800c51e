"""Launches of attention prepared for arrays on a GPU; here the GPU only notes what it is asked, in order."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warpwright import cuda
from warpwright.kernels.attention import Problem
from warpwright.ops.attention import backward as sdpa_backward
from warpwright.ops.attention import plan as sdpa_launch
from warpwright.ops.attention import varlen as sdpa_varlen
from warpwright.ops.attention.backward import backward_job
from warpwright.ops.attention.plan import geometry, job_of
from warpwright.ops.attention.varlen import varlen_job

PROBLEM = Problem(1, 2, 2, 100, 100, 64)


@pytest.fixture
def asked(monkeypatch) -> Iterator[list[str]]:
    noted: list[str] = []

    def function(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(enter=lambda: noted.append("enter"), at=lambda *_: noted.append("launch"))

    monkeypatch.setattr(cuda, "device", lambda _: SimpleNamespace(function=function))
    monkeypatch.setattr(cuda, "MovableMap", lambda _: lambda _: noted.append("map"))
    for kept in (sdpa_launch.ready, sdpa_varlen.ready, sdpa_backward._ready):
        kept.cache_clear()
    yield noted
    for kept in (sdpa_launch.ready, sdpa_varlen.ready, sdpa_backward._ready):
        kept.cache_clear()


def test_a_context_comes_before_tensor_maps(asked) -> None:
    """A thread that has none yet, such as autograd's, is refused them by the driver."""
    layouts = (geometry(np.zeros((1, 2, 100, 64), PROBLEM.dtype)),) * 4
    job = job_of(PROBLEM, "sm_90a", 132, None, memory=False)
    at = sdpa_launch.ready(job, layouts, "cuda:0")
    at((0,) * 4, 0, 0, 0)
    assert asked == ["enter", *["map"] * 4, "launch"]
    at((0, 0, 0, 16), 0, 0, 0)
    assert asked[6:] == ["enter", "map", "launch"]  # those of other arrays lie where they lay


def test_of_packed_sequences_too(asked) -> None:
    layouts = (geometry(np.zeros((2, 100, 64), PROBLEM.dtype)),) * 4
    at = sdpa_varlen.ready(varlen_job(PROBLEM, 100, 100, 132), layouts, "cuda:0")
    at((0,) * 6, 0, 0, 0)
    assert asked == ["enter", *["map"] * 4, "launch"]
    at((0, 0, 0, 16, 0, 32), 0, 0, 0)
    assert asked[6:] == ["enter", "map", "launch"]


def test_nor_does_the_second_launch_come_first(asked) -> None:
    """Keys of 64 heads that share one are shared out, and their parts are put together by another kernel."""
    problem = Problem(1, 64, 1, 1, 4096, 64)
    layouts = [geometry(np.zeros((1, heads, rows, 64), problem.dtype)) for heads, rows in ((64, 1), (1, 4096))]
    job = job_of(problem, "sm_90a", 132, None)
    at = sdpa_launch.ready(job, (layouts[0], layouts[1], layouts[1], layouts[0]), "cuda:0")
    at((0,) * 4, 0, 0, 0)
    assert asked == ["enter", *["map"] * 3, "launch", "launch"]


def test_in_each_launch_of_the_gradients(asked) -> None:
    job = backward_job(PROBLEM)
    arrays = dict.fromkeys(("q", "k", "v", "o", "do", "dq", "dk", "dv"), np.zeros((1, 2, 100, 64), PROBLEM.dtype))
    arrays["lse"] = np.zeros((1, 2, 100), np.float32)
    arrays |= {name: np.zeros(shape, np.float32) for name, shape in job.memory.items()}
    layouts = tuple((name, geometry(array)) for name, array in arrays.items())
    sdpa_backward._ready(job, layouts, "cuda:0")((0,) * len(arrays), 0)
    assert [word for word in asked if word != "map"] == ["enter", "launch"] * 3 and asked[0] == "enter"
