"""Rows of the ladder: predictions, why a level is faster, and the errors of a full run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.timelines import profile
from warpwright.cli import ladder_table
from warpwright.kernels.gemm.sm90 import LEVELS as HOPPER
from warpwright.kernels.gemm.sm100 import IMPROVED, LEVELS
from warpwright.report.verdict import Verdict
from warpwright.run.devices import device

STEPS = [(level, LEVELS[level]) for level in (1, 2)]
MADE = {1: profile(stages=2, time_us=900.0, tflops=152.7), 2: profile(stages=8, wasted=0.5)}
VERDICT = Verdict(max_err=0.5, mean_err=0.1, cos_sim=1.0, max_ulp=0.9, verified=True)


@pytest.fixture
def engine(monkeypatch):
    def matmul(device, shape, level, fast, seed=0, sustained=False, warm=False, format=None):
        return replace(MADE[level.level], fast=fast), None if fast else VERDICT

    monkeypatch.setattr(ladder_table, "matmul_profile", matmul)


def test_a_row_says_what_is_predicted_and_why_it_is_faster(engine) -> None:
    rows = ladder_table.predict_levels(device("b200"), STEPS, 512, 0, fast=True)
    assert [row["level"] for row in rows] == [1, 2]
    assert rows[0]["why_faster"] == "" and rows[1]["why_faster"].startswith("waits for operands ")
    assert rows[1]["main_stall"] == "mma waits ab.full 78 %"
    assert (rows[1]["time_us"], rows[1]["tensor"], rows[1]["wasted"]) == (464.0, 0.29, 0.5)
    assert sum(rows[1]["parts_us"].values()) == pytest.approx(464.0)
    assert "verified" not in rows[0]


def test_a_full_run_has_errors_too(engine) -> None:
    rows = ladder_table.predict_levels(device("b200"), STEPS, 512, 0, fast=False)
    assert rows[0]["verified"] and rows[0]["max_ulp"] == 0.9
    assert len(list(ladder_table.level_tables(rows, "a title"))) == 3


def test_a_chart_gets_the_same_numbers(engine) -> None:
    rows = ladder_table.predict_levels(device("b200"), STEPS, 512, 0, fast=True)
    (first, second) = ladder_table.levels_of(rows, STEPS)
    assert (first.level, first.tflops, first.wasted, first.summary) == (1, 152.7, 0.0, LEVELS[1].summary)
    assert second.wasted == 0.5 and second.why == "dropped MMA 40 %"
    assert len(list(ladder_table.level_tables(rows, "a title"))) == 2


def test_measured_rows_make_a_chart_without_stalls() -> None:
    (level,) = ladder_table.levels_of([{"level": 2, "tflops": 600.0}], STEPS[1:])
    assert (level.wasted, level.why, level.published) == (0.0, "", None)


def test_published_and_improved_levels_are_named_below_the_table() -> None:
    rows = [{"level": 5, "tflops": 1.0, "device": "b200"}]
    published, improved = (
        list(ladder_table.notes_of(rows, [(5, step)], step is IMPROVED[5])) for step in (LEVELS[5], IMPROVED[5])
    )
    assert published[1:] == [
        "  levels 4 and 5 as published: rows reach shared memory 8 bytes at a time (--improved: 16)",
        "  level 5 as published: mbarriers are initialised for each tile (--improved: once)",
    ]
    assert improved[2:] == [
        "  levels 4 and 5 improved: rows reach shared memory 16 bytes at a time",
        "  level 5 improved: mbarriers are initialised once, and phases continue from tile to tile",
    ]


def test_published_rates_stand_beside_the_published_levels(engine) -> None:
    first, second = ladder_table.predict_levels(device("b200"), STEPS, 4096, 0, fast=True)
    assert first["published"] == 100 and first["published_cublas"] == second["published_cublas"] == 1589
    assert second["published"] == 193.2 and second["difference"] == round(second["tflops"] / 193.2 - 1, 3)
    assert ladder_table.levels_of([first, second], STEPS)[1].published == 193.2
    for step in (IMPROVED[2], replace(LEVELS[2], stages=4), LEVELS[10]):
        assert ladder_table.beside_published(step, 4096, 100.0) == {"published_cublas": 1589}
    assert ladder_table.beside_published(LEVELS[2], 2048, 100.0) == {}
    assert ladder_table.beside_published(HOPPER[2], 4096, 100.0) == {}


def test_the_lines_below_the_table_say_why_a_level_is_faster(engine) -> None:
    rows = ladder_table.predict_levels(device("b200"), STEPS, 4096, 0, fast=True)
    assert list(ladder_table.notes_of(rows, STEPS, improved=False)) == [
        f"  level 1: {LEVELS[1].summary}",
        f"  level 2: {LEVELS[2].summary}",
        f"    faster: {rows[1]['why_faster']}",
        "  levels 1 to 3 as published: one CTA an SM at a time, stores of one element (--improved: neither)",
        "  published: by the authors of the levels, on a GB200; cuBLAS there: 1,589 TFLOPS",
    ]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_and_is_not_cut(engine, columns) -> None:
    rows = ladder_table.predict_levels(device("b200"), STEPS, 4096, 0, fast=True)
    console = Console(width=columns, highlight=False)
    with console.capture() as captured:
        for each in ladder_table.level_tables(rows, "a title"):
            console.print(each)
    text = captured.get()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    words = ["level", "TFLOPS", "published", "193", *rows[0]["largest_loss"].split()]
    assert [word for word in words if word not in text.split()] == [] and "…" not in text
    assert text.count("%") == 4 * len(rows)
