"""L2, device memory and the ports of SMs as queues; every constant with unit and source."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from warpwright import targets
from warpwright.lang import Global, ctaid, f32, kernel, ld, st, tid, u16, u32
from warpwright.vgpu.timing.units import SKEW, Memory, Pipe, Scheduler, Unit, Units, WarpTensor

H200 = targets.timing_of("h200")


def test_a_unit_serves_in_order() -> None:
    unit = Unit()
    assert [unit.take(10.0, 5.0), unit.take(10.0, 5.0), unit.take(100.0, 5.0)] == [15.0, 20.0, 105.0]
    assert unit.busy == 15.0


def test_a_unit_uses_idle_time_after_its_first_use() -> None:
    unit = Unit()
    assert unit.take(1000.0, 5.0, SKEW) == 1005.0
    assert unit.take(1005.0 + SKEW / 2, 5.0, SKEW) == 1010.0
    assert unit.take(1010.0 + 2 * SKEW, 5.0, SKEW) == 1010.0 + SKEW + 5.0


@pytest.mark.parametrize("kind", [Pipe, Scheduler])
def test_warps_alternate_in_a_pipe_and_in_issue_slots(kind: type[Pipe]) -> None:
    unit = kind()
    long = unit.take(0.0, 100.0)
    assert unit.end(long) == 100.0
    short = unit.take(50.0, 10.0)  # every other slot from there on
    assert (unit.end(short), unit.end(long)) == (70.0, 110.0)
    third = unit.take(60.0, 40.0)  # when the second has five slots left and the first forty-five
    assert [unit.end(mark) for mark in (short, third, long)] == [75.0, 145.0, 150.0]
    unit.advance(145.0)
    assert (unit.end(long), unit.busy) == (150.0, 150.0)
    assert unit.end(unit.take(1000.0, 3.0)) == 1003.0


def test_mmas_take_a_share_of_a_pipe_until_they_end() -> None:
    unit = Pipe()
    unit.slow(0.0, 20.0, 0.5)
    first = unit.take(0.0, 8.0)
    assert unit.end(first) == 16.0
    second = unit.take(8.0, 8.0)  # four slots of the first are left
    assert (unit.end(first), unit.end(second)) == (22.0, 26.0)
    unit.slow(12.0, 60.0, 0.5)  # more MMAs
    assert (unit.end(first), unit.end_at(24.0, second)) == (24.0, 32.0)
    assert unit.end_at(40.0, second) == 40.0


def test_a_warp_alone_gets_less_of_a_pipe_beside_an_mma() -> None:
    unit = Pipe()
    unit.slow(0.0, 1000.0, 0.8, 0.5)
    first = unit.take(0.0, 8.0)
    assert unit.end(first) == 16.0
    second = unit.take(8.0, 8.0)  # four cycles of the first are left: they take ten, then the second has four left
    assert [unit.end(mark) for mark in (first, second)] == [18.0, 26.0]
    assert unit.end_at(22.0, second) == 26.0


def test_runs_of_instructions_alternate_with_bursts_of_a_wgmma() -> None:
    """A burst of three cycles: one warp issues an instruction every four cycles, of two warps each one every five."""
    unit = Scheduler()
    unit.slow(0.0, 1000.0, 3.0)
    first = unit.issue(0.0, 10.0, 0.0)
    assert unit.end(first) == pytest.approx(40.0)
    second = unit.issue(20.0, 5.0, 0.0)  # when the first has five left
    assert [unit.end(mark) for mark in (first, second)] == pytest.approx([45.0, 45.0])
    assert unit.stolen(45.0) == pytest.approx(5.0)  # of a run of two instructions the second one delays the tensor core
    assert unit.stolen(45.0) == 0.0
    assert unit.end(unit.issue(1000.0, 8.0, 4.0)) == pytest.approx(1012.0)  # after the wgmma


def test_instructions_that_follow_one_another_delay_the_tensor_core() -> None:
    unit = Scheduler()
    unit.slow(0.0, 1000.0, 3.0)
    assert unit.end(unit.issue(0.0, 2.0, 64.0)) == pytest.approx(2 * 4 + 64)
    assert (unit.stolen(72.0), unit.busy) == (64.0, 66.0)


def test_instructions_between_mma_sync_delay_the_tensor_core() -> None:
    unit = WarpTensor()
    unit.delay(0.0, 1.0, 1.0)  # the slot of the first mma.sync
    assert unit.take(0.0, 6.0) == 6.0
    unit.delay(5.0, 4.0, 1.0)  # three slots of other instructions in five cycles, and that of this one
    assert unit.take(5.0, 6.0) == 6.0 + 3 + 6
    unit.delay(7.0, 30.0, 0.5)  # the slots of a warp that has reserved more than two cycles
    assert unit.take(7.0, 6.0) == 15.0 + 2 * 0.5 + 6


def test_an_idle_tensor_core_is_not_delayed() -> None:
    unit = WarpTensor()
    assert unit.take(0.0, 6.0) == 6.0
    unit.delay(100.0, 1.0, 1.0)
    assert unit.take(100.0, 6.0) == 106.0
    unit.delay(200.0, 80.0, 1.0)  # more instructions than the cycles in which it was busy
    assert unit.take(200.0, 6.0) == 206.0


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_multicast_reads_l2_once_and_takes_a_port_of_every_sm(ranks: tuple[int, ...]) -> None:
    units = Units(H200, 2, Memory(l2=10.0, l2_write=10.0, hbm=1.0, gpcs=100.0, sm=50.0))
    assert units.fetch(0.0, 1000.0, 0.0, 1.0, ranks) == 100.0
    assert [port.busy for port in units.port] == [20.0, 20.0 if len(ranks) == 2 else 0.0]


def test_a_miss_waits_for_device_memory() -> None:
    units = Units(H200, 1, Memory(l2=10.0, l2_write=10.0, hbm=2.0, gpcs=100.0, sm=50.0))
    assert units.fetch(0.0, 1000.0, 0.5, 1.0, (0,)) == 250.0


def test_bytes_shared_with_neighbours_cost_less_of_l2() -> None:
    units = Units(H200, 1, Memory(l2=10.0, l2_write=10.0, hbm=2.0, gpcs=100.0, sm=50.0))
    assert units.fetch(0.0, 1000.0, 0.0, 0.7, (0,)) == 70.0


def test_a_gpc_limits_its_bytes() -> None:
    units = Units(H200, 1, Memory(l2=100.0, l2_write=10.0, hbm=2.0, gpcs=20.0, sm=50.0))
    assert units.fetch(0.0, 1000.0, 0.0, 1.0, (0,)) == 50.0


def test_every_constant_has_a_unit_and_a_source() -> None:
    for name, timing in targets.TIMINGS.items():
        assert set(timing.source) == set(targets.timing.UNITS), name
        statuses = {text.split(":")[0] for text in timing.source.values()}
        assert statuses <= {"measured", "published", "assumed"}, name
        assert name == "h200" or "measured" not in statuses, name


@kernel("sm_90a", threads=32)
def store_columns(d: Global[u16], pitch: u32) -> None:
    for column in range(32):
        st(d + (tid.x * pitch + column), column)


def test_elements_of_a_sector_reach_device_memory_together() -> None:
    """Each of 32 threads stores the 32 elements, two sectors, of a row of its own."""
    found = ww.profile(store_columns, 1, args=[np.zeros((32, 64), np.uint16), 64], device="h200")
    assert (found.bytes_l2, found.bytes_hbm) == (32 * 32 * 32, 32 * 2 * 32)


@kernel("sm_90a", threads=32)
def add_one(x: Global[f32]) -> None:
    st(x + (ctaid.x * 32 + tid.x), ld(x + (ctaid.x * 32 + tid.x)) + 1.0)


def test_a_load_does_not_take_the_place_of_a_store() -> None:
    """Device memory gives every line once and gets it once, though the store goes to the address of the load."""
    found = ww.profile(add_one, 16, args=[np.zeros(16 * 32, np.float32)], device="h200")
    assert found.bytes_hbm == pytest.approx(2 * 16 * 128, abs=128)


@kernel("sm_90a", threads=32)
def store_twice(x: Global[f32], stride: u32) -> None:
    st(x + (ctaid.x * 32 + tid.x), 1.0)
    st(x + (ctaid.x * stride + tid.x), 2.0)


def test_clusters_that_store_twice_to_a_place_are_of_another_kind() -> None:
    """Of 16 CTAs only the first one stores twice to its sectors."""
    found = ww.profile(store_twice, 16, args=[np.zeros(16 * 64, np.float32), 64], device="h200")
    assert found.bytes_hbm == (1 + 2 * 15) * 128
