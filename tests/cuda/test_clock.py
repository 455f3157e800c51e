"""Samples of the clock of the SMs, on a fake GPU whose memory is host memory, and the sampler on a virtual GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.cuda.host_gpu import Driver
from warpwright.cuda import memory
from warpwright.cuda.clock import SAMPLER, clock_samples
from warpwright.ptx.ptxas import assemble


def test_each_sample_goes_to_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, asked = Driver(), []
    monkeypatch.setattr(memory, "driver", lambda: driver)

    def start(grid: Any, values: list[int], stream: int) -> None:
        asked.append((grid, stream))
        ctypes.memmove(values[0], np.array([85_000 + len(asked), 50_000], np.uint64).ctypes.data, 16)

    gpu: Any = SimpleNamespace(function=lambda module, entry, block: start)
    with clock_samples(gpu, (2, 3), 7) as (sample, megahertz):
        for index in ((1, 2), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
            sample(*index)
        assert np.allclose(megahertz(), [[1700.04, 1700.06, 1700.08], [1700.1, 1700.12, 1700.02]])
    assert asked == [((1, 1, 1), 7)] * 6 and not driver.held


def test_the_sampler_takes_50_microseconds_from_tick_to_tick() -> None:
    """On a virtual GPU, whose clock and timer advance together."""
    ticks = np.zeros(2, np.uint64)
    ww.launch(ww.load_ptx(SAMPLER)["sample_clock"], grid=1, block=1, args=[ticks], device="h200")
    assert ticks[0] == ticks[1] and 50_000 <= ticks[1] < 51_000


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_ptxas_accepts_the_sampler(arch: str) -> None:
    assert not assemble(SAMPLER, arch).errors
