"""Progress of work that takes more than a second: a bar with the time left, on a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from html import escape
from importlib import import_module

from rich import markup
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from warpwright.display import in_notebook

__all__ = ["columns", "show_above", "show_bar"]

SECONDS = 1.0  # after which a bar appears
REFRESH = 0.1  # seconds between two states of a bar in a notebook

_shown: list[Progress] = []  # the bars on the terminal, which inner work joins: a terminal has one live display


def columns() -> list[ProgressColumn]:
    """Returns the columns of a bar; each set of bars has its own, which remember what they have shown."""
    text, left = TextColumn("{task.description}"), TextColumn("left")
    return [text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left, TimeRemainingColumn()]


class _TerminalBar:
    """A bar on standard error, below the bars that are shown already; it disappears at the end."""

    def __init__(self, text: str, total: int) -> None:
        self.own = not _shown
        self.bars = Progress(*columns(), console=Console(stderr=True), transient=True) if self.own else _shown[-1]
        if self.own:
            _shown.append(self.bars)
            self.bars.start()
        self.task = self.bars.add_task(markup.escape(text), total=total)

    def update(self, done: int) -> None:
        self.bars.update(self.task, completed=done)

    def close(self) -> None:
        self.bars.remove_task(self.task)
        if self.own:
            _shown.remove(self.bars)
            self.bars.stop()


class _NotebookBar:
    """A bar in the output of a cell; it disappears at the end. A notebook has IPython; other programs need it not."""

    def __init__(self, text: str, total: int) -> None:
        display = import_module("IPython.display")
        self.html, self.text, self.total = display.HTML, text, total
        self.begin = self.last = time.monotonic()
        self.handle = display.display(self.html(""), display_id=True)

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now - self.last >= REFRESH:
            self.last = now
            self.handle.update(self.html(bar_html(self.text, done, self.total, now - self.begin)))

    def close(self) -> None:
        self.handle.update(self.html(""))


def bar_html(text: str, done: int, total: int, seconds: float) -> str:
    """Returns a bar as HTML: what runs, ``done`` of ``total`` steps, and the time left after ``seconds``."""
    left = f", {seconds / done * (total - done):.0f} s left" if done else ""
    return f'{escape(text)} <progress value="{done}" max="{total}"></progress> {done} of {total}{left}'


@contextlib.contextmanager
def show_above(bars: Progress) -> Iterator[None]:
    """Show the bars of a command, and below them those of its launches."""
    below = Progress(*columns(), console=bars.console)
    _shown.append(below)
    try:
        with Live(Group(bars, below), console=bars.console, transient=True):
            yield
    finally:
        _shown.remove(below)


@contextlib.contextmanager
def show_bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar after a second; the yielded function, which any thread may call, takes the number of steps done."""
    begin, lock = time.monotonic(), threading.Lock()
    bar: _NotebookBar | _TerminalBar | None = None

    def update(done: int) -> None:
        nonlocal bar
        with lock:
            if bar is None and time.monotonic() - begin >= SECONDS:
                bar = (_NotebookBar if in_notebook() else _TerminalBar)(text, total)
            if bar is not None:
                bar.update(done)

    try:
        yield update
    finally:
        if bar is not None:
            bar.close()
