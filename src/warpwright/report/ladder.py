"""The chart of the GEMM ladder: TFLOPS of each level, beside published figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from warpwright.kernels.gemm.formats import FORMATS
from warpwright.report.figure import GREY, INK, PAINT, RULE, canvas, save
from warpwright.report.format import percent
from warpwright.report.published import CUBLAS
from warpwright.targets import Device, kernels_of, timing_of

__all__ = ["Level", "draw_ladder", "peak_tflops"]

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 7.2, 2.35, 1.75, 0.68, 0.78
ROW = 0.3
WRAP = 42
HATCH = "//////"
NEAR, ROOM = 0.4, 1.08  # share of the peak from which the axis shows it; room right of the longest bar


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the chart: ``tflops`` of useful work, ``wasted`` as the dropped share of tensor-core work (0 to 1),
    ``summary`` of the level's new idea, ``why`` as its largest loss, and ``published`` TFLOPS, if they are known."""

    level: int
    tflops: float
    wasted: float
    summary: str
    why: str
    published: float | None = None


def peak_tflops(device: Device, format: str | None = None) -> float:
    """Returns the dense peak of bf16, or of a block-scaled format: with tcgen05 twice the peak of bf16 for 8-bit
    elements and four times for 4-bit ones, with mma.sync by the rates of the device."""
    if not format:
        return device.bf16_tflops
    packed = FORMATS[format].packed
    if kernels_of(device.arch) == "sm_100a":
        return device.bf16_tflops * 2 * packed
    return device.bf16_tflops * timing_of(device.name).mma_rates["e2m1x2" if packed == 2 else "mxf8"]


def draw_ladder(
    levels: Sequence[Level],
    size: int,
    device: Device,
    path: Path,
    measured: bool = False,
    format: str | None = None,
) -> None:
    """Write the chart of ``levels`` at M = N = K = ``size`` to ``path`` (.svg, .png or .pdf).

    ``measured``: the rates were measured on a GPU, not predicted. ``format``: of operands with block scales. The chart
    has the published figures of the levels, and that of a Blackwell device in bf16 also cuBLAS's.
    """
    height = TOP + ROW * len(levels) + BOTTOM
    compared = kernels_of(device.arch) == "sm_100a" and not format
    peak = peak_tflops(device, format)
    with canvas(WIDTH, height) as figure:
        wide = WIDTH - LEFT - RIGHT
        axes = figure.add_axes((LEFT / WIDTH, BOTTOM / height, wide / WIDTH, ROW * len(levels) / height))
        word = "measured" if measured else "predicted"
        figure.text(
            0.2 / WIDTH, 1 - 0.24 / height, f"GEMM ladder on {device.name}, {word}", fontsize=9.5, weight="bold"
        )
        types = f"{format} in, bf16 out" if format else "bf16 in and out"
        facts = f"{types}, float32 accumulation · M = N = K = {size:,} · peak {peak:,.0f} TFLOPS"
        figure.text(0.2 / WIDTH, 1 - 0.41 / height, facts, fontsize=7, color=GREY)
        _bars(axes, levels, word)
        _published(axes, levels)
        _limits(axes, levels, size, peak, compared)
        _texts(axes, levels, peak)
        axes.legend(
            loc="upper center",
            bbox_to_anchor=((WIDTH / 2 - LEFT) / wide, -0.4 / (ROW * len(levels))),
            ncol=4,
            frameon=False,
            fontsize=6.5,
            handlelength=1.4,
            columnspacing=1.6,
        )
        save(figure, path)


def _bars(axes: Any, levels: Sequence[Level], word: str) -> None:
    places = range(len(levels))
    useful = [level.tflops for level in levels]
    dropped = [level.tflops * level.wasted / (1 - level.wasted) for level in levels]
    axes.barh(places, useful, height=0.56, color=PAINT["full"], label=f"{word}: useful work")
    if any(dropped):
        axes.barh(
            places,
            dropped,
            left=useful,
            height=0.56,
            facecolor="white",
            edgecolor=PAINT["full"],
            hatch=HATCH,
            linewidth=0.5,
            label=f"{word}: dropped work",
        )
    axes.set_ylim(len(levels) - 0.4, -0.6)


def _published(axes: Any, levels: Sequence[Level]) -> None:
    points = [(level.published, row) for row, level in enumerate(levels) if level.published is not None]
    if points:
        axes.scatter(
            *zip(*points, strict=True),
            marker="D",
            s=19,
            color=PAINT["in use"],
            edgecolor=INK,
            linewidth=0.6,
            zorder=4,
            label="published, on a GB200",
        )


def _limits(axes: Any, levels: Sequence[Level], size: int, peak: float, compared: bool) -> None:
    """Draw the rate of cuBLAS and the peak as vertical lines, with their names above. The axis ends at the peak, or
    shortly after the largest rate if all rates are far below the peak."""
    lines = [(peak, "peak")]
    if compared and size in CUBLAS:
        lines.append((CUBLAS[size], "cuBLAS, published"))
    rates = [max(level.tflops / (1 - level.wasted), level.published or 0.0) for level in levels]
    largest = max(rates + [value for value, name in lines if name != "peak"])
    end = peak if largest > NEAR * peak else ROOM * largest
    for value, name in lines:
        if value > end:
            continue
        axes.axvline(value, color=INK, linewidth=0.7, linestyle=(0, (3, 2)), zorder=1)
        axes.text(value, -0.68, name, ha="center", va="bottom", fontsize=6.5, color=INK)
    axes.set_xlim(0, end)


def _texts(axes: Any, levels: Sequence[Level], peak: float) -> None:
    """Write left of each bar the level and its summary, right of it its rate, its share of the peak and its loss."""
    place = axes.get_yaxis_transform()
    wide = WIDTH - LEFT - RIGHT
    for row, level in enumerate(levels):
        lines = wrap(level.summary, WRAP, max_lines=2, placeholder=" …")
        axes.text((0.2 - LEFT) / wide, row, str(level.level), transform=place, va="center", fontsize=9, weight="bold")
        axes.text(
            (0.42 - LEFT) / wide, row, "\n".join(lines), transform=place, va="center", fontsize=6.2, linespacing=1.15
        )
        digits = 0 if level.tflops >= 100 else 1
        text = f"{level.tflops:,.{digits}f} TFLOPS · {percent(level.tflops / peak)} of peak"
        axes.text(1 + 0.12 / wide, row, text, transform=place, va="bottom" if level.why else "center", fontsize=7)
        if level.why:
            axes.text(1 + 0.12 / wide, row + 0.06, level.why, transform=place, va="top", fontsize=6, color=GREY)
    axes.set_yticks([])
    axes.spines["left"].set_color(RULE)
    axes.set_xlabel("TFLOPS", fontsize=7, color=GREY, labelpad=1.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
