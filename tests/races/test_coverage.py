"""An instruction that no thread executes makes a verdict incomplete: after a branch, or under a guard that never
holds."""

from __future__ import annotations

import inspect
import re
import sys

import numpy as np
import pytest

from warpwright.lang import Global, If, kernel, tid, u32
from warpwright.run.check import check
from warpwright.run.launch import load_ptx
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


def _check(least: int, branch: bool) -> Verdict:
    args = [np.zeros(128, np.uint32), least]
    return check(seldom.configure(branch=branch), grid=2, args=args, off="grid-race")


def test_ptx_guards_one_store_and_branches_around_two() -> None:
    alone, both = (seldom.configure(branch=branch).ptx() for branch in (False, True))
    assert re.search(r"@%p\d st\.global", alone) and "bra " not in alone
    assert not re.search(r"@%p\d st\.global", both) and re.search(r"@!%p\d bra ", both)


@pytest.mark.parametrize("branch", [False, True])
def test_a_store_that_no_thread_executes_is_not_covered(branch: bool) -> None:
    verdict = _check(64, branch)
    source = [line.strip() for line in inspect.getsource(sys.modules[__name__]).splitlines()]
    lines = [f"{__file__}:{source.index(store) + 1}" for store in STORES[: 1 + branch]]
    assert (verdict.kind, list(verdict.coverage.missed)) == ("incomplete", lines)
    assert verdict.reasons == (f"not reached: {', '.join(lines)}; choose a problem that comes there",)
    assert verdict.coverage.reached == verdict.coverage.present - (4 if branch else 1)


@pytest.mark.parametrize("branch", [False, True])
def test_one_thread_covers_a_store(branch: bool) -> None:
    verdict = _check(63, branch)
    assert verdict.kind == "clean", str(verdict)
    assert verdict.coverage.present == verdict.coverage.reached


@pytest.mark.parametrize(("least", "gone"), [(0, 1), (64, 1), (63, 2)])
def test_coverage_counts_both_ways_of_a_branch(least: int, gone: int) -> None:
    assert _check(least, branch=True).coverage.branches == (gone, 2)
    assert _check(least, branch=False).coverage.branches == (0, 0)


ASSERTED = """
.version 8.8
.target sm_90a
.address_size 64
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 c);
.visible .entry asserted(.param .u64 x)
{
  .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<2>;
  mov.u32 %r0, %tid.x; setp.gt.u32 %p0, %r0, 99; @%p0 bra FAILED; ld.param.u64 %d0, [x]; st.global.u32 [%d0], %r0; ret;
FAILED: LATER:
  { .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4; st.param.b64 [p0], %d1;
  st.param.b64 [p1], %d1; st.param.b32 [p2], 5; st.param.b64 [p3], %d1; st.param.b64 [p4], 1;
  call.uni __assertfail, (p0, p1, p2, p3, p4); } ret;
}
"""


def test_no_launch_must_reach_a_failed_assertion() -> None:
    """Nor the label before it, which no instruction follows."""
    verdict = check(load_ptx(ASSERTED)["asserted"], grid=1, block=1, args=[np.zeros(1, np.uint32)])
    assert verdict.kind == "clean", str(verdict)
