"""Every rule finds the smallest kernel that breaks it, with the right lines; the correct kernel is clean; without the
rule the mistake is missed.
"""

from __future__ import annotations

import inspect
import os
import re
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.races import kernels
from warpwright.run.check import check
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.checks.watcher import Watcher
from warpwright.vgpu.machine.cluster import Cluster


def _bf16(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 64)).astype(ml_dtypes.bfloat16)


WORDS, WIDE = np.zeros(64, np.uint32), np.zeros(96, np.uint32)
BOX = np.zeros((32, 32), np.float32)
LONG = np.ones((32, 256), np.float32)
WGMMA_ARGS = [_bf16(64), _bf16(64), np.zeros((64, 64), np.float32)]
TCGEN05_ARGS = [_bf16(128), _bf16(64), np.zeros((128, 64), np.float32)]

# rule: kernel, arguments, CTAs, text of the lines of the two steps
CASES = {
    "race": ("neighbours", [WORDS], 1, "x[tid.x] = buffer[63 - tid.x]", "buffer[tid.x] = tid.x"),
    "proxy-fence": ("store_box", [BOX], 1, "st(tile.at", "tma.store"),
    "exit-early": ("exit_before_store", [BOX], 1, "tma.store"),
    "mbarrier-init": ("wait_before_init", [BOX], 1, "full.init()", "full.wait(0)"),
    "mbarrier-lapped": ("lapped_waiter", [4], 1, "slot.full.wait()", "slot.full.arrive()"),
    "uninitialised": ("unwritten_read", [WORDS], 1, "x[tid.x] = buffer[tid.x]"),
    "tcgen05-fence": ("tensor_memory", TCGEN05_ARGS, 1, "tcgen05.mma(acc", "tcgen05.ld(acc)"),
}
MORE = {
    "staggered_arrival": ("race", [WIDE], 1, "value = buffer[95 - tid.x]", "buffer[tid.x] = value"),
    "refill": ("proxy-fence", [LONG, 8], 1, "ld(slot.x.at", "tma.load(slot.x"),
    "peer": ("exit-early", [WORDS], 2, "ld(Pointer("),
    "one_warp": ("exit-early", [WORDS], 2, "ld(Pointer("),
}
ROWS = [(kernel, rule, *rest) for rule, (kernel, *rest) in CASES.items()] + [(k, *rest) for k, rest in MORE.items()]


def _check(name: str, args: list[Any], grid: int, off: tuple[str, ...] = (), **config: bool) -> Verdict:
    return check(getattr(kernels, name).configure(**config), grid=grid, args=args, off=off)


def _lines(verdict: Verdict) -> list[str]:
    """Returns the kernel's text at the lines of the first finding."""
    source = inspect.getsource(kernels).splitlines()
    return [source[int(step.where.rsplit(":", 1)[1]) - 1].strip() for step in verdict.findings[0].steps]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_rule_finds_the_wrong_kernel_with_the_right_lines(row: tuple[Any, ...]) -> None:
    name, rule, args, grid, *expected = row
    verdict = _check(name, args, grid, right=False)
    assert verdict.kind == "findings"
    assert {finding.rule.id for finding in verdict.findings} == {rule}
    found = _lines(verdict)
    assert len(found) == len(expected)
    for text, part in zip(found, expected, strict=True):
        assert part in text


def test_a_race_is_one_finding_whichever_access_came_first() -> None:
    (found,) = _check("neighbours", [WORDS], 1, right=False).findings
    assert found.rule.id == "race"


def _end_last(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cluster ``number`` of two clusters on two cores end after the other."""
    first, end = threading.Event(), Watcher.end

    def wait(watcher: Watcher, cluster: Cluster, *error: Any) -> None:
        assert cluster.number != number or first.wait(20)
        end(watcher, cluster, *error)
        first.set()

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(Watcher, "end", wait)


@pytest.mark.parametrize("last", [0, 1])
def test_findings_name_the_lowest_cluster_whichever_ends_first(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _end_last(last, monkeypatch)
    verdict = check(kernels.neighbours, grid=2, args=[WORDS], depends_on=[WORDS])
    found = {each.rule.id: [(step.cta[0], step.thread) for step in each.steps] for each in verdict.findings}
    assert found == {"race": [(0, 0), (0, 63)], "grid-race": [(0, 0), (1, 0)], "grid-dependency": [(0, 0)]}


def test_a_fault_hides_the_findings_of_later_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one core the later clusters never begin."""
    _end_last(0, monkeypatch)
    assert [finding.rule.id for finding in _check("fault_in_first_cta", [WORDS], 2).findings] == ["fault"]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_right_kernel_is_clean(row: tuple[Any, ...]) -> None:
    name, _, args, grid, *_ = row
    verdict = _check(name, args, grid, right=True)
    assert verdict.findings == ()
    assert verdict.kind == "clean"


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_rule_that_is_off_misses_its_bug(row: tuple[Any, ...]) -> None:
    name, rule, args, grid, *_ = row
    assert _check(name, args, grid, off=(rule,), right=False).kind == "clean"


@pytest.mark.parametrize(
    ("config", "rule", "first", "second"),
    [
        ({"fenced": False}, "wgmma-fence", "register.set(0.0)", "wgmma.mma("),
        ({"waited": False}, "wgmma-registers", "wgmma.mma(", "st(d +"),
    ],
)
def test_wgmma_registers_need_a_fence_and_a_wait(config: dict[str, bool], rule: str, first: str, second: str) -> None:
    verdict = _check("accumulators", WGMMA_ARGS, 1, **config)
    assert {finding.rule.id for finding in verdict.findings} == {rule}
    lines = _lines(verdict)
    assert first in lines[0]
    assert second in lines[1]
    assert _check("accumulators", WGMMA_ARGS, 1).kind == "clean"
    assert _check("accumulators", WGMMA_ARGS, 1, off=(rule,), **config).kind == "clean"


def test_a_finding_reads_as_one_text() -> None:
    text = str(_check("neighbours", [WORDS], 1, right=False).findings[0])
    text = re.sub(r"/.*/kernels\.py:\d+", "kernels.py", text)
    assert text == (
        "race: two accesses of the same memory, one of them a write, that nothing orders\n"
        "  first: kernels.py `ld.shared.u32` (kernel, CTA (0, 0, 0), thread 0)\n"
        "  second: kernels.py `st.shared.u32` (kernel, CTA (0, 0, 0), thread 63)\n"
        "  nothing orders the second after the first\n"
        "  repair: put a barrier of both threads between the two (bar.sync), or let the thread of the first arrive on "
        "an mbarrier after it, and the thread of the second wait for that phase before it (PTX ISA 8.9.4)"
    )
