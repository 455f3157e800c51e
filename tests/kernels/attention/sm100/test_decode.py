"""The tcgen05 attention for few queries on the virtual B200: numbers against float64, the verdict, ptxas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import warpwright as ww
from tests.kernels.attention.attention_helpers import normal_qkv, verify
from tests.kernels.attention.decode_helpers import launches
from tests.samples import sampled
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm100.decode import kernel_of
from warpwright.kernels.attention.sm100.decode_plan import CONFIGS, DecodeConfig, plan, suits
from warpwright.ptx.ptxas import assemble

ONE = Problem(1, 6, 3, 1, 1000, 64)  # three tiles of eight blocks


def run_decode(problem: Problem, given: Any, sms: int, ctas: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    config = plan(problem, sms=sms, ctas=ctas).config
    _, planned, results = launches(problem, given, sms, config, ctas, kernel_of)
    for kernel, grid, args in planned:
        ww.launch(kernel, grid, args=args, device="b200")
    return results


@sampled("head_dim", CONFIGS, every=2)
def test_no_spills_in_any_configuration(head_dim: int) -> None:
    """With every option that adds code."""
    config = replace(CONFIGS[head_dim], places=4)
    traced = kernel_of(config).trace(bounds=(True, True))
    result = assemble(traced.ptx, "sm_100a", "-v")
    assert result.errors == {}
    assert "0 bytes spill stores, 0 bytes spill loads" in result.log
    assert traced.smem_bytes <= config.smem_bytes <= 227 * 1024


@sampled(
    ("problem", "sms"),
    [
        (Problem(1, 1, 1, 1, 1, 64), 3),
        (Problem(1, 130, 1, 1, 200, 40), 5),
        (Problem(1, 12, 2, 3, 1000, 64, causal=True, window=(200, 0)), 5),
        (Problem(1, 6, 2, 9, 300, 96, dtype=np.float16, window=(None, 3), scale=0.3), 6),
        (Problem(2, 8, 2, 1, 2050, 128, causal=True), 7),
        (Problem(3, 5, 1, 1, 130, 256), 4),
        (Problem(1, 4, 2, 4, 3, 64, causal=True), 2),
    ],
    every=3,
)
def test_agrees_with_float64(problem: Problem, sms: int) -> None:
    given = normal_qkv(problem)
    verify(problem, given, run_decode(problem, given, sms))


@sampled("ctas", [1, 2, 5, 7, 16, 24], every=2)
def test_any_number_of_ctas(ctas: int) -> None:
    """Whole tiles and parts of one block and more; shares that begin or end with less than a block."""
    given = normal_qkv(ONE)
    verify(ONE, given, run_decode(ONE, given, 24, ctas=ctas))


def test_large_logits_and_growing_ones() -> None:
    """Scores of thousands, the largest in the first part, so that O is rescaled."""
    problem = replace(ONE, scale=1.0)
    q, k, v = normal_qkv(problem)
    k = (k.astype(np.float32) * np.linspace(60, 1, 1000)[:, None]).astype(problem.dtype)
    given = (q * 8).astype(problem.dtype), k, v
    verify(problem, given, run_decode(problem, given, sms=7))


def test_the_verdict_is_clean() -> None:
    """Parts of tiles that CTAs hand over; a block is masked for some queries only."""
    problem = Problem(1, 24, 4, 4, 1282, 64, causal=True, window=(900, None), scale=1.0)
    q, k, v = normal_qkv(problem)
    _, planned, _ = launches(problem, (4 * q, k, v), 3, plan(problem, sms=3).config, None, kernel_of)
    ((kernel, grid, args),) = planned
    verdict = ww.check(kernel, grid, args=args, device="b200")
    assert verdict.kind == "clean", verdict


def test_plans() -> None:
    problem = Problem(8, 32, 8, 1, 4096, 128, causal=True)
    found = plan(problem, sms=148)
    assert found.config == DecodeConfig(128, 128, 4, 1, last=True) and found.bounds == (False, False)
    assert (found.tiles, found.grid, found.combine_grid) == (64, (148, 1, 1), None)
    assert suits(problem, sms=148) and suits(replace(problem, q_len=32), sms=148)
    assert not suits(replace(problem, q_len=33), sms=148)
