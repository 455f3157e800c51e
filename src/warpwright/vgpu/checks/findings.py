"""Findings of checks: two accesses and what is missing between them, or one step that breaks a protocol."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from warpwright import display
from warpwright.vgpu.checks.coverage import Coverage, coverage_lines
from warpwright.vgpu.checks.hang import Hang, page_lines
from warpwright.vgpu.checks.steps import Step
from warpwright.vgpu.machine.launch import RankCta

__all__ = ["CONSEQUENCE", "STOPS", "Finding", "Rule", "Step", "Verdict", "causes", "note_lines"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: ``id`` names it, ``title`` says what went wrong, ``section`` is the PTX ISA's, ``repair`` says what to
    write."""

    id: str
    title: str
    section: str
    repair: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that does not hold: the steps involved, the earlier first, and a sentence with the particulars. ``seed``:
    of the schedule that shows it, 0 for the one that always runs. ``hang``: the report of a deadlock. ``evidence``: why
    the assembler or the chip is known to keep what PTX does not promise (one of `rules.EVIDENCE`); then it is a note.
    """

    rule: Rule
    steps: tuple[Step, ...]
    message: str
    seed: int = 0
    hang: Hang | None = None
    evidence: str = ""

    @property
    def lines(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """The rule and the lines of the steps: equal findings have the same; of a deadlock only its first line."""
        steps = self.steps[:1] if self.rule.id == "deadlock" else self.steps
        return self.rule.id, frozenset((step.where, step.opcode) for step in steps)

    def __repr__(self) -> str:
        return f"Finding({self.rule.id!r} at {self.steps[0].where if self.steps else 'no line'})"

    def __str__(self) -> str:
        told = [f"{step.what}: {step}" for step in self.steps] + self.message.splitlines()
        told = told if self.hang is None else list(page_lines(self.hang))
        lines = [f"{self.rule.id}: {self.rule.title}", *(f"  {line}" for line in told)]
        lines += [f"  evidence that it is kept: {self.evidence}"] * bool(self.evidence)
        lines += [f"  in the schedule of seed {self.seed}; to run it again: seed={self.seed}"] * bool(self.seed)
        lines += [f"  repair: {self.rule.repair} (PTX ISA {self.rule.section})"] * bool(self.rule.repair)
        return "\n".join(lines)


STOPS = ("deadlock", "fault")  # what ends a run
CONSEQUENCE = "the findings above are of the same run and may be its cause: mend them first"

# Rules that one missing order between two places breaks, the one that names the cause first.
_ORDER = ("tmem-registers", "race", "tmem-freed", "grid-race", "mbarrier-lapped")


def _links(finding: Finding) -> Iterator[Hashable]:
    """Yields what findings of one cause have in common: the same lines; the same first step, which nothing waits for;
    the same second step after equal instructions; or steps between the same synchronisations."""
    rule, steps = finding.rule.id, finding.steps
    family = "order" if rule in _ORDER else rule
    message = "" if finding.hang or len(steps) == 2 else re.sub(r"\d+", "0", finding.message)
    yield rule, message, frozenset(step.where for step in steps)
    if len(steps) == 2 and finding.hang is None:
        first, second = ((step.where, step.opcode, step.role) for step in steps)
        yield family, "first", first
        yield rule, "second", second, first[1:]
        yield family, "segments", *(step.segment for step in steps)


def causes(findings: Sequence[Finding]) -> list[list[int]]:
    """Returns the numbers of the findings of each cause; the first of each shows the cause best."""
    groups: dict[int, list[int]] = {}
    group_of: dict[Hashable, int] = {}
    for number, finding in enumerate(findings):
        links = list(_links(finding))
        group, *merged = sorted({group_of[link] for link in links if link in group_of}) or [number]
        groups[group] = [*groups.get(group, []), *(at for each in merged for at in groups.pop(each)), number]
        if merged:
            group_of = {link: group if each in merged else each for link, each in group_of.items()}
        group_of |= dict.fromkeys(links, group)
    order = {rule: place for place, rule in enumerate(_ORDER)}
    best = {group: sorted(each, key=lambda at: order.get(findings[at].rule.id, 0)) for group, each in groups.items()}
    return [best[group] for group in sorted(best)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a launch.

    ``kind``: "findings"; "incomplete" if the run did not reach every instruction or the checks do not model something,
    ``reasons`` says what; "notes"; or "clean". ``notes``: rules that do not hold although PTX asks for it, where the
    assembler or the chip is known to keep the order. ``seeds``: the seeds of the schedules that ran; ``orders``: how
    many orders of synchronisation they had; ``unexplored``: why not all schedules ran that were asked for.
    """

    kernel: str
    device: str
    findings: tuple[Finding, ...]
    coverage: Coverage
    reasons: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    notes: tuple[Finding, ...] = ()
    orders: int = 1
    unexplored: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "findings" if self.findings else "incomplete" if self.reasons else "notes" if self.notes else "clean"

    @property
    def reach(self) -> str:
        """How much was reached, in words; "" for a launch that was not checked. Directions of branches count only
        without findings, which are to be mended first."""
        coverage = replace(self.coverage, branches=(0, 0)) if self.findings else self.coverage
        return f"; {coverage}" if coverage.present else ""

    @property
    def untaken(self) -> tuple[str, ...]:
        """Lines of text on directions that were not taken; () with findings."""
        return () if self.findings else tuple(coverage_lines(self.coverage))

    @property
    def schedules(self) -> str:
        """Which schedules ran, in words; "" for the one that always runs."""
        if len(self.seeds) == 1 and not self.unexplored:
            return f"; the schedule of seed {self.seeds[0]}" if self.seeds[0] else ""
        count, orders = (
            f"{n:,} {word}{'s' * (n != 1)}" for n, word in ((len(self.seeds), "schedule"), (self.orders, "order"))
        )
        return f"; {count} with {orders} of synchronisation"

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(finding.rule.id for finding in self.findings or self.notes))
        return f"Verdict({self.kernel!r} on {self.device}: {self.kind}{rules and f' ({rules})'})"

    def _repr_html_(self) -> str:
        return display.html_of(self)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON. ``causes``: the numbers of the findings of each cause."""
        findings, notes = ([_as_dict(each) for each in some] for some in (self.findings, self.notes))
        rest: dict[str, Any] = {"causes": causes(self.findings), "notes": notes}
        rest |= {"coverage": asdict(self.coverage), "reasons": list(self.reasons), "seeds": list(self.seeds)}
        rest |= {"orders": self.orders, "unexplored": list(self.unexplored)}
        return {"kernel": self.kernel, "device": self.device, "verdict": self.kind, "findings": findings, **rest}

    def __str__(self) -> str:
        head = f"{self.kernel} on {self.device}: {self.kind}{self.reach}{self.schedules}"
        groups = [[self.findings[at] for at in cause] for cause in causes(self.findings)]
        told = (_cause_text(group, number > 0) for number, group in enumerate(groups))
        return "\n".join([head, *told, *self.reasons, *self.unexplored, *self.untaken, *note_lines(self.notes)])


def note_lines(notes: Sequence[Finding]) -> Iterator[str]:
    """Yields a line for each cause of notes, with their rules, their number and the lines of the first: notes of one
    evidence have one cause, and so have those of a missing proxy fence."""
    groups: dict[str, list[Finding]] = {}
    for note in notes:
        groups.setdefault("proxy-fence" if note.rule.id == "proxy-fence" else note.evidence, []).append(note)
    for some in groups.values():
        rules = " and ".join(dict.fromkeys(note.rule.id for note in some))
        evidence = "; ".join(dict.fromkeys(note.evidence for note in some))
        places = " and ".join(dict.fromkeys(step.where for step in some[0].steps))
        more = f", {len(some) - 1} more" if some[1:] else ""
        yield f"note {rules} at {places}{more}: {some[0].message}; {evidence}"


def _as_dict(finding: Finding) -> dict[str, Any]:
    """Returns a finding or note as plain data, without what it does not have."""
    data = asdict(finding)
    for step, given in zip(data["steps"], finding.steps, strict=True):
        step.update({"rank": given.cta.rank} if isinstance(given.cta, RankCta) else {})
    return {key: value for key, value in data.items() if value or key not in ("hang", "evidence")}


def _cause_text(findings: Sequence[Finding], follows: bool) -> str:
    """Returns the text of a cause; ``follows``: others come before it."""
    more = len(findings) - 1
    lines = [str(findings[0]), *[f"  and {more} more of this cause"] * bool(more)]
    return "\n".join(lines + [f"  {CONSEQUENCE}"] * (follows and findings[0].rule.id in STOPS))
