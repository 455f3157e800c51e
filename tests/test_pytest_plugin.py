"""The fixture ``warpwright_check`` in a user's tests: what passes, what fails, and the failure's message."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest_plugins = ["pytester"]

TESTS = """
import numpy as np
import pytest
from warpwright.lang import Global, If, bar, ctaid, kernel, smem, tid, u32

@kernel("sm_90a", threads=64)
def turned(x: Global[u32], *, right: bool = True):
    held = smem.array(u32, 64)
    held[63 - tid.x] = 0
    bar.sync()
    held[tid.x] = tid.x
    if right:
        bar.sync()
    x[tid.x] = held[63 - tid.x]

@kernel("sm_90a", threads=32)
def partial(x: Global[u32], count: u32):
    with If(count > 1000):
        x[tid.x] = 1

X = np.zeros(64, np.uint32)

def test_right(warpwright_check):
    assert warpwright_check(turned, grid=1, args=[X], update=True).kind == "clean"
    assert X[0] == 63

def test_wrong(warpwright_check):
    warpwright_check(turned.configure(right=False), grid=1, args=[X])

def test_off(warpwright_check):
    warpwright_check(turned.configure(right=False), 1, args=[X], off=["race"])

def test_schedules(warpwright_check):
    assert warpwright_check(turned, grid=1, args=[X], explore=2, seed=5).seeds == (5, 6)

def test_partial(warpwright_check):
    warpwright_check(partial, grid=1, args=[X, 1])

def test_partial_is_allowed(warpwright_check):
    assert warpwright_check(partial, grid=1, args=[X, 1], allow_incomplete=True).kind == "incomplete"
"""


def test_a_test_fails_with_the_findings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_kernels=TESTS)
    result = pytester.runpytest_inprocess(
        "-p", "no:warpwright", "-p", "warpwright.pytest_plugin", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(
        [
            "turned on h200: findings; * instructions reached",
            "race: two accesses of the same memory, one of them a write, that nothing orders",
            "  first: *test_kernels.py:1? `??.shared.u32` (kernel, CTA (0, 0, 0), thread *)",
            "  second: *test_kernels.py:1? `??.shared.u32` (kernel, CTA (0, 0, 0), thread *)",
            "  repair: put a barrier of both threads between the two (bar.sync), or let the thread *",
        ]
    )
    result.stdout.fnmatch_lines(
        [
            "partial on h200: incomplete; 5 of 8 instructions and 1 of 2 directions of branches reached",
            "not reached: *test_kernels.py:18; choose a problem that comes there",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*Failed*")


def test_the_package_announces_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"warpwright": "warpwright.pytest_plugin"}
