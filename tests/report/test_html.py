"""The report as one HTML file: what it has, that it loads nothing, and what its timeline answers in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import answers, needs_browser
from tests.report.timelines import profile
from warpwright.report.account import account
from warpwright.report.figure import PAINT
from warpwright.report.html.page import style
from warpwright.report.html.profile import profile_page
from warpwright.vgpu.timing import Phase, Profile, Region, Resources, Span

HERE = Path(__file__).as_posix()
WAIT_LINE = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "HERE =" in text)


@pytest.fixture(scope="module")
def predicted() -> Profile:
    """Returns a profile in which TMA of CTA 1 ends phase 2 of ab.full[0], and so a wait of mma in CTA 0."""
    made = profile(k_blocks=16)
    wait = next(i for i, span in enumerate(made.spans) if span.track == "mma" and span.name == "waits ab.full")
    load = next(span for span in made.spans if span.track == "TMA" and span.cta == 1)
    spans = list(made.spans)
    spans[wait] = replace(spans[wait], phase=2, released=0)
    ended = Phase("ab.full[0]", 0, 2, 0.0, load.end, 32768, "TMA", 1, load.start, f"{HERE}:{WAIT_LINE}")
    regions = (Region("shared memory", "ab[0]", 1024, 32768), Region("tensor memory", "D of tcgen05.mma", 0, 256))
    taken = Resources(threads=192, registers=64, shared=33792, columns=256)
    return replace(made, spans=tuple(spans), phases=(ended,), memory=regions, resources=taken)


@pytest.fixture(scope="module")
def page(predicted: Profile) -> str:
    return profile_page(predicted)


def data_of(page: str) -> Any:
    return json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0])


def test_the_page_loads_nothing(page: str) -> None:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert f'content="{policy}"' in page
    assert not re.findall(r"\ssrc=|@import|url\(", page)
    assert set(re.findall(r'href="([^#"]*)', page)) == {"", "data:,", "https://ui.perfetto.dev"}


def test_the_page_has_every_section(page: str, predicted: Profile) -> None:
    assert re.findall(r'<section id="(\w+)"', page) == [
        "time",
        "pipeline",
        "stalls",
        "advice",
        "use",
        "memory",
        "numbers",
    ]
    for part, cost in account(predicted).items():
        assert not cost or f"{part} {cost:,.1f} µs" in page
    assert "<td>threads</td>" in page
    assert "ab[0]: 32,768 bytes from 1,024" in page
    assert "D of tcgen05.mma: 256 columns from 0" in page


def test_stalls_stand_beside_their_code(predicted: Profile) -> None:
    role = predicted.roles[0]
    stall = replace(role.stalls[0], reason="waits ab.empty", lines=((f"{HERE}:{WAIT_LINE}", role.cycles / 4),))
    page = profile_page(replace(predicted, roles=(replace(role, stalls=(stall,)),)))
    code = f"<td>{WAIT_LINE}</td><td><code>HERE = Path(__file__).as_posix()</code></td>"
    assert f"<td>25 %</td>{code}<td>load waits ab.empty 25 % of its {role.cycles:,.0f} cycles</td>" in page


def test_text_of_a_kernel_is_escaped() -> None:
    named = profile(k_blocks=4, kernel="<script>alert('&')</script>")
    spans = (Span("kernel</script>", 0, "issues", 0.0, 10.0, "k.py:1"),)
    page = profile_page(replace(named, spans=spans, roles=()))
    assert "<h1>&lt;script&gt;alert('&amp;')&lt;/script&gt; on b200, predicted</h1>" in page
    assert page.count("<script") == page.count("</script>") == 2
    assert data_of(page)["timeline"]["lanes"][0]["name"] == "kernel</script>"


def test_the_data_of_the_timeline_name_the_operation_that_ended_a_wait(page: str) -> None:
    timeline = data_of(page)["timeline"]
    mma = next(lane for lane in timeline["lanes"] if lane["name"] == "mma")
    assert sorted(set(mma["released"])) == [-1, 0]
    barrier = next(lane for lane in timeline["lanes"] if lane.get("barrier"))
    assert (barrier["name"], barrier["phase"], barrier["bytes"]) == ("ab.full[0]", [2], [32768])
    source = timeline["lanes"][timeline["phases"]["lane"][0]]
    assert (source["name"], source["cta"]) == ("TMA", 1)
    assert timeline["phases"]["issued"][0] in source["start"]
    assert timeline["code"][timeline["phases"]["where"][0]] == "HERE = Path(__file__).as_posix()"


def test_a_profile_without_spans_has_a_page() -> None:
    page = profile_page(replace(profile(k_blocks=4), spans=(), roles=()))
    assert 'id="pipeline"' not in page
    assert data_of(page)["timeline"] == {}


def colours() -> list[dict[str, str]]:
    """Returns the colours of the light and of the dark scheme."""
    return [
        dict(re.findall(r"--([\w-]+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", style(), re.DOTALL)
    ]


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(scheme: int) -> None:
    found = colours()[scheme]
    for text in ("ink", "quiet", "link", "accent", "good", "fair"):
        for ground in ("page", "panel"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    for paint in (*(name.replace(" ", "-") for name in PAINT), "parity-0", "parity-1"):
        assert max(contrast(found[paint], ink) for ink in ("#000000", "#ffffff")) >= 4.5, paint


def test_both_schemes_have_all_colours_and_the_light_one_those_of_the_pictures() -> None:
    light, dark = colours()
    assert light.keys() == dark.keys()
    assert {name: light[name.replace(" ", "-")] for name in PAINT} == PAINT


ACTIONS = """
const box = document.getElementById("timeline"), canvas = box.querySelector("canvas");
const range = () => document.getElementById("range").textContent;
const details = () => [...document.querySelectorAll("#details p")].map((each) => each.textContent);
const press = (key) => box.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const width = () => timeline.view.to - timeline.view.from;
const lane = timeline.data.lanes.findIndex((each) => each.name === "mma");
const wait = timeline.data.lanes[lane].released.indexOf(0);
const found = { whole: width(), pixels: canvas.width > 300, wide: document.documentElement.scrollWidth <= innerWidth };
const place = timeline.position(lane, wait);
for (const name of ["pointerdown", "pointerup"])
  canvas.dispatchEvent(new PointerEvent(name, { ...place, pointerId: 1, pointerType: "mouse", bubbles: true }));
found.clicked = details();
press("+");
found.zoomed = width();
press("Enter");
found.followed = details()[0];
document.querySelector("[data-window=prologue]").click();
found.prologue = [timeline.view.from, timeline.view.to];
press("0");
found.all = width();
press("Escape");
found.none = details();
found.range = range();
found.roofline = document.querySelectorAll("#roofline svg circle").length;
return found;
"""


@needs_browser
@pytest.mark.parametrize("width", [1440, 500])
def test_the_timeline_zooms_and_a_click_on_a_wait_names_what_ended_it(page: str, tmp_path: Path, width: int) -> None:
    found, console = answers(page, ACTIONS, tmp_path, width)
    assert console == []
    timeline = data_of(page)["timeline"]
    assert found["pixels"]
    assert found["wide"]
    assert found["clicked"][0] == "mma, CTA 0: waits ab.full"
    assert found["clicked"][2] == "phase 2 of ab.full[0] of CTA 0, 32,768 bytes"
    issued = timeline["phases"]["issued"][0]
    code = f"test_html.py:{WAIT_LINE}  HERE = Path(__file__).as_posix()"
    assert found["clicked"][4] == f"Released by TMA, CTA 1: load ab[0], issued at cycle {issued}, {code}"
    assert found["zoomed"] == pytest.approx(found["whole"] / 2)
    assert found["followed"] == "TMA, CTA 1: load ab[0]"
    assert found["prologue"] == pytest.approx(timeline["windows"]["prologue"])
    assert found["all"] == found["whole"]
    assert found["none"] == ["Click an operation. A wait shows which operation ended it."]
    assert found["range"].startswith("cycles 0 to ")
    assert found["roofline"] == 1
