"""The ways in which attention hands data over: right, and clean under `ww.check`."""

from __future__ import annotations

import pytest

import warpwright as ww
from tests.gpu import handovers


def test_numbers() -> None:
    handovers.run("h200")


@pytest.mark.parametrize("name", handovers.KERNELS)
def test_the_verdict_is_clean(name: str) -> None:
    verdict = ww.check(handovers.KERNELS[name], 1, args=list(handovers.arguments(name)), device="h200")
    assert verdict.kind == "clean", verdict
