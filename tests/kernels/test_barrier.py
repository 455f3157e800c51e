"""The barrier of all ranks on virtual nodes: it orders, counts, sets flags back, and stops ranks that disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.sm90.node_helpers import without_rank
from warpwright.kernels.barrier import DISAGREED, THREADS, barrier, stop
from warpwright.kernels.node import Lack, lack_of, report_of
from warpwright.layout.peers import RANKS

FLAGS = THREADS + 3


def _arguments(ranks: int, digests: list[int], limit_ns: int = 10**9) -> list[Any]:
    marks = [np.zeros(RANKS, np.uint64) for _ in range(ranks)]
    epochs = [np.zeros(1, np.uint32) for _ in range(ranks)]
    counters = [np.full(FLAGS + 1, 7, np.uint32) for _ in range(ranks)]
    running, reports = ([np.zeros(1, dtype) for _ in range(ranks)] for dtype in (np.uint64, np.uint32))
    words = map(ww.PerRank, (running, reports))
    return [*map(ww.PerRank, (marks, epochs, counters)), FLAGS, ww.PerRank(digests), *words, limit_ns]


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_barrier_counts_and_sets_the_flags_back(ranks: int) -> None:
    args = _arguments(ranks, [5] * ranks)
    for number in (1, 2):
        ww.launch(barrier, 1, args=args, device=f"h200x{ranks}")
        for rank in range(ranks):
            marks, epoch, counters = (each.values[rank] for each in args[:3])
            assert epoch[0] == number
            assert [int(mark) for mark in marks[:ranks]] == [(5 << 32 | number) * (r != rank) for r in range(ranks)]
            assert args[5].values[rank][0] == 5 << 32 | number
            assert not counters[:FLAGS].any()
            assert counters[FLAGS] == 7
            counters[:] = 7


def test_the_checks_find_nothing() -> None:
    verdict = ww.check(barrier, 1, args=_arguments(2, [5, 5]), device="h200x2")
    assert verdict.kind == "clean", str(verdict)


def test_a_rank_of_another_call_is_told() -> None:
    with pytest.raises(ww.DeviceError) as caught:
        ww.launch(barrier, 1, args=_arguments(2, [5, 6]), device="h200x2")
    assert DISAGREED in str(caught.value)


@pytest.mark.usefixtures("one_worker")
def test_a_rank_that_does_not_come_is_told() -> None:
    """Rank 1 exits at once. The limit is in the time of the virtual GPU, which advances when a thread reads it."""
    args = _arguments(3, [5, 5, 5], limit_ns=2_000_000)
    with pytest.raises(ww.DeviceError, match="trap"):
        ww.launch(without_rank(barrier.trace(), 1), 1, args=args, device="h200x3")
    reports = [int(report[0]) for report in args[6].values]
    assert {lack_of(report) for report in reports if report} == {(Lack.BEGIN, 1)}


def test_without_a_limit_a_rank_that_does_not_come_is_a_deadlock() -> None:
    verdict = ww.check(without_rank(barrier.trace(), 1), 1, args=_arguments(2, [5, 5], 0), device="h200x2")
    (finding,) = (each for each in verdict.findings if each.rule.id == "deadlock")
    assert "rank 0, cluster 0, waits at barrier.py:" in str(finding)


def test_a_host_stops_its_gpu_and_finds_the_report() -> None:
    request, report = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    assert ww.check(stop, 1, args=[request, report], device="h200").kind == "clean"
    ww.launch(stop, 1, args=[request, report], device="h200")
    assert report[0] == 0
    request[0] = report_of(Lack.SEND, 3)
    with pytest.raises(ww.DeviceError, match="trap"):
        ww.launch(stop, 1, args=[request, report], device="h200")
    assert lack_of(int(report[0])) == (Lack.SEND, 3)
