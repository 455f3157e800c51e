"""The clock of a launch: highest without MMAs, down with the power between the first MMA and the last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.lang.ops import scaled_gemm
from tests.run.test_profile import hopper
from warpwright import targets
from warpwright.lang import Global, f32, kernel, tid
from warpwright.vgpu.timing import device
from warpwright.vgpu.timing.flops import energy_of, flops_of
from warpwright.vgpu.timing.steps import Mma, Program, Step

H200, TIMING = targets.device("h200"), targets.timing_of("h200")


@kernel("sm_90a", threads=128)
def double(x: Global[f32]):
    x[tid.x] = x[tid.x] * 2.0


def clocks(monkeypatch: pytest.MonkeyPatch, joules: float, cycles: float, mma_cycles: float, sustained: bool) -> Any:
    grid = SimpleNamespace(timing=TIMING, launch=SimpleNamespace(spec=H200))
    monkeypatch.setattr(device, "_joules", lambda grid: joules)
    monkeypatch.setattr(device, "_flops", lambda grid: 1.0 if mma_cycles else 0.0)
    return device._clocks(grid, cycles, mma_cycles, sustained)


def test_the_clock_falls_linearly_with_the_power_of_the_mmas(monkeypatch: pytest.MonkeyPatch) -> None:
    found = clocks(monkeypatch, 0.02, 50_000.0, 40_000.0, sustained=False)
    watts = 0.02 / (40_000.0 / (found.loaded * 1e6))
    assert found.loaded == pytest.approx(TIMING.droop_top - TIMING.droop * watts)
    assert (found.free, found.cycles) == (1980.0, 40_000.0)
    assert found.microseconds(50_000.0) == pytest.approx(10_000.0 / 1980.0 + 40_000.0 / found.loaded)


def test_mmas_of_little_power_run_at_ten_elevenths(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clocks(monkeypatch, 0.001, 50_000.0, 40_000.0, sustained=False).loaded == TIMING.tensor_mhz == 1800.0


def test_power_without_mmas_lowers_the_clock_only_at_the_power_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    burst, long = (clocks(monkeypatch, 0.03, 50_000.0, 0.0, sustained=word) for word in (False, True))
    assert (burst.free, burst.loaded, burst.cycles) == (1980.0, 1980.0, 0.0)
    watts = 0.03 / (50_000.0 / (long.free * 1e6)) * (long.free / 1980.0) ** TIMING.volts_slope
    assert watts == pytest.approx(TIMING.sustained_watts - TIMING.idle_watts)


@pytest.mark.parametrize("sustained", [False, True])
def test_a_kernel_without_mmas_runs_at_the_highest_clock(sustained: bool) -> None:
    profile = ww.profile(double, 1, args=[np.ones(128, np.float32)], device="h200", sustained=sustained)
    assert profile.clock_mhz == pytest.approx(1980.0)


def test_joined_bytes_take_half_as_much_less_power_as_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = device._Traffic(l2=100.0, l2_cost=60.0, read=90.0, missed=10.0, written=5.0, evicted=1.0)
    monkeypatch.setattr(device, "_traffic", lambda grid: traffic)
    monkeypatch.setattr(device, "_flops", lambda grid, weight: 1000.0)
    wanted = 1000 * TIMING.flop_pj + 80 * TIMING.l2_pj + 16 * TIMING.hbm_pj
    grid = SimpleNamespace(timing=TIMING)
    assert device._joules(grid) == pytest.approx(1e-12 * wanted)


def test_a_4_bit_flop_takes_half_the_energy_of_others() -> None:
    mmas = [Step("mma", 0, 0, 0, Mma(128, 64, 0, 1000, (0,), (), (), 0, type)) for type in ("", "e2m1x2")]
    mmas.append(Step("wgmma", 0, 0, 0, Mma(64, 64, 0, 1000, (0,), (), ())))
    assert flops_of(Program([mmas]), lambda mma: 1.0) == 1000 + 1000 + 250
    assert flops_of(Program([mmas]), energy_of(TIMING)) == 1000 + 500 + 250


@pytest.mark.parametrize("format", ["mxfp8", "nvfp4"])
def test_copies_of_scale_factors_read_shared_memory(format: str) -> None:
    """One tile, or four of nvfp4, of A and of B in each of 8 k-blocks, 512 bytes in 4 cycles each."""
    problem = scaled_gemm.Problem(format, 1, 8)
    busy = []
    for copied in (False, True):
        kernel = scaled_gemm.gemm.configure(format=format, copied=copied)
        profile = ww.profile(kernel, grid=1, args=problem.args, device="b200", fast=True)
        busy.append(profile.usage.shared * profile.cycles * 148)
    assert busy[1] - busy[0] == pytest.approx(8 * 2 * 4 * (1 if format == "mxfp8" else 4), rel=1e-3)


def test_multicast_takes_less_power_than_loading_twice() -> None:
    alone, pairs = (hopper(level, 2048, 2048, 1024) for level in (6, 7))
    assert pairs.bytes_l2 < 0.7 * alone.bytes_l2
    assert 1600 < alone.clock_mhz < pairs.clock_mhz < 1980


def test_l2_latency_in_time_is_independent_of_the_clock() -> None:
    slow = device._scale_latencies(TIMING, 0.9)
    assert (slow.tma_l2, slow.ld_hbm) == (0.9 * TIMING.tma_l2, 0.9 * TIMING.ld_hbm)
    assert (slow.bar, slow.mma_latency) == (TIMING.bar, TIMING.mma_latency)


def test_unreplayed_clusters_take_whole_rounds_of_an_sm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Level 2 has two CTAs an SM that end together: a rate over half of a round would be off by a seventh."""
    times = []
    for longest in (0, 1 << 40):
        monkeypatch.setattr(device, "LONGEST", longest)
        times.append(hopper(2, 8192, 4096, 128).time_us)
    assert times[0] == pytest.approx(times[1], rel=0.03)
