"""Global memory in the verdict: what nothing orders is found, with the right lines; what is ordered is clean."""

from __future__ import annotations

import inspect
import os
from typing import Any

import numpy as np
import pytest

from tests.races import global_kernels
from warpwright import ptx
from warpwright.errors import UsageError
from warpwright.kernels.gemm.sm90.slices import add_slices, sum_grid
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
    """A tensor of some rows and its memory."""
    tensor = np.zeros((rows, COLUMNS), np.float32)
    return TensorMap(tensor, (ROWS, COLUMNS)), tensor.reshape(-1)


def _args(name: str) -> list[Any]:
    map, memory = _box(4 * ROWS)
    return {
        "neighbours": [_words(64), _words(64)],
        "kept": [_words(64), _words(64)],
        "pair": [_words(64), _words(64)],
        "same_place": [_words(128)],
        "parts": [_words(256)],
        "counted": [_words(1)],
        "told": [_words(1), _words(1), _words(1)],
        "last_block": [_words(256), _words(64), _words(1)],
        "grid_barrier": [_words(256), _words(256), _words(1)],
        "locked": [_words(1), _words(1)],
        "boxes": [map],
        "sums": [map],
        "sums_of_both": [map, memory],
        "stored": [map, memory, np.zeros(1, np.float32)],
        "written": [map, memory],
        "replaced": [map, memory],
        "copied": [_words(64)],
        "relayed": [_words(1), _words(1), _words(2)],
        "tickets": [_words(4), _words(4), _words(1)],
        "loaded_by_another": [map, memory, _words(1)],
        "lanes_copy": [_words(32)],
    }[name]


# kernel: CTAs, rule, what the lines of the two steps contain
CASES = {
    "neighbours": (1, "race", "x[tid.x] = tid.x", "y[tid.x] = x[63 - tid.x]"),
    "kept": (1, "read-only", "x[tid.x] = tid.x", "nc=not right"),
    "pair": (2, "race", "= tid.x", "= x[(ctaid.x ^ 1)"),
    "same_place": (2, "grid-race", "= ctaid.x", "= ctaid.x"),
    "parts": (2, "grid-race", "st(x + tid.x * 4", "= 7"),
    "counted": (2, "grid-race", "x[0] = x[0] + 1", "red.add(x, 1)"),
    "locked": (3, "grid-race", "x[0] = x[0] + 1", "x[0] = x[0] + 1"),
    "boxes": (2, "grid-race", "tma.store", "tma.store"),
    "sums": (2, "grid-race", "tma.store", "tma.reduce"),
    "sums_of_both": (2, "grid-race", "tma.reduce", "red.add"),
    "stored": (1, "race", "tma.store", "z[0] = x[0]"),
    "written": (1, "proxy-fence", "x[row * COLUMNS + tid.x] =", "tma.load"),
    "replaced": (1, "race", "tma.load", "x[tid.x] = 1.0"),
    "copied": (2, "grid-race", "tma.copy", "tma.copy"),
    "relayed": (3, "grid-race", "x[0] = 5", "y[0] = x[0]"),
    "tickets": (4, "grid-race", "x[ctaid.x] = ctaid.x", "y[each] = x[each]"),
    "lanes_copy": (1, "race", "cp_async.copy", "x[31 - tid.x] = 1"),
}


def _checked(name: str, grid: int, off: tuple[str, ...] = (), **config: Any) -> Verdict:
    return check(getattr(global_kernels, name).configure(**config), grid=grid, args=_args(name), off=off)


def _lines(verdict: Verdict) -> list[list[str]]:
    """The kernel's text at the lines of each finding."""
    source = inspect.getsource(global_kernels).splitlines()
    return [
        [source[int(step.where.rsplit(":", 1)[1]) - 1].strip() for step in finding.steps]
        for finding in verdict.findings
    ]


@pytest.mark.parametrize("name", CASES)
def test_what_nothing_orders_is_found(name: str) -> None:
    grid, rule, first, second = CASES[name]
    verdict = _checked(name, grid, right=False)
    assert {finding.rule.id for finding in verdict.findings} == {rule}, str(verdict)
    assert any(first in a and second in b for a, b in _lines(verdict)), str(verdict)


@pytest.mark.parametrize("name", CASES)
def test_the_right_kernel_is_clean(name: str) -> None:
    verdict = _checked(name, CASES[name][0], right=True)
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_that_is_off_misses_its_bug(name: str) -> None:
    grid, rule, *_ = CASES[name]
    assert _checked(name, grid, off=(rule,), right=False).kind == "clean"


ORDERED = [
    {},
    {"store": "release.sys", "load": "acquire.sys"},
    {"store": "relaxed.gpu", "before": "gpu"},
    {"store": "volatile", "before": "gpu"},
    {"load": "relaxed.gpu", "behind": "gpu"},
    {"load": "volatile", "behind": "sys"},
    {"store": "relaxed.gpu", "before": "gpu", "load": "volatile", "behind": "gpu"},
]
UNORDERED = [
    {"store": "relaxed.gpu"},
    {"load": "relaxed.gpu"},
    {"store": "release.cta"},
    {"load": "acquire.cta"},
    {"store": "release.cluster", "load": "acquire.cluster"},
    {"store": "relaxed.gpu", "before": "cta"},
    {"load": "relaxed.gpu", "behind": "cluster"},
    {"store": "volatile", "load": "volatile"},
]


@pytest.mark.parametrize("config", ORDERED, ids=str)
def test_a_release_that_is_acquired_orders_clusters(config: dict[str, str]) -> None:
    verdict = _checked("told", 2, **config)
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("config", UNORDERED, ids=str)
def test_what_is_no_release_or_no_acquire_does_not(config: dict[str, str]) -> None:
    verdict = _checked("told", 2, **config)
    assert {finding.rule.id for finding in verdict.findings} == {"grid-race"}, str(verdict)
    assert ["x[0] = 5", "y[0] = x[0]"] in [sorted(found) for found in _lines(verdict)]


@pytest.mark.parametrize("fenced", ["writer", "reader"])
def test_a_proxy_fence_stands_on_either_side_of_a_release(fenced: str) -> None:
    verdict = _checked("loaded_by_another", 2, fenced=fenced)
    assert verdict.kind == "clean", str(verdict)
    for missing in ({"fenced": ""}, {"fenced": fenced, "space": "shared::cta"}):
        verdict = _checked("loaded_by_another", 2, **missing)
        assert {finding.rule.id for finding in verdict.findings} == {"proxy-fence"}, str(verdict)
        assert _lines(verdict) == [["x[row * COLUMNS + tid.x] = tid.x.to(f32)", "tma.load(tile, y[0, 0], full)"]]


def test_a_weak_flag_is_a_race_itself() -> None:
    verdict = _checked("told", 2, store="", load="")
    assert ["Break(when=ld(pointer, **how) == value)", "st(flag, 1, **_how(store))"] in _lines(verdict)


def test_the_last_block_of_the_cuda_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one is last is known, for clusters run by turns, fenced or not: no second core is asked for."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(schedule, "ThreadPoolExecutor", None)
    assert _checked("last_block", 4).kind == "clean"
    for missing in ({"fenced": False}, {"together": False}):
        verdict = _checked("last_block", 4, **missing)
        assert {finding.rule.id for finding in verdict.findings} == {"grid-race"}, str(verdict)
        assert ["x[ctaid.x * 64 + tid.x] = tid.x", "total.set(total + x[each * 64 + tid.x])"] in _lines(verdict)


def test_a_barrier_of_the_grid() -> None:
    assert _checked("grid_barrier", 4).kind == "clean"
    for missing in ({"before": False}, {"behind": False}):
        verdict = _checked("grid_barrier", 4, **missing)
        assert {finding.rule.id for finding in verdict.findings} == {"grid-race"}, str(verdict)


def _dependent(kernel: Any, args: list[Any], given: Any, off: tuple[str, ...] = (), **config: bool) -> Verdict:
    return check(kernel.configure(**config), grid=2, args=args, depends_on=[given], off=off)


@pytest.mark.parametrize("missing", ["first", "met"])
def test_what_an_earlier_launch_writes_is_there_behind_griddepcontrol_wait(missing: str) -> None:
    kernel, args = global_kernels.dependent, [_words(64), _words(64)]
    off = ("grid-race",)  # both CTAs write y
    assert _dependent(kernel, args, args[0], off).kind == "clean"
    verdict = _dependent(kernel, args, args[0], off, **{missing: False})
    assert {finding.rule.id for finding in verdict.findings} == {"grid-dependency"}
    assert _lines(verdict) == [["y[tid.x] = x[tid.x]"]]
    assert verdict.findings[0].message == "an earlier launch may still be writing it"
    assert _dependent(kernel, args, args[1], off, **{missing: False}).findings[0].steps[0].opcode == "st.global.u32"
    assert _dependent(kernel, args, args[0], ("grid-dependency", *off), **{missing: False}).kind == "clean"


@pytest.mark.parametrize("by_number", [False, True])
def test_tensor_copies_depend_on_earlier_launches_too(by_number: bool) -> None:
    map, _ = _box(ROWS)
    kernel, args = global_kernels.dependent_copy, [map, np.zeros(32, np.float32)]
    given, off = 0 if by_number else map.array, ("grid-race",)
    assert _dependent(kernel, args, given, off).kind == "clean"
    assert _lines(_dependent(kernel, args, given, off, first=False)) == [["tma.load(tile, x[0, 0], full)"]]


def test_what_is_no_argument_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^given depends_on with 2; expected an array of args, or its number from 0$"):
        _dependent(global_kernels.dependent, [_words(64), _words(64)], 2)


def test_the_second_launch_of_a_product_in_slices_waits_for_the_first() -> None:
    """`add_slices` as shipped; without its griddepcontrol.wait the loads of the slices come too early."""
    m, n = 8, 64
    parts, d = np.ones((2, m, n), np.float32), np.zeros((m, n), np.float32)
    entry, shape, args = prepare_launch(add_slices.configure(out=f32), sum_grid(m, n), None, None, _slices(parts, d))
    verdict = check(entry, args=args, depends_on=[0], **shape)
    assert verdict.findings == (), str(verdict)
    text = ptx.to_text(entry.module).replace("griddepcontrol.wait;", "")
    verdict = check(load_ptx(text)[entry.name], args=args, depends_on=[0], **shape)
    assert {finding.rule.id for finding in verdict.findings} == {"grid-dependency"}
    assert all(finding.steps[0].opcode.startswith("ld.") for finding in verdict.findings)


def _slices(parts: Any, d: Any) -> list[Any]:
    (m, n), none = d.shape, 0
    return [parts, d, m, n, n, n, n, none, none, none, 1.0]
