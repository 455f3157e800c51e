"""The checks find the mistakes of real kernels, with the conflicting lines; the correct kernel is clean; without its
rule a mistake is missed.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.races import (
    correct_kernels,
    published,
    published_copies,
    published_protocol,
    published_tensor,
)
from tests.races.cases import check_case, has_expected_lines
from tests.races.classes import BOX, CLASSES, FLOATS, MORE, SQUARE, WORDS
from tests.samples import sampled
from warpwright.lang import Kernel
from warpwright.run.check import check
from warpwright.vgpu.checks.rules import RULES

CASES = {f"{number}-{case.name}": case for number, cases in [*CLASSES.items(), ("more", MORE)] for case in cases}
CORRECT = {case.kernel.name + str(case.right): case for case in CASES.values()}
TRAPS = {
    "loads_and_stores": [BOX, BOX.copy()],
    "chained_wgmma": [SQUARE, SQUARE, FLOATS],
    "padded_rows": [FLOATS],
    "clipped_box": [np.zeros((20, 32), np.float32)],
    "count_atomically": [WORDS],
}


@pytest.mark.parametrize("name", CASES)
def test_the_rule_finds_a_published_mistake(name: str) -> None:
    verdict = check_case(CASES[name], CASES[name].wrong)
    assert has_expected_lines(verdict.findings, CASES[name]), str(verdict)


@pytest.mark.parametrize("name", CORRECT)
def test_the_correct_kernel_is_clean(name: str) -> None:
    verdict = check_case(CORRECT[name], CORRECT[name].right)
    assert verdict.kind == "clean", str(verdict)


@sampled("name", CASES, every=2)
def test_a_published_mistake_needs_its_rule(name: str) -> None:
    """A deadlock or fault is then no finding, but the verdict is not clean either."""
    case = CASES[name]
    verdict = check_case(case, case.wrong, case.rule)
    assert case.rule not in {finding.rule.id for finding in verdict.findings}
    assert verdict.kind != "clean" or case.rule not in ("deadlock", "fault")


@pytest.mark.parametrize("name", TRAPS)
def test_a_kernel_that_only_looks_wrong_is_clean(name: str) -> None:
    verdict = check(getattr(correct_kernels, name), grid=1, args=TRAPS[name])
    assert verdict.kind == "clean", str(verdict)


def test_a_copy_to_tensor_memory_precedes_the_mma_without_a_wait() -> None:
    verdict = check(published_tensor.a_in_tensor_memory.configure(copied=True), grid=1, args=[FLOATS])
    assert verdict.kind == "clean", str(verdict)


def test_every_rule_has_a_case_that_is_missed_without_it() -> None:
    """`test_a_published_mistake_needs_its_rule` runs all of them."""
    assert {case.rule for case in CASES.values()} == set(RULES)


def test_the_classes_and_their_rules_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", page, re.MULTILINE)
    documented = {int(number): set(rules.split(", ")) for number, rules in rows}
    assert sorted(documented) == list(range(1, 29))
    assert {number: {case.rule for case in cases} for number, cases in CLASSES.items()} == documented


def test_every_kernel_has_a_case() -> None:
    used = {case.kernel for case in CASES.values()}
    for module in (published, published_copies, published_protocol, published_tensor):
        assert {item for item in vars(module).values() if isinstance(item, Kernel)} <= used
