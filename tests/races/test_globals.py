"""Races in global memory: unordered accesses are found, with the right lines; ordered accesses are clean."""

from __future__ import annotations

import inspect
import os
from typing import Any

import numpy as np
import pytest

from tests.races import global_kernels
from warpwright import ptx
from warpwright.errors import UsageError
from warpwright.kernels.gemm.slices import add_slices, sum_grid
from warpwright.lang import f32
from warpwright.layout.tensor_map import TensorMap
from warpwright.run.check import check
from warpwright.run.launch import load_ptx, prepare_launch
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.machine import schedule

ROWS, COLUMNS = global_kernels.ROWS, global_kernels.COLUMNS


def _words(count: int) -> Any:
    return np.zeros(count, np.uint32)


def _box(rows: int) -> tuple[TensorMap, Any]:
    """Returns a tensor map of some rows, and its memory."""
    tensor = np.zeros((rows, COLUMNS), np.float32)
    return TensorMap(tensor, (ROWS, COLUMNS)), tensor.reshape(-1)


def _args(name: str) -> list[Any]:
    map, memory = _box(4 * ROWS)
    return {
        "neighbours": [_words(64), _words(64)],
        "read_only_load": [_words(64), _words(64)],
        "pair": [_words(64), _words(64)],
        "same_address": [_words(128)],
        "parts": [_words(256)],
        "mixed_increments": [_words(1)],
        "publish_by_flag": [_words(1), _words(1), _words(1)],
        "last_block": [_words(256), _words(64), _words(1)],
        "reset_counter": [_words(1)],
        "grid_barrier": [_words(256), _words(256), _words(1)],
        "sum_under_lock": [_words(1), _words(1)],
        "boxes": [map],
        "sums": [map],
        "sums_of_both": [map, memory],
        "read_after_store": [map, memory, np.zeros(1, np.float32)],
        "write_under_load": [map, memory],
        "overwrite_box": [map, memory],
        "copy_rows": [_words(64)],
        "relay_flags": [_words(1), _words(1), _words(2)],
        "tickets": [_words(4), _words(4), _words(1)],
        "load_in_other_cta": [map, memory, _words(1)],
        "lanes_copy": [_words(32)],
    }[name]


# kernel: CTAs, rule, text of the lines of the two steps
CASES = {
    "neighbours": (1, "race", "x[tid.x] = tid.x", "y[tid.x] = x[63 - tid.x]"),
    "read_only_load": (1, "read-only", "x[tid.x] = tid.x", "nc=not right"),
    "pair": (2, "race", "= tid.x", "= x[(ctaid.x ^ 1)"),
    "same_address": (2, "grid-race", "= ctaid.x", "= ctaid.x"),
    "parts": (2, "grid-race", "st(x + tid.x * 4", "= 7"),
    "mixed_increments": (2, "grid-race", "x[0] = x[0] + 1", "red.add(x, 1)"),
    "sum_under_lock": (3, "grid-race", "x[0] = x[0] + 1", "x[0] = x[0] + 1"),
    "boxes": (2, "grid-race", "tma.store", "tma.store"),
    "sums": (2, "grid-race", "tma.store", "tma.reduce"),
    "sums_of_both": (2, "grid-race", "tma.reduce", "red.add"),
    "read_after_store": (1, "race", "tma.store", "z[0] = x[0]"),
    "write_under_load": (1, "proxy-fence", "x[row * COLUMNS + tid.x] =", "tma.load"),
    "overwrite_box": (1, "race", "tma.load", "x[tid.x] = 1.0"),
    "copy_rows": (2, "grid-race", "tma.copy", "tma.copy"),
    "relay_flags": (3, "grid-race", "x[0] = 5", "y[0] = x[0]"),
    "reset_counter": (3, "grid-race", "count[0] = 0", "atom.add(count, 1)"),
    "tickets": (4, "grid-race", "x[ctaid.x] = ctaid.x", "y[each] = x[each]"),
    "lanes_copy": (1, "race", "cp_async.copy", "x[31 - tid.x] = 1"),
}


def _check(name: str, grid: int, off: tuple[str, ...] = (), **config: Any) -> Verdict:
    return check(getattr(global_kernels, name).configure(**config), grid=grid, args=_args(name), off=off)


def _lines(verdict: Verdict) -> list[list[str]]:
    """Returns the kernel's text at the lines of each finding."""
    source = inspect.getsource(global_kernels).splitlines()
    return [
        [source[int(step.where.rsplit(":", 1)[1]) - 1].strip() for step in finding.steps]
        for finding in verdict.findings
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_rule_finds_unordered_accesses(name: str) -> None:
    grid, rule, first, second = CASES[name]
    verdict = _check(name, grid, right=False)
    assert {finding.rule.id for finding in verdict.findings} == {rule}, str(verdict)
    assert any(first in a and second in b for a, b in _lines(verdict)), str(verdict)


@pytest.mark.parametrize("name", CASES)
def test_the_right_kernel_is_clean(name: str) -> None:
    verdict = _check(name, CASES[name][0], right=True)
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("name", CASES)
def test_a_disabled_rule_misses_its_bug(name: str) -> None:
    grid, rule, *_ = CASES[name]
    assert _check(name, grid, off=(rule,), right=False).kind == "clean"


ORDERED = [
    {},
    {"store": "release.sys", "load": "acquire.sys"},
    {"store": "relaxed.gpu", "before": "gpu"},
    {"store": "volatile", "before": "gpu"},
    {"load": "relaxed.gpu", "after": "gpu"},
    {"load": "volatile", "after": "sys"},
    {"store": "relaxed.gpu", "before": "gpu", "load": "volatile", "after": "gpu"},
]
UNORDERED = [
    {"store": "relaxed.gpu"},
    {"load": "relaxed.gpu"},
    {"store": "release.cta"},
    {"load": "acquire.cta"},
    {"store": "release.cluster", "load": "acquire.cluster"},
    {"store": "relaxed.gpu", "before": "cta"},
    {"load": "relaxed.gpu", "after": "cluster"},
    {"store": "volatile", "load": "volatile"},
]


@pytest.mark.parametrize("config", ORDERED, ids=str)
def test_release_and_acquire_order_clusters(config: dict[str, str]) -> None:
    verdict = _check("publish_by_flag", 2, **config)
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("config", UNORDERED, ids=str)
def test_weaker_operations_do_not_order_clusters(config: dict[str, str]) -> None:
    verdict = _check("publish_by_flag", 2, **config)
    assert {finding.rule.id for finding in verdict.findings} == {"grid-race"}, str(verdict)
    assert ["x[0] = 5", "y[0] = x[0]"] in [sorted(found) for found in _lines(verdict)]


@pytest.mark.parametrize("fenced", ["writer", "reader"])
def test_a_proxy_fence_works_before_or_after_the_flag(fenced: str) -> None:
    verdict = _check("load_in_other_cta", 2, fenced=fenced)
    assert verdict.kind == "clean", str(verdict)
    for missing in ({"fenced": ""}, {"fenced": fenced, "space": "shared::cta"}):
        verdict = _check("load_in_other_cta", 2, **missing)
        assert {finding.rule.id for finding in verdict.findings} == {"proxy-fence"}, str(verdict)
        assert _lines(verdict) == [["x[row * COLUMNS + tid.x] = tid.x.to(f32)", "tma.load(tile, y[0, 0], full)"]]


def test_a_weak_flag_is_a_race() -> None:
    verdict = _check("publish_by_flag", 2, store="", load="")
    assert ["st(flag, 1, **_how(store))", "Break(when=ld(pointer, **how) == value)"] in _lines(verdict)


def test_the_last_cta_needs_fence_and_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clusters run in turns on one core, with or without fences, so which CTA is last is known."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(schedule, "ThreadPoolExecutor", None)
    assert _check("last_block", 4).kind == "clean"
    for missing in ({"fenced": False}, {"together": False}):
        verdict = _check("last_block", 4, **missing)
        assert {finding.rule.id for finding in verdict.findings} == {"grid-race"}, str(verdict)
        assert ["x[ctaid.x * 64 + tid.x] = tid.x", "total.set(total + x[each * 64 + tid.x])"] in _lines(verdict)


def test_a_grid_barrier_needs_both_fences() -> None:
    assert _check("grid_barrier", 4).kind == "clean"
    for missing in ({"before": False}, {"after": False}):
        verdict = _check("grid_barrier", 4, **missing)
        assert {finding.rule.id for finding in verdict.findings} == {"grid-race"}, str(verdict)


def _check_dependent(kernel: Any, args: list[Any], argument: Any, off: tuple[str, ...] = (), **config: bool) -> Verdict:
    return check(kernel.configure(**config), grid=2, args=args, depends_on=[argument], off=off)


@pytest.mark.parametrize("missing", ["first", "synced"])
def test_griddepcontrol_wait_orders_an_earlier_launch(missing: str) -> None:
    kernel, args = global_kernels.dependent_launch, [_words(64), _words(64)]
    off = ("grid-race",)  # both CTAs write y
    assert _check_dependent(kernel, args, args[0], off).kind == "clean"
    verdict = _check_dependent(kernel, args, args[0], off, **{missing: False})
    assert {finding.rule.id for finding in verdict.findings} == {"grid-dependency"}
    assert _lines(verdict) == [["y[tid.x] = x[tid.x]"]]
    assert verdict.findings[0].message == "an earlier launch may still be writing it"
    assert (
        _check_dependent(kernel, args, args[1], off, **{missing: False}).findings[0].steps[0].opcode == "st.global.u32"
    )
    assert _check_dependent(kernel, args, args[0], ("grid-dependency", *off), **{missing: False}).kind == "clean"


@pytest.mark.parametrize("by_number", [False, True])
def test_griddepcontrol_wait_orders_tensor_copies(by_number: bool) -> None:
    map, _ = _box(ROWS)
    kernel, args = global_kernels.dependent_copy, [map, np.zeros(32, np.float32)]
    argument, off = 0 if by_number else map.array, ("grid-race",)
    assert _check_dependent(kernel, args, argument, off).kind == "clean"
    assert _lines(_check_dependent(kernel, args, argument, off, first=False)) == [["tma.load(tile, x[0, 0], full)"]]


def test_check_refuses_depends_on_without_an_argument() -> None:
    with pytest.raises(
        UsageError, match=r"^given depends_on with 2; expected an array of args or memory, or its number from 0$"
    ):
        _check_dependent(global_kernels.dependent_launch, [_words(64), _words(64)], 2)


def test_add_slices_waits_for_the_gemm() -> None:
    """`add_slices` as shipped; without its griddepcontrol.wait the loads of the slices come too early."""
    m, n = 8, 64
    parts, d = np.ones((2, m, n), np.float32), np.zeros((m, n), np.float32)
    entry, shape, args = prepare_launch(
        add_slices.configure(out=f32), sum_grid(m, n), None, None, _slice_args(parts, d)
    )
    verdict = check(entry, args=args, depends_on=[0], **shape)
    assert verdict.findings == (), str(verdict)
    text = ptx.to_text(entry.module).replace("griddepcontrol.wait;", "")
    verdict = check(load_ptx(text)[entry.name], args=args, depends_on=[0], **shape)
    assert {finding.rule.id for finding in verdict.findings} == {"grid-dependency"}
    assert all(finding.steps[0].opcode.startswith("ld.") for finding in verdict.findings)


def _slice_args(parts: Any, d: Any) -> list[Any]:
    (m, n), none = d.shape, 0
    return [parts, d, m, n, n, m * n, n, n, none, none, none, 1.0]
