"""The launches of a program as rows of kernels, text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.markup import escape

from warpwright.ptx.names import kernel_name
from warpwright.report.findings import locations_of, shorten_paths, verdict_lines
from warpwright.report.format import base_name
from warpwright.report.tables import HEADINGS, cell_text
from warpwright.run.session import Launched
from warpwright.vgpu.checks.findings import Finding, causes, note_lines
from warpwright.vgpu.checks.hang import page_lines

__all__ = ["kernel_rows", "launch_lines", "markdown_of"]

WORST = ("findings", "incomplete", "notes", "clean")


def kernel_rows(launches: Sequence[Launched]) -> list[dict[str, Any]]:
    """Returns a row for each kernel: its name, its launches, their worst verdict, and their predicted time."""
    rows = []
    for name in dict.fromkeys(each.name for each in launches):
        own = [each for each in launches if each.name == name]
        kinds = [each.verdict.kind for each in own if each.verdict is not None]
        times = [each.time_us for each in own if each.time_us is not None]
        row: dict[str, Any] = {"kernel": kernel_name(name), "launches": len(own)}
        row["verdict"] = next((kind for kind in WORST if kind in kinds), "")
        rows.append(row | {"time_us": sum(times) if times else ""})
    empty = [key for key in ("verdict", "time_us") if not any(row[key] for row in rows)]
    return [{key: value for key, value in row.items() if key not in empty} for row in rows]


def launch_lines(launches: Sequence[Launched]) -> Iterator[str]:
    """Yields the verdicts that are not clean, as lines of text with markup; equal verdicts once."""
    told: dict[str, tuple[Launched, int]] = {}
    for each in launches:
        if each.verdict is not None and each.verdict.kind != "clean":
            text = "\n".join(verdict_lines(each.verdict))
            told[text] = each, told.get(text, (each, 0))[1] + 1
    for text, (each, count) in told.items():
        yield text
        if count > 1:
            yield f"[dim]{count} launches of {escape(kernel_name(each.name))} have this verdict[/dim]"
        yield ""


def markdown_of(launches: Sequence[Launched]) -> str:
    """Returns the table of kernels, and a list of the findings with their source lines, one of each cause, as
    Markdown."""
    rows = kernel_rows(launches)
    if not rows:
        return "The program launched no kernel.\n"
    headings = [HEADINGS.get(key, key).replace("\n", " ") for key in rows[0]]
    lines = [headings, ["---:" if key in ("launches", "time_us") else "---" for key in rows[0]]]
    for row in rows:
        kernel, *rest = (cell_text(key, value) for key, value in row.items())
        lines.append([_code(kernel).replace("|", "\\|"), *rest])
    items = dict.fromkeys(item for each in launches for item in _items(each))
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *([""] * bool(items)), *items, ""])


def _items(launched: Launched) -> Iterator[str]:
    """Yields the findings and the reasons of a verdict as items of a list."""
    if launched.verdict is not None:
        kernel = _code(kernel_name(launched.name))
        findings = launched.verdict.findings
        for first, *others in causes(findings):
            more = f" ({len(others)} more of this cause)" if others else ""
            yield f"- {kernel}: {_finding_text(findings[first])}{more}"
        yield from (f"- {kernel}: incomplete: {shorten_paths(reason)}" for reason in launched.verdict.reasons)
        yield from (f"- {kernel}: {shorten_paths(line)}" for line in note_lines(launched.verdict.notes))


def _finding_text(finding: Finding) -> str:
    """Returns rule, source lines and message of a finding in one line; the report of a hang below."""
    if finding.hang is not None:
        page = "\n".join(f"  {line}" for line in page_lines(finding.hang))
        repair = shorten_paths(finding.rule.repair)
        return f"**deadlock**: {finding.rule.title}; repair: {repair}\n\n  ```text\n{page}\n  ```"
    lines = " and ".join(_code(base_name(f"{file}:{line}")) for file, line in locations_of(finding))
    message = shorten_paths(" ".join(finding.message.split()))
    return f"**{finding.rule.id}**{lines and f' at {lines}'}: {finding.rule.title}; {message}"


def _code(text: str) -> str:
    return f"`{text}`"
