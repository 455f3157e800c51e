"""The pages of a verdict, of a hang, and of a program."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import warpwright as ww
from tests.races import deadlock_kernels
from tests.report.browser import answers, needs_browser
from tests.report.timelines import profile
from tests.vgpu.helpers import text
from warpwright.cli import main
from warpwright.report.html.program import program_page
from warpwright.report.html.verdict import verdict_page
from warpwright.run.devices import device
from warpwright.run.session import Launched, Session
from warpwright.vgpu.checks.findings import Verdict

RACE = "st.global.u32 [%a0], %t; ret;"
WORDS = np.zeros(1, np.uint32)


def plain(html: str) -> str:
    """Returns the text of a page, with one space for each tag."""
    return " ".join(unescape(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


def line_of(kernel: object, code: str) -> int:
    lines, first = inspect.getsourcelines(kernel.function)  # type: ignore[attr-defined]
    return first + next(number for number, line in enumerate(lines) if code in line)


@pytest.fixture(scope="module")
def hang() -> Verdict:
    """A load role that waits for a stage which nothing releases, and a use role that waits for the load role."""
    return ww.check(deadlock_kernels.unreleased_stage.configure(right=False), grid=1, args=[8], off="race")


def race() -> Verdict:
    return ww.check(ww.load_ptx(text(RACE, (WORDS,)))["k"], grid=1, block=64, args=[WORDS], device="b200")


def test_the_page_of_a_hang_says_which_thread_waits_at_which_barrier(hang: Verdict) -> None:
    page = verdict_page(hang)
    wait = line_of(deadlock_kernels.unreleased_stage, "slot.empty.wait()")
    cells = [
        plain(cell) for cell in re.findall(r"<div>(.*?)</div>|<div class=\"never\">(.*?)</div>", page) for cell in cell
    ]
    load, empty, nobody, use, full, arrival = filter(None, cells)
    assert load == "A load, CTA 0, warp 0 (1 thread) waits for phase 0 (parity 0) of ab.empty[0]"
    assert empty.startswith("ab.empty[0]: offset 0x410 of CTA 0") and empty.endswith("it lacks 1 of 1 arrivals")
    assert nobody == "no thread of the kernel arrives there"
    assert use == "B use, CTA 0, warp 1 (1 thread) waits for phase 1 (parity 1) of ab.full[0]"
    arrive = f"deadlock_kernels.py:{wait + 1} slot.full.arrive()"
    assert f"phase 0 was ended by {arrive}" in full
    assert arrival == f"arrives there {arrive} warp 0 waits at A"
    marked = '<tr class="marked"><td></td><td>{}</td><td><code>    slot.empty.wait()</code></td><td></td></tr>'
    assert marked.format(wait) in page
    assert "Repair: arrive at ab.empty[0]: threads with mbarrier.arrive" in plain(page)


def test_the_page_of_a_race_has_both_accesses_and_the_repair() -> None:
    found = race()
    page = plain(verdict_page(found, command="warpwright check k.toml"))
    assert page.startswith("k on b200: findings k on b200: findings Verdict")
    first, second = found.findings[0].steps
    assert f"first : {first.opcode} ({first.role}, CTA (0, 0, 0), thread {first.thread})" in page
    assert f"second : {second.opcode} ({second.role}, CTA (0, 0, 0), thread {second.thread})" in page
    assert f"Repair: {found.findings[0].rule.repair} (PTX ISA" in page
    assert "Replay" not in page
    seeded = replace(found, findings=(replace(found.findings[0], seed=7),))
    assert "Replay: warpwright check k.toml --seed 7" in plain(verdict_page(seeded, command="warpwright check k.toml"))


def test_the_line_of_a_ptx_file_is_shown(tmp_path: Path) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(text(RACE, (WORDS,)))
    verdict = ww.check(ww.load_ptx(source)["k"], grid=1, block=64, args=[WORDS], device="b200")
    assert "<figcaption" in verdict_page(verdict, source)
    assert re.search(r'class="marked"><td></td><td>\d+</td><td><code>.*st\.global\.u32', verdict_page(verdict, source))


def test_what_a_verdict_did_not_reach_is_told() -> None:
    verdict = replace(race(), findings=(), reasons=("no thread reached <k.py:3>",))
    assert '<p class="incomplete">Incomplete: no thread reached &lt;k.py:3&gt;</p>' in verdict_page(verdict)


def test_the_page_of_a_program_has_kernels_verdicts_and_the_longest_launch() -> None:
    session = Session(device("b200"), check=True, profile=True)
    kernel = ww.load_ptx(text(RACE, (WORDS,)))["k"]
    for _ in range(2):
        session.launch(kernel, [WORDS.copy()], grid=(1,), block=64)
    page = plain(program_page("race.py on b200", session.launches, session.longest))
    assert "k 2 findings" in page
    assert page.count("race: two accesses of the same memory") == 1
    assert "2 launches have this verdict." in page
    assert "The longest launch: k on b200, predicted" in page
    assert "The program launched no kernel." in plain(program_page("none.py on b200", []))


def test_the_longest_launch_is_the_one_of_the_page() -> None:
    session = Session(device("b200"), profile=True)
    for count in (1, 4, 2):
        kernel = ww.load_ptx(text("st.global.u32 [%o], 1;" * count + "ret;", (WORDS,)))["k"]
        session.launch(kernel, [np.zeros(64, np.uint32)], grid=(1,), block=64)
    assert session.longest is not None
    assert session.longest.time_us == max(each.time_us for each in session.launches if each.time_us)


def test_check_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.ptx").write_text(text(RACE, (WORDS,)))
    words = ["k.ptx", "--grid", "1", "--block", "64", "--arg", "u32[1]", "--html", "k.html"]
    assert CliRunner().invoke(main, ["check", *words]).exit_code == 1
    assert "1. race: two accesses of the same memory" in plain(Path("k.html").read_text())


def test_run_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is an extra: pip install 'warpwright[foreign]'")
    monkeypatch.chdir(tmp_path)
    Path("none.py").write_text("")
    assert CliRunner().invoke(main, ["run", "--html", "none.html", "none.py"]).exit_code == 0
    assert "<h1>none.py on b200</h1>" in Path("none.html").read_text()
    refused = CliRunner().invoke(main, ["run", "--html", "no/none.html", "none.py"])
    message = "cannot write no/none.html: No such file or directory; name a file in a folder that exists"
    assert (refused.exit_code, refused.stderr) == (2, f"warpwright: error: {message}\n")


@needs_browser
def test_a_browser_shows_a_hang_and_a_program_without_errors(hang: Verdict, tmp_path: Path) -> None:
    launches = [Launched("k", (2, 1, 1), hang, 3.0)]
    page = program_page("k.py on b200", launches, profile(k_blocks=4))
    script = """return {
        wide: document.documentElement.scrollWidth <= innerWidth, lanes: timeline.data.lanes.length,
        rows: document.querySelectorAll(".hang > div").length };"""
    found, console = answers(page, script, tmp_path, width=500)
    assert (console, found["wide"], found["rows"]) == ([], True, 6)
    assert found["lanes"] > 10
