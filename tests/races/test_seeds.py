"""The checks name each mistake of the documents that this project began with (docs/errata.md describes the
documents)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.races.cases import check_case, has_expected_lines
from tests.races.classes import CLASSES, MORE
from tests.races.removals import KERNELS
from warpwright.kernels import memory_flow
from warpwright.vgpu.checks.findings import Verdict

CASES = {case.name: case for case in [case for cases in CLASSES.values() for case in cases] + list(MORE)}


SEEDS = {
    "attention: __syncthreads() in a function that only the consumers call": "divergent_barrier",
    "level 7: one thread releases tensor memory when it has read its own part": "early_reuse",
    "level 7: pairs of an odd number of tiles": "odd_pair",
    "memory flow: the accumulator is read without a commit": "tensor_core-committed",
    "memory flow: the accumulate flag stays zero": "tensor_core-accumulates",
}


@pytest.mark.parametrize("mistake", SEEDS)
def test_the_rule_finds_the_mistake_of_a_document(mistake: str) -> None:
    case = CASES[SEEDS[mistake]]
    verdict = check_case(case, case.wrong)
    assert has_expected_lines(verdict.findings, case), str(verdict)


def _without_commit(text: str) -> str:
    """Remove the commit and the wait for it: the last wait of the kernel is true at once."""
    text = re.sub(r".*tcgen05\.commit.*\n", "", text)
    *_, last = re.finditer(r"mbarrier\.try_wait\S* (%p\d+), .*;", text)
    return f"{text[: last.start()]}setp.eq.u32 {last[1]}, 0, 0;{text[last.end() :]}"


def _without_accumulation(text: str) -> str:
    return re.sub(r"(tcgen05\.mma.*), \S+;", r"\1, 0;", text)


@pytest.mark.parametrize(
    ("change", "rule", "first", "second"),
    [
        (_without_commit, "race", "tcgen05.mma(", "tcgen05.ld("),
        (_without_accumulation, "product-lost", "tcgen05.mma(", "tcgen05.mma("),
    ],
)
def test_memory_flow_with_the_mistake_of_its_document(
    change: Callable[[str], str], rule: str, first: str, second: str
) -> None:
    verdict: Verdict = KERNELS["memory_flow"](change).verdicts[0]
    source = Path(memory_flow.__file__).read_text().splitlines()
    lines = [
        [source[int(step.where.rsplit(":", 1)[1]) - 1] for step in finding.steps]
        for finding in verdict.findings
        if finding.rule.id == rule
    ]
    assert any(first in early and second in late for early, late in lines), str(verdict)
