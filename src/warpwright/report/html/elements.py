"""HTML elements and tables as text; strings are escaped, text of this module is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from warpwright.report.tables import HEADINGS, cell_text

__all__ = ["Html", "element", "section", "table"]


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Html:
    """Returns an element. ``class_`` is the attribute class; an underscore in a name is a hyphen."""
    pairs = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items() if value
    )
    inside = "".join(child if isinstance(child, Html) else escape(child, quote=False) for child in children)
    return Html(f"<{tag}{pairs}>{inside}</{tag}>")


def section(name: str, title: str, *children: str) -> Html:
    """Returns a section of the page with its heading; ``name`` is its anchor."""
    return element(
        "section", element("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title"
    )


def table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> Html:
    """Returns a table with one column for each key of the first row, as `report.tables.table` has it. It scrolls by
    itself on a narrow screen."""
    head = element("tr", *(element("th", _heading(key), scope="col") for key in rows[0]))
    body = [element("tr", *(_cell(key, value) for key, value in row.items())) for row in rows]
    title = [element("caption", caption)] if caption else []
    inside = element("table", *title, element("thead", head), element("tbody", *body))
    return element("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption or "table")


def _heading(key: str) -> str:
    return HEADINGS.get(key, key.replace("_", " ")).replace("\n", " ")


def _cell(key: str, value: Any) -> Html:
    if isinstance(value, Html):
        return element("td", value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return element("td", cell_text(key, value), class_="number" if number else "")
