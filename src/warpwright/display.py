"""How a notebook and a terminal show results and progress. The prelude enters the functions, which stand above."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["FUNCTIONS", "html_of", "in_notebook", "progress", "show"]

FUNCTIONS: dict[str, Callable[..., Any]] = {}  # "html" and "show" of a result; "progress" of work


def html_of(result: Any) -> str:
    """Returns a result as HTML for the output of a cell."""
    return str(FUNCTIONS["html"](result))


def show(result: Any, *more: Any) -> Any:
    """Opens the report of a result in a browser, or returns it for the output of a cell."""
    return FUNCTIONS["show"](result, *more)


def progress(text: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Shows the progress of work that takes more than a second; the function of the context takes the number of steps
    done. Nothing is shown if neither a terminal nor a notebook would show it."""
    if in_notebook() or _has_terminal():
        shown: AbstractContextManager[Callable[[int], None]] = FUNCTIONS["progress"](text, total)
        return shown
    return nullcontext(lambda done: None)


def _has_terminal() -> bool:
    """Returns whether standard error is a terminal; a program may have closed it, or have none."""
    stream = sys.stderr
    return stream is not None and not stream.closed and stream.isatty()


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
