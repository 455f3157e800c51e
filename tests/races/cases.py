"""A case: a kernel with a mistake, its launch, and what the checks must say of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warpwright.lang import Kernel
from warpwright.run.check import check
from warpwright.vgpu.checks.findings import Finding, Verdict

__all__ = ["Case", "check_case", "has_expected_lines", "in_cluster", "new_case"]


@dataclass(frozen=True)
class Case:
    """``rule`` finds the mistake; ``expected`` is the text of the two conflicting lines, for a deadlock or a fault its
    message and then the text of the lines where threads wait or stop."""

    kernel: Kernel
    args: list[Any]
    rule: str
    expected: tuple[str, ...]
    grid: int = 1
    wrong: dict[str, Any] = field(default_factory=lambda: {"right": False})
    right: dict[str, Any] = field(default_factory=lambda: {"right": True})
    depends_on: tuple[int, ...] = ()
    device: str | None = None

    @property
    def name(self) -> str:
        """The kernel with the names of its options, or with their values if they are words."""
        words = [value if isinstance(value, str) else key for key, value in self.wrong.items() if key != "right"]
        return "-".join([self.kernel.name, *words])


def new_case(kernel: Kernel, args: list[Any], rule: str, *expected: str, grid: int = 1, **wrong: Any) -> Case:
    """Returns a case whose mistake is ``right=False``, the word ``wrong``, or else the first option of ``wrong``."""
    if "wrong" in wrong:
        return Case(kernel, args, rule, expected, grid, wrong, {**wrong, "wrong": ""})
    if wrong:
        return Case(kernel, args, rule, expected, grid, wrong, dict([*wrong.items()][1:]))
    return Case(kernel, args, rule, expected, grid)


def in_cluster(case: Case, ctas: int) -> Case:
    """Returns the case as a launch of one cluster of ``ctas`` CTAs."""
    kernel = case.kernel
    if "cluster" in kernel.config:
        return replace(case, kernel=kernel.configure(cluster=ctas), grid=ctas)
    sized = Kernel(kernel.function, kernel.arch, ctas, kernel.threads, kernel.params, kernel.config, kernel.ctas_per_sm)
    return replace(case, kernel=sized, grid=ctas)


def check_case(case: Case, config: dict[str, Any], *off: str, strict: bool | None = None) -> Verdict:
    """Returns the verdict on the kernel of a case, wrong or right."""
    kernel = case.kernel.configure(**config)
    how: dict[str, Any] = {"off": off, "depends_on": case.depends_on, "strict": strict, "device": case.device}
    return check(kernel, grid=case.grid, args=case.args, **how)


def _lines(finding: Finding) -> list[str]:
    """Returns the text at the lines of a finding's steps."""
    found = []
    for step in finding.steps:
        path, line = step.where.rsplit(":", 1)
        found.append(Path(path).read_text().splitlines()[int(line) - 1].strip())
    return found


def has_expected_lines(findings: tuple[Finding, ...], case: Case) -> bool:
    """Returns whether one of the findings is of the case's rule and has the expected message and lines; the lines of a
    race are in either order."""
    findings = tuple(finding for finding in findings if finding.rule.id == case.rule)
    expected = list(case.expected)
    if case.rule in ("deadlock", "fault"):
        message = expected.pop(0)
        findings = tuple(finding for finding in findings if message in finding.message)
    lines = [_lines(finding)[: len(expected)] for finding in findings if len(finding.steps) >= len(expected)]
    orders = [expected, expected[::-1]] if case.rule == "race" else [expected]
    pairs = itertools.product(lines, orders)
    return any(all(part in text for text, part in zip(found, order, strict=True)) for found, order in pairs)
