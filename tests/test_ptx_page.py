"""docs/ptx.md is what the table of instructions says."""

from __future__ import annotations

from pathlib import Path

from tests.ptx_page import text
from warpwright.isa import FORMS
from warpwright.vgpu.jit.issue import NOT_YET

PAGE = Path(__file__).parents[1] / "docs" / "ptx.md"


def test_the_list_of_ptx_is_that_of_the_table(check_golden) -> None:
    check_golden(PAGE, text())


def test_the_list_names_every_instruction_once_and_every_refusal_with_its_reason() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [page.count(f"\n### `{name}`\n") for name in FORMS] == [1] * len(FORMS)
    assert NOT_YET and all(f"- runs on the virtual GPU: no: {reason}\n" in page for reason in NOT_YET.values())
