"""Findings of checks: two accesses and what is missing between them, or one step that breaks a protocol."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Coverage", "Finding", "Rule", "Step", "Verdict"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: ``id`` names it, ``title`` says what went wrong, ``section`` is the PTX ISA's, ``repair`` says what to
    write."""

    id: str
    title: str
    section: str
    repair: str


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that a thread executed: what it does, in words, its opcode and line, role, CTA and thread."""

    what: str
    opcode: str
    where: str
    role: str
    cta: tuple[int, int, int]
    thread: int

    def __str__(self) -> str:
        return f"{self.where} `{self.opcode}` ({self.role}, CTA {self.cta}, thread {self.thread})"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that does not hold: the steps involved, the earlier first, and a sentence with the particulars. ``seed``:
    of the schedule that shows it, 0 for the one that always runs."""

    rule: Rule
    steps: tuple[Step, ...]
    message: str
    seed: int = 0

    @property
    def lines(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """The rule, and the lines of the steps; of a deadlock only the line where it begins."""
        steps = self.steps[:1] if self.rule.id == "deadlock" else self.steps
        return self.rule.id, frozenset((step.where, step.opcode) for step in steps)

    def __repr__(self) -> str:
        return f"Finding({self.rule.id!r} at {self.steps[0].where if self.steps else 'no line'})"

    def __str__(self) -> str:
        lines = [f"{self.rule.id}: {self.rule.title}", *(f"  {step.what}: {step}" for step in self.steps)]
        lines += [f"  {line}" for line in self.message.splitlines()]
        lines += [f"  in the schedule of seed {self.seed}; to run it again: seed={self.seed}"] * bool(self.seed)
        return "\n".join([*lines, f"  repair: {self.rule.repair} (PTX ISA {self.rule.section})"])


@dataclass(frozen=True, slots=True)
class Coverage:
    """Instructions that were reached, of those there are; ``missed``: lines with barriers, fences or accesses that were
    not, so that nothing is known of them. ``branches``: directions that conditional branches took, of two each."""

    reached: int
    present: int
    missed: tuple[str, ...]
    branches: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a launch.

    ``kind``: "clean", "findings", or "incomplete" if the run did not reach every instruction or the checks do not model
    something; ``reasons`` says what. Only "clean" is a pass. ``seeds``: the seeds of the schedules that ran.
    """

    kernel: str
    device: str
    findings: tuple[Finding, ...]
    coverage: Coverage
    reasons: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)

    @property
    def kind(self) -> str:
        return "findings" if self.findings else "incomplete" if self.reasons else "clean"

    @property
    def schedules(self) -> str:
        """Which schedules ran, in words; "" for the one that always runs."""
        if len(self.seeds) > 1:
            return f"; {len(self.seeds)} schedules"
        return f"; the schedule of seed {self.seeds[0]}" if self.seeds[0] else ""

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(finding.rule.id for finding in self.findings))
        return f"Verdict({self.kernel!r} on {self.device}: {self.kind}{rules and f' ({rules})'})"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        rest = {"coverage": asdict(self.coverage), "reasons": list(self.reasons), "seeds": list(self.seeds)}
        return {"kernel": self.kernel, "device": self.device, "verdict": self.kind, "findings": findings, **rest}

    def __str__(self) -> str:
        reached = f"{self.coverage.reached} of {self.coverage.present} instructions reached"
        head = f"{self.kernel} on {self.device}: {self.kind}; {reached}{self.schedules}"
        return "\n".join([head, *map(str, self.findings), *self.reasons])
