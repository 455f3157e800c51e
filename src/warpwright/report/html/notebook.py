"""Results in a notebook: profiles, verdicts and launches as the output of a cell, and the whole report in a frame."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from pathlib import Path
from typing import Any

from warpwright.display import in_notebook
from warpwright.errors import UsageError
from warpwright.gpu import LaunchResult
from warpwright.ptx.names import kernel_name
from warpwright.report.account import account
from warpwright.report.advice import advice
from warpwright.report.figure import PAINT
from warpwright.report.format import base_name, gain_text, headline, percent
from warpwright.report.html.elements import Html, element, table
from warpwright.report.html.page import read
from warpwright.report.html.profile import parts_bar, parts_key, profile_page
from warpwright.report.html.program import kernel_table
from warpwright.report.html.verdict import badge, verdict_parts
from warpwright.report.text import rank_rows, time_row
from warpwright.run.session import Launched, Session
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.timing import Profile

__all__ = ["Frame", "cell_html", "show_report"]

STALLS = 5  # of a profile, in a cell
HEIGHT = 900  # pixels of a report in a cell


def cell_html(result: Any) -> str:
    """Returns a result as HTML that a notebook shows in the output of a cell, in the colours of the notebook."""
    colours = ";".join(f"--{name.replace(' ', '-')}:{colour}" for name, colour in PAINT.items())
    parts = "".join(_parts(result))
    return element("div", Html(f"<style>{read('notebook.css')}</style>{parts}"), class_="warpwright", style=colours)


@singledispatch
def _parts(result: Any) -> Iterator[Html]:
    """Yields the parts of a result as HTML."""
    raise TypeError(f"given {type(result).__name__}; expected a profile, a verdict or a launch")


@_parts.register
def _profile(profile: Profile) -> Iterator[Html]:
    yield element("p", element("strong", headline(profile)))
    yield table([time_row(profile)])
    if profile.ranks:
        yield table(list(rank_rows(profile)), "the ranks of the node")
    parts = account(profile)
    if parts:
        yield parts_bar(profile)
        yield parts_key(parts)
    rows = [(stall.cycles, role.name, stall) for role in profile.roles for stall in role.stalls]
    longest = sorted(rows, key=lambda row: -row[0])[:STALLS]
    if longest:
        yield table(
            [
                {"role": name, "stall": each.reason, "share": percent(each.share), "where": base_name(each.where)}
                for _, name, each in longest
            ]
        )
    for hint in advice(profile):
        yield element("p", element("strong", hint.topic), f" ({gain_text(hint.gain)}): {hint.text}")


@_parts.register
def _verdict(verdict: Verdict) -> Iterator[Html]:
    yield element("p", element("strong", f"{kernel_name(verdict.kernel)} on {verdict.device}: "), badge(verdict.kind))
    yield from verdict_parts(verdict)


@_parts.register
def _launched(launched: Launched) -> Iterator[Html]:
    yield kernel_table([launched])
    if launched.verdict is not None and launched.verdict.kind != "clean":
        yield from verdict_parts(launched.verdict)


@_parts.register
def _session(session: Session) -> Iterator[Html]:
    yield element("p", element("strong", session.summary))
    if session.launches:
        yield kernel_table(session.launches)


@_parts.register
def _result(result: LaunchResult) -> Iterator[Html]:
    yield element("pre", result.printed) if result.printed else element("p", "The launch ended; it printed nothing.")


@dataclass(frozen=True, slots=True)
class Frame:
    """A report in the output of a cell: a page in a frame of its own."""

    page: str

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{HEIGHT}px;border:0"
        return f'<iframe srcdoc="{escape(self.page)}" style="{style}" title="report"></iframe>'


def show_report(profile: Profile, verdict: Verdict | None = None) -> Frame | Path:
    """Returns the report for the cell of a notebook; elsewhere opens the report in a browser, and returns its file.
    ``verdict``: of the same launch.

    Raises UsageError if no browser opens.
    """
    page = profile_page(profile, verdict=verdict)
    if in_notebook():
        return Frame(page)
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="warpwright-", delete=False, encoding="utf-8") as file:
        file.write(page)
    path = Path(file.name)
    if not webbrowser.open(path.as_uri()):
        raise UsageError(f"no browser opened {path}; open that file in a browser, or copy it to a machine that has one")
    return path
