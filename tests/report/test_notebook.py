"""Results in a notebook: what a cell shows, and where a report opens."""

from __future__ import annotations

import re
import sys
import webbrowser
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import warpwright as ww
from tests.report.test_html_verdict import RACE, WORDS, plain, race
from tests.report.timelines import profile
from tests.vgpu.helpers import text
from warpwright.gpu import LaunchResult
from warpwright.interop.virtual import serve
from warpwright.report.html.notebook import Frame, cell_html
from warpwright.report.html.profile import profile_page
from warpwright.run.devices import device
from warpwright.run.session import Session


def test_a_profile_shows_its_time_its_parts_and_its_stalls() -> None:
    shown = profile(k_blocks=16)._repr_html_()
    assert plain(shown).startswith("gemm_level3 on b200, predicted time µs cycles clock MHz launch µs TFLOPS")
    assert 'aria-label="useful MMA' in shown
    assert "load waits ab.empty" in plain(shown)
    assert "epilogue (" in plain(shown)


def test_a_profile_without_mma_has_no_parts() -> None:
    shown = replace(profile(k_blocks=4), spans=(), roles=())._repr_html_()
    assert "useful MMA" not in shown and "gemm_level3 on b200, predicted" in shown


def test_a_verdict_shows_its_findings() -> None:
    shown = plain(race()._repr_html_())
    assert shown.startswith("k on b200: findings")
    assert "1. race: two accesses of the same memory" in shown


def test_a_launch_shows_what_it_printed_and_a_session_its_launches() -> None:
    assert "<pre>a &lt; b</pre>" in LaunchResult("a < b")._repr_html_()
    assert plain(LaunchResult()._repr_html_()) == "The launch ended; it printed nothing."
    session = Session(device("b200"), check=True)
    assert plain(session._repr_html_()) == "0 launches on b200"
    session.launch(ww.load_ptx(text(RACE, (WORDS,)))["k"], [np.zeros(1, np.uint32)], grid=(1,), block=64)
    assert plain(session._repr_html_()) == "1 launch on b200 kernel launches verdict k 1 findings"
    assert "1. race: two accesses" in plain(session.launches[0]._repr_html_())
    with serve(session):
        ww.launch(ww.load_ptx(text("ret;", (WORDS,)))["k"], 1, block=32, args=[WORDS], device="gb200")
    assert plain(session._repr_html_()).startswith("2 launches on b200 and gb200 kernel")


def test_a_cell_changes_no_other_part_of_the_notebook() -> None:
    """Every rule of the style applies inside the cell's element only."""
    style = cell_html(LaunchResult()).partition("<style>")[2].partition("</style>")[0]
    style = re.sub(r"/\*.*?\*/", "", style)
    selectors = [one.strip() for rule in style.split("}")[:-1] for one in rule.split("{")[0].split(",")]
    assert selectors and all(selector.startswith(".warpwright") for selector in selectors)


def test_other_values_have_no_html() -> None:
    with pytest.raises(TypeError, match=r"^given int; expected a profile, a verdict or a launch$"):
        cell_html(3)


def test_show_opens_the_report_in_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    shown = profile(k_blocks=4).show()
    assert opened == [shown.as_uri()]
    assert shown.read_text(encoding="utf-8") == profile_page(profile(k_blocks=4))
    shown.unlink()


def test_show_without_a_browser_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    with pytest.raises(ww.UsageError) as caught:
        profile(k_blocks=4).show()
    path = str(caught.value).split()[3].rstrip(";")
    sentence = f"no browser opened {path}; open that file in a browser, or copy it to a machine that has one"
    assert str(caught.value) == sentence
    Path(path).unlink()


def test_show_in_a_notebook_is_the_output_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setattr(webbrowser, "open", lambda url: pytest.fail("a browser opened"))
    shown = profile(k_blocks=4).show()
    assert isinstance(shown, Frame)
    frame = shown._repr_html_()
    assert frame.startswith('<iframe srcdoc="') and unescape(frame.split('"')[1]) == profile_page(profile(k_blocks=4))
