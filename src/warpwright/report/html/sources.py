"""Source lines beside what a report says of them."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Mapping
from pathlib import Path

from warpwright.report.findings import location_of
from warpwright.report.format import base_name
from warpwright.report.html.elements import Html, element

__all__ = ["code_of", "excerpt", "listing"]

AROUND = 2  # lines before and after a marked line


def code_of(where: str, source: Path | None = None) -> str:
    """Returns the text of a source line, ``""`` if its file cannot be read."""
    found = location_of(where, source)
    return linecache.getline(*found).strip() if found else ""


def excerpt(where: str, source: Path | None = None) -> Html:
    """Returns a line of source with the lines around it, the line marked; only its name if the file cannot be read."""
    found = location_of(where, source)
    if found is None or not linecache.getline(*found):
        return element("p", base_name(where), class_="where")
    return listing(found[0], {found[1]: ("", "")})


def listing(file: str, notes: Mapping[int, tuple[str, str]]) -> Html:
    """Returns the lines of ``file`` that have notes, with the lines around them; an ellipsis marks a gap. The notes of
    a line: a short one before it and a long one after it."""
    near = {number for line in notes for number in range(line - AROUND, line + AROUND + 1)}
    numbers = sorted(number for number in near if linecache.getline(file, number))
    while numbers and numbers[-1] not in notes and not linecache.getline(file, numbers[-1]).strip():
        numbers.pop()
    texts = textwrap.dedent("".join(linecache.getline(file, number) for number in numbers)).splitlines()
    rows, before = [], 0
    for number, text in zip(numbers, texts, strict=True):
        if before and number > before + 1:
            rows.append(element("tr", element("td", ""), element("td", "⋮"), element("td", ""), element("td", "")))
        rows.append(_row(number, text, notes.get(number)))
        before = number
    title = element("figcaption", base_name(file), title=file)
    grid = element("table", element("tbody", *rows), class_="code")
    scroll = element(
        "div", grid, class_="scroll", tabindex="0", role="region", aria_label=f"lines of {base_name(file)}"
    )
    return element("figure", title, scroll)


def _row(number: int, text: str, notes: tuple[str, str] | None) -> Html:
    before, after = notes or ("", "")
    cells = [element("td", each) for each in (before, str(number), element("code", text or " "), after)]
    return element("tr", *cells, class_="marked" if notes else "")
