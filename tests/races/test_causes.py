"""Findings of one cause are one entry of a report; other causes have their own entries, and JSON has all findings."""

from __future__ import annotations

import re
from itertools import chain

import numpy as np
import pytest
from rich.text import Text

import warpwright as ww
from tests.foreign.cases import CASES
from tests.foreign.compile import golden
from tests.races.published_tensor import tensor_core
from tests.races.removals import KERNELS
from tests.races.shipped_ptx import LINES
from tests.races.verdicts import unedited_kernel
from tests.vgpu.helpers import text
from warpwright.report.findings import verdict_lines
from warpwright.report.launches import markdown_of
from warpwright.run.session import Launched
from warpwright.vgpu.checks.coverage import Coverage
from warpwright.vgpu.checks.findings import Finding, Step, Verdict, causes
from warpwright.vgpu.checks.rules import RULES

# kernel, its edit: findings of the PTX without source lines, and the rules of the first finding of each cause
EDITS = {
    ("memory_flow", "init fence.mbarrier_init.release.cluster #0"): (2, ["mbarrier-init"]),
    ("memory_flow", "kernel tcgen05.fence::after_thread_sync #1"): (4, ["tcgen05-fence"]),
    ("memory_flow", "kernel mbarrier.try_wait.parity.shared::cta.b64 #1"): (6, ["race", "fault"]),
    ("blackwell 9", "epilogue tcgen05.wait::ld.sync.aligned #15"): (1, ["tmem-registers"]),
}


@pytest.mark.parametrize(("name", "removed"), EDITS)
def test_a_missing_instruction_is_one_cause(name: str, removed: str) -> None:
    (edit,) = [edit for edit in unedited_kernel(name).edits if str(edit) == removed]
    (verdict,) = KERNELS[name](lambda ptx: LINES.sub("", edit(ptx))).verdicts
    count, rules = EDITS[name, removed]
    found = causes(verdict.findings)
    assert len(verdict.findings) == count and sorted(chain(*found)) == list(range(count))
    assert [verdict.findings[first].rule.id for first, *_ in found] == rules
    assert verdict.as_dict()["causes"] == found


def test_a_race_of_threads_and_of_launches_is_one_cause() -> None:
    (case,) = [case for case in CASES if case.entry == "atomics_float"]
    args, _ = case.make(np.random.default_rng(0))
    kernel = ww.load_ptx(golden(case.file, "sm_90a"))[case.entry]
    verdict = ww.check(kernel, grid=case.grid, block=case.block, args=args)
    assert [finding.rule.id for finding in verdict.findings] == ["race", "grid-race"]
    assert causes(verdict.findings) == [[0, 1]]


def test_a_load_of_freed_tensor_memory_is_the_free_and_no_missing_write() -> None:
    """Warp 1 frees tensor memory while the others may not have read it. Warps 2 and 3 read it after the free."""
    kernel = tensor_core.configure(synced=False)
    verdict = ww.check(kernel, grid=1, args=[np.full((128, 64), np.nan, np.float32)])
    assert {finding.rule.id for finding in verdict.findings} == {"tmem-freed"}
    assert len({finding.steps[0].opcode for finding in verdict.findings}) == 2, "both orders"


TWO_RACES = """setp.eq.u32 %p0, %warp, 0;
  @%p0 bra WRITE;
  ld.shared.u32 %r4, [bar];
  ld.shared.u32 %r4, [bar+4];
  bar.sync 0;
  ld.shared.f32 %f0, [bar+64];
  bra END;
WRITE:
  st.shared.u32 [bar], 1;
  st.shared.u32 [bar+4], 1;
  bar.sync 0;
  st.shared.f32 [bar+64], %f0;
END: ret;"""


def test_causes_at_other_synchronisations_are_apart() -> None:
    words = np.zeros(64, np.uint32)
    kernel = ww.load_ptx(text(TWO_RACES, (words,), top=".shared .align 8 .b32 bar[32];"))["k"]
    verdict = ww.check(kernel, grid=1, block=64, args=[words], off=["uninitialised"])
    assert [finding.rule.id for finding in verdict.findings] == ["race"] * 3
    assert [len(cause) for cause in causes(verdict.findings)] == [2, 1]
    lines = [Text.from_markup(line).plain for line in verdict_lines(verdict)]
    assert [line for line in lines if re.match(r"\d", line)] == [
        "1. race: two accesses of the same memory, one of them a write, that nothing orders",
        "2. race: two accesses of the same memory, one of them a write, that nothing orders",
    ]
    assert lines[lines.index("   and 1 more of this cause, also at:") + 1].startswith("      PTX line ")
    assert str(verdict).count("\n  and 1 more of this cause\n") == 1 and str(verdict).count("race: ") == 2
    assert markdown_of([Launched("k", (1,), verdict, None)]).count("(1 more of this cause)") == 1


def finding(rule: str, *wheres: str) -> Finding:
    steps = tuple(Step("first", "st.shared.u32", where, "kernel", (0, 0, 0), 0, segment=where) for where in wheres)
    return Finding(RULES[rule], steps, "nothing orders the second after the first")


def test_a_finding_joins_the_causes_before_it() -> None:
    """The third finding has the first step of one cause and the second step of the other."""
    both = [finding("race", "a:1", "a:2"), finding("race", "a:3", "a:4"), finding("fault", "a:9")]
    assert causes(both) == [[0], [1], [2]]
    assert causes([*both, finding("race", "a:1", "a:4")]) == [[0, 1, 3], [2]]


def test_many_lines_of_a_cause_are_counted() -> None:
    found = tuple(finding("race", "a.cu:1", f"a.cu:{line}") for line in range(2, 1502))
    lines = list(verdict_lines(Verdict("k", "b200", found, Coverage(0, 0, ()), ())))
    assert "   [dim]and 1499 more of this cause, also at:[/dim]" in lines
    assert "      [dim]and 1495 more places; --json lists them[/dim]" in lines
    assert len(lines) == 15


def test_the_cause_names_its_rule_first() -> None:
    found = [finding("race", "a:1", "a:2"), finding("tmem-registers", "a:1", "a:3")]
    assert causes(found) == [[1, 0]]
