"""Bars of launches, replays and schedules: on a terminal or in a notebook after a second, nothing elsewhere."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.text import Text

import warpwright as ww
from warpwright import display
from warpwright.cli import console
from warpwright.lang import Global, f32, tid
from warpwright.report import progress


class Terminal(io.StringIO):
    """A terminal of 100 columns."""

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return Text.from_ansi(self.getvalue().replace("\r", "\n")).plain


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal for `redirect_stderr`; bars appear at once."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    return Terminal()


@ww.kernel("sm_100a", threads=32)
def add_one(x: Global[f32]) -> None:
    x[tid.x] = x[tid.x] + 1.0


@pytest.mark.parametrize(
    ("call", "bars"),
    [
        (ww.launch, ["add_one: clusters"]),
        (ww.profile, ["add_one: clusters", "replay: steps"]),
        (lambda *args, **how: ww.check(*args, explore=3, **how), ["add_one: clusters", "schedules"]),
    ],
)
def test_a_call_has_its_bars(terminal: Terminal, call: Any, bars: list[str]) -> None:
    with redirect_stderr(terminal):
        call(add_one, grid=4, args=[np.zeros(32, np.float32)], device="b200")
    assert [bar for bar in bars if bar not in terminal.text] == []
    assert "0/4" in terminal.text and "left" in terminal.text


def test_bars_end_when_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    last: dict[str, tuple[int, int]] = {}

    @contextmanager
    def note(text: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda done: last.update({text: (done, total)})

    monkeypatch.setitem(display.FUNCTIONS, "progress", note)
    with redirect_stderr(Terminal()):
        ww.profile(add_one, grid=7, args=[np.zeros(32, np.float32)], device="b200")
    assert last.pop("add_one: clusters") == (7, 7)
    done, total = last.pop("replay: steps")
    assert done == total > 0 and not last


def test_work_of_less_than_a_second_has_no_bar(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS", 1000.0)
    with redirect_stderr(terminal):
        ww.launch(add_one, grid=4, args=[np.zeros(32, np.float32)], device="b200")
    assert terminal.text == ""


def test_nothing_is_shown_without_a_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    with redirect_stderr(terminal):
        ww.launch(add_one, grid=4, args=[np.zeros(32, np.float32)], device="b200")
    assert terminal.text == ""


def test_bars_of_inner_work_share_the_display_of_outer_work(terminal: Terminal) -> None:
    """Two live displays of one terminal overwrite each other's lines."""
    with redirect_stderr(terminal), display.progress("schedules", 3) as outer:
        outer(1)
        with display.progress("clusters", 8) as inner:
            inner(2)
            assert len(progress._shown) == 1 and len(progress._shown[0].tasks) == 2
        assert [task.description for task in progress._shown[0].tasks] == ["schedules"]
    assert not progress._shown


@pytest.mark.parametrize("closed", [False, True])
def test_a_program_without_standard_error_launches(closed: bool) -> None:
    stream = io.StringIO()
    stream.close()
    x = np.zeros(32, np.float32)
    with redirect_stderr(stream if closed else None):
        ww.launch(add_one, grid=1, args=[x], device="b200")
    assert x.tolist() == [1.0] * 32


def test_the_bar_of_a_launch_stands_below_that_of_its_command(terminal: Terminal) -> None:
    with redirect_stderr(terminal), console.progress(2) as describe, display.progress("clusters", 8) as show:
        describe("level 1")
        show(3)
        end = time.monotonic() + 30
        while "3/8" not in terminal.text and time.monotonic() < end:
            time.sleep(0.05)  # the display draws itself anew several times a second
    assert "level 1" in terminal.text and "3/8" in terminal.text


def test_a_bar_is_gone_after_an_error(terminal: Terminal) -> None:
    with redirect_stderr(terminal), pytest.raises(ValueError, match=r"^wrong$"):
        with display.progress("clusters", 8) as show:
            show(1)
            raise ValueError("wrong")
    with redirect_stderr(terminal), display.progress("replay", 2) as show:
        show(1)  # a second display would be an error if the first had not ended
    assert "replay" in terminal.text


def test_a_notebook_shows_a_bar_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    package.__dict__["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    module.__dict__.update(HTML=str, display=lambda html, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    for name in ("SECONDS", "REFRESH"):
        monkeypatch.setattr(progress, name, 0.0)
    with display.progress("k<1>: clusters", 8) as show:
        show(0)
        show(8)
    assert shown == [
        'k&lt;1&gt;: clusters <progress value="0" max="8"></progress> 0 of 8',
        'k&lt;1&gt;: clusters <progress value="8" max="8"></progress> 8 of 8, 0 s left',
        "",
    ]
