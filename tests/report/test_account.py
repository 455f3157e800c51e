"""The parts of the time add up, each cause changes its own part, and the part that shrank most is the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.timelines import profile
from warpwright.report.account import PARTS, account, loss, reason, tensor_rate


@pytest.mark.parametrize(
    "given", [{}, {"wasted": 0.5, "tail": 0.1}, {"stages": 2}, {"ctas_per_sm": 2, "epilogue": 9000.0}]
)
def test_the_parts_add_up_to_the_time(given) -> None:
    parts = account(profile(**given))
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == pytest.approx(464.0)
    assert min(parts.values()) >= 0


def test_each_cause_changes_its_part() -> None:
    base = account(profile())
    for given, part in (
        ({"stages": 2}, "waits for operands"),
        ({"wasted": 0.5}, "dropped MMA"),
        ({"epilogue": 8000.0}, "epilogue"),
        ({"latency": 4000.0, "stages": 32}, "first loads"),
        ({"tail": 0.3}, "tail"),
        ({"launch_us": 50.0}, "launch"),
    ):
        other = account(profile(**given))
        assert max(PARTS, key=lambda name: other[name] - base[name]) == part


def test_mma_below_the_rate_of_the_tensor_cores_is_slow() -> None:
    cycles = 2 * 4096**3 / (8192 * 148) / 0.6
    parts = account(profile(cycles=cycles, tail=0.0, launch_us=0.0))
    assert tensor_rate(profile(cycles=cycles)) == pytest.approx(0.6)
    assert parts["useful MMA"] == pytest.approx(0.6 * 464)
    assert parts["slow MMA"] == pytest.approx((64 * 256 / 20208 - 0.6) * 464, rel=0.01)


def test_the_rate_of_narrow_types_is_a_share_of_their_own_peak() -> None:
    cycles = 2 * 4096**3 / (8192 * 148) / 0.6
    narrow = replace(profile(cycles=cycles), flops=4 * profile().flops, rate=4.0)
    assert tensor_rate(narrow) == pytest.approx(0.6)


def test_two_accumulators_take_the_epilogue_away() -> None:
    alone = account(profile(tiles=8, k_blocks=16, buffers=1))
    beside = account(profile(tiles=8, k_blocks=16, buffers=2))
    assert alone["epilogue"] > 4 * beside["epilogue"]


def test_the_reason_is_the_part_that_shrank_most() -> None:
    shallow, deep = profile(stages=2, time_us=900.0), profile(stages=8, time_us=464.0)
    assert reason(shallow, deep).startswith("waits for operands ")
    assert reason(shallow, deep).endswith(" → 0 µs")
    assert reason(profile(wasted=0.5), profile(time_us=240.0)) == "dropped MMA 50 % → 0 %"


def test_a_slower_kernel_says_what_grew() -> None:
    assert reason(profile(), profile(time_us=600.0, tail=0.24)).startswith("slower: tail 5.54 → 143 µs")


def test_the_same_time_needs_no_reason() -> None:
    assert reason(profile(), profile()) == ""
    assert reason(replace(profile(), spans=()), profile(time_us=99.0)) == ""


def test_the_largest_loss_is_a_share_of_the_time() -> None:
    assert loss(profile(wasted=0.5)) == "dropped MMA 40 %"
    assert loss(profile(stages=2)).startswith("waits for operands 5")
    assert loss(replace(profile(), spans=())) == ""


def test_times_are_written_out_and_look_different() -> None:
    shallow, deep = profile(stages=2, time_us=12000.0), profile(stages=8, time_us=2242.0)
    assert reason(shallow, deep) == "waits for operands 5,999 → 0 µs"
    before = profile(time_us=200.0, launch_us=101.4, tail=0.3)
    after = profile(time_us=198.0, launch_us=100.6, tail=0.2976)
    assert reason(before, after) == "launch 101.4 → 100.6 µs"


def test_the_number_of_ctas_is_the_reason_where_it_explains_the_change() -> None:
    one, four = profile(time_us=900.0), profile(ctas_per_sm=4)
    assert reason(one, four) == "1 → 4 CTAs an SM"
    assert reason(four, one) == "slower: 4 → 1 CTAs an SM"
    assert not reason(four, profile(time_us=300.0, wasted=0.2)).endswith("CTAs an SM")


def test_equal_shares_of_dropped_work_are_given_as_times() -> None:
    clocks = profile(wasted=0.5, stages=32), profile(wasted=0.5, stages=32, time_us=300.0)
    assert " % → " not in reason(*clocks) and reason(*clocks).startswith("dropped MMA ")
