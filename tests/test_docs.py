"""README and docs: every Python block runs, page by page from top to bottom, and so does every warpwright command, once
for all pages.

Blocks with torch or JAX run where it is installed, and so does a ptxas that reads a command's output. The
rows of docs/seeds.md are commands too, and their output has what the rows say.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import click
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from tests.samples import sampled
from tests.seeds import Row, rows
from warpwright.cli import main
from warpwright.ptx.ptxas import find_ptxas, ptxas
from warpwright.vgpu.checks.rules import RULES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "warpwright"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
LONG_PAGES = ("attention.md", "errata.md", "guide.md", "kernels.md", "11-your-kernel.md", "12-several-gpus.md")
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


@sampled("page", PAGES, long=[page for page in PAGES if page.name in LONG_PAGES], ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run(page: Path) -> None:
    names: dict[str, object] = {"__name__": page.stem}
    for line, text in blocks(page, "python"):
        if (
            any(name in text and find_spec(name) is None for name in ("torch", "jax", "transformers"))
            or "ww.virtual(" in text
        ):
            continue  # Triton reads a kernel from its file: tests/programs runs these blocks
        tree = ast.increment_lineno(ast.parse(text), line)
        exec(compile(tree, str(page), "exec", dont_inherit=True), names)


def plain(command: str) -> str:
    """``command`` without comments and further spaces."""
    return " ".join(shlex.split(command, comments=True))


def missing(row: Row, text: str) -> list[str]:
    """The texts that a row of docs/seeds.md promises and ``text`` lacks, whatever its spaces."""
    joined = " ".join(text.split())
    return [f"row {row.number}: {shown}" for shown in row.shows if shown not in joined]


def commands_of(page: Path) -> list[str]:
    """The commands of this package in a page: one string each, without comments."""
    found = []
    for _, text in blocks(page, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            if plain(line) and not line.startswith(ELSEWHERE):
                assert line.startswith("warpwright "), f"{page.name}: {line}"
                found.append(plain(line))
    return found


SEEDS = ROOT / "docs" / "seeds.md"
ROWS = list(rows(SEEDS.read_text(encoding="utf-8")))
COMMANDS = dict.fromkeys(
    itertools.chain(*(commands_of(page) for page in PAGES), *(map(plain, row.commands) for row in ROWS))
)

LONG_COMMANDS = {
    "warpwright selftest --device b200",  # tests/conformance and tests/cli/test_selftest.py have a sample
    "warpwright ladder attention --size 512",
    "warpwright ladder attention --size 512,1024 --steps v3",
    "warpwright ladder --size 256",
    "warpwright ladder --size 256 --device h200",
    "warpwright profile attention --step v3 --size 32x512x128",
    "warpwright ladder --size 256 --device h200 --mma-sync",
}


@sampled("command", COMMANDS, long=LONG_COMMANDS)
def test_a_command_succeeds(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("A.npy", "B.npy"):
        np.save(name, random.standard_normal((128, 128)).astype(ml_dtypes.bfloat16))
    saxpy = re.search(r'"""(\n\.version.*?)"""', (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    Path("saxpy.ptx").write_text(saxpy[1] if saxpy else "")
    words, _, assembler = command.partition(" | ")
    result = CliRunner().invoke(main, words.split()[1:])
    assert result.exit_code == 0, result.output
    if assembler and find_ptxas():
        assert assembler.startswith("ptxas ")
        done = subprocess.run([ptxas(), *assembler.split()[1:]], input=result.stdout, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for row in ROWS:
        if row.commands and plain(row.commands[0]) == command:
            assert not missing(row, result.output)


def test_every_rule_of_the_checks_has_its_section() -> None:
    headings = re.findall(r"^### (.*)$", (ROOT / "docs" / "rules.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for heading in headings for name in heading.split(" and ")) == sorted(RULES)


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {anchor_of(heading) for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    prose = re.sub(r"```.*?```|``.*?``|`[^`]*`", "code", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", prose):
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


def section(page: Path, anchor: str) -> str:
    """The text below the heading of ``anchor``, up to the next heading of its depth or above."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^(#+) (.*)\n", text, re.MULTILINE):
        if anchor_of(match[2]) == anchor:
            return re.split(rf"^#{{1,{len(match[1])}}} ", text[match.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    return ""


def test_each_thing_that_the_documents_ask_for_has_a_row_that_serves_it() -> None:
    assert [row.number for row in ROWS] == list(range(1, 85))
    for row in ROWS:
        assert row.items or row.hand, row
        known = {*row.commands, *row.tests, *row.hand}
        assert all(item in known or item.startswith("[") for item in row.items), row
        assert row.commands or row.links or not row.shows, row


@pytest.mark.parametrize("row", [row for row in ROWS if row.links and not row.commands], ids=lambda row: row.number)
def test_the_section_of_a_row_has_what_the_row_says(row: Row) -> None:
    file, _, anchor = row.links[0].partition("#")
    text = section(SEEDS.with_name(file) if file else SEEDS, anchor)
    assert text.strip() and not missing(row, text)


def test_each_test_that_a_row_names_exists() -> None:
    for name in {name for row in ROWS for name in row.tests}:
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_the_commands_by_hand_have_options_that_exist() -> None:
    """They are parsed, not run: ``python -m tests.seeds`` runs them."""
    for command in {command for row in ROWS for command in row.hand if command.startswith("warpwright ")}:
        _, *words = shlex.split(command)
        group: click.Command = main
        while isinstance(group, click.Group) and (found := group.get_command(click.Context(group), words[0])):
            group, words = found, words[1:]
        assert group is not main, command
        group.make_context(command, words)


def test_a_name_of_the_documents_leads_to_a_name_of_the_source() -> None:
    """Below "Where everything is": each name beside a path stands in the file of that path, or of another one."""
    table = section(SEEDS, "where-everything-is")
    for cell in re.findall(r"^\| .* \| (.*) \|$", table, re.MULTILINE):
        marked = re.findall(r"`([^`]+)`", cell)
        files = [name.split()[-1] for name in marked if name.endswith(".py")]
        text = "".join((SOURCE / name if (SOURCE / name).exists() else ROOT / name).read_text() for name in files)
        names = [name.rpartition(".")[2] for name in marked if re.fullmatch(r"\w+(\.\w+)*", name) and name not in files]
        assert not files or not [name for name in names if not re.search(rf"\b{name}\b", text)], cell
