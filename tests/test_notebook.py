"""The example notebook: its cells run one after another as in a notebook, without Jupyter."""

from __future__ import annotations

import ast
import json
import linecache
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.report.test_html_verdict import plain

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


def cells() -> list[str]:
    """Returns the code of the cells."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code"]


def run(code: str, name: str, namespace: dict[str, Any]) -> Any:
    """Runs a cell; returns the value of its last expression, as a notebook does."""
    linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
    body = ast.parse(code, name)
    last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
    exec(compile(body, name, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace) if last else None


def test_the_cells_run_and_show_verdicts_profile_and_report(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    namespace: dict[str, Any] = {}
    values = [run(code, f"<cell {number}>", namespace) for number, code in enumerate(cells())]
    wrong, clean, profile, report = (value._repr_html_() for value in values if hasattr(value, "_repr_html_"))
    assert "proxy-fence" in plain(wrong) and "tma.store(y[0, 0], tile)</code>" in wrong
    assert plain(clean).startswith("double on b200: clean")
    assert plain(profile).startswith("double on b200, predicted")
    assert report.startswith('<iframe srcdoc="')


def test_the_notebook_is_stored_without_outputs() -> None:
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert stored["nbformat"] == 4
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in stored["cells"] if "outputs" in cell)
