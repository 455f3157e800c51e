"""The verdict on an edited kernel, compared with the expected rule and lines."""

from __future__ import annotations

import functools
from typing import NamedTuple

from tests.races.edits import Edit, edits
from tests.races.execution import Execution, executions
from tests.races.expected import expected
from tests.races.lines import has_right_lines
from tests.races.removals import KERNELS
from tests.races.watched import Watched
from warpwright.vgpu.checks.findings import Finding

__all__ = ["FOUND", "REDUNDANT", "UNLIKE", "Judgement", "Unedited", "findings", "judge_edit", "unedited_kernel"]

FOUND, REDUNDANT, UNLIKE = "found", "redundant", "unlike"


class Unedited(NamedTuple):
    """A kernel without an edit: its text, the executions of its clusters, all its edits."""

    text: str
    executions: list[Execution]
    edits: list[Edit]


class Judgement(NamedTuple):
    """``kind``: FOUND by an expected rule with the right lines, REDUNDANT with a reason, or UNLIKE the expected;
    ``words`` say which rules found it, and if UNLIKE which rules were expected."""

    kind: str
    words: str


@functools.lru_cache(maxsize=1)
def unedited_kernel(name: str) -> Unedited:
    """Returns one of `KERNELS` without an edit, after a check that it is clean."""
    text, clusters, verdicts = executions(name)
    assert verdicts[0].kind == "clean", str(verdicts[0])
    return Unedited(text, clusters, list(edits(text)))


def findings(watched: Watched, text: str) -> list[Finding]:
    """Returns the findings of the launches of the kernel ``text``, in the order in which they are reported."""
    own = (verdict for launched, verdict in zip(watched.texts, watched.verdicts, strict=True) if launched == text)
    return [finding for verdict in own for finding in verdict.findings]


def judge_edit(name: str, edit: Edit) -> Judgement:
    """Runs one of `KERNELS` with an edit and judges what the checks found."""
    kernel = unedited_kernel(name)
    rules, reason = expected(name, edit)
    found = findings(KERNELS[name](edit), kernel.text)
    words = ", ".join(sorted({finding.rule.id for finding in found})) or "clean"
    if reason:
        return Judgement(UNLIKE if found else REDUNDANT, f"{words}; expected nothing: {reason}" if found else reason)
    expected_findings = [finding for finding in found if finding.rule.id in rules]
    if not expected_findings:
        return Judgement(UNLIKE, f"{words}; expected {' or '.join(sorted(rules)) or 'a rule'}")
    if not has_right_lines(kernel.executions, edit, expected_findings[0]):
        return Judgement(UNLIKE, f"{words}; these are not the lines of the edit:\n{expected_findings[0]}")
    return Judgement(FOUND, words)
