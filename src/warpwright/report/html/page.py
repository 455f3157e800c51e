"""The page around a report: its style and its scripts in the file, and a policy that forbids every request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from warpwright.report.html.elements import Html, element

__all__ = ["Section", "page", "read", "style"]

Section = tuple[str, str, Html]  # anchor, title in the navigation, HTML


def page(title: str, head: Html, sections: Sequence[Section], data: Mapping[str, Any], scripts: Sequence[str]) -> str:
    """Returns the HTML file: a heading, a navigation, the sections, ``data`` for the ``scripts`` (texts)."""
    links = [element("a", name, href=f"#{anchor}") for anchor, name, _ in sections]
    parts = {
        "title": escape(title),
        "style": style(),
        "head": head,
        "navigation": element("nav", *links, aria_label="sections") if links[1:] else "",
        "sections": "".join(html for *_, html in sections),
        "data": json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/"),
        "scripts": "\n".join(scripts),
    }
    before, *rest = read("page.html").split("{{")
    return before + "".join(parts[name] + text for name, text in (each.split("}}", 1) for each in rest))


def style() -> str:
    """Returns the style sheet of all reports."""
    return read("style.css")


def read(name: str) -> str:
    """Returns the text of a file of this folder."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
