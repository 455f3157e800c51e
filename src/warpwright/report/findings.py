"""A checker's verdict as text: each finding with its source lines, its reason and its repair."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.markup import escape

from warpwright.ptx.names import kernel_name
from warpwright.report.format import base_name
from warpwright.vgpu.checks.findings import CONSEQUENCE, STOPS, Finding, Step, Verdict, causes, note_lines
from warpwright.vgpu.checks.hang import page_lines

__all__ = ["Location", "location_of", "locations_of", "shorten_paths", "verdict_lines"]

COLOURS = {"clean": "green", "notes": "green", "findings": "red", "incomplete": "yellow"}
SHOWN = 4  # other lines of a cause
_PTX_LINE = re.compile(r"PTX line (\d+)")
_FILE_LINE = re.compile(r"((?<![\w.])/(?:[^\s:`()]| (?=[^\n:`()]*/))+|[\w.-]+\.\w+):(\d+)")  # folders may have spaces
_LOCATION = re.compile(rf"\(((?:{_FILE_LINE.pattern})|PTX line \d+)\)|^((?:{_FILE_LINE.pattern})|PTX line \d+): ", re.M)

Location = tuple[str, int]  # file, line (1-based)


def location_of(where: str, source: Path | None = None) -> Location | None:
    """Returns file and line of ``"file:line"`` or of ``"PTX line 12"``, a line of the file ``source``; else None."""
    in_ptx = _PTX_LINE.fullmatch(where)
    if in_ptx:
        return None if source is None else (str(source), int(in_ptx[1]))
    file, _, line = where.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else None


def locations_of(finding: Finding, source: Path | None = None) -> list[Location]:
    """Returns the locations of a finding's steps; without steps, the locations in its message."""
    texts = [step.where for step in finding.steps]
    if not texts:
        texts = [found[1] or found[4] for found in _LOCATION.finditer(finding.message)]
    locations = (location_of(where, source) for where in texts)
    return list(dict.fromkeys(found for found in locations if found is not None))


def verdict_lines(verdict: Verdict, source: Path | None = None, command: str = "") -> Iterator[str]:
    """Yields lines of text with markup; of the findings of one cause, one is shown.

    ``source`` is the PTX file, for PTX without line information of another source. ``command`` is the command that
    checks the launch, for the replay of a schedule.
    """
    colour, name = COLOURS[verdict.kind], escape(kernel_name(verdict.kernel))
    head = f"[bold]{name} on {verdict.device}: [{colour}]{verdict.kind}[/{colour}][/bold]"
    yield f"{head}{verdict.reach}{verdict.schedules}"
    for number, cause in enumerate(causes(verdict.findings), 1):
        finding, *others = (verdict.findings[at] for at in cause)
        yield ""
        yield f"[bold]{number}. {finding.rule.id}[/bold]: {escape(finding.rule.title)}"
        for step in finding.steps if finding.hang is None else ():
            yield from _step(step, source)
        if others:
            yield from _others(finding, others)
        message = [shorten_paths(line.strip()) for line in finding.message.splitlines()]
        told = message if finding.hang is None else page_lines(finding.hang)
        yield from (f"   {escape(line)}" for line in told)
        if not finding.steps:
            yield from (f"      {_line(found)}" for found in locations_of(finding, source))
        if finding.seed:
            replay = f"{command} --seed {finding.seed}" if command else f"seed={finding.seed}"
            yield f"   [bold]Replay:[/bold] {escape(replay)}"
        if number > 1 and finding.rule.id in STOPS:
            yield f"   {CONSEQUENCE}"
        if finding.rule.repair:
            repair = escape(shorten_paths(finding.rule.repair))
            yield f"   [bold]Repair:[/bold] {repair} [dim](PTX ISA {finding.rule.section})[/dim]"
    if verdict.reasons:
        yield ""
        yield from (f"[yellow]Incomplete:[/yellow] {escape(shorten_paths(reason))}" for reason in verdict.reasons)
    yield from (f"[dim]{escape(line)}[/dim]" for line in verdict.unexplored)
    yield from (f"[dim]{escape(shorten_paths(line))}[/dim]" for line in (*verdict.untaken, *note_lines(verdict.notes)))


def _others(finding: Finding, others: Sequence[Finding]) -> Iterator[str]:
    """Yields how many further findings have the same cause, and the other lines that they are at."""
    places = dict.fromkeys((each.rule.id, *(step.where for step in each.steps)) for each in [finding, *others])
    rows = list(places)[1:]
    where = ", also at:" if rows else " at these lines;"
    yield f"   [dim]and {len(others)} more of this cause{where}{'' if rows else ' --json lists them'}[/dim]"
    for rule, *wheres in rows[:SHOWN]:
        name = "" if rule == finding.rule.id else f"{rule}: "
        yield f"      [dim]{name}{escape(' and '.join(map(base_name, wheres)))}[/dim]"
    if rows[SHOWN:]:
        yield f"      [dim]and {len(rows) - SHOWN} more places; --json lists them[/dim]"


def _step(step: Step, source: Path | None) -> Iterator[str]:
    found = location_of(step.where, source)
    yield f"   {step.what}: {_line(found) if found else escape(step.where)}"
    calls = f"; called at {', '.join(map(base_name, step.calls))}" if step.calls else ""
    yield f"      [dim]{escape(f'{step.opcode}, {step.role}, CTA {step.cta}, thread {step.thread}{calls}')}[/dim]"


def _line(location: Location) -> str:
    """Returns ``kernel.py:12`` and the source text of that line."""
    text = linecache.getline(*location).strip()
    return escape(base_name(f"{location[0]}:{location[1]}")) + (f"  [cyan]{escape(text)}[/cyan]" if text else "")


def shorten_paths(text: str) -> str:
    """Returns ``text`` with every ``folder/file:line`` as ``file:line``."""
    return _FILE_LINE.sub(lambda found: base_name(found[0]), text)
