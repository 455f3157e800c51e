"""The verdict on an edited kernel, compared with the expected rule and lines."""

from __future__ import annotations

import functools
from typing import NamedTuple

from tests.races.edits import Edit, edits
from tests.races.execution import Execution, executions
from tests.races.expected import expected
from tests.races.lines import right
from tests.races.removals import KERNELS, Watched
from warpwright.vgpu.checks.findings import Finding

__all__ = ["FOUND", "REDUNDANT", "UNLIKE", "AsItIs", "Judged", "as_it_is", "findings", "judged"]

FOUND, REDUNDANT, UNLIKE = "found", "redundant", "unlike"


class AsItIs(NamedTuple):
    """A kernel without an edit: its text, the executions of its clusters, all its edits."""

    text: str
    executions: list[Execution]
    edits: list[Edit]


class Judged(NamedTuple):
    """``kind``: FOUND by an expected rule with the right lines, REDUNDANT with a reason, or UNLIKE; ``words`` say what
    was found, and what was expected if that is another thing."""

    kind: str
    words: str


@functools.lru_cache(maxsize=1)
def as_it_is(name: str) -> AsItIs:
    """Of one of `KERNELS`, which has to be clean."""
    text, held, verdicts = executions(name)
    assert verdicts[0].kind == "clean", str(verdicts[0])
    return AsItIs(text, held, list(edits(text)))


def findings(watched: Watched, text: str) -> list[Finding]:
    """Those in launches of the kernel of this text, in the order in which they are shown."""
    own = (verdict for given, verdict in zip(watched.texts, watched.verdicts, strict=True) if given == text)
    return [finding for verdict in own for finding in verdict.findings]


def judged(name: str, edit: Edit) -> Judged:
    """Run one of `KERNELS` with an edit."""
    kernel = as_it_is(name)
    rules, reason = expected(name, edit)
    found = findings(KERNELS[name](edit), kernel.text)
    words = ", ".join(sorted({finding.rule.id for finding in found})) or "clean"
    if reason:
        return Judged(UNLIKE if found else REDUNDANT, f"{words}; expected nothing: {reason}" if found else reason)
    shown = [finding for finding in found if finding.rule.id in rules]
    if not shown:
        return Judged(UNLIKE, f"{words}; expected {' or '.join(sorted(rules)) or 'a rule'}")
    if not right(kernel.executions, edit, shown[0]):
        return Judged(UNLIKE, f"{words}; these are not the lines of the edit:\n{shown[0]}")
    return Judged(FOUND, words)
