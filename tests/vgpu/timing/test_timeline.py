"""What a profile says of the phases of mbarriers and of memory, from hand-written steps and from a kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.timing.steps_text import STRIDE, load, perform, step
from warpwright.kernels.memory_flow import memory_flow
from warpwright.vgpu.timing import Profile, Region
from warpwright.vgpu.timing.slots import indices
from warpwright.vgpu.timing.timeline import phases_of

FULL, EMPTY = 1024, 1032


def test_a_wait_names_the_phase_that_released_it_and_the_phase_its_operation() -> None:
    warp = [step("set_barrier", FULL, number=1), step("arrive", FULL, number=1, nbytes=4096), load(0, 4096, 32, FULL)]
    _, journal = perform([*warp, step("wait", FULL, inst=7)])
    (wait,) = (span for span in journal.spans if span.name == f"waits 0x{FULL:x}")
    (phase,) = phases_of(journal, {FULL: 7})
    assert (wait.phase, wait.released) == (0, 0)
    assert (phase.barrier, phase.cta, phase.number, phase.nbytes) == (f"0x{FULL:x}", 0, 0, 4096)
    assert (phase.track, phase.by, phase.where) == ("TMA", 0, "k.py:0")
    assert phase.issued < wait.start < phase.end < wait.end


def test_a_wait_for_a_phase_that_has_ended_is_released_by_nothing() -> None:
    warp = [step("set_barrier", FULL, number=1), step("arrive", FULL, number=1, inst=3)]
    _, journal = perform([*warp, step("wait", FULL, cycles=900, inst=7)])
    (wait,) = (span for span in journal.spans if span.name.startswith("waits"))
    assert (wait.phase, wait.released) == (0, -1)
    (phase,) = phases_of(journal, {FULL: 7})
    assert (phase.track, phase.where, phase.nbytes) == ("kernel", "k.py:3", 0)


def test_phases_of_one_barrier_follow_one_another() -> None:
    arrivals = [step("arrive", EMPTY, number=1, cycles=100) for _ in range(3)]
    _, journal = perform([step("set_barrier", EMPTY, number=1), *arrivals])
    phases = phases_of(journal, {EMPTY: 2})
    assert [phase.number for phase in phases] == [0, 1, 2]
    assert [phase.start for phase in phases] == [0.0, *(phase.end for phase in phases[:2])]


def test_barriers_of_one_name_are_numbered_in_each_cta() -> None:
    names = {STRIDE + 8: "ab.full", 0: "ab.full", 8: "ab.full", 16: "done"}
    assert indices(names, STRIDE) == {0: ("ab.full", 0), 8: ("ab.full", 1), 16: ("done", 0), STRIDE + 8: ("ab.full", 0)}


@pytest.fixture(scope="module")
def flow() -> Profile:
    a, b, d = np.zeros((128, 64), np.float16), np.zeros((128, 64), np.float16), np.zeros((128, 128), np.float32)
    return ww.profile(memory_flow, grid=1, args=[a, b, d])


def test_the_memory_of_a_kernel_has_its_boxes_barriers_and_accumulators(flow: Profile) -> None:
    shared = [region for region in flow.memory if region.memory == "shared memory"]
    assert shared[0] == Region("shared memory", "reserved by the system", 0, 1024)
    assert sum(region.size for region in shared if region.name == "box of TMA") == 2 * 128 * 64 * 2
    assert sum(region.size for region in shared if region.name == "box that TMA stores") == 128 * 128 * 4
    assert {region.size for region in shared if region.name.startswith("mbarrier ")} == {8}
    assert [region for region in flow.memory if region not in shared] == [
        Region("tensor memory", "D of tcgen05.mma", 0, 128)
    ]


def test_the_resources_of_a_cta(flow: Profile) -> None:
    assert (flow.resources.threads, flow.resources.columns) == (128, 128)
    assert flow.resources.shared >= max(region.start + region.size for region in flow.memory)
    assert replace(flow.resources, registers=0).registers < flow.resources.registers <= 255


def test_stalls_have_their_lines(flow: Profile) -> None:
    for role in flow.roles:
        for stall in role.stalls:
            assert sum(cycles for _, cycles in stall.lines) == pytest.approx(stall.cycles)
            assert stall.lines[0][0] == stall.where
