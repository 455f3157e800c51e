"""The playground: each variant gets the verdict that its entry states, and the page shows the chosen one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import answers, needs_browser, tab_stops
from tests.test_site import ROOT, TUTORIALS

SITE = ROOT / "docs" / "site"
Runs = list[tuple[Any, list[Any]]]


@pytest.fixture(scope="module", autouse=True)
def site_modules() -> Iterator[None]:
    """The modules of docs/site import each other by name, as Sphinx and the command do."""
    sys.path.insert(0, str(SITE))
    yield
    sys.path.remove(str(SITE))


@pytest.fixture(
    scope="module", params=[pytest.param(4, id="four lessons"), pytest.param(None, id="all", marks=pytest.mark.long)]
)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    from playground import run_lessons
    from variants import LESSONS

    found: Runs = run_lessons(tmp_path_factory.mktemp("variants"), LESSONS[: request.param])
    return found


@pytest.fixture(scope="module")
def page(runs: Runs) -> str:
    from playground import playground

    return str(playground(runs))


def test_each_variant_has_the_verdict_of_its_entry(runs: Runs) -> None:
    from runs import rule_of

    found = {(lesson.title, run.variant.title): rule_of(run.verdict) for lesson, some in runs for run in some}
    stated = {(lesson.title, run.variant.title): run.variant.verdict for lesson, some in runs for run in some}
    assert found == stated
    assert len(found) == sum(1 + len(lesson.variants) for lesson, _ in runs)


def test_each_tutorial_has_a_lesson() -> None:
    from variants import LESSONS

    numbers = {int(lesson.title.split()[0]) for lesson in LESSONS}
    assert numbers == {int(path.stem.split("-")[0]) for path in TUTORIALS}


def test_each_lesson_has_a_variant_of_another_verdict_or_time(runs: Runs) -> None:
    for lesson, (first, *others) in runs:
        assert any(run.variant.verdict != first.variant.verdict for run in others), lesson.title


def test_a_launch_that_ends_has_a_time_and_stages_change_it(runs: Runs) -> None:
    for _, some in runs:
        assert all(run.profile for run in some if run.verdict.kind == "clean")
    ring = {run.variant.title: run.profile for lesson, some in runs for run in some if lesson.kernel == "row_sums"}
    four, two, one = (ring[title] for title in ("as in the tutorial", "2 stages instead of 4", "1 stage instead of 4"))
    assert one.time_us > 1.5 * two.time_us > 2 * four.time_us


def test_an_edit_of_text_that_is_not_there_is_an_error() -> None:
    from runs import edited
    from variants import LESSONS

    variant = replace(LESSONS[1].variants[0], edits=(("empty.wait", ""),))
    message = "without full.wait: 'empty.wait' stands 0 times in the source; expected once"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        edited("full.wait(0)", variant)


def test_the_changed_lines_are_marked(page: str) -> None:
    assert page.count("<del>full.wait(0)</del>") == 2  # of pages 2 and 4
    line = '<tr class="marked"><td>+</td><td>36</td><td><code><ins>def row_sums('
    assert page.count(line) == 2  # one stage, two stages


def test_the_page_loads_nothing(page: str) -> None:
    assert not re.findall(r"\ssrc=|@import|url\(", page)
    assert set(re.findall(r'href="([^#"]*)', page)) == {"", "data:,", "docs/index.html", "https://ui.perfetto.dev"}


CHOOSE = """
const list = (name) => document.getElementById(name);
const seen = () => ({
  chosen: list("chosen").textContent,
  verdicts: [...document.querySelectorAll("#choice [data-run]:not([hidden]) .badge")].map((each) => each.textContent),
  code: document.querySelector("#code [data-run]:not([hidden])").textContent,
  lanes: list("timeline").parentElement.hidden ? 0 : timeline.data.lanes.length,
  shown: document.querySelectorAll("[data-run]:not([hidden])").length,
});
const pick = (name, at) => { list(name).value = at; list(name).dispatchEvent(new Event("change")); return seen(); };
const found = { first: seen(), ring: pick("tutorial", 2), stage: pick("variant", 2), race: pick("variant", 3) };
found.address = location.hash;
found.titles = [...list("variant").options].map((each) => each.text);
const shown = (each) => each.offsetParent;
const focusable = [...document.querySelectorAll("a, button, select, [tabindex='0']")].filter(shown);
found.names = focusable.filter((each) => each.tabIndex !== 0 || !(each.textContent + each.ariaLabel).trim()).length;
found.wide = document.documentElement.scrollWidth > innerWidth;
return found;
"""


@needs_browser
@pytest.mark.parametrize("width", [1440, 500])
def test_a_choice_shows_another_verdict_code_and_timeline(page: str, tmp_path: Path, width: int) -> None:
    found, console = answers(page, CHOOSE, tmp_path, width)
    assert console == []
    assert found["first"]["chosen"] == "1 A first kernel, as in the tutorial: clean"
    assert found["ring"]["verdicts"] == ["clean"] and found["ring"]["lanes"] > found["stage"]["lanes"] > 0
    assert found["stage"]["chosen"] == "3 A ring, 1 stage instead of 4: clean"
    assert "stages: int = 1)" in found["stage"]["code"]
    assert found["race"]["chosen"] == "3 A ring, without full.wait: race"
    assert found["race"]["verdicts"] == ["clean", "findings"] and found["race"]["lanes"] == 0
    assert found["address"] == "#2.3" and "without full.wait" in found["titles"]
    assert {each["shown"] for each in found.values() if isinstance(each, dict)} == {3}
    assert found["names"] == 0 and not found["wide"]


@needs_browser
def test_tab_reaches_both_lists_the_code_and_the_timeline(page: str, tmp_path: Path) -> None:
    file = tmp_path / "playground.html"
    file.write_text(page, encoding="utf-8")
    stops = tab_stops(file, 15, tmp_path)
    assert all(stop["marked"] for stop in stops)
    names = [stop["text"][:24] for stop in stops]
    assert [stop["tag"] for stop in stops].count("SELECT") == 2
    assert names.index("Warpwright") < names.index("whole run")
