"""The default Blackwell GEMM on one page, example 09: level 10's instructions, numbers, verdict and time."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.helpers import BF16, SENTINEL, b200, check, normal
from tests.lang.ops.emission import instructions, opcodes
from warpwright.kernels.gemm.sm100 import LEVELS, kernel_of, plan_gemm
from warpwright.layout.tensor_map import TensorMap

PAGE = Path(__file__).parents[4] / "examples" / "09_fast_gemm.py"
KERNEL = runpy.run_path(str(PAGE))["gemm"]
COMPARED = re.compile(r"mbarrier|cp\.async|tcgen05|fence|bar\.|barrier|prefetch|st\.|ld\.shared")


def tiles_of(m: int, n: int, k: int) -> list[int]:
    return [-(-m // 512), -(-n // 256), -(-k // 64)]


def args_of(m: int, n: int, k: int, d: np.ndarray) -> list[object]:
    return [normal(1, m, k), normal(2, n, k), d, *tiles_of(m, n, k)]


def test_the_kernel_has_at_most_130_lines() -> None:
    (function,) = (
        node
        for node in ast.parse(PAGE.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "gemm"
    )
    assert function.end_lineno - function.decorator_list[0].lineno + 1 <= 130


def test_its_copies_mmas_signals_and_waits_are_those_of_level_10() -> None:
    """One for one, in order; only address arithmetic differs."""
    page, level = (
        [code for code in opcodes(instructions(kernel.trace().ptx)) if COMPARED.match(code)]
        for kernel in (KERNEL, kernel_of(LEVELS[10]))
    )
    assert len(page) > 200 and page == level


@pytest.mark.parametrize(
    ("shape", "grid"), [((1, 8, 8), 2), ((129, 264, 72), 4), ((1290, 704, 328), 4), ((520, 264, 1000), 2)]
)
def test_numbers(shape: tuple[int, int, int], grid: int) -> None:
    m, n, k = shape
    a, b = normal(1, m, k), normal(2, n, k)
    d = np.full((m + 300, n), SENTINEL, BF16)
    ww.launch(KERNEL, grid, args=[a, b, d[:m], *tiles_of(*shape)], device=b200(grid))
    check(d, a, b)
    assert (d[m:].astype(np.float32) == SENTINEL).all()


def test_its_verdict_is_clean() -> None:
    """Three tiles of one pair of CTAs, and more k-blocks in each than the ring has stages."""
    m, n, k = 1030, 200, 456
    verdict = ww.check(KERNEL, 2, args=args_of(m, n, k, np.zeros((m, n), BF16)), device=b200(2))
    assert verdict.kind == "clean", str(verdict)


def test_its_predicted_time_is_that_of_level_10() -> None:
    size = 2048
    a, b, d = (np.zeros((size, size), BF16) for _ in range(3))
    page = ww.profile(KERNEL, 64, args=[a, b, d, *tiles_of(size, size, size)])
    found = plan_gemm(LEVELS[10], size, size, size)
    maps = [TensorMap(x, box, swizzle=128, l2_promotion=256) for x, box in ((a, found.a_box), (b, found.b_box))]
    target = TensorMap(d, found.d_box, swizzle=found.d_swizzle)
    level = ww.profile(kernel_of(LEVELS[10]), found.grid, args=[*maps, target, *found.scalars])
    assert page.time_us < 1.005 * level.time_us
