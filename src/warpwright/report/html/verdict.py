"""The page of a verdict: each finding with its accesses in the code and its repair; of a hang, which thread waits at
which barrier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from warpwright.ptx.names import kernel_name
from warpwright.report.findings import locations_of, shorten_paths
from warpwright.report.format import base_name
from warpwright.report.html.elements import Html, element, section, table
from warpwright.report.html.page import Section, page
from warpwright.report.html.sources import excerpt
from warpwright.report.verdict import Verdict as Errors
from warpwright.vgpu.checks.findings import CONSEQUENCE, STOPS, Finding, Step, Verdict, causes, note_lines
from warpwright.vgpu.checks.hang import Blocked, Hang, code_text, letter, state_lines, what_text, who_text

__all__ = ["badge", "finding_parts", "verdict_page", "verdict_parts"]

SHOWN = 8  # situations of a hang, and operations that should end a wait


def verdict_page(verdict: Verdict, source: Path | None = None, command: str = "", result: Errors | None = None) -> str:
    """Returns the HTML file of a verdict. ``source``, ``command``: as in `report.findings.verdict_lines`; ``result``:
    the errors of the result against float64."""
    name = f"{kernel_name(verdict.kernel)} on {verdict.device}"
    head = element("h1", name, ": ", badge(verdict.kind))
    found: list[Section] = [
        ("verdict", "Verdict", section("verdict", "Verdict", *verdict_parts(verdict, source, command)))
    ]
    if result is not None:
        errors = section("result", "The result, against float64", table([result.as_row()]))
        found.append(("result", "Result", errors))
    return page(f"{name}: {verdict.kind}", Html(head), found, {}, ())


def badge(kind: str) -> Html:
    """Returns the kind of a verdict in its colour."""
    return element("span", kind, class_=f"badge {kind}")


def verdict_parts(verdict: Verdict, source: Path | None = None, command: str = "") -> Iterator[Html]:
    """Yields the findings of a verdict, one of each cause, then what it did not reach."""
    what = f"{verdict.reach}{verdict.schedules}".removeprefix("; ")
    yield element("p", what or "no instruction was counted", class_="quiet")
    for number, cause in enumerate(causes(verdict.findings), 1):
        finding, *others = (verdict.findings[at] for at in cause)
        yield element("h3", f"{number}. {finding.rule.id}: {finding.rule.title}")
        yield from finding_parts(finding, source, command)
        if others:
            places = dict.fromkeys(" and ".join(base_name(step.where) for step in each.steps) for each in others)
            yield element(
                "p", f"and {len(others)} more of this cause: {'; '.join(filter(None, places))}", class_="quiet"
            )
        if number > 1 and finding.rule.id in STOPS:
            yield element("p", CONSEQUENCE, class_="quiet")
    yield from (element("p", f"Incomplete: {shorten_paths(text)}", class_="incomplete") for text in verdict.reasons)
    for line in (*verdict.unexplored, *verdict.untaken, *note_lines(verdict.notes)):
        yield element("p", shorten_paths(line), class_="quiet")


def finding_parts(finding: Finding, source: Path | None = None, command: str = "") -> Iterator[Html]:
    """Yields both accesses of a finding with their code, its message, its schedule and its repair."""
    if finding.hang is not None:
        yield from hang_parts(finding.hang, source)
    else:
        for step in finding.steps:
            yield from _step(step, source)
        yield from (element("p", shorten_paths(line.strip())) for line in finding.message.splitlines())
        if not finding.steps:
            yield from (excerpt(f"{file}:{line}", source) for file, line in locations_of(finding, source))
    if finding.seed:
        replay = f"{command} --seed {finding.seed}" if command else f"seed={finding.seed}"
        yield element("p", element("strong", "Replay: "), element("code", replay))
    if finding.rule.repair:
        section_of = f" (PTX ISA {finding.rule.section})"
        yield element("p", element("strong", "Repair: "), shorten_paths(finding.rule.repair), section_of)


def _step(step: Step, source: Path | None) -> Iterator[Html]:
    calls = f"; called at {', '.join(map(base_name, step.calls))}" if step.calls else ""
    who = f"{step.role}, CTA {step.cta}, thread {step.thread}{calls}"
    yield element("p", element("strong", step.what), ": ", element("code", step.opcode), f" ({who})")
    yield excerpt(step.where, source)


def hang_parts(hang: Hang, source: Path | None = None) -> Iterator[Html]:
    """Yields a row for each situation: the warps that wait, what they wait for, what should have ended the wait; then
    the circle of waits and the code of each wait."""
    shown = hang.blocked[:SHOWN]
    cells = [cell for number, each in enumerate(shown) for cell in _situation(letter(number), each)]
    yield element("div", *cells, class_="hang", role="group", aria_label="which threads wait at which barrier")
    yield from (element("p", shorten_paths(text)) for text in hang.ranks)
    more = hang.others + sum(len(each.ctas) for each in hang.blocked[SHOWN:])
    if more:
        yield element("p", f"and {more:,} more situations like these", class_="quiet")
    if hang.cycle:
        yield element("p", element("strong", "Circle of waits: "), hang.cycle)
    for number, each in enumerate(shown):
        yield element("p", element("strong", f"{letter(number)} waits here"), f" ({each.step.opcode})")
        yield excerpt(next(iter(each.step.calls), each.step.where), source)
    yield element("h3", "Last operation of each warp")
    yield element("ul", *(element("li", f"{step.what}: ", element("code", code_text(step))) for step in hang.last))


def _situation(name: str, each: Blocked) -> Iterator[Html]:
    """Yields the three cells of a situation."""
    yield element("div", element("b", f"{name}  {who_text(each)}"), element("p", what_text(each)))
    state = [shorten_paths(line) for line in state_lines(each.barrier)] if each.barrier else ["no mbarrier"]
    title, *rest = state
    yield element("div", element("b", title), *(element("p", line) for line in rest))
    yield element("div", *_signals(each), class_="never")


def _signals(each: Blocked) -> Iterator[Html]:
    """Yields the operations that should have ended a wait, and what became of them."""
    if not each.signals:
        ends = "arrives there" if each.barrier else "that can still run ends this wait"
        yield element("b", f"no thread of the kernel {ends}")
        return
    yield element("b", "arrives there" if each.barrier else "has not arrived")
    for signal in each.signals[:SHOWN]:
        yield element("p", element("code", code_text(signal)))
        yield element("p", signal.what, class_="quiet")
