"""Colours, fonts and file output of all pictures. Needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from warpwright.errors import UsageError
from warpwright.report.output import write_file

__all__ = ["GREY", "INK", "PAINT", "RULE", "canvas", "check_path", "save"]

INK, GREY, RULE = "#1d2433", "#6b7485", "#c9ced8"

# Distinct for colour-blind readers (blue, vermilion and teal, after Okabe and Ito), and in grey by lightness
# (CIE L*: 27, 47, 79; for the states of a slot 87, 41, 71).
PAINT = {
    "copy": "#123e7c",
    "multiply": "#c8500a",
    "store": "#86cfb4",
    "other": "#8b93a3",
    "wait": "#e9ebf0",
    "filling": "#c9dbf0",
    "full": "#2f62a5",
    "in use": "#ee9b52",
}

SUFFIXES = (".svg", ".png", ".pdf")
PNG_DPI = 220

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 7.5,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "warpwright",
}


def check_path(path: Path) -> None:
    """Raises UsageError, before a long run, if a picture cannot be drawn to ``path``."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"given --plot {path}; expected a file name that ends with {', '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise UsageError("pictures need the package matplotlib; run: pip install 'warpwright[plot]'")


@contextmanager
def canvas(width: float, height: float) -> Iterator[Any]:
    """Yields an empty figure of ``width`` × ``height`` inches, in the style of this package."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        yield Figure(figsize=(width, height))


def save(figure: Any, path: Path) -> None:
    """Write a figure as SVG, PNG or PDF; equal figures are equal bytes. Raises UsageError if the write fails."""
    suffix = path.suffix.lower()
    stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    drawn = io.BytesIO()
    figure.savefig(drawn, format=suffix[1:], dpi=PNG_DPI, metadata=stamp, facecolor="white")
    write_file(path, drawn.getvalue())
