"""Tables from rows with equal keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["table"]


def table(rows: Sequence[Mapping[str, Any]], title: str = "", *, wrap: Collection[str] = ()) -> Table:
    """Returns a table with one column for each key of the first row; numbers are right-aligned, long headings wrap.

    The cells of the columns ``wrap`` wrap too, where the console is too narrow.
    """
    result = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    for key, value in rows[0].items():
        width = max(len(Text.from_markup(_cell(key, row[key]))) for row in rows)
        side: Literal["left", "right"] = "right" if isinstance(value, (int, float)) else "left"
        least = None if key in wrap else width
        result.add_column(key.replace("_", " "), justify=side, min_width=least, vertical="bottom" if least else "top")
    for row in rows:
        result.add_row(*(_cell(key, value) for key, value in row.items()))
    return result


def _cell(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "[green]yes[/green]" if value else "[red]no[/red]"
    if isinstance(value, float):
        return f"{value:.6f}" if key == "cos_sim" else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
