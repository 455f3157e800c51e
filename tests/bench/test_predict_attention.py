"""Attention predicted against the times that an H200 took: what takes seconds of it."""

from __future__ import annotations

import json
from typing import Any

import predict_attention
import pytest


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return json.loads(predict_attention.STORED.read_text(encoding="utf-8"))


def test_every_case_was_measured(stored: dict[str, Any]) -> None:
    assert stored["device"] == "NVIDIA H200" and stored["command"] == "python bench/predict_attention.py --measure"
    cases = [case for group in predict_attention.cases() for case in group]
    assert [row["case"] for row in stored["rows"]] == [case.key for case in cases]


def test_a_case_without_a_time_is_predicted_only() -> None:
    (row,) = predict_attention.compare([], predict_attention.select_cases("sm90 convert: d 128, 1x16x4096"))
    assert predict_attention.line(row) == f"| {row['case']} | not measured | {row['predicted']:.1f} | |"


def test_every_case_has_its_arguments() -> None:
    for case in (each for group in predict_attention.cases() for each in group):
        arrays = dict.fromkeys(predict_attention.shapes(case), "an array")
        assert len(predict_attention.arguments(case, arrays, "a counter")) == len(case.traced.params)


@pytest.mark.parametrize("name", ["sm90 prepare: d 128, 1x16x4096", "sm90 convert: d 128, 1x16x4096"])
def test_a_launch_of_the_backward_pass_is_predicted(name: str, stored: dict[str, Any]) -> None:
    """Every case is checked by ``python bench/predict_attention.py``."""
    (row,) = predict_attention.compare(stored["rows"], predict_attention.select_cases(name))
    assert abs(row["error"]) <= predict_attention.GOAL, row
    assert predict_attention.line(row).startswith(f"| {name} | {row['us']:.1f} | ")
