"""Pictures: their contents, that texts fit without overlaps, and the errors of files that cannot be written."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.report.timelines import profile
from warpwright.errors import UsageError
from warpwright.kernels.gemm import sm90, sm100
from warpwright.report import figure as figures
from warpwright.report.format import percent
from warpwright.report.ladder import Level, draw_ladder
from warpwright.report.pipeline import draw_pipeline
from warpwright.targets import DEVICES
from warpwright.vgpu.timing import Span

SIGNATURES = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
LEVELS = [
    Level(level, 150.0 * level, 0.5 if level < 7 else 0.0, "two words " * 6, "mma waits ab.full 41 %", 140.0 * level)
    for level in range(1, 11)
]


@pytest.fixture
def drawn(monkeypatch):
    """The saved figures, drawn once so that texts have extents."""
    made: list[Figure] = []

    def save(figure, path):
        figure.dpi = figures.PNG_DPI
        FigureCanvasAgg(figure).draw()
        made.append(figure)

    monkeypatch.setattr("warpwright.report.pipeline.save", save)
    monkeypatch.setattr("warpwright.report.ladder.save", save)
    return made


def texts(figure):
    """Returns every visible text with its extent in pixels."""
    found = {}
    beyond = [tick.label1 for axes in figure.axes for tick in axes.xaxis.get_major_ticks() if not _inside(axes, tick)]
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in beyond:
            found[text] = text.get_window_extent()
    return found


def _inside(axes, tick) -> bool:
    left, right = axes.get_xlim()
    return left <= tick.get_loc() <= right


def overlapping(figure):
    pairs = combinations(texts(figure).items(), 2)
    return [(one.get_text(), other.get_text()) for (one, a), (other, b) in pairs if _share(a, b)]


def _share(a, b) -> bool:
    wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return wide > 1 and high > 1.5


def outside(figure):
    frame = figure.bbox
    return [
        text.get_text()
        for text, box in texts(figure).items()
        if box.x0 < 0 or box.x1 > frame.x1 or box.y0 < 0 or box.y1 > frame.y1
    ]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"stages": 4, "tiles": 3, "k_blocks": 16, "buffers": 2},
        {"stages": 1, "ctas": 1},
        {"stages": 2, "latency": 3000.0},
    ],
)
def test_the_pipeline_has_every_lane_and_no_overlaps(drawn, given) -> None:
    draw_pipeline(profile(**given), Path("t.svg"))
    words = [text.get_text() for text in texts(drawn[0])]
    stages = given.get("stages", 8)
    lanes = {"load", "TMA", "mma", "tensor core", "epilogue", f"ab [0–{stages - 1}]" if stages > 1 else "ab[0]"}
    assert lanes | {"whole run", "a  prologue", "b  steady state", "c  epilogue", "cycles"} <= set(words)
    assert "acc.full" in words
    assert ("CTA 1" in words) == (given.get("ctas", 2) > 1)
    assert overlapping(drawn[0]) == []
    assert outside(drawn[0]) == []


def test_a_short_run_is_one_panel(drawn) -> None:
    draw_pipeline(profile(k_blocks=12), Path("t.svg"))
    words = [text.get_text() for text in texts(drawn[0])]
    assert len(drawn[0].axes) == 1 and {"whole run", "acc.full", "7"} <= set(words)
    assert overlapping(drawn[0]) == []


def test_a_kernel_without_engines_is_one_panel_about_memory(drawn) -> None:
    spans = [
        Span("kernel", 0, name, 10.0 * i, 10.0 * i + 10, "") for i, name in enumerate(["issues", "global memory"] * 50)
    ]
    draw_pipeline(replace(profile(), spans=tuple(spans)), Path("t.svg"))
    words = [text.get_text() for text in texts(drawn[0])]
    assert len(drawn[0].axes) == 1 and {"memory, stores", "other work"} <= set(words)


@pytest.mark.parametrize("levels", [LEVELS, LEVELS[:1], LEVELS[6:]])
@pytest.mark.parametrize("device", ["b200", "h200"])
def test_the_ladder_has_every_level_and_no_overlaps(drawn, levels, device) -> None:
    shown = [replace(level, published=level.published if device == "b200" else None) for level in levels]
    draw_ladder(shown, 4096, DEVICES[device], Path("l.svg"))
    words = [text.get_text() for text in texts(drawn[0])]
    assert [str(level.level) for level in levels if str(level.level) not in words] == []
    digits = 0 if levels[0].tflops >= 100 else 1
    share = percent(levels[0].tflops / DEVICES[device].bf16_tflops)
    assert f"{levels[0].tflops:,.{digits}f} TFLOPS · {share} of peak" in words
    assert ("published, on a GB200" in words) == (device == "b200")
    assert ("cuBLAS, published" in words) == (device == "b200")
    assert overlapping(drawn[0]) == []
    assert outside(drawn[0]) == []


@pytest.mark.parametrize("levels", [sm100.LEVELS, sm90.LEVELS])
def test_the_summary_of_a_level_is_complete(drawn, levels) -> None:
    draw_ladder(
        [Level(n, 1.0, 0.0, level.summary, "") for n, level in levels.items()], 512, DEVICES["b200"], Path("l.svg")
    )
    words = {text.get_text().replace("-\n", "-").replace("\n", " ") for text in texts(drawn[0])}
    assert [level.summary for level in levels.values() if level.summary not in words] == []


def test_bars_are_as_long_as_the_rates(drawn) -> None:
    draw_ladder(LEVELS, 4096, DEVICES["b200"], Path("l.svg"))
    useful, dropped = drawn[0].axes[0].containers
    assert [bar.get_width() for bar in useful] == [level.tflops for level in LEVELS]
    assert [bar.get_width() for bar in dropped] == [level.tflops if level.wasted else 0 for level in LEVELS]


def test_rates_far_below_the_peak_fill_the_chart(drawn) -> None:
    slow = [replace(level, tflops=level.tflops / 100, published=None) for level in LEVELS]
    draw_ladder(slow, 512, DEVICES["b200"], Path("l.svg"))
    longest = max(level.tflops / (1 - level.wasted) for level in slow)
    assert longest < drawn[0].axes[0].get_xlim()[1] < 1.2 * longest
    assert "peak" not in [text.get_text() for text in texts(drawn[0])] and outside(drawn[0]) == []
    draw_ladder(LEVELS, 4096, DEVICES["b200"], Path("l.svg"))
    assert drawn[1].axes[0].get_xlim()[1] == DEVICES["b200"].bf16_tflops


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_a_picture_is_written_the_same_each_time(tmp_path, suffix) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        draw_pipeline(profile(k_blocks=12), path)
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(SIGNATURES[suffix]) and first == second
    if suffix == ".svg":
        ElementTree.fromstring(first)


def test_colours_differ_in_grey() -> None:
    lightness = [_lightness(figures.PAINT[name]) for name in ("copy", "multiply", "store", "wait")]
    states = [_lightness(figures.PAINT[name]) for name in ("full", "in use", "filling")]
    for values in (lightness, states):
        assert all(after - before > 12 for before, after in zip(values, values[1:]))  # noqa: B905, RUF007


def _lightness(color: str) -> float:
    """CIE L* of an sRGB colour."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * y ** (1 / 3) - 16


def test_a_profile_without_a_timeline_cannot_be_drawn() -> None:
    with pytest.raises(UsageError, match=re.escape("the profile of gemm_level3 has no timeline to draw")):
        draw_pipeline(replace(profile(), spans=()), Path("t.svg"))


def test_another_kind_of_picture_is_refused_first() -> None:
    with pytest.raises(UsageError) as caught:
        figures.check_path(Path("t.jpg"))
    assert str(caught.value) == "given --plot t.jpg; expected a file name that ends with .svg, .png, .pdf"


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        figures.check_path(tmp_path / "t.svg")
    assert str(caught.value) == "pictures need the package matplotlib; run: pip install 'warpwright[plot]'"
