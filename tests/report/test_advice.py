"""Each piece of advice appears, with its numbers, if its cause is present, and only then."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import warpwright as ww
from tests.report.timelines import profile
from warpwright.kernels.memory_flow import memory_flow
from warpwright.report.advice import advice
from warpwright.vgpu.timing import Conflict, Role, Stall, Usage

HEALTHY = {"tiles": 6, "buffers": 2, "k_blocks": 32, "waves": 1.0, "grid": (148, 1, 1)}


def topics(given):
    return [each.topic for each in advice(given)]


def about(topic, given):
    found = [each for each in advice(given) if each.topic == topic]
    assert len(found) == 1
    return found[0]


def test_a_healthy_kernel_gets_none() -> None:
    assert advice(profile(**HEALTHY)) == []


def test_what_gains_most_comes_first() -> None:
    gains = [each.gain for each in advice(profile(wasted=0.5, tail=0.2, launch_us=200.0))]
    assert len(gains) > 2 and gains == sorted(gains, reverse=True)


def test_wasted_work_says_how_much() -> None:
    found = about("wasted work", profile(**HEALTHY, wasted=0.5))
    assert found.text == (
        "50 % of tensor-core work computes results that are dropped: the 2 CTAs of a cluster multiply the same "
        "operands; give each a tile of its own"
    )
    assert found.where == "gemm.py:52"
    assert found.gain == pytest.approx(100)


def test_padding_is_said_apart_from_wasted_work() -> None:
    given = profile(**HEALTHY, wasted=0.5)
    useful = given.flops - given.wasted_flops
    padded = given.count_useful(useful // 2)
    assert (padded.dropped, padded.padded_flops) == (0.75, useful // 2)
    assert padded.tflops == pytest.approx(useful / 2 / given.time_us / 1e6)
    found = about("padding", padded)
    assert found.text == (
        "25 % of tensor-core work is beyond the edges of the matrices, whose extents are no multiples of the tile; use "
        "smaller tiles, or extents that are multiples of the tile"
    )
    assert about("wasted work", padded).gain == about("wasted work", given).gain
    assert "padding" not in topics(given.count_useful(useful))


def test_bank_conflicts_name_the_line_and_the_factor() -> None:
    conflicts = (Conflict("gemm.py:80", 8192, 1024), Conflict("gemm.py:91", 110, 100))
    found = about("bank conflicts", profile(conflicts=conflicts))
    assert found.text.startswith("shared-memory bank conflicts: 8,192 wavefronts instead of 1,024 (8.0 times), 18 % ")
    assert found.where == "gemm.py:80"
    assert found.gain == pytest.approx(100 * 0.109 / 0.891, rel=0.1)  # no more than the exposed epilogue: 2200 of 20208


def test_conflicts_that_the_tensor_core_covers_gain_little() -> None:
    conflicts = (Conflict("gemm.py:80", 8192, 1024),)
    hidden = about("bank conflicts", profile(**HEALTHY, conflicts=conflicts))
    assert hidden.gain < about("bank conflicts", profile(conflicts=conflicts)).gain / 2


def test_a_shallow_ring_names_the_stages_that_it_needs() -> None:
    found = about("pipeline depth", profile(**HEALTHY, stages=2))
    assert found.text == (
        "ring ab is too shallow: mma waits ab.full while load waits ab.empty; a slot takes 924 cycles to fill and 256 "
        "to use: use 5 stages instead of 2"
    )
    assert found.where == "gemm.py:50"
    assert 20 < found.gain < 100 * (2.5 - 1)


def test_one_loop_that_copies_and_multiplies_is_named() -> None:
    given = profile(**HEALTHY, stages=2)
    stalls = tuple(stall for role in given.roles for stall in role.stalls)
    alone = replace(given, roles=(replace(given.roles[0], name="kernel", stalls=stalls),))
    found = about("pipeline depth", alone)
    assert "kernel waits ab.full while kernel waits ab.empty" in found.text
    assert found.text.endswith(
        "; and one role copies and multiplies: give the copies a role of their own, which runs ahead"
    )


def test_a_ring_that_threads_use_is_judged_by_their_waits() -> None:
    given = profile(**HEALTHY, stages=2)
    spans = tuple(span for span in given.spans if span.track != "tensor core")
    found = about("pipeline depth", replace(given, spans=spans, flops=0))
    assert "use 5 stages instead of 2" in found.text and found.gain > 20


@pytest.mark.parametrize("stages", [5, 8])
def test_enough_stages_get_no_advice(stages) -> None:
    assert "pipeline depth" not in topics(profile(**HEALTHY, stages=stages))


def test_a_producer_that_never_waits_needs_no_deeper_ring() -> None:
    given = profile(**HEALTHY, stages=2)
    roles = tuple(replace(role, stalls=() if role.name == "load" else role.stalls) for role in given.roles)
    assert "pipeline depth" not in topics(replace(given, roles=roles))


def test_a_deeper_ring_cannot_gain_more_than_the_bandwidths_leave() -> None:
    usage = Usage(tensor=0.5, l2=0.92, hbm=0.2, shared=0.3, issue=0.1)
    found = about("pipeline depth", profile(**HEALTHY, stages=2, usage=usage))
    assert found.gain == pytest.approx(100 * (1 / 0.92 - 1))


def test_the_last_wave_says_how_many_sms_idle() -> None:
    found = about("tail", profile(**{**HEALTHY, "grid": (336, 1, 1), "waves": 336 / 148, "tail": 0.22, "buffers": 6}))
    assert found.text == (
        "22 % of the SMs' time is idle at the end of the launch: in the last of 3 waves 108 of 148 SMs idle; choose a "
        "tile size that fills whole waves, or a persistent grid"
    )
    given = profile(tail=0.22)
    idle = 0.22 * (1 - given.launch_us / given.time_us)
    assert found.gain == pytest.approx(100 * idle / (1 - idle))


def test_a_persistent_grid_has_a_tail_too() -> None:
    assert "split K of the last tiles" in about("tail", profile(**HEALTHY, tail=0.1)).text


def test_a_small_grid_says_how_many_sms_idle() -> None:
    found = about("idle SMs", profile(**{**HEALTHY, "grid": (64, 1, 1)}, tail=0.5))
    assert found.text.startswith("64 CTAs leave 84 of 148 SMs idle")
    idle = 84 / 148 * (1 - profile().launch_us / profile().time_us)  # the launch takes as long on a busy chip
    assert found.gain == pytest.approx(100 * idle / (1 - idle))


def test_an_exposed_epilogue_is_seen_in_a_grid_of_waves() -> None:
    found = about("epilogue", profile(waves=13.8))
    assert found.text.startswith(
        "11 % of the time the tensor core waits while the epilogue reads and stores the accumulator; "
    )
    assert found.where == "gemm.py:80"
    assert found.gain == pytest.approx(100 * 0.109 / 0.891, rel=0.02)


@pytest.mark.parametrize("change", [{"ctas_per_sm": 2}, {"waves": 1.0, "grid": (148, 1, 1)}])
def test_an_epilogue_that_others_cover_or_that_nothing_follows_is_no_cause(change) -> None:
    assert "epilogue" not in topics(profile(**change))


@pytest.mark.parametrize(
    ("usage", "words", "megabytes"),
    [
        (Usage(tensor=0.3, l2=0.5, hbm=0.9, shared=0.2, issue=0.1), "device memory", "140 MB"),
        (Usage(tensor=0.3, l2=0.9, hbm=0.5, shared=0.2, issue=0.1), "L2", "3,200 MB"),
        (Usage(tensor=0.3, l2=0.2, hbm=0.5, shared=0.9, issue=0.1), "shared memory", "bandwidth; "),
    ],
)
def test_a_bandwidth_that_is_the_limit_is_named(usage, words, megabytes) -> None:
    found = about(f"{words} bound", profile(**HEALTHY, usage=usage))
    assert found.text.startswith(f"{words} is the limit: 90 % of its bandwidth") and megabytes in found.text
    assert found.gain == pytest.approx(80)


def test_mma_that_waits_for_shared_memory_counts_at_the_rate_of_the_tensor_core() -> None:
    usage = Usage(tensor=0.96, l2=0.5, hbm=0.2, shared=0.97, issue=0.1)
    found = about("shared memory bound", profile(**HEALTHY, usage=usage, cycles=2 * 4096**3 / (8192 * 148) / 0.6))
    assert found.gain == pytest.approx(100 * (0.97 / 0.6 - 1))


def test_a_bandwidth_below_the_tensor_cores_is_no_limit() -> None:
    usage = Usage(tensor=0.95, l2=0.9, hbm=0.85, shared=0.9, issue=0.1)
    assert advice(profile(**HEALTHY, usage=usage, cycles=2 * 4096**3 / (8192 * 148) / 0.95)) == []


@pytest.mark.parametrize(("hbm", "grid", "told"), [(0.2, 4096, True), (0.7, 4096, False), (0.2, 64, False)])
def test_warps_that_wait_for_idle_memory_are_told_to_load_more(hbm, grid, told) -> None:
    stall = Stall("global memory", 15_000, 0.75, "copy.py:12")
    alone = (Role("kernel", 4, 50_000.0, 0.1, (stall,)),)
    usage = Usage(tensor=0.0, l2=0.1, hbm=hbm, shared=0.0, issue=0.1)
    given = replace(profile(**HEALTHY), roles=alone, usage=usage, grid=(grid, 1, 1), flops=0, waves=9.0, ctas_per_sm=3)
    found = [each for each in advice(given) if each.topic == "memory latency"]
    assert bool(found) == told
    if told:
        assert found[0].text == (
            "kernel waits 75 % of the time for global memory, which is 20 % busy (L2 10 %): keep more loads in flight, "
            "with more CTAs an SM (3 now), or wider and more loads a thread"
        )
        assert (found[0].where, found[0].gain) == ("copy.py:12", pytest.approx(300))


def test_a_short_kernel_is_launch_bound() -> None:
    found = about("launch bound", profile(**HEALTHY, time_us=8.0, launch_us=4.0))
    assert found.text.startswith("the launch overhead is 4.0 of 8.0 µs; ")
    assert found.gain == pytest.approx(100)


def test_a_real_store_tile_without_swizzle_has_eight_way_conflicts() -> None:
    a, b, d = np.zeros((128, 64), np.float16), np.zeros((128, 64), np.float16), np.zeros((128, 128), np.float32)
    given = ww.profile(memory_flow, grid=1, args=[a, b, d])
    found = about("bank conflicts", given)
    assert "4,096 wavefronts instead of 512 (8.0 times)" in found.text
    assert re.search(r"memory_flow\.py:\d+$", found.where)
    assert about("idle SMs", given).text.startswith("1 CTA leaves 147 of 148 SMs idle")
