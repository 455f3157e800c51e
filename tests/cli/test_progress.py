"""Progress of commands: a bar with the time left on a terminal, nothing elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from warpwright.cli import console


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, total: int) -> str:
    """Returns what ``total`` steps write to standard error."""
    stream = io.StringIO()
    made = Console(file=stream, force_terminal=terminal, width=100)
    monkeypatch.setattr(console, "Console", lambda **how: made)
    with console.progress(total) as describe:
        for step in range(total):
            describe(f"level [{step}]")
    return Text.from_ansi(stream.getvalue()).plain


def test_steps_have_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True, total=3)
    assert "level [2]" in text and "2/3" in text and "left" in text


def test_one_step_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True, total=1)
    assert "level [0]" in text and "left" not in text


@pytest.mark.parametrize("total", [1, 3])
def test_nothing_is_shown_when_the_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch, total: int) -> None:
    assert shown(monkeypatch, terminal=False, total=total) == ""
