"""Rows whose meaning is compiled have the findings that their meanings in Python have."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.races import kernels
from tests.races.test_small import ROWS
from warpwright.run.check import check
from warpwright.vgpu.checks import watcher
from warpwright.vgpu.checks.facts import Facts
from warpwright.vgpu.checks.findings import Verdict


def _none_compiled(facts: Facts) -> Any:
    return np.zeros(len(facts.program.insts), np.int8)


def _both(name: str, args: list[Any], grid: int, **config: bool) -> tuple[Verdict, Verdict]:
    wrong = getattr(kernels, name).configure(**config)
    compiled = check(wrong, grid=grid, args=args)
    with mock.patch.object(watcher, "compiled_meanings", _none_compiled):
        return compiled, check(wrong, grid=grid, args=args)


@pytest.mark.parametrize(("name", "rule", "args", "grid"), [row[:4] for row in ROWS])
def test_compiled_rows_have_the_findings_of_their_meanings(name: str, rule: str, args: list[Any], grid: int) -> None:
    compiled, interpreted = _both(name, args, grid)
    assert rule in {finding.rule.id for finding in compiled.findings}
    assert compiled == interpreted
