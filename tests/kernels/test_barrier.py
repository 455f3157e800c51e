"""The barrier of all ranks on virtual nodes: it orders, counts, sets flags back, and stops ranks that disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.kernels.barrier import DISAGREED, MISSING, THREADS, barrier
from warpwright.layout.peers import RANKS

FLAGS = THREADS + 3


def _arguments(ranks: int, digests: list[int], limit_ns: int = 10**9) -> list[Any]:
    marks = [np.zeros(RANKS, np.uint64) for _ in range(ranks)]
    epochs = [np.zeros(1, np.uint32) for _ in range(ranks)]
    counters = [np.full(FLAGS + 1, 7, np.uint32) for _ in range(ranks)]
    return [*map(ww.PerRank, (marks, epochs, counters)), FLAGS, ww.PerRank(digests), limit_ns]


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_barrier_counts_and_sets_the_flags_back(ranks: int) -> None:
    args = _arguments(ranks, [5] * ranks)
    for number in (1, 2):
        ww.launch(barrier, 1, args=args, device=f"h200x{ranks}")
        for rank in range(ranks):
            marks, epoch, counters = (each.values[rank] for each in args[:3])
            assert epoch[0] == number
            assert [int(mark) for mark in marks[:ranks]] == [(5 << 32 | number) * (r != rank) for r in range(ranks)]
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


def test_a_rank_that_does_not_come_is_told() -> None:
    """No rank stores its mark."""
    text = barrier.trace().ptx
    lines = [line for line in text.splitlines() if "st.release.sys" not in line]
    assert len(lines) == len(text.splitlines()) - 1
    kernel = ww.load_ptx("\n".join(lines) + "\n")["barrier"]
    with pytest.raises(ww.DeviceError) as caught:
        ww.launch(kernel, 1, args=_arguments(2, [5, 5], limit_ns=1000), device="h200x2")
    assert MISSING in str(caught.value)
