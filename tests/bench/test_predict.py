"""Predictions against the times that an H200 took, kept in ``bench/measured``: the accuracy holds without a GPU."""

from __future__ import annotations

import json
from typing import Any

import predict
import pytest
import warm

SMALL = list(predict.cases((2048,), predict.ELEMENTS[:2]))


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return json.loads(predict.STORED["fitted"].read_text(encoding="utf-8"))


def test_every_case_was_measured(stored: dict[str, Any]) -> None:
    assert stored["device"] == "NVIDIA H200" and stored["command"] == "python bench/predict.py --measure"
    known = {(row["case"], row["size"]) for row in stored["rows"]}
    assert known == {(case.name, case.size) for case in predict.cases()}
    assert len(known) == 9 * len(predict.SIZES) + 2 * len(predict.ELEMENTS)


def test_two_levels_are_predicted(stored: dict[str, Any]) -> None:
    rows = predict.compare(stored["rows"], [predict.level_case(number, 2048) for number in (6, 8)])
    found = predict.summary(rows)
    assert found["worst"] <= predict.GOALS["fitted"][1], predict.table(rows)
    assert found["disorder"] == []


@pytest.mark.long
def test_the_ladder_at_2048_and_the_examples_are_predicted(stored: dict[str, Any]) -> None:
    """Every size is checked by ``python bench/predict.py``; this is the part that takes seconds."""
    rows = predict.compare(stored["rows"], SMALL)
    found = predict.summary(rows)
    mean, worst = predict.GOALS["fitted"]
    assert found["mean"] <= mean + 0.02, predict.table(rows)  # of the smallest size alone
    assert found["worst"] <= worst, predict.table(rows)
    assert found["disorder"] == []


def test_tiles_partly_outside_the_matrix_are_predicted() -> None:
    """Where the lowest tiles load less than the others, L2 joins fewer reads of a GPC."""
    measured = json.loads(predict.STORED["unseen"].read_text(encoding="utf-8"))
    rows = predict.compare(measured["rows"], [predict.matmul_case(300, 5000, 8192)])
    assert predict.summary(rows)["worst"] <= predict.GOALS["unseen"][1], predict.table(rows)


def test_launches_in_a_loop_are_predicted() -> None:
    """``python bench/warm.py`` compares the rest. These data fit in L2, and a loop saves 3.5 µs of each launch."""
    stored = json.loads(warm.STORED.read_text(encoding="utf-8"))
    assert {(case.name, case.size) for case in warm.cases()} < {(row["case"], row["size"]) for row in stored["rows"]}
    measured = [{**row, "sets": [row["us"]]} for row in stored["rows"]]
    found = predict.compare(measured, [predict.level_case(number, 2048) for number in (6, 9)], warm=True)
    assert predict.summary(found)["worst"] <= 0.05, predict.table(found)
    assert all(row["predicted"] < row["alone_us"] - 3 for row in measured_with(found, measured))


def measured_with(found: list[dict[str, Any]], measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of ``found``, each with what was measured besides."""
    known = {(row["case"], row["size"]): row for row in measured}
    return [{**known[row["case"], row["size"]], **row} for row in found]


def rows(*pairs: tuple[float, float], size: int = 4096) -> list[dict[str, Any]]:
    return [
        {
            "case": f"GEMM level {i}",
            "size": size,
            "us": us,
            "sets": [us - 1.0, us + 1.0],
            "predicted": predicted,
            "error": predicted / us - 1,
        }
        for i, (us, predicted) in enumerate(pairs, 1)
    ]


def test_the_summary_has_mean_worst_and_order() -> None:
    found = predict.summary(rows((100.0, 110.0), (80.0, 60.0)))
    assert found["mean"] == pytest.approx(0.175) and found["worst"] == pytest.approx(0.25)
    assert found["disorder"] == []


def test_levels_the_other_way_round_are_named() -> None:
    assert predict.disorder(rows((100.0, 100.0), (80.0, 120.0))) == ["GEMM level 1 and level 2 at 4096"]


def test_levels_as_fast_as_each_other_have_no_order() -> None:
    assert predict.disorder(rows((100.0, 100.0), (99.0, 120.0))) == []


def test_levels_whose_measurements_overlap_have_no_order() -> None:
    both = rows((30.0, 30.0), (28.5, 40.0))
    assert predict.disorder(both) == []
    both[0]["sets"] = [30.0]
    assert predict.disorder(both) == ["GEMM level 1 and level 2 at 4096"]


def test_sizes_are_not_compared_with_one_another() -> None:
    assert predict.disorder([*rows((100.0, 100.0)), *rows((10.0, 120.0), size=2048)]) == []


def test_the_table_has_a_line_for_each_case() -> None:
    lines = predict.table(rows((100.0, 110.0), (80.0, 60.0))).splitlines()
    assert lines[2:] == [
        "| GEMM level 1 | 4096 | 100.0 | 110.0 | +10.0 % |",
        "| GEMM level 2 | 4096 | 80.0 | 60.0 | -25.0 % |",
    ]
