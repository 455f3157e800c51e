"""The corpus of wrong kernels, by the scenarios of public suites: the default run finds every wrong one at the right
lines, and every right twin is clean."""

from __future__ import annotations

from typing import Any

import pytest

from tests.races.cases import Case, check_case, has_expected_lines
from tests.races.corpus import barriers, copies, roles, scopes, tensor, warpgroup
from tests.races.corpus.mistakes import MISTAKES, NOTES, UNDECIDED
from tests.races.corpus.scenarios import SCENARIOS
from tests.samples import sampled
from warpwright.lang import Kernel
from warpwright.vgpu.checks.rules import EVIDENCE

MEMBERS = {f"{name}-{case.grid}": case for name, cases in MISTAKES.items() for case in cases}
LARGEST = {f"{name}-{cases[-1].grid}" for name, cases in MISTAKES.items()}  # of the launches of a mistake
LEFT_OUT = {f"{name}-{case.grid}" for name in (*NOTES, *UNDECIDED) for case in MISTAKES[name]}


def _twin(case: Case) -> tuple[Any, ...]:
    config = {key: value for key, value in {**case.kernel.config, **case.right}.items() if value != ""}
    return case.kernel.name, case.kernel.cluster, case.grid, case.depends_on, *sorted(config.items())


TWINS = {_twin(case): case for case in MEMBERS.values()}


@sampled("name", sorted(MEMBERS.keys() - LEFT_OUT), keep=LARGEST - LEFT_OUT)
def test_a_wrong_kernel_has_a_finding(name: str) -> None:
    """Also as PTX of others, where some rules give notes: those of NOTES."""
    case = MEMBERS[name]
    verdict = check_case(case, case.wrong, strict=False)
    assert verdict.kind == "findings"
    assert has_expected_lines(verdict.findings, case), str(verdict)


@sampled("case", TWINS.values(), ids=lambda case: f"{case.name}-{case.grid}", every=5)
def test_its_right_twin_is_clean(case: Case) -> None:
    verdict = check_case(case, case.right)
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("name", NOTES)
def test_what_the_chip_is_known_to_keep_is_a_note(name: str) -> None:
    for case in MISTAKES[name]:
        assert has_expected_lines(check_case(case, case.wrong).findings, case)
        verdict = check_case(case, case.wrong, strict=False)
        assert verdict.kind == "notes"
        assert has_expected_lines(verdict.notes, case), str(verdict)
        assert EVIDENCE[NOTES[name]] in {note.evidence for note in verdict.notes}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_is_not_known_to_be_wrong_is_clean(name: str) -> None:
    """If this fails, the checks decide the case, and it leaves UNDECIDED."""
    assert {check_case(case, case.wrong).kind for case in MISTAKES[name]} == {"clean"}


def test_the_scenarios_have_at_least_150_wrong_kernels() -> None:
    names = {name for suite in SCENARIOS.values() for words in suite.values() for name in words.split()}
    assert names <= MISTAKES.keys()
    assert len(names - NOTES.keys() - UNDECIDED.keys()) >= 150


def test_every_kernel_of_the_corpus_has_a_mistake() -> None:
    used = {case.kernel.name for case in MEMBERS.values()}
    modules = (barriers, copies, roles, scopes, tensor, warpgroup)
    kernels = {item.name for module in modules for item in vars(module).values() if isinstance(item, Kernel)}
    assert kernels <= used
