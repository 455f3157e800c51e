"""Samples of parameters: `make test` runs some cases of an exhaustive test, `make test-long` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["sampled"]


def sampled(
    names: str | tuple[str, ...], cases: Iterable[Any], every: int = 0, keep: Iterable[Any] = (), **more: Any
) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize``, where `make test` runs each ``every``-th case, the first one included, and the cases
    of ``keep``. The other cases have the mark ``long``."""
    cases, keep = list(cases), list(keep)
    assert all(case in cases for case in keep), "a case of keep= is none of the test's"
    kept = [case in keep or (bool(every) and at % every == 0) for at, case in enumerate(cases)]
    assert any(kept) and not all(kept), "keep= and every= keep all cases or none"
    rows = [case if isinstance(names, tuple) else (case,) for case in cases]
    marks = [() if each else pytest.mark.long for each in kept]
    return pytest.mark.parametrize(
        names, [pytest.param(*row, marks=mark) for row, mark in zip(rows, marks, strict=True)], **more
    )
