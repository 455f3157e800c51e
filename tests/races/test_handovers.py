"""The ways in which attention passes data between roles: correct, and clean under `ww.check`."""

from __future__ import annotations

import pytest

import warpwright as ww
from tests.gpu import handovers


def test_results_are_correct() -> None:
    handovers.run("h200")


@pytest.mark.parametrize("name", handovers.KERNELS)
def test_the_verdict_is_clean(name: str) -> None:
    verdict = ww.check(handovers.KERNELS[name], 1, args=list(handovers.arguments(name)), device="h200")
    assert verdict.kind == "clean", verdict
