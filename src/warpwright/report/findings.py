"""A verdict as text for people: what was found, both places with their lines of source, the reason, the repair."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import Path

from rich.markup import escape

from warpwright.report.format import place
from warpwright.vgpu.checks.findings import Finding, Step, Verdict

__all__ = ["Place", "place_of", "places_of", "short", "verdict_lines"]

COLOURS = {"clean": "green", "findings": "red", "incomplete": "yellow"}
_PTX_LINE = re.compile(r"PTX line (\d+)")
_FILE_LINE = re.compile(r"(/[^\s:`()]+|[\w.-]+\.\w+):(\d+)")
_NAMED = re.compile(rf"\(((?:{_FILE_LINE.pattern})|PTX line \d+)\)|^((?:{_FILE_LINE.pattern})|PTX line \d+): ", re.M)

Place = tuple[str, int]  # file, line (1-based)


def place_of(where: str, source: Path | None = None) -> Place | None:
    """File and line of ``"file:line"`` or ``"PTX line 12"``, which is one of the file ``source``."""
    in_ptx = _PTX_LINE.fullmatch(where)
    if in_ptx:
        return None if source is None else (str(source), int(in_ptx[1]))
    file, _, line = where.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else None


def places_of(finding: Finding, source: Path | None = None) -> list[Place]:
    """The places of a finding's steps; of one without steps, those that its message names."""
    named = [step.where for step in finding.steps]
    if not named:
        named = [found[1] or found[4] for found in _NAMED.finditer(finding.message)]
    places = (place_of(where, source) for where in named)
    return list(dict.fromkeys(found for found in places if found is not None))


def verdict_lines(verdict: Verdict, source: Path | None = None, command: str = "") -> Iterator[str]:
    """Lines with markup, one finding of those at the same lines; ``source`` is the PTX file, where PTX does not name
    lines of another; ``command``: what checks the launch again."""
    colour, coverage = COLOURS[verdict.kind], verdict.coverage
    head = f"[bold]{escape(verdict.kernel)} on {verdict.device}: [{colour}]{verdict.kind}[/{colour}][/bold]"
    yield f"{head}; {coverage.reached:,} of {coverage.present:,} instructions reached{verdict.schedules}"
    alike: dict[object, list[Finding]] = {}
    for finding in verdict.findings:
        key = finding.rule.id, finding.message, frozenset(step.where for step in finding.steps)
        alike.setdefault(key, []).append(finding)
    for number, (finding, *others) in enumerate(alike.values(), 1):
        yield ""
        yield f"[bold]{number}. {finding.rule.id}[/bold]: {escape(finding.rule.title)}"
        for step in finding.steps:
            yield from _step(step, source)
        if others:
            yield f"   [dim]and {len(others)} more at these lines, which --json has[/dim]"
        yield from (f"   {escape(short(line.strip()))}" for line in finding.message.splitlines())
        if not finding.steps:
            yield from (f"      {_line(found)}" for found in places_of(finding, source))
        if finding.seed:
            again = f"{command} --seed {finding.seed}" if command else f"seed={finding.seed}"
            yield f"   [bold]Replay:[/bold] {escape(again)}"
        repair = escape(short(finding.rule.repair))
        yield f"   [bold]Repair:[/bold] {repair} [dim](PTX ISA {finding.rule.section})[/dim]"
    if verdict.reasons:
        yield ""
        yield from (f"[yellow]Incomplete:[/yellow] {escape(short(reason))}" for reason in verdict.reasons)


def _step(step: Step, source: Path | None) -> Iterator[str]:
    found = place_of(step.where, source)
    yield f"   {step.what}: {_line(found) if found else escape(step.where)}"
    yield f"      [dim]{escape(step.opcode)}, {escape(step.role)}, CTA {step.cta}, thread {step.thread}[/dim]"


def _line(found: Place) -> str:
    """``kernel.py:12`` and the text that stands there."""
    text = linecache.getline(*found).strip()
    return escape(place(f"{found[0]}:{found[1]}")) + (f"  [cyan]{escape(text)}[/cyan]" if text else "")


def short(text: str) -> str:
    """Without the folders before files."""
    return _FILE_LINE.sub(lambda found: place(found[0]), text)
