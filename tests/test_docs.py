"""README and docs: every Python block runs, page by page from top to bottom, and so does every warpwright command.

Blocks with torch, which is an extra, run where it is installed; so does ptxas after a command.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from warpwright.cli import main
from warpwright.ptx.ptxas import find_ptxas, ptxas
from warpwright.vgpu.checks.rules import RULES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "warpwright"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "log").glob("*.md"))]
ELSEWHERE = (
    "make ",
    ". ",
    "pip ",
    "python ",
    "git ",
    "cd ",
)  # commands of the machine, and examples: tests/test_examples.py


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of ``language``: (line of the first line, text)."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run(page: Path) -> None:
    names: dict[str, object] = {"__name__": page.stem}
    for line, text in blocks(page, "python"):
        if "torch" in text and find_spec("torch") is None:
            continue
        tree = ast.increment_lineno(ast.parse(text), line)
        exec(compile(tree, str(page), "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_succeed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("A.npy", "B.npy"):
        np.save(name, random.standard_normal((128, 128)).astype(ml_dtypes.bfloat16))
    saxpy = re.search(r'"""(\n\.version.*?)"""', (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    Path("saxpy.ptx").write_text(saxpy[1] if saxpy else "")
    for _, text in blocks(page, "sh"):
        for command in text.replace("\\\n", " ").splitlines():
            words = shlex.split(command, comments=True)
            if not words or command.startswith(ELSEWHERE):
                continue
            pipe = words.index("|") if "|" in words else len(words)
            words, after = words[:pipe], words[pipe + 1 :]
            assert words[0] == "warpwright", f"{page.name}: {command}"
            result = CliRunner().invoke(main, words[1:])
            assert result.exit_code == 0, f"{page.name}: {command}\n{result.output}"
            if after and find_ptxas():
                assert after[0] == "ptxas", f"{page.name}: {command}"
                done = subprocess.run([ptxas(), *after[1:]], input=result.stdout, capture_output=True, text=True)
                assert done.returncode == 0, f"{page.name}: {command}\n{done.stdout}{done.stderr}"


def test_every_rule_of_the_checks_has_its_section() -> None:
    headings = re.findall(r"^### (.*)$", (ROOT / "docs" / "rules.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for heading in headings for name in heading.split(" and ")) == sorted(RULES)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}, a heading that is not there"


def test_the_map_names_every_folder_and_file_of_the_package() -> None:
    page = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
    units = {path.name for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}
    hidden = {name for name in units if name.startswith("__") or name.endswith(".typed")}
    assert not {name for name in units - hidden if f"`{name}`" not in page}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_file_that_a_page_names_is_there(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`(?:python )?([\w/]+/\w+\.(?:py|json|ll))[` ]", prose):
        assert (ROOT / name).exists() or (SOURCE / name).exists(), f"{page.name} names {name}"
