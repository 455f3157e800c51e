"""What lanes know after named barriers, and what is noted at proxy fences."""

from __future__ import annotations

import numpy as np

from warpwright.vgpu.checks.order.barriers import NamedBarriers
from warpwright.vgpu.checks.order.clocks import GENERIC, SEEN, Clocks
from warpwright.vgpu.checks.order.proxy_fences import ProxyFences

FIRST, SECOND, THIRD = (np.arange(32) + 32 * warp for warp in range(3))


def test_a_round_of_a_named_barrier_tells_all_what_each_knows() -> None:
    clocks = Clocks(96)
    bars = NamedBarriers(clocks, 1)
    bar, before = bars.at(0, 1), int(clocks.table[GENERIC, 0, 0])
    bar.arrive(FIRST, 32, 64, 96, True, 7)
    assert clocks.table[GENERIC, 40, 0] == 0
    bar.arrive(SECOND[:8], 32, 64, 96, True, 7)
    assert clocks.table[GENERIC, 40, 0] == 0  # the warp arrives when all its lanes have
    bar.arrive(SECOND[8:], 32, 64, 96, False, 7)
    assert clocks.table[GENERIC, 33, 0] == before and clocks.table[GENERIC, 0, 40] == 1
    assert clocks.table[GENERIC, 41, 0] == 0  # lanes that do not wait learn nothing


def test_a_barrier_of_all_threads_ends_when_the_others_have_exited() -> None:
    clocks = Clocks(64)
    bars = NamedBarriers(clocks, 1)
    bars.at(0, 0).arrive(FIRST, 32, 0, bars.everyone.item(0), True, 7)
    bars.settle()
    assert not clocks.table[GENERIC, 0, 1]
    bars.everyone[0] = 32
    bars.settle()
    assert clocks.table[GENERIC, 0, 1]


def test_the_first_arrival_of_the_last_round_that_a_lane_need_not_know_of() -> None:
    clocks = Clocks(96)
    bar = NamedBarriers(clocks, 1).at(0, 1)
    bar.arrive(SECOND, 32, 64, 96, True, 5)
    bar.arrive(FIRST, 32, 64, 96, True, 6)
    assert bar.unknown_arrival(0) is None
    assert bar.unknown_arrival(64) == (5, 32, 1)


def test_notes_of_a_fence_keep_what_each_lane_knew() -> None:
    clocks = Clocks(96)
    fences = ProxyFences(clocks)
    assert fences.knew(3, 40) == 0
    clocks.acquire(FIRST, clocks.release(SECOND))
    fences.execute(FIRST)
    assert clocks.table[SEEN, 3, 3] == 1 and clocks.table[GENERIC, 3, 3] == 2
    clocks.acquire(FIRST, clocks.release(SECOND))
    fences.execute(FIRST[3:4])
    assert [fences.knew(lane, 40) for lane in (3, 4)] == [2, 1]
    assert [fences.knew(lane, 3) for lane in (3, 4)] == [2, 0]
    clocks.column()
    fences.execute(FIRST[4:5])
    assert fences.knew(3, 40) == 2
