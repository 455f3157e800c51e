"""How a notebook shows the results of this package. The prelude enters the functions, which stand above the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["FUNCTIONS", "html_of", "show"]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {}  # "html" and "show", of a result


def html_of(result: Any) -> str:
    """Returns a result as HTML for the output of a cell."""
    return str(FUNCTIONS["html"](result))


def show(result: Any) -> Any:
    """Opens the report of a result in a browser, or returns it for the output of a cell."""
    return FUNCTIONS["show"](result)
