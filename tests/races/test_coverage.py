"""What no thread has done makes a verdict incomplete: code behind a branch, an instruction whose guard never holds."""

from __future__ import annotations

import inspect
import re
import sys

import numpy as np
import pytest

from warpwright.lang import Global, If, kernel, tid, u32
from warpwright.run.check import check
from warpwright.vgpu.checks.findings import Verdict


@kernel("sm_90a", threads=64)
def seldom(x: Global[u32], least: u32, *, branch: bool = False) -> None:
    """The threads from ``least`` on store once more: one guarded instruction, or a branch around two."""
    x[tid.x] = 0
    with If(tid.x >= least):
        x[tid.x] = 1
        if branch:
            x[tid.x + 64] = 2


STORES = ("x[tid.x] = 1", "x[tid.x + 64] = 2")


def _checked(least: int, branch: bool) -> Verdict:
    args = [np.zeros(128, np.uint32), least]
    return check(seldom.configure(branch=branch), grid=2, args=args, off="grid-race")


def test_one_store_is_guarded_and_two_are_behind_a_branch() -> None:
    alone, both = (seldom.configure(branch=branch).ptx() for branch in (False, True))
    assert re.search(r"@%p\d st\.global", alone) and "bra " not in alone
    assert not re.search(r"@%p\d st\.global", both) and re.search(r"@!%p\d bra ", both)


@pytest.mark.parametrize("branch", [False, True])
def test_what_no_thread_does_is_not_covered(branch: bool) -> None:
    verdict = _checked(64, branch)
    source = [line.strip() for line in inspect.getsource(sys.modules[__name__]).splitlines()]
    lines = [f"{__file__}:{source.index(store) + 1}" for store in STORES[: 1 + branch]]
    assert (verdict.kind, list(verdict.coverage.missed)) == ("incomplete", lines)
    assert verdict.reasons == (f"not reached: {', '.join(lines)}; choose a problem that comes there",)
    assert verdict.coverage.reached == verdict.coverage.present - (4 if branch else 1)


@pytest.mark.parametrize("branch", [False, True])
def test_one_thread_is_enough(branch: bool) -> None:
    verdict = _checked(63, branch)
    assert verdict.kind == "clean", str(verdict)
    assert verdict.coverage.present == verdict.coverage.reached


@pytest.mark.parametrize(("least", "gone"), [(0, 1), (64, 1), (63, 2)])
def test_branches_are_counted_by_their_ways(least: int, gone: int) -> None:
    assert _checked(least, branch=True).coverage.branches == (gone, 2)
    assert _checked(least, branch=False).coverage.branches == (0, 0)
