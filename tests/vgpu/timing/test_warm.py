"""A launch that follows an equal one: what L2 has at its start, and what device memory still moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.timing.test_cache import visit
from warpwright.kernels import memory_flow
from warpwright.lang import Global, ctaid, f32, kernel, tid
from warpwright.targets import device, timing_of
from warpwright.targets.clocks import TIMINGS
from warpwright.vgpu.timing.cache import Visit, footprint, look_up_again

H200, MIB = timing_of("h200"), 1 << 20


@kernel("sm_90a", threads=256)
def copy(source: Global[f32], target: Global[f32]):
    i = ctaid.x * 256 + tid.x
    target[i] = source[i]


def profile_copy(nbytes: int, **how: Any) -> Any:
    n = nbytes // 4
    return ww.profile(copy, n // 256, args=[np.zeros(n, np.float32), np.zeros(n, np.float32)], device="h200", **how)


def misses(*waves: list[Visit], kept: int, whole: bool) -> list[list[list[float]]]:
    homes: Sequence[Sequence[int]] = [range(len(wave)) for wave in waves]
    found = look_up_again(waves, homes, 1000, kept, whole=whole)
    return [[each.miss.tolist() for each in wave] for wave in found]


def test_a_launch_whose_lines_fit_hits_everywhere() -> None:
    waves = [visit(1, 2)], [visit(1, 3)]
    assert misses(*waves, kept=300, whole=True) == [[[0, 0]], [[0, 0]]]
    assert footprint(waves) == 300


def test_a_launch_larger_than_l2_evicts_each_line_before_it_is_read_again() -> None:
    assert misses([visit(1, 2, 3)], kept=299, whole=True) == [[[1, 1, 1]]]
    assert misses([visit(1, 2, 3)], kept=300, whole=True) == [[[0, 0, 0]]]


def test_of_a_launch_of_many_waves_the_common_lines_are_kept() -> None:
    """Line 1 is that of both waves, 2 and 3 of one wave each: those of the first wave were evicted by the waves
    between."""
    waves = [visit(1, 2)], [visit(1, 3)]
    assert misses(*waves, kept=200, whole=False) == [[[0, 1]], [[0, 1]]]


def test_boxes_of_one_line_count_the_line_once() -> None:
    both = visit(1, 2)._replace(lines=np.array([1, 1]))
    assert footprint([[both, both]]) == 200


def test_a_copy_that_fits_moves_nothing_to_device_memory() -> None:
    cold, warm = (profile_copy(MIB, warm=word) for word in (False, True))
    assert (cold.bytes_hbm, cold.l2_hit) == (2 * MIB, 0)
    assert (warm.bytes_hbm, warm.l2_hit) == (0, 1)
    assert (warm.warm, cold.warm) == (True, False)
    assert (warm.launch_us, cold.launch_us) == (H200.relaunch_us, H200.launch_us)
    assert warm.time_us < cold.time_us - (H200.launch_us - H200.relaunch_us)


def test_a_copy_larger_than_what_is_kept_moves_as_much_as_from_cold_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMINGS, "h200", replace(H200, l2_kept=0.03))
    assert 2 * MIB > 0.03 * device("h200").l2_bytes > MIB
    warm = profile_copy(MIB, warm=True)
    assert (warm.bytes_hbm, warm.l2_hit) == (2 * MIB, 0)
    assert profile_copy(MIB // 2, warm=True).bytes_hbm == 0


def test_the_first_box_of_a_warm_launch_waits_for_no_translation() -> None:
    a, d = np.zeros((128, 64), np.float16), np.zeros((128, 128), np.float32)
    args = memory_flow.arguments(a, a, d)
    cold, warm = (ww.profile(memory_flow.memory_flow, 1, args=args, warm=word) for word in (False, True))
    b200 = timing_of("b200")
    saved = b200.tma_first - b200.tma_first_warm + b200.tma_hbm - b200.tma_l2
    assert cold.cycles - warm.cycles > saved
    assert (warm.bytes_hbm, warm.l2_hit) == (0, 1)
