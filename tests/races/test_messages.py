"""What findings say: the message and the repair of the first finding of each published mistake, as whole sentences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.races.test_published import CASES, check_case
from warpwright.report.findings import shorten_paths, verdict_lines
from warpwright.vgpu.checks.findings import Finding, Verdict

SENTENCES = Path(__file__).parent / "messages.txt"


def _first(verdict: Verdict, rule: str) -> Finding:
    return next(finding for finding in verdict.findings if finding.rule.id == rule)


def _sentences() -> list[str]:
    """Returns three lines for each case: its name with rule and title, the message, the repair."""
    lines = []
    for name, case in CASES.items():
        found = _first(check_case(case, case.wrong), case.rule)
        message = found.message.replace("\n", "; ")
        lines += [
            f"{name}: {found.rule.id}: {found.rule.title}",
            f"  {message}",
            f"  repair: {found.rule.repair or '-'}",
        ]
    return [shorten_paths(line) for line in lines]


def test_the_sentences_of_findings(check_golden: Callable[[Path, str], None]) -> None:
    check_golden(SENTENCES, "\n".join(_sentences()) + "\n")


def test_a_fault_after_other_findings_may_be_their_consequence() -> None:
    case = CASES["19-tensor_core-opened"]
    verdict = check_case(case, case.wrong)
    assert [finding.rule.id for finding in verdict.findings] == ["uninitialised", "race", "fault"]
    end = "the findings above are of the same run and may be its cause: mend them first"
    assert str(verdict).splitlines()[-1] == f"  {end}"
    assert [line.strip() for line in verdict_lines(verdict)][-1] == end


def test_a_fault_alone_says_in_its_message_what_to_change() -> None:
    case = CASES["15-arrives_too_often"]
    lines = str(check_case(case, case.wrong)).splitlines()
    assert lines[-1] == (
        "  the mbarrier at offset 0x400 of CTA 0 got an arrival for a phase that has all of its arrivals (phase 0, "
        "0 of 1 arrivals and 16 bytes pending); wait for the end of the phase before the next arrival, or raise its "
        "count."
    )


def test_a_read_that_races_with_a_dealloc_is_not_uninitialised() -> None:
    case = CASES["17-tensor_core-synced"]
    assert {finding.rule.id for finding in check_case(case, case.wrong).findings} == {"tmem-freed"}
