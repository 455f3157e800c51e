"""Output of all commands: results on standard output, progress and remarks on standard error."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn

from warpwright.report.output import try_file
from warpwright.report.progress import columns, show_above
from warpwright.run import devices

__all__ = ["OutputFile", "device_option", "emit", "exit_unless", "json_option", "progress", "remark", "show", "tell"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
device_option = click.option(
    "--device", default=devices.DEFAULT, show_default=True, help="One of `warpwright devices`."
)


class OutputFile(click.Path):
    """The type of an option that names an output file, which is tried before the work."""

    def __init__(self) -> None:
        super().__init__(readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try_file(path)
        return path


def emit(value: Any) -> None:
    """Print ``value`` as JSON on standard output."""
    click.echo(json.dumps(value, indent=2, default=lambda item: item.item()))


def show(*renderables: Any) -> None:
    """Print tables and text on standard output; 120 columns wide unless a terminal has another width."""
    _print(renderables, stderr=False)


def tell(*renderables: Any) -> None:
    """Print tables and text on standard error, as `show` does."""
    _print(renderables, stderr=True)


def _print(renderables: Iterable[Any], *, stderr: bool) -> None:
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console = Console(highlight=False, width=120, stderr=stderr)
    for renderable in renderables:
        console.print(renderable, soft_wrap=isinstance(renderable, str))


def remark(text: str) -> None:
    """Print one line on standard error."""
    click.echo(f"warpwright: {text}", err=True)


@contextlib.contextmanager
def progress(total: int = 1) -> Iterator[Callable[[str], None]]:
    """Show progress on a terminal, of several steps a bar with the time left; call the yielded function with the
    description of each step."""
    console = Console(stderr=True)
    bars = Progress(SpinnerColumn(), *(columns() if total > 1 else columns()[:1]), console=console)
    with show_above(bars) if console.is_terminal else contextlib.nullcontext():
        task = bars.add_task("", total=total)
        step = 0

        def describe(text: str) -> None:
            nonlocal step
            bars.update(task, description=escape(text), completed=step)
            step += 1

        yield describe


def exit_unless(
    verified: bool, why: str = "the result differs from the float64 reference by more than the bound"
) -> None:
    """Exit with status 1 unless the result is verified."""
    if not verified:
        remark(f"not verified: {why}")
        click.get_current_context().exit(1)
