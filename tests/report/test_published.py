"""The published figures are consistent: the problem and the device allow each rate."""

from __future__ import annotations

from warpwright.report.published import CUBLAS, DISAGREEMENTS, PUBLISHED
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
