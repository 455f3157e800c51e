"""A plugin of pytest: the fixture ``warpwright_check`` runs `ww.check` and fails a test with what it finds.

    def test_the_kernel_is_in_order(warpwright_check):
        warpwright_check(double, grid=1, args=[x, y])

It takes what ``ww.check`` takes and gives the verdict. An incomplete verdict fails too, unless the call says
``allow_incomplete=True``.
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
    """Check a launch on a virtual GPU; fail with the findings. Takes what ``ww.check`` takes."""

    def run(kernel: Any, /, *args: Any, allow_incomplete: bool = False, **options: Any) -> Verdict:
        __tracebackhide__ = True
        verdict = check(kernel, *args, **options)
        if verdict.kind == "findings" or (verdict.kind == "incomplete" and not allow_incomplete):
            pytest.fail(str(verdict), pytrace=False)
        return verdict

    return run
