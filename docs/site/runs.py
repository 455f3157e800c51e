"""Run the variants of the playground: each on the virtual GPU, with its verdict and its profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path
from typing import Any
from unittest.mock import patch

import numpy as np
from variants import Lesson, Variant

import warpwright as ww
from warpwright.errors import WarpwrightError
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.timing import Profile

__all__ = ["ROOT", "Run", "rule_of", "run_lesson", "run_variant"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Run:
    """A variant that was run: its source and its file, its verdict, and its profile unless the launch failed."""

    variant: Variant
    text: str
    file: Path
    verdict: Verdict
    profile: Profile | None


class _Launch(Exception):
    """The launch of a file, instead of its execution."""


def run_lesson(lesson: Lesson, folder: Path) -> Iterator[Run]:
    """Yields the kernel as the tutorial has it, then its variants; their sources are written to ``folder``."""
    for number, variant in enumerate((Variant("as in the tutorial", lesson.verdict), *lesson.variants)):
        yield run_variant(lesson, variant, folder / str(number))


def run_variant(lesson: Lesson, variant: Variant, folder: Path) -> Run:
    text = edited(source_of(lesson), variant)
    file = folder / f"{Path(lesson.source).stem}.py"
    folder.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    kernel, options = launch_of(file)
    verdict = ww.check(kernel, **options)
    try:
        profile = ww.profile(kernel, **options)
    except WarpwrightError:  # the verdict has its finding
        profile = None
    return Run(variant, text, file, verdict, profile)


def source_of(lesson: Lesson) -> str:
    """Returns the text of the example, or the block of the page."""
    text = (ROOT / lesson.source).read_text(encoding="utf-8")
    if not lesson.block:
        return text
    return next(
        block
        for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if block.startswith(lesson.block)
    )


def edited(text: str, variant: Variant) -> str:
    """Returns the text with the edits. Raises ValueError for text that does not stand there once."""
    for old, new in variant.edits:
        if text.count(old) != 1:
            raise ValueError(f"{variant.title}: {old!r} stands {text.count(old)} times in the source; expected once")
        text = text.replace(old, new)
    return text


def launch_of(file: Path) -> tuple[Any, dict[str, Any]]:
    """Returns the kernel and the options of the first launch or check of a file. The file runs up to there."""

    def stop(kernel: Any, **options: Any) -> None:
        raise _Launch(kernel, options)

    with patch.object(ww, "launch", stop), patch.object(ww, "check", stop):
        try:
            run_path(str(file), {"np": np, "ww": ww}, "__main__")
        except _Launch as launch:
            kernel, options = launch.args
            return kernel, options
    raise ValueError(f"{file} launches no kernel")


def rule_of(verdict: Verdict) -> str:
    """Returns the rule of the first finding, else the kind of the verdict."""
    return verdict.findings[0].rule.id if verdict.findings else verdict.kind
