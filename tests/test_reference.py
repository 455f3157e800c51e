"""docs/reference.md is what the docstrings say."""

from __future__ import annotations

from pathlib import Path

from tests.reference import text

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"


def test_the_reference_is_that_of_the_docstrings(check_golden) -> None:
    check_golden(PAGE, text())
