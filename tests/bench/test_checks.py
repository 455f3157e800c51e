"""What checking costs: the program measures a clean launch and says how much, here for the smallest kernel."""

from __future__ import annotations

import json
import sys

import checks
import pytest


def test_a_row_has_both_times_and_the_memory(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["checks.py", "--here", "memory flow, b200", "--rounds", "1"])
    assert checks.main() == 0
    row = json.loads(capsys.readouterr().out)
    assert row["kernel"] == "memory flow, b200"
    assert row["plain_s"] > 0
    assert row["checked_s"] == pytest.approx(row["ratio"] * row["plain_s"])
    assert 50 < row["peak_mib"] < 2048


def test_a_kernel_that_is_not_clean_is_not_measured(monkeypatch) -> None:
    verdict = type("Verdict", (), {"kind": "findings"})
    monkeypatch.setattr(checks.ww, "check", lambda *_, **__: verdict)
    with pytest.raises(AssertionError, match=r"memory flow, b200 is \{'findings'\}"):
        checks.measure("memory flow, b200", 1)
