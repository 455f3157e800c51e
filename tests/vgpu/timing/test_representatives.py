"""Clusters that do not run because others represent them: the profile is that of a launch in which all run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm120.kernel import kernel_of
from warpwright.kernels.attention.sm120.plan import STEPS, plan
from warpwright.lang import Global, If, bar, ctaid, f32, kernel, tid, u32
from warpwright.vgpu.timing import Profile, capture, device

GRID = (17, 6)


@kernel("sm_120a", threads=32)
def in_place(x: Global[f32]):
    x[(ctaid.y * 17 + ctaid.x) * 32 + tid.x] = 1.0


@kernel("sm_120a", threads=32)
def turned(x: Global[f32]):
    x[(ctaid.y * 17 + ctaid.x % 5) * 32 + tid.x] = 1.0


@kernel("sm_120a", threads=32)
def last_column(x: Global[f32]):
    x[(ctaid.y * 17 + ctaid.x) * 32 + tid.x] = 1.0
    with If(ctaid.x == 16):
        bar.sync()


@kernel("sm_120a", threads=32)
def reading(x: Global[f32]):
    x[(ctaid.y * 17 + ctaid.x) * 32 + tid.x] = x[tid.x]


@kernel("sm_120a", threads=1024)
def one_reads(x: Global[f32], reader: u32):
    with If(ctaid.x == reader):
        x[1024 + tid.x] = x[tid.x]
    x[(ctaid.x + 2) * 1024 + tid.x] = 1.0


@kernel("sm_120a", threads=32)
def idle(x: Global[f32]):
    pass


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The clusters that ran, of the launches in a test."""
    numbers: list[int] = []
    recorded = capture.Capture.recorded

    def note(self: Any, cluster: Any, *rows: Any) -> None:
        numbers.append(cluster.number)
        recorded(self, cluster, *rows)

    monkeypatch.setattr(capture.Capture, "recorded", note)
    yield numbers


def all_run(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> Profile:
    with monkeypatch.context() as change:
        change.setattr(capture, "representatives", lambda launch, clusters: [])
        return ww.profile(*args, **options)


def stores(monkeypatch: pytest.MonkeyPatch, ran: list[int], traced: Any) -> list[int]:
    """Returns the clusters that ran; the profile must be that of a launch in which all run."""
    args: dict[str, Any] = {"args": [np.zeros(32 * 17 * 6, np.float32)], "device": "rtx5090"}
    profile = ww.profile(traced, GRID, **args)
    found = sorted(ran)
    assert profile == all_run(monkeypatch, traced, GRID, **args)
    return found


def test_a_few_clusters_represent_a_launch_of_equal_ones(monkeypatch: pytest.MonkeyPatch, ran: list[int]) -> None:
    corners, neighbours, between = {0, 16, 85, 101}, {1, 17}, {33, 67}
    assert set(stores(monkeypatch, ran, in_place)) == corners | neighbours | between
    assert len(ran) == 8 + 102


@pytest.mark.parametrize("traced", [turned, last_column])
def test_all_run_once_if_the_first_ones_differ(monkeypatch: pytest.MonkeyPatch, ran: list[int], traced: Any) -> None:
    assert stores(monkeypatch, ran, traced) == list(range(102))


def test_no_cluster_represents_others_if_lanes_read_global_memory(
    monkeypatch: pytest.MonkeyPatch, ran: list[int]
) -> None:
    few: list[list[int]] = []
    choose = capture.representatives
    monkeypatch.setattr(capture, "representatives", lambda *given: few.append(choose(*given)) or few[-1])
    assert stores(monkeypatch, ran, reading) == list(range(102)) and few == [[]]


@pytest.mark.parametrize("step", ["v3", "two-ctas"])
def test_attention_has_the_profile_of_a_launch_in_which_all_clusters_run(
    monkeypatch: pytest.MonkeyPatch, ran: list[int], step: str
) -> None:
    problem, config = Problem(1, 24, 24, 128, 128, 128), STEPS[step]
    found = plan(problem, config=config)
    arrays = [np.zeros((1, 24, 128, 128), problem.dtype) for _ in range(4)]
    kernel = kernel_of(config).trace(arch="sm_120a")
    given = {"args": [*arrays, np.zeros((1, 24, 128), np.float32), *found.scalars], "device": "rtx5090"}
    profile = ww.profile(kernel, found.grid, **given)
    assert 6 <= len(ran) <= 9
    assert profile == all_run(monkeypatch, kernel, found.grid, **given)


def test_two_rounds_of_long_clusters_are_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five CTAs an SM and four: two are replayed, once for both; the clock of an rtx5090 is the same under load."""
    problem, config = Problem(1, 350, 350, 64, 256, 128), STEPS["v3"]
    found = plan(problem, config=config)
    q, k = (np.zeros((1, 350, rows, 128), problem.dtype) for rows in (64, 256))
    given = {"args": [q, k, k, q, 0, *found.scalars], "device": "rtx5090"}
    replays: list[int] = []
    replay = device.replay
    monkeypatch.setattr(device, "replay", lambda works, *rest: replays.append(len(works)) or replay(works, *rest))
    times = []
    for longest in (0, 1 << 40):
        monkeypatch.setattr(device, "LONGEST", longest)
        monkeypatch.setattr(device, "LONG", longest)
        times.append(ww.profile(kernel_of(config).trace(arch="sm_120a"), found.grid, **given).time_us)
    assert replays == [2, 5, 4]
    assert times[0] == pytest.approx(times[1], rel=0.003)


@pytest.mark.parametrize("reader", [0, 170, 359])
def test_a_cluster_with_other_accesses_is_timed_where_no_sampled_wave_has_one(reader: int) -> None:
    """Five waves of 170 clusters, of which the first and the third are sampled."""
    args = [np.zeros(852 * 1024, np.float32), reader]
    profile = ww.profile(one_reads, 850, args=args, device="rtx5090", fast=False)
    assert profile.bytes_l2 == 852 * 4096


@pytest.mark.parametrize("fast", [True, False])
def test_a_launch_that_does_nothing_takes_the_time_of_a_launch(fast: bool) -> None:
    args = [np.zeros(1, np.float32)]
    one, many = (ww.profile(idle, grid, args=args, device="rtx5090", fast=fast) for grid in (1, 170))
    assert one.launch_us <= one.time_us <= many.time_us < one.launch_us + 1
    assert one.tail == many.tail == 0
