"""Mistakes of real kernels are found, with the lines that clash; the mended kernel is clean."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.races import published
from warpwright.check import check
from warpwright.vgpu.checks.findings import Verdict

WORDS = np.zeros(64, np.uint32)
BOX = np.zeros((32, 32), np.float32)
LONG = np.ones((32, 256), np.float32)
WIDE = np.ones((64, 512)).astype(ml_dtypes.bfloat16)
TALL, SQUARE = (np.ones((rows, 64)).astype(ml_dtypes.bfloat16) for rows in (128, 64))
PRODUCT = [np.zeros((128, 64), np.float32)]

# kernel: arguments, CTAs, rule, what the lines of the two steps contain (of a deadlock or a fault, its message)
CASES: dict[str, tuple[Any, ...]] = {
    "late_fence": ([BOX], 1, "proxy-fence", "st(tile.at(warp.lane, column + warp.id)", "tma.store"),
    "others_group": ([BOX], 1, "race", "tma.store", "st(tile.at(warp.lane, warp.id)"),
    "multicast_early": ([LONG], 2, "race", "tma.load(tile, x[0, COLUMNS]", "ld(tile.at(warp.lane, 0)"),
    "lonely_multicast": ([BOX], 2, "deadlock", "full: phase 0 lacks 4,096 bytes"),
    "early_release": ([WIDE, WIDE, 6], 1, "race", "wgmma.mma(", "tma.load(slot."),
    "one_phase": ([LONG, 4], 1, "deadlock", "empty: phase 4 lacks 32 of 32 arrivals"),
    "single_stage": ([LONG, 4], 1, "race", "ld(tile.at", "tma.load"),
    "expected_twice": ([BOX], 1, "deadlock", "full: phase 0 lacks 4,096 bytes"),
    "all_arrive": ([WORDS], 1, "deadlock", "ready: phase 31 was ended by kernel"),
    "initialised_again": ([WORDS], 1, "mbarrier-live", "ready.init()", "ready.init()"),
    "overwritten": ([WORDS], 1, "mbarrier-live", "ready.init()", "scratch[0] = 7"),
    "arrives_twice": ([WORDS], 1, "race", "held[warp.lane] = warp.lane", "x[warp.lane] = held[warp.lane]"),
    "half_a_barrier": ([WORDS], 1, "deadlock", "barrier 0 (32 of 64 threads have arrived)"),
    "unwaited": ([BOX], 1, "race", "tma.load", "ld(tile.at"),
    "early_reuse": ([TALL, SQUARE, 3], 1, "race", "tcgen05.ld(acc)", "tcgen05.mma("),
    "odd_pair": ([BOX, 1], 2, "deadlock", "1 of 2 arrivals"),
}
TENSOR: dict[str, tuple[Any, ...]] = {
    "fenced": ("proxy-fence", "st(at, 0x3F803F80)", "tcgen05.mma("),
    "committed": ("race", "tcgen05.mma(", "tcgen05.ld(acc)"),
    "met": ("race", "tcgen05.ld(acc)", "tmem.dealloc()"),
    "accumulates": ("product-lost", "tcgen05.mma(", "tcgen05.mma("),
    "loaded": ("tmem-registers", "tcgen05.ld(acc)", "st(d + tid.x * 64"),
    "opened": ("race", "tmem.alloc()", "tmem.open()"),
}


def _checked(name: str, args: list[Any], grid: int, off: tuple[str, ...] = (), **config: bool) -> Verdict:
    return check(getattr(published, name).configure(**config), grid=grid, args=args, off=off)


def _lines(verdict: Verdict, rule: str) -> list[tuple[str, ...]]:
    """The kernel's text at the lines of each finding of a rule."""
    source = inspect.getsource(published).splitlines()
    found = [finding for finding in verdict.findings if finding.rule.id == rule]
    return [tuple(source[int(step.where.rsplit(":", 1)[1]) - 1].strip() for step in each.steps) for each in found]


def _names(verdict: Verdict, rule: str, expected: tuple[str, ...]) -> bool:
    """Whether a finding of the rule has the expected lines, or message."""
    if rule in ("deadlock", "fault"):
        return any(f.rule.id == rule and expected[0] in f.message for f in verdict.findings)
    return any(all(part in text for text, part in zip(found, expected, strict=True)) for found in _lines(verdict, rule))


@pytest.mark.parametrize("name", CASES)
def test_a_published_mistake_is_found(name: str) -> None:
    args, grid, rule, *expected = CASES[name]
    verdict = _checked(name, args, grid, right=False)
    assert _names(verdict, rule, tuple(expected)), str(verdict)


@pytest.mark.parametrize("name", CASES)
def test_the_mended_kernel_is_clean(name: str) -> None:
    args, grid, *_ = CASES[name]
    verdict = _checked(name, args, grid, right=True)
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("missing", TENSOR)
def test_a_mistake_with_tensor_memory_is_found(missing: str) -> None:
    rule, *expected = TENSOR[missing]
    verdict = _checked("tensor_core", PRODUCT, 1, **{missing: False})
    assert _names(verdict, rule, tuple(expected)), str(verdict)


def test_the_product_with_nothing_missing_is_clean() -> None:
    verdict = _checked("tensor_core", PRODUCT, 1)
    assert verdict.kind == "clean", str(verdict)


def test_what_only_looks_wrong_is_clean() -> None:
    verdict = _checked("traps", [BOX, BOX.copy()], 1)
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("name", CASES)
def test_a_published_mistake_needs_its_rule(name: str) -> None:
    args, grid, rule, *expected = CASES[name]
    if rule not in ("deadlock", "fault"):
        assert not _names(_checked(name, args, grid, off=(rule,), right=False), rule, tuple(expected))
