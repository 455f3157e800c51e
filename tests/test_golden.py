"""``pytest --update-golden`` rewrites a golden file; without it a difference fails and says how to rewrite it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
from pathlib import Path

def test_text(check_golden):
    check_golden(Path("golden.txt"), "new")
"""


def test_a_golden_file_is_compared_and_rewritten_on_demand(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(test_golden_file=TESTS)
    golden = pytester.path / "golden.txt"
    golden.write_text("old")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*golden.txt differs; if the change is meant: pytest --update-golden test_golden_file.py::test_text*"]
    )
    assert golden.read_text() == "old"
    pytester.runpytest("--update-golden").assert_outcomes(passed=1)
    assert golden.read_text() == "new"
    pytester.runpytest().assert_outcomes(passed=1)
