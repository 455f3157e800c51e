"""FP8 attention on Hopper: ptxas on every configuration, and numbers on the virtual H200."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.kernels.attention.fp8_helpers import (
    BAR,
    E4M3,
    random_inputs,
    relative_error,
    rounded_attention,
    run_attention,
    scaled,
    verify,
)
from tests.samples import sampled
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm90.fp8 import kernel_of
from warpwright.kernels.attention.sm90.fp8_plan import CONFIGS, Fp8Config
from warpwright.ptx.ptxas import assemble

SMEM_LIMIT = 232_448
BOUNDS = [(False, False), (False, True), (True, True)]
ONE = Fp8Config(64, (64, 32), run=2)
WIDE = Fp8Config(128, (128, 64), run=2)
TURN = Fp8Config(64, (192, 32), q_stages=1, in_turn=True)
SHAPES = [
    (ONE, Problem(1, 1, 1, 1, 1, 64, dtype=E4M3)),
    (ONE, Problem(1, 2, 1, 63, 65, 48, dtype=E4M3, causal=True)),
    (ONE, Problem(2, 4, 2, 70, 300, 64, dtype=E4M3, window=(100, 20))),
    (TURN, Problem(1, 2, 1, 129, 127, 64, dtype=E4M3, causal=True)),
    (WIDE, Problem(2, 2, 1, 130, 333, 128, dtype=E4M3)),
    (WIDE, Problem(1, 3, 1, 300, 200, 112, dtype=E4M3, causal=True)),
]


@sampled(("name", "bounds"), [*product(CONFIGS, BOUNDS)], every=5)
def test_no_spills_and_no_serialised_wgmma_in_any_configuration(name: str, bounds: tuple[bool, bool]) -> None:
    traced = kernel_of(CONFIGS[name]).trace(bounds=bounds)
    result = assemble(traced.ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search(r"C75\d\d|warning", result.log)
    assert traced.smem_bytes <= min(CONFIGS[name].smem_bytes, SMEM_LIMIT)


@sampled(("config", "problem"), SHAPES, every=2)
def test_agrees_with_float64(config: Fp8Config, problem: Problem) -> None:
    given, scales = random_inputs(problem)
    verify(problem, given, scales, run_attention(problem, config, given, scales))


def test_float16_output_and_no_scales() -> None:
    problem = Problem(1, 1, 1, 64, 64, 64, dtype=E4M3)
    given, scales = random_inputs(problem)
    found = run_attention(problem, ONE, given, (0, 0, 0), out=np.dtype(np.float16))
    assert found[0].dtype == np.float16
    verify(problem, given, tuple(np.ones_like(scale) for scale in scales), found)


@pytest.mark.parametrize(("mean", "bar"), [(0.0, BAR), (1.0, None)])
def test_the_tensor_cores_14_bits_do_not_add_up(mean: float, bar: float | None) -> None:
    """Over many keys a sum of 14 bits loses what is below its last bit: with values of one sign, everywhere."""
    problem = Problem(1, 1, 1, 64, 4096, 64, dtype=E4M3)
    given, scales = random_inputs(problem)
    given = *given[:2], (given[2].astype(np.float32) + mean).astype(E4M3)
    q, k, v = scaled(given, scales)
    exact, config = reference.attention(problem, q, k, v)[0], Fp8Config(64, (64, 128))
    found = run_attention(problem, config, given, scales, numerics="hardware")[0]
    if bar is not None:
        assert relative_error(found, exact) <= bar * relative_error(rounded_attention(problem, q, k, v), exact)
        return
    never = run_attention(problem, replace(config, run=64), given, scales, numerics="hardware")[0]
    assert relative_error(found, exact) < 0.01 < 0.03 < relative_error(never, exact)


def test_rows_whose_max_grows_keep_their_earlier_sums() -> None:
    """The largest scores are in the block that is computed last, so sums in shared memory and in O are rescaled."""
    problem = Problem(1, 1, 1, 64, 320, 64, dtype=E4M3, scale=1.0)
    given, scales = random_inputs(problem)
    k = (given[1].astype(np.float32) * np.linspace(1.0, 0.1, 320)[:, None]).astype(E4M3)
    given = given[0], k, given[2]
    verify(problem, given, scales, run_attention(problem, ONE, given, scales))
