"""Busy time of the TMA unit for a box: by its rows of 128 bytes, independent of the map's dimensions."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from warpwright.lang import Global, If, elect_one, f32, fence, kernel, loop, mbarrier, smem, tma, u32, warp


@kernel("sm_90a", threads=32)
def load(x: tma.Map[f32], y: Global[f32], boxes: u32, *, rank: int = 2, rows: int = 64):
    tile, full = smem.tile(f32, (rows, 32), swizzle=128), mbarrier()
    with If(elect_one()):
        full.init()
        fence.mbarrier_init()
        for _ in loop(boxes):
            full.arrive_expect_tx(tile.nbytes)
            tma.load(tile, x[(0,) * rank], full)
            full.wait(0)
            full.inval()
            full.init()
    warp.sync()


def cycles(rank: int, rows: int, boxes: int = 400) -> float:
    x = np.zeros((1,) * (rank - 2) + (64, 32), np.float32)
    found = ww.profile(load.configure(rank=rank, rows=rows), grid=1, args=[x, np.zeros(1, np.float32), boxes])
    return found.cycles / boxes


@pytest.mark.parametrize("rank", [3, 4])
def test_leading_dimensions_cost_nothing(rank) -> None:
    assert cycles(rank, 64) == pytest.approx(cycles(2, 64), rel=0.01)


def test_a_row_of_128_bytes_is_one_request() -> None:
    timing = ww.targets.timing_of("h200")
    assert cycles(2, 64) - cycles(2, 8) == pytest.approx(56 * timing.tma_row, rel=0.5)
