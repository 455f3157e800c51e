"""Rows of the ladder: predictions, why a level is faster, and the errors of a full run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.timelines import profile
from warpwright.cli import ladder_table
from warpwright.report.verdict import Verdict
from warpwright.run.devices import device

SUMMARIES = {1: "a baseline", 2: "a deeper ring"}
MADE = {1: profile(stages=2, time_us=900.0, tflops=152.7), 2: profile(stages=8, wasted=0.5)}
VERDICT = Verdict(max_err=0.5, mean_err=0.1, cos_sim=1.0, max_ulp=0.9, verified=True)


@pytest.fixture
def engine(monkeypatch):
    def matmul(device, shape, level, fast, seed=0, sustained=False):
        assert shape == (512, 512, 512)
        return replace(MADE[level], fast=fast), None if fast else VERDICT

    monkeypatch.setattr(ladder_table, "matmul_profile", matmul)


def test_a_row_says_what_is_predicted_and_why_it_is_faster(engine) -> None:
    rows = ladder_table.predict_levels(device("b200"), SUMMARIES, 512, 0, fast=True)
    assert [row["level"] for row in rows] == [1, 2]
    assert rows[0]["why_faster"] == "" and rows[1]["why_faster"].startswith("waits for operands ")
    assert rows[1]["main_stall"] == "mma waits ab.full 78 %"
    assert (rows[1]["time_us"], rows[1]["tensor"], rows[1]["wasted"]) == (464.0, 0.29, 0.5)
    assert sum(rows[1]["parts_us"].values()) == pytest.approx(464.0)
    assert "verified" not in rows[0]


def test_a_full_run_has_errors_too(engine) -> None:
    rows = ladder_table.predict_levels(device("b200"), SUMMARIES, 512, 0, fast=False)
    assert rows[0]["verified"] and rows[0]["max_ulp"] == 0.9
    assert len(list(ladder_table.level_tables(rows, "a title"))) == 2


def test_a_chart_gets_the_same_numbers(engine) -> None:
    rows = ladder_table.predict_levels(device("b200"), SUMMARIES, 512, 0, fast=True)
    (first, second) = ladder_table.levels_of(rows, SUMMARIES)
    assert (first.level, first.tflops, first.wasted, first.summary) == (1, 152.7, 0.0, "a baseline")
    assert second.wasted == 0.5 and second.why == "dropped MMA 40 %"
    assert len(list(ladder_table.level_tables(rows, "a title"))) == 1


def test_measured_rows_make_a_chart_without_stalls() -> None:
    (level,) = ladder_table.levels_of([{"level": 2, "tflops": 600.0}], SUMMARIES)
    assert (level.wasted, level.why) == (0.0, "")
