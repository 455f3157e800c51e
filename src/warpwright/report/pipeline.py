"""The pipeline picture: roles, engines and ring slots of up to two CTAs over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from warpwright.errors import UsageError
from warpwright.report.figure import GREY, INK, PAINT, RULE, canvas, save
from warpwright.report.format import headline
from warpwright.report.lanes import (
    ENGINES,
    TENSOR,
    Lane,
    Windows,
    coalesce,
    kind,
    lanes,
    merge_tracks,
    slot_number,
    windows,
)
from warpwright.vgpu.timing import Profile, Span

__all__ = ["draw_pipeline"]

WIDTH, EDGE, LEFT, RIGHT, TOP, BOTTOM = 7.2, 0.2, 0.98, 0.15, 0.72, 0.62
GAP, BETWEEN = 0.52, 0.25
LANE, SLOT_LANE, CTA_GAP, OVERVIEW = 0.145, 0.062, 0.09, 0.62
RESOLUTION = 1500
DIGIT, LETTER = 0.065, 0.054  # width of a character of 5.5 and of 5 points, inches
HEIGHTS = {"wait": 0.62, "filling": 0.86, "full": 0.86, "in use": 0.86}
LEGEND = (
    ("copy", "copies"),
    ("multiply", "multiplies"),
    ("store", "reads accumulator, stores"),
    ("other", "other work"),
    ("wait", "waits for"),
    ("filling", "slot: filling"),
    ("full", "slot: full"),
    ("in use", "slot: in use"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a lane: its middle and its height, in inches from the top of its panel."""

    lane: Lane
    middle: float
    height: float


@dataclass(frozen=True, slots=True)
class Panel:
    """A ``window`` of the timeline, in cycles, drawn in a ``box`` (left, bottom, width, height in inches)."""

    title: str
    window: tuple[float, float]
    box: tuple[float, float, float, float]
    named: bool = True
    labelled: bool = True


def draw_pipeline(profile: Profile, path: Path) -> None:
    """Write the picture of ``profile`` to ``path`` (.svg, .png or .pdf).

    From top to bottom: the whole run of a representative cluster, some passes of its ring, its prologue and epilogue.
    Raises UsageError for a profile without a timeline, and if the file cannot be written.
    """
    drawn = lanes(merge_tracks(profile.spans))
    if not drawn:
        raise UsageError(
            f"the profile of {profile.kernel} has no timeline to draw: no span is long enough; leave --plot out"
        )
    rows, tall = _rows(drawn)
    where = windows(profile.spans)
    panels, height = _panels(where, tall, _has_steady_state(drawn, where))
    with canvas(WIDTH, height) as figure:
        figure.text(EDGE / WIDTH, 1 - 0.22 / height, headline(profile), fontsize=9.5, fontweight="bold")
        figure.text(EDGE / WIDTH, 1 - 0.38 / height, _subtitle(profile), fontsize=7, color=GREY)
        whole, *_ = [_draw(figure, panel, rows, tall) for panel in panels]
        for panel in panels[1:]:
            _mark_window(whole, panel)
        _legend(figure, drawn)
        save(figure, path)


def _has_steady_state(drawn: Sequence[Lane], where: Windows) -> bool:
    """Returns whether an engine is active and the windows of prologue, steady state and epilogue do not overlap."""
    disjoint = where.prologue[1] <= where.steady[0] and where.steady[1] <= where.epilogue[0]
    return disjoint and any(lane.track in ENGINES for lane in drawn)


def _subtitle(profile: Profile) -> str:
    """Returns the figures of the launch in one line."""
    x, y, z = profile.grid
    threads = profile.block[0] * profile.block[1] * profile.block[2]
    ctas = f"{x * y * z:,} CTA{'s' * (x * y * z > 1)}"
    parts = [f"{ctas} of {threads} threads", f"{profile.time_us:,.4g} µs"]
    if profile.flops:
        parts += [f"{profile.tflops:,.4g} TFLOPS", f"tensor cores {profile.usage.tensor:.0%} busy"]
    return " · ".join([*parts, f"device memory {profile.usage.hbm:.0%}"])


def _panels(where: Windows, tall: float, steady: bool) -> tuple[list[Panel], float]:
    """Returns the panels and the height of the picture, inches: the whole run, with a steady state three windows."""
    span = WIDTH - LEFT - RIGHT
    if not steady:
        return [Panel("whole run", where.whole, (LEFT, BOTTOM, span, tall))], TOP + tall + BOTTOM
    half = (span - BETWEEN) / 2
    second = BOTTOM + tall + GAP
    first = second + tall + GAP
    panels = [
        Panel("whole run", where.whole, (LEFT, first, span, OVERVIEW * tall), labelled=False),
        Panel("a  prologue", where.prologue, (LEFT, BOTTOM, half, tall)),
        Panel("b  steady state", where.steady, (LEFT, second, span, tall)),
        Panel("c  epilogue", where.epilogue, (LEFT + half + BETWEEN, BOTTOM, half, tall), named=False),
    ]
    return panels, first + OVERVIEW * tall + TOP


def _rows(drawn: Sequence[Lane]) -> tuple[list[Row], float]:
    """Returns the row of every lane, and the height of a panel in inches; slots are thin, CTAs are separated."""
    rows: list[Row] = []
    y = 0.0
    for _, group in groupby(drawn, key=lambda lane: lane.cta):
        block = list(group)
        for lane in block:
            slots = sum(other.ring == lane.ring for other in block)
            height = max(SLOT_LANE, LANE / slots) if lane.ring else LANE
            rows.append(Row(lane, y + height / 2, height))
            y += height
        y += CTA_GAP
    return rows, y - CTA_GAP


def _draw(figure: Any, panel: Panel, rows: Sequence[Row], tall: float) -> Any:
    """Draw one panel with every lane; returns its axes."""
    width, height = figure.get_size_inches()
    left, bottom, wide, high = panel.box
    axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
    axes.set_xlim(*panel.window)
    axes.set_ylim(tall, 0)
    for row in rows:
        _bars(axes, row, panel.window)
        if panel.labelled and not row.lane.ring:
            _labels(axes, row, panel.window, wide / (panel.window[1] - panel.window[0]))
    shift = (EDGE - LEFT) / wide if panel.named else 0
    axes.text(shift, 1 + 0.05 / high, panel.title, transform=axes.transAxes, fontweight="bold", va="bottom")
    _scale(axes, wide)
    _names(axes, rows, panel)
    return axes


def _scale(axes: Any, wide: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=max(4, int(wide * 1.3)), integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("cycles", labelpad=1.5, fontsize=7, color=GREY)


def _bars(axes: Any, row: Row, window: tuple[float, float]) -> None:
    """Draw the spans of a lane: waits below work, and the last kind in `HEIGHTS` on top."""
    bars = coalesce(row.lane.spans, window, RESOLUTION)
    for name in sorted(bars, key=lambda name: list(HEIGHTS).index(name) if name in HEIGHTS else len(HEIGHTS)):
        height = row.height * HEIGHTS.get(name, 0.78)
        extents = [(start, end - start) for start, end in bars[name]]
        axes.broken_barh(extents, (row.middle - height / 2, height), facecolor=PAINT[name], linewidth=0)


def _labels(axes: Any, row: Row, window: tuple[float, float], scale: float) -> None:
    """Label work with its slot, and waits with their reason, where the text fits; ``scale`` is in inches a cycle."""
    free, right_edge = window
    spans = [span for span in row.lane.spans if span.end > free and span.start < right_edge]
    working = [(span.start, span.end) for span in spans if kind(span) != "wait"]
    for span in _join_slots(spans):
        waits = kind(span) == "wait"
        text = span.name.removeprefix("waits ") if waits else slot_number(span)
        start, end = max(span.start, window[0]), min(span.end, right_edge)
        need = ((LETTER if waits else DIGIT) * (len(text) + 0.6)) / scale
        middle = (start + end) / 2
        left, right = middle - need / 2, middle + need / 2
        if not text or end - start < need or left < free:
            continue
        if waits and any(begin < right and left < finish for begin, finish in working):
            continue
        free = right
        ink = GREY if waits else INK if kind(span) == "store" else "white"
        size = 5 if waits else 5.5
        axes.text(middle, row.middle, text, ha="center", va="center_baseline", fontsize=size, color=ink)
        if row.lane.track == TENSOR and span.start > window[0]:
            axes.vlines(
                span.start, row.middle - 0.39 * row.height, row.middle + 0.39 * row.height, "white", linewidth=0.6
            )


def _join_slots(spans: Sequence[Span]) -> list[Span]:
    """Returns the spans with consecutive spans on one slot joined."""
    joined: list[Span] = []
    for span in spans:
        if joined and slot_number(span) and joined[-1].name == span.name and span.start <= joined[-1].end + 1:
            joined[-1] = replace(joined[-1], end=max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def _names(axes: Any, rows: Sequence[Row], panel: Panel) -> None:
    """Write left of a panel the name of each lane, one name for the slots of a ring, and the CTA."""
    transform = axes.get_yaxis_transform()
    inch = 1 / panel.box[2]
    size = 6.5 if panel.labelled else 5.5
    several = len({row.lane.cta for row in rows}) > 1
    for cta, group in groupby(rows, key=lambda row: row.lane.cta):
        block = list(group)
        if cta:
            axes.axhline(block[0].middle - block[0].height / 2 - CTA_GAP / 2, color=RULE, linewidth=0.6)
        if not panel.named:
            continue
        style = {"transform": transform, "va": "center"}
        for _, lane_group in groupby(block, key=lambda row: row.lane.ring or row.lane.track):
            slots = list(lane_group)
            lane = slots[0].lane
            name = f"{lane.ring} [0–{len(slots) - 1}]" if len(slots) > 1 else lane.track
            axes.text(-0.07 * inch, _middle(slots), name, ha="right", fontsize=size, **style)
        if several:
            x = (EDGE - LEFT + 0.04) * inch
            axes.text(x, _middle(block), f"CTA {cta}", ha="center", rotation=90, fontsize=6.5, color=GREY, **style)


def _middle(rows: Sequence[Row]) -> float:
    return (rows[0].middle - rows[0].height / 2 + rows[-1].middle + rows[-1].height / 2) / 2


def _mark_window(axes: Any, panel: Panel) -> None:
    """Mark the window of a panel in the whole run."""
    axes.axvspan(*panel.window, facecolor="none", edgecolor=INK, linewidth=0.7, zorder=5, clip_on=False)
    axes.annotate(
        panel.title[0],
        (sum(panel.window) / 2, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontweight="bold",
    )


def _legend(figure: Any, drawn: Sequence[Lane]) -> None:
    from matplotlib.patches import Patch

    used = {kind(each) for lane in drawn for each in lane.spans}
    labels = dict(LEGEND)
    if not any(lane.track == TENSOR for lane in drawn):
        labels["store"] = "memory, stores"
    handles = [Patch(facecolor=PAINT[name], label=label) for name, label in labels.items() if name in used]
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.01),
        ncol=len(handles),
        frameon=False,
        fontsize=6.5,
        handlelength=1.1,
        handleheight=0.8,
        columnspacing=1.2,
        handletextpad=0.5,
    )
