"""The drawing of the memory flow: the memories in a row, the hops between them, and the PTX of each hop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from warpwright.report.flow import PtxLine, PtxStep
from warpwright.report.flow_table import StepTime, amount
from warpwright.report.format import base_name

__all__ = ["draw"]

WIDTH = 1120
MARGIN = 40
BOX_WIDTH, BOX_HEIGHT, BOX_TOP = 140, 84, 96
LINE = 19
CARD_TOP = 212
CARD_TITLE = 30
MEMORIES = (
    ("global memory", "A, B: float16", "#e8eef7"),
    ("shared memory", "A, B tiles, swizzled", "#fdf0d9"),
    ("tensor memory", "D 128 × 128 float32", "#e4f3e6"),
    ("registers", "128 values a thread", "#f3e6f1"),
    ("shared memory", "D tile", "#fdf0d9"),
    ("global memory", "D: float32", "#e8eef7"),
)
HOPS = ("1", "2", "3", "4a", "4b")
STYLE = (
    "text{font-family:Inter,Helvetica,Arial,sans-serif;fill:#1d2433}"
    ".mono{font-family:'JetBrains Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11.5px;fill:#2b3a55}"
    ".small{font-size:11px;fill:#5a657a}.head{font-size:13px;font-weight:600}.title{font-size:19px;font-weight:600}"
)


def draw(steps: Sequence[PtxStep], times: Sequence[StepTime], device: str, result: str) -> str:
    """Returns the picture as SVG text, with the predicted time of each step on ``device``; ``result`` is the line with
    the verification."""
    cards, bottom = _cards(steps, {time.step.number: amount(time) for time in times})
    height = bottom + 48
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(MARGIN, 44, "Memory flow of one tile on sm_100a: D = A · Bᵀ, 128 × 128 × 64", "title"),
            _text(MARGIN, 66, f"128 threads, float16 in, float32 out; cycles predicted for {device}", "small"),
            *_memories(),
            *cards,
            _text(MARGIN, height - 22, result, "head"),
            "</svg>\n",
        ]
    )


def _memories() -> list[str]:
    """Returns the row of memories, with an arrow and the number of the step between neighbours."""
    gap = (WIDTH - 2 * MARGIN - len(MEMORIES) * BOX_WIDTH) / (len(MEMORIES) - 1)
    middle = BOX_TOP + BOX_HEIGHT / 2
    parts = []
    for index, (name, content, color) in enumerate(MEMORIES):
        x = MARGIN + index * (BOX_WIDTH + gap)
        center = x + BOX_WIDTH / 2
        parts += [
            f'<rect x="{x:.1f}" y="{BOX_TOP}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="{color}" '
            'stroke="#9aa5b8"/>',
            _text(center, middle - 4, name, "head", anchor="middle"),
            _text(center, middle + 15, content, "small", anchor="middle"),
        ]
        if index < len(HOPS):
            parts.append(_arrow(x + BOX_WIDTH, x + BOX_WIDTH + gap, middle, HOPS[index]))
    return parts


def _arrow(left: float, right: float, y: float, number: str) -> str:
    middle = (left + right) / 2
    return (
        f'<path d="M{left + 4:.1f} {y} H{right - 10:.1f}" stroke="#4a5875" stroke-width="2"/>'
        f'<path d="M{right - 4:.1f} {y} l-9 -5 v10 z" fill="#4a5875"/>'
        f'<circle cx="{middle:.1f}" cy="{y - 20}" r="10" fill="#4a5875"/>'
        f'<text x="{middle:.1f}" y="{y - 16}" text-anchor="middle" style="fill:#fff;font-size:12px">{number}</text>'
    )


def _cards(steps: Sequence[PtxStep], amounts: Mapping[str, str]) -> tuple[list[str], int]:
    """Returns a card for each step, from top to bottom, and the bottom of the last card."""
    parts: list[str] = []
    y = CARD_TOP
    for each in steps:
        step = each.step
        height = CARD_TITLE + LINE * (len(each.lines) + 4)
        parts += [
            f'<rect x="{MARGIN}" y="{y}" width="{WIDTH - 2 * MARGIN}" height="{height}" rx="8" fill="#f7f8fb"/>',
            _text(MARGIN + 18, y + 25, f"{step.number:4}{step.title}", "head"),
            _text(MARGIN + 44, y + 25 + LINE, step.how, "small"),
            _text(MARGIN + 44, y + 25 + 2 * LINE, f"works: {step.who}", "small"),
            _text(MARGIN + 44, y + 25 + 3 * LINE, f"idle: {step.idle}", "small"),
        ]
        if step.number in amounts:
            parts.append(_text(WIDTH - MARGIN - 18, y + 25, amounts[step.number], "head", anchor="end"))
        for row, line in enumerate(each.lines, 4):
            parts += _instruction(line, y + 27 + LINE * row)
        y += height + 12
    return parts, y


def _instruction(line: PtxLine, y: int) -> list[str]:
    """Returns the count of an instruction, its text and its Python line."""
    count = [_text(MARGIN + 38, y, f"{line.times} ×", "small", anchor="end")] if line.times > 1 else []
    where = _text(WIDTH - MARGIN - 18, y, base_name(line.where), "small", anchor="end")
    return [*count, _text(MARGIN + 44, y, line.text, "mono"), where]


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" class="{style}" text-anchor="{anchor}" xml:space="preserve">{escape(text)}</text>'
    )
