"""The page of a program: its kernels, the verdicts that are not clean, and the profile of the longest launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from warpwright.ptx.names import kernel_name
from warpwright.report.format import headline
from warpwright.report.html.elements import Html, element, section, table
from warpwright.report.html.page import Section, page
from warpwright.report.html.profile import profile_data, profile_sections, scripts, time_tiles
from warpwright.report.html.verdict import badge, verdict_parts
from warpwright.report.launches import kernel_rows
from warpwright.run.session import Launched
from warpwright.vgpu.timing import Profile

__all__ = ["kernel_table", "program_page"]


def program_page(title: str, launches: Sequence[Launched], longest: Profile | None = None) -> str:
    """Returns the HTML file of a program that was run; ``longest``: the profile of its longest launch."""
    kernels = kernel_table(launches) if launches else element("p", "The program launched no kernel.")
    found: list[Section] = [("kernels", "Kernels", section("kernels", "Kernels", kernels))]
    verdicts = list(_verdicts(launches))
    if verdicts:
        found.append(("verdicts", "Verdicts", section("verdicts", "Verdicts", *verdicts)))
    checked = None
    if longest is not None:
        checked = next((each.verdict for each in launches if each.time_us == longest.time_us), None)
        head = section("longest", f"The longest launch: {headline(longest)}", time_tiles(longest))
        found += [("longest", "The longest launch", head), *profile_sections(longest)]
    return page(
        title,
        element("h1", title),
        found,
        profile_data(longest, checked) if longest else {},
        scripts() if longest else (),
    )


def kernel_table(launches: Sequence[Launched]) -> Html:
    """Returns the table of the kernels, with the worst verdict of each."""
    return table([row | _kind(row) for row in kernel_rows(launches)])


def _kind(row: dict[str, Any]) -> dict[str, Html]:
    return {"verdict": badge(row["verdict"])} if row.get("verdict") else {}


def _verdicts(launches: Sequence[Launched]) -> Iterator[Html]:
    """Yields the verdicts that are not clean; equal verdicts once."""
    told: dict[str, int] = {}
    for each in launches:
        if each.verdict is not None and each.verdict.kind != "clean":
            grid = " × ".join(map(str, each.grid))
            title = element("h3", f"{kernel_name(each.name)}, grid {grid}: ", badge(each.verdict.kind))
            text = "".join([title, *verdict_parts(each.verdict)])
            told[text] = told.get(text, 0) + 1
    for text, count in told.items():
        yield Html(text)
        if count > 1:
            yield element("p", f"{count} launches have this verdict.", class_="quiet")
