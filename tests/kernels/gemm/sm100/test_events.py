"""The protocol of GEMM levels 1 to 3 in recorded events: which role runs ahead, where bytes count, cluster barriers."""

from __future__ import annotations

from functools import cache

import pytest

from tests.kernels.helpers import gemm, normal
from warpwright.kernels.gemm.sm100 import LEVELS
from warpwright.vgpu import Event, EventLog

BLOCKS = 20
STAGE_BYTES = 24_576
LEADER, PEER = 0, 1
FIRST = (1, 2, 3)


@cache
def events(level: int) -> tuple[Event, ...]:
    """The events of one tile of BLOCKS k-blocks."""
    log = EventLog()
    gemm(level, normal(1, 128, 64 * BLOCKS), normal(2, 128, 64 * BLOCKS), observers=[log])
    return tuple(log.events)


def of(level: int, kind: str, opcode: str) -> list[Event]:
    found = [event for event in events(level) if event.kind == kind and event.inst is not None]
    return [event for event in found if event.inst.opcode.startswith(opcode)]


def most_ahead(level: int, cta: int) -> int:
    """The most k-blocks whose loads CTA ``cta`` had issued beyond those whose MMAs were issued."""
    loads = mmas = most = 0
    for event in events(level):
        if event.kind == "issue" and event.inst.opcode.startswith("cp.async.bulk.tensor") and event.cta == cta:
            loads += 1
        elif event.kind == "issue" and event.inst.opcode.startswith("tcgen05.mma"):
            mmas += 1
        most = max(most, loads // 2 - mmas // 4)
    return most


def most_in_flight(level: int, cta: int) -> int:
    """The most k-blocks whose loads CTA ``cta`` had issued beyond those that had landed in both CTAs."""
    loads = landed = most = 0
    for event in events(level):
        if event.inst is not None and event.inst.opcode.startswith("cp.async.bulk.tensor"):
            loads += event.kind == "issue" and event.cta == cta
            landed += event.kind == "complete"
        most = max(most, -(-loads // 2) - landed // 4)
    return most


def test_level_1_is_never_ahead() -> None:
    assert (most_ahead(1, LEADER), most_ahead(1, PEER)) == (1, 1)


def test_level_2_only_the_peer_runs_ahead() -> None:
    assert most_in_flight(2, LEADER) == 1
    assert most_in_flight(2, PEER) == LEVELS[2].stages


def test_level_3_runs_up_to_eight_blocks_ahead() -> None:
    assert most_ahead(3, LEADER) == most_ahead(3, PEER) == LEVELS[3].stages == 8


@pytest.mark.parametrize("level", [2, 3])
def test_the_bytes_of_both_ctas_count_at_the_leader(level) -> None:
    landed = of(level, "complete_tx", "cp.async.bulk.tensor")
    assert {event.barrier.rank for event in landed} == {LEADER}
    assert sum(event.nbytes for event in landed) == BLOCKS * 2 * STAGE_BYTES
    for cta in (LEADER, PEER):
        assert sum(event.nbytes for event in landed if event.cta == cta) == BLOCKS * STAGE_BYTES


@pytest.mark.parametrize("level", [2, 3])
def test_each_cta_arrives_once_a_block_at_the_leaders_full_barrier(level) -> None:
    arrivals = of(level, "arrive", "mbarrier.arrive.expect_tx")
    assert {event.barrier.rank for event in arrivals} == {LEADER}
    assert sorted(event.cta for event in arrivals) == [LEADER] * BLOCKS + [PEER] * BLOCKS


@pytest.mark.parametrize("level", FIRST)
def test_only_the_leader_multiplies_and_its_commits_reach_both(level) -> None:
    assert {event.cta for event in of(level, "issue", "tcgen05.mma")} == {LEADER}
    assert len(of(level, "issue", "tcgen05.mma")) == 4 * BLOCKS
    arrivals = of(level, "arrive", "tcgen05.commit")
    assert sorted(event.barrier.rank for event in arrivals) == [LEADER] * (BLOCKS + 1) + [PEER] * (BLOCKS + 1)


@pytest.mark.parametrize("level", [2, 3])
def test_the_peer_waits_for_empty_and_done_only(level) -> None:
    stages = LEVELS[level].stages
    waited = {event.barrier.offset for event in of(level, "wait", "mbarrier.try_wait") if event.cta == PEER}
    first = min(event.barrier.offset for event in of(level, "arrive", "mbarrier.arrive.expect_tx"))
    assert waited == {first + 8 * (stages + stage) for stage in range(stages)} | {first + 8 * 2 * stages}


@pytest.mark.parametrize(("level", "meetings"), [(1, BLOCKS + 2), (2, 2), (3, 2)])
def test_cluster_barriers(level, meetings) -> None:
    arrivals = [event for event in events(level) if event.kind == "cluster"]
    assert len(arrivals) == 2 * 4 * meetings


@pytest.mark.parametrize("level", FIRST)
def test_the_coordinates_cover_k_once_and_each_cta_loads_its_half_of_b(level) -> None:
    issued = of(level, "issue", "cp.async.bulk.tensor")
    for cta in (LEADER, PEER):
        places = [tuple(event.op.vector("coords")) for event in issued if event.cta == cta]
        assert places == [(64 * k, row) for k in range(BLOCKS) for row in (0, 64 * cta)]
