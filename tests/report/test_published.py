"""The published figures are consistent: the problem and the device allow each rate."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.report.timelines import profile
from warpwright.cli.ladder_table import notes_of
from warpwright.report.html.profile import profile_page
from warpwright.report.published import CUBLAS, DISAGREEMENTS, PUBLISHED
from warpwright.report.text import profile_tables
from warpwright.targets import DEVICES


def test_the_ladder_is_whole_and_climbs_where_it_was_published() -> None:
    assert list(PUBLISHED) == list(range(1, 10))
    assert all(rates[8192] < 0.7 * DEVICES["gb200"].bf16_tflops for rates in PUBLISHED.values())
    assert [level for level in range(2, 10) if PUBLISHED[level][8192] <= PUBLISHED[level - 1][8192]] == []
    assert PUBLISHED[1][8192] == round(2 * 8192**3 / 12.015e-3 / 1e12, 1)


def test_a_disagreement_is_about_a_figure_that_is_published_and_differs() -> None:
    for level, rates in DISAGREEMENTS.items():
        assert all(PUBLISHED[level][size] != rate for size, rate in rates.items())
    assert set(CUBLAS) == set(PUBLISHED[9])


def test_a_prediction_beyond_all_published_rates_says_so() -> None:
    shown = replace(profile(k_blocks=16), tflops=1900.0, device="b200")
    sentence = (
        "o published GEMM of 16 bits is so fast on a b200: the fastest has 1,772 TFLOPS (Modular, Matrix "
        "Multiplication on Blackwell, part 4)"
    )
    assert f"[dim]n{sentence}[/dim]" in list(profile_tables(shown))
    assert f"N{sentence}" in profile_page(shown)
    for other in ({"tflops": 1700.0}, {"device": "gb200"}, {"rate": 2.0}):
        assert not any(sentence in str(each) for each in profile_tables(replace(shown, **other)))
    step: Any = SimpleNamespace(summary="", stages=4)
    row = {"level": 9, "device": "b200", "tflops": 1900.0}
    assert f"  level 9: n{sentence}" in list(notes_of([row], [(9, step)], improved=False))
