"""The replay against clocks computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.vgpu.timing.steps_text import CHIP, STRIDE, access, end_of, load, mma, perform, step
from warpwright import targets
from warpwright.errors import LaunchError
from warpwright.vgpu.timing import engine
from warpwright.vgpu.timing.state import NEVER
from warpwright.vgpu.timing.steps import Access, Box, Mma, Step, WarpMma
from warpwright.vgpu.timing.units import Memory

FULL, EMPTY = 64, 128


def test_a_warp_takes_the_cycles_of_its_steps() -> None:
    assert end_of([step("pause", cycles=40), step("pause", cycles=2)]) == 40 + 1 + 2 + 1


def test_warps_of_one_scheduler_share_its_slots_and_others_do_not() -> None:
    work = [step("pause", cycles=100, slots=100)]
    assert end_of(work) == 101
    assert end_of(work, work, work, work) == 101  # four schedulers
    assert end_of(*[work] * 8) == 201
    pauses = [step("pause", cycles=100, slots=10)]  # waits for results most of the time
    assert end_of(*[pauses] * 8) == 101


def test_a_short_block_does_not_wait_for_a_long_one_on_its_scheduler() -> None:
    """The fifth warp shares the first one's scheduler, and arrives when the first warp still needs 560 slots."""
    long, idle = [step("pause", cycles=600, slots=600)], [step("pause")]
    late = [step("pause", cycles=39), step("pause", cycles=20, slots=20, inst=1)]
    outcome, journal = perform(long, idle, idle, idle, late)
    assert outcome.ends == [600 + 20 + 1]
    assert dict(journal.stalls["kernel", "issue slots"]) == {0: 20.0, 1: 20.0}


def test_a_load_from_l2() -> None:
    """Issue, 16 requests of one cycle after 8 for the box, latency, wake."""
    warp = [step("set_barrier", FULL, number=1), step("arrive", FULL, number=1, nbytes=2048), load(0, 2048, 16, FULL)]
    assert end_of([*warp, step("wait", FULL)]) == 1 + 1 + 24 + 100 + 20


def test_a_load_that_misses_waits_for_device_memory() -> None:
    warp = [step("set_barrier", FULL, number=1), step("arrive", FULL, number=1, nbytes=2048), load(0, 2048, 16, FULL)]
    assert end_of([*warp, step("wait", FULL)], miss=1.0) == 1 + 1 + 24 + 400 + 20


def test_boxes_share_the_bandwidth_of_l2() -> None:
    """Ten boxes of 2048 bytes at 8 bytes a cycle: the link is the limit, not the TMA unit."""
    warp = [step("set_barrier", FULL, number=1), step("arrive", FULL, number=1, nbytes=20480)]
    warp += [load(i, 2048, 16, FULL) for i in range(10)]
    memory = Memory(8.0, 8.0, 1e9, 1e9, 1e9)
    found = end_of([*warp, step("wait", FULL)], memory=memory)
    assert found == pytest.approx(10 + 10 * 256 + 100 + 20, abs=1)  # the first is issued at 10, alone in the queue


@pytest.mark.parametrize(("pairs", "delay"), [(False, 0), (True, 2048 - 158)])
def test_what_tma_writes_delays_the_mmas_of_pairs_only(pairs: bool, delay: int) -> None:
    """Boxes of 256 KB take 2048 cycles of shared memory; the MMA is issued 158 cycles after the first has arrived."""
    timing = replace(CHIP, shared_writes=0.0, pair_writes=1.0)
    warp = [step("set_barrier", FULL, number=1), step("arrive", FULL, number=1, nbytes=1 << 18)]
    warp += [*(load(i, 1 << 16, 16, FULL) for i in range(4)), step("wait", FULL)]
    warp += [mma(128, nbytes=8192), step("set_barrier", EMPTY, number=1), step("commit", (EMPTY,)), step("wait", EMPTY)]
    alone = end_of(warp, timing=replace(timing, pair_writes=0.0))
    assert end_of(warp, timing=timing, pairs=pairs) - alone == pytest.approx(delay)


def ring(iterations: int, stages: int, cycles: int) -> tuple[list, list]:
    """Returns a producer that loads 2048 bytes a stage, and a consumer that works for ``cycles`` on each."""
    full, empty = [64 + 8 * i for i in range(stages)], [512 + 8 * i for i in range(stages)]
    producer = [step("set_barrier", place, number=1) for place in (*full, *empty)]
    consumer = []
    for k in range(iterations):
        stage, phase = k % stages, k // stages & 1
        producer += [
            step("wait", empty[stage], number=phase ^ 1),
            step("arrive", full[stage], number=1, nbytes=2048),
            load(0, 2048, 16, full[stage]),
        ]
        consumer += [
            step("wait", full[stage], number=phase),
            step("arrive", empty[stage], number=1, cycles=cycles),
        ]
    return producer, consumer


def test_a_ring_of_one_stage_overlaps_nothing() -> None:
    """Wake, arrive, load with its latency, wake, work, arrive: nothing overlaps."""
    way = CHIP.wake + 1 + 24 + 100 + CHIP.wake + 300 + CHIP.arrive
    first, second = (end_of(*ring(iterations, 1, 300)) for iterations in (11, 31))
    assert second - first == 20 * way


def test_a_deep_ring_is_as_fast_as_its_consumer() -> None:
    """A full stage costs the consumer a wait that passes at once, its work and the arrival."""
    first, second = (end_of(*ring(iterations, 8, 300)) for iterations in (40, 60))
    assert second - first == 20 * (CHIP.try_wait + 300 + 1)


def test_a_deep_ring_is_as_fast_as_its_producer() -> None:
    """An iteration of the producer: a wait that passes at once, arrive, issue. The TMA unit takes longer: 24 cycles a
    box."""
    first, second = (end_of(*ring(iterations, 8, 1)) for iterations in (200, 300))
    assert second - first == 100 * 24


def test_mmas_queue_for_the_tensor_core() -> None:
    """128 x 256 x 16 takes 256 cycles at 4096 flops; the commit comes after the last, with latency."""
    warp = [step("set_barrier", FULL, number=1), *[mma(256)] * 4, step("commit", (FULL,)), step("wait", FULL)]
    assert end_of(warp) == 1 + 2 + 4 * 256 + 60 + 9 + 20


def test_a_small_mma_takes_the_minimum() -> None:
    warp = [step("set_barrier", FULL, number=1), *[mma(8)] * 4, step("commit", (FULL,)), step("wait", FULL)]
    assert end_of(warp) == 1 + 2 + 4 * 18 + 60 + 9 + 20


def test_operands_from_shared_memory_limit_an_mma() -> None:
    """64 KB an MMA take 512 cycles of shared memory."""
    warp = [step("set_barrier", FULL, number=1), *[mma(256, nbytes=1 << 16)] * 20, step("commit", (FULL,))]
    assert end_of([*warp, step("wait", FULL)]) == 1 + 2 + 20 * 512 + 60 + 9 + 20


def test_warpgroups_alternate_at_the_tensor_core() -> None:
    """Two groups of four MMAs of 64 x 128 (64 cycles): twice as long as one, less what overlaps at the end."""
    one = step("wgmma", Mma(64, 128, 0, 2 * 64 * 128 * 16, (0,), ((0, 0),), ((0, 0),)))
    warp = [*[one] * 4, step("group_commit"), step("group_wait")]
    assert end_of(*[warp] * 4) == 2 + 4 * 64 + 60
    assert end_of(*[warp] * 8) == 2 + 8 * 64 + 60


def test_a_warpgroup_with_five_mmas_in_flight_waits_until_the_first_ends() -> None:
    """The next arithmetic of its warps follows the issue; MMA number 7 is issued when number 2 ends."""
    one = step("wgmma", Mma(64, 128, 0, 2 * 64 * 128 * 16, (0,), ((0, 0),), ((0, 0),)))
    assert CHIP.wgmma_queue == 5
    assert end_of(*[[one] * 5 + [step("pause")]] * 4) == 5 * CHIP.mma_issue + 1
    assert end_of(*[[one] * 7 + [step("pause")]] * 4) == 2 + 2 * 64 + CHIP.mma_issue + 1


def test_an_mma_of_a_warpgroup_waits_for_its_last_warp() -> None:
    one = step("wgmma", Mma(64, 128, 0, 2 * 64 * 128 * 16, (0,), ((0, 0),), ((0, 0),)))
    warp = [one, step("group_commit"), step("group_wait")]
    late = [step("pause", cycles=999), *warp]
    assert end_of(warp, warp, warp, late) == 1000 + 2 + 64 + 60


@pytest.mark.parametrize(
    ("left", "costs", "cycles"),
    [
        (((0, 0),), {"slots": 49}, 200),  # an instruction every 4.1 cycles
        ((), {"slots": 40}, 200),
        ((), {"special": 120}, 200),
        (((0, 0),), {"half": 98}, 200),
        ((), {"half": 80}, 200),
        ((), {"dense": 98}, 98),
        ((), {"slots": 98}, 98 + 0.8 * 256),
    ],
)
def test_arithmetic_is_slower_while_a_warpgroup_multiplies(
    left: tuple[tuple[int, int], ...], costs: dict[str, int], cycles: float
) -> None:
    """Four MMAs take 256 cycles, in which a fifth warp issues an instruction every 4.1 or 5 cycles, those that follow
    one another every cycle, and has 60 % of the special functions."""
    one = step("wgmma", Mma(64, 128, 0, 2 * 64 * 128 * 16, (0,), left, ((0, 0),)))
    group = [*[one] * 4, step("group_commit"), step("group_wait")]
    fifth = [step("pause", cycles=9), step("pause", cycles=98, inst=1)._replace(**costs)]
    _, journal = perform(group, group, group, group, fifth)
    waited = journal.stalls["kernel", "issue slots"][1]
    assert waited + 98 == pytest.approx(cycles, abs=14)


def test_a_wgmma_begins_later_by_what_arithmetic_has_taken() -> None:
    """Another warpgroup issues 40 instructions that follow one another beside the first of three MMAs; the second MMA
    begins 40 cycles after its issue, which alone are 4."""
    one = step("wgmma", Mma(64, 128, 0, 2 * 64 * 128 * 16, (0,), ((0, 0),), ((0, 0),)))
    group = [one, step("group_commit"), step("group_wait")] * 3
    others = [step("pause", cycles=9), step("pause", cycles=40)._replace(dense=40)]
    assert end_of(*[group] * 4, *[others] * 4) - end_of(*[group] * 4) == pytest.approx(40 - 4, abs=2)


def warp_mma(c: str, d: str = "", inst: int = 0) -> Step:
    return step("warp_mma", WarpMma(4096, c, d or c), inst=inst)


def test_mmas_of_a_warp_that_add_to_each_other_wait_for_each_other() -> None:
    chain, apart = [warp_mma("a")] * 10, [warp_mma(name) for name in "abcdefghij"]
    assert end_of(chain) == pytest.approx(9 * 24 + 1)
    assert end_of([*apart, *apart]) - end_of(apart) == pytest.approx(10 * 6)
    assert end_of([warp_mma("a", "b"), warp_mma("b", "c"), warp_mma("c", "d")]) == pytest.approx(2 * 24 + 1)


@pytest.mark.parametrize(
    ("device", "kind", "flops", "cycles"),
    [
        ("rtx5090", "bf16", 4096, 32), ("rtx5090", "e4m3", 8192, 32), ("rtx5090", "tf32", 2048, 32),
        ("rtx5090", "e2m1x2", 16384, 16), ("rtx_pro_6000", "e2m1x2", 16384, 16),
        ("h200", "bf16", 4096, 6), ("h200", "e4m3", 8192, 12), ("h200", "s8", 8192, 6),
    ],
)  # fmt: skip
def test_the_rate_of_mma_sync_depends_on_the_type_of_a(device: str, kind: str, flops: int, cycles: int) -> None:
    timing = targets.timing_of(device)
    apart = [step("warp_mma", WarpMma(flops, name, name, kind)) for name in "abcdefghij"]
    twice, once = (end_of(warp, timing=timing) for warp in ([*apart, *apart], apart))
    assert (twice - once) / 10 == pytest.approx(cycles)


def test_sums_of_an_mma_are_ready_after_the_next_mma_begins() -> None:
    assert end_of([warp_mma("a", inst=3), step("need", number=3)]) == 24


def shared(inst: int, *, loads: bool = True) -> Step:
    return step("shared_access", loads, inst=inst, number=4)


def test_loads_among_mmas_are_issued_ahead_of_mmas_that_wait() -> None:
    """The second load, after an MMA that waits for the first, is complete when its MMA issues."""

    def pair(first: int) -> list[Step]:
        return [shared(first), step("need", inst=first + 1, number=first), warp_mma("a", inst=first + 1)]

    alone, both = end_of(pair(1)), end_of([*pair(1), *pair(3)])
    assert both - alone == 24  # the second MMA after the first
    with_store = [*pair(1), shared(9, loads=False), *pair(13)]
    assert end_of(with_store) - alone > 30


def test_sums_in_l2_take_longer_than_stores() -> None:
    box = Box(0, 0, 16384, 128)
    memory = Memory(1e9, 16.0, 1e9, 1e9, 1e9)
    store, add = (end_of([step(kind, box)], memory=memory) for kind in ("store_box", "add_box"))
    assert (add - store) / 1024 == pytest.approx(CHIP.l2_write_bytes / CHIP.l2_add_bytes - 1, rel=0.01)


def test_tensor_memory_has_one_port_per_quarter() -> None:
    """4096 bytes at 64 a cycle; five warps: the fifth is in the quarter of the first."""
    warp = [step("tmem_load", nbytes=4096), step("tmem_wait")]
    assert end_of(warp) == 64 + 25
    assert end_of(*[warp] * 4) == 64 + 25
    assert end_of(*[warp] * 5) == 128 + 25


def test_a_barrier_releases_all_threads_at_once() -> None:
    warp = [step("bar_sync", 0)]
    assert end_of(warp, [step("pause", cycles=50), *warp]) == 51 + 7 + 2 * CHIP.bar_warp


def test_the_cluster_barrier_waits_for_every_cta() -> None:
    warp = [step("cluster_arrive"), step("cluster_wait")]
    assert end_of(warp, [step("pause", cycles=90), *warp], ranks=2) == 91 + 30


def test_an_arrival_that_releases_waits_for_its_fence_first() -> None:
    """The warp continues after the fence; the barrier completes with the last arrival."""
    fence = CHIP.fence_cluster
    warp = [step("cluster_arrive", number=1), step("cluster_wait")]
    assert end_of(warp, [step("pause", cycles=90), *warp], ranks=2) == 91 + fence + 30
    assert end_of([step("cluster_arrive", number=1)]) == fence + 1


def test_arrivals_in_another_cta_take_longer() -> None:
    """The consumer in CTA 0 waits for an arrival from CTA 0 or 1, and in a cluster looks every 25 cycles."""
    waits = [step("set_barrier", FULL, number=1), step("wait", FULL)]
    tells = [step("pause", cycles=9), step("arrive", FULL, number=1)]
    idle = [step("pause")]
    near = end_of(waits, tells, idle, idle, ranks=2)
    far = end_of(waits, idle, tells, idle, ranks=2)
    assert (near, far) == (1 + 25 + 20, 1 + 3 * 25 + 20)  # they arrive at 15 and at 60


def test_loads_overlap_until_their_values_are_needed() -> None:
    """A line of 128 bytes takes two cycles of the load pipe; then the latency of the last."""
    loads = [access(i, 128, 1, inst=i) for i in range(8)]
    assert end_of([*loads, step("need", number=7)]) == 8 * 2 + 200
    apart = [each for i in range(8) for each in (access(i, 128, 1, inst=i), step("need", number=i))]
    assert end_of(apart) == 8 * (2 + 200)


def test_scattered_lines_take_a_cycle_each() -> None:
    assert end_of([access(0, 1024, 32), step("need")]) == 32 + 200


def test_a_line_that_is_stored_to_takes_longer_than_one_that_is_read() -> None:
    outcome, _ = perform([access(0, 1024, 32, loads=False)])
    assert outcome.ends == [32 * CHIP.store_line] and CHIP.store_line > 1


def test_a_few_bytes_of_a_line_take_l2_as_long_as_more() -> None:
    memory = Memory(1e9, 4.0, 1e9, 1e9, 1e9)
    few, whole = (perform([access(0, nbytes, 8, loads=False)], memory=memory)[0].ends for nbytes in (256, 1024))
    assert few == [8 * CHIP.store_least / 4] and whole == [1024 / 4]


def test_what_is_stored_again_to_the_same_sectors_reaches_device_memory_once() -> None:
    memory = Memory(1e9, 1e9, 2.0, 1e9, 1e9)
    stores = [access(0, 1024, 32, loads=False), *(access(i, 1024, 32, loads=False, again=True) for i in (1, 2))]
    outcome, _ = perform(stores, memory=memory)
    assert outcome.units.hbm.busy == 1024 / 2


def test_adds_take_l2_longer_than_stores_and_device_memory_only_for_lines_that_l2_lacks() -> None:
    memory = Memory(1e9, 4.0, 2.0, 1e9, 1e9)
    adds = step("global_access", Access(0, 1024, 8, False, adds=True))
    outcomes = [perform([adds], memory=memory, miss=share)[0] for share in (0.0, 1.0)]
    assert [each.ends[0] for each in outcomes] == [1024 / 4 * CHIP.l2_write_bytes / CHIP.l2_add_bytes] * 2
    assert [each.units.hbm.busy for each in outcomes] == [0, 1024 / 2]


def test_bank_conflicts_take_wavefronts() -> None:
    assert end_of([step("shared_access", True, number=32, nbytes=1), step("need")]) == 32 + 30


def test_clusters_run_in_sequence_or_together() -> None:
    warp = [step("pause", cycles=100)]
    assert end_of(warp, clusters=3) == 3 * 101 + 2 * 70
    assert end_of(warp, clusters=3, together=3) == 101


def test_wasted_mmas_are_those_of_boxes_multiplied_before() -> None:
    """Two boxes of one origin at two places: the second MMA computes the first one again."""
    warp = [step("set_barrier", FULL, number=1), step("arrive", FULL, number=1, nbytes=4 * 1024)]
    for offset, position in ((4096, 0), (8192, 1), (12288, 0), (16384, 2)):
        warp.append(load(position, 1024, 8, FULL, offset=offset))
    warp += [step("wait", FULL), mma(256), mma(256, left=12288), mma(256, right=16384)]
    outcome, _ = perform(warp)
    assert outcome.flops == 3 * 2 * 128 * 256 * 16
    assert outcome.wasted * 3 == outcome.flops


def test_stalls_name_their_wait() -> None:
    warp = [step("set_barrier", FULL, number=1), step("arrive", FULL, number=1, nbytes=2048), load(0, 2048, 16, FULL)]
    _, journal = perform([*warp, step("wait", FULL, inst=7)])
    (role,) = journal.roles()
    assert (role.stalls[0].reason, role.stalls[0].where) == ("waits 0x40", "k.py:7")
    assert role.stalls[0].cycles == 24 + 100 + 20 - 3
    assert role.cycles == 1 + 1 + 24 + 100 + 20
    assert role.busy + sum(stall.share for stall in role.stalls) == pytest.approx(1)


def test_a_stuck_replay_names_the_place() -> None:
    with pytest.raises(LaunchError) as caught:
        perform([step("set_barrier", FULL, number=1), step("wait", FULL, inst=3)])
    expected = "k.py:3: CTA 0 of a cluster, warp 0 waits 0x40 forever in the replay in order of time."
    assert str(caught.value) == expected


def test_a_warp_whose_phase_is_gone_resumes_when_nothing_else_happens() -> None:
    """No warp waits for an idle warp, which may come too late for a phase that it saw in the launch."""
    arrivals = [step("set_barrier", FULL, number=1), *[step("arrive", FULL, number=1)] * 2, step("pause", cycles=900)]
    assert end_of(arrivals, [step("pause", cycles=300), step("wait", FULL), step("pause", cycles=50)]) == 3 + 900 + 51


def test_equal_offsets_in_other_ctas_are_other_mbarriers() -> None:
    warp = [step("set_barrier", STRIDE + FULL, number=1), step("arrive", STRIDE + FULL, number=1)]
    assert end_of(warp, [step("wait", STRIDE + FULL)], ranks=2) == 3 * 25 + 20  # arrives at 51


def test_a_replay_may_stop_after_a_part_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "EVENTS", 100)
    whole, half, late = (perform(*ring(1000, 3, 20), enough=enough)[0] for enough in (NEVER, 2500, 10_000))
    assert whole.whole and late.whole and not half.whole
    assert half.ends == [pytest.approx(whole.ends[0], rel=0.01)] and late.ends == whole.ends
    assert half.units.tma[0].busy < 0.6 * whole.units.tma[0].busy
