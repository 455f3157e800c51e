"""Samples of parameters: `make test` runs some cases of an exhaustive test, `make test-long` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["sampled"]


def sampled(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    every: int = 0,
    keep: Iterable[Any] = (),
    long: Iterable[Any] = (),
    **more: Any,
) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` with the mark ``long`` on the cases that `make test` leaves out: those of
    ``long``, or all but each ``every``-th case, the first one included, and those of ``keep``."""
    cases, keep, long = list(cases), list(keep), list(long)
    assert all(case in cases for case in (*keep, *long)), "a case of keep= or long= is none of the test's"
    kept = [case not in long if long else case in keep or (every and at % every == 0) for at, case in enumerate(cases)]
    assert any(kept) and not all(kept), "all cases are kept, or none"
    rows = [case if isinstance(names, tuple) else (case,) for case in cases]
    marks = [() if each else pytest.mark.long for each in kept]
    return pytest.mark.parametrize(
        names, [pytest.param(*row, marks=mark) for row, mark in zip(rows, marks, strict=True)], **more
    )
