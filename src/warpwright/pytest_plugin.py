"""A pytest plugin: the fixture ``warpwright_check`` runs `ww.check` and fails the test if there are findings.

    def test_the_kernel_is_in_order(warpwright_check):
        warpwright_check(double, grid=1, args=[x, y])

The fixture takes the arguments of ``ww.check`` and returns the verdict. An incomplete verdict fails the test too,
unless the call passes ``allow_incomplete=True``.
"""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from warpwright.run.check import check
from warpwright.vgpu.checks.findings import Verdict

__all__ = ["Check", "warpwright_check"]


class Check(Protocol):
    """The type of the fixture."""

    def __call__(self, kernel: Any, /, *args: Any, allow_incomplete: bool = False, **options: Any) -> Verdict: ...


@pytest.fixture(scope="session")
def warpwright_check() -> Check:
    """Check a launch on a virtual GPU; fail the test with the findings. Takes the arguments of ``ww.check``."""

    def run(kernel: Any, /, *args: Any, allow_incomplete: bool = False, **options: Any) -> Verdict:
        __tracebackhide__ = True
        verdict = check(kernel, *args, **options)
        if verdict.kind == "findings" or (verdict.kind == "incomplete" and not allow_incomplete):
            pytest.fail(str(verdict), pytrace=False)
        return verdict

    return run
