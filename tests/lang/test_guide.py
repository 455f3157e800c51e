"""docs/guide.md: `ww.check` finds every kernel clean, and tables name every function; test_docs runs the page."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from warpwright import lang
from warpwright.lang import arithmetic, convert

PAGE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
TYPES = {"b16", "b32", "b64", "u16", "u32", "s16", "s32"}  # the guide writes "`u8` to `u64`"


def test_every_kernel_is_checked_and_clean() -> None:
    functions = [node for node in ast.parse(CODE).body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    checked = re.findall(r'^assert ww\.check\((\w+).*\)\.kind == "clean"$', CODE, re.MULTILINE)
    assert sorted(checked) == sorted(function.name for function in functions)


@pytest.mark.parametrize("name", [*arithmetic.__all__, *convert.__all__, "select"])
def test_a_table_has_each_function_with_its_instruction(name) -> None:
    instruction = re.search(r"\((\w+)[^()]*\)\.?$", inspect.getdoc(getattr(lang, name)))[1]
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and f"{name}(" in line]
    assert any(re.search(rf"`{instruction}\b", row) for row in rows)


def test_the_page_has_every_public_name() -> None:
    assert [name for name in lang.__all__ if name not in TYPES and not re.search(rf"\b{name}\b", PAGE)] == []
