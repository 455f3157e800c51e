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
