"""FP8 attention on Hopper: ptxas on every configuration, and numbers on the virtual H200."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import SENTINEL
from tests.kernels.attention.fp8_helpers import (
    BAR,
    E4M3,
    POWER,
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
from warpwright.kernels.attention.sm90.fp8_steps import FIRST, OCTAVES, power, power_bits
from warpwright.lang import Global, cvt, f32, kernel, tid, u32
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


@sampled(("name", "bounds", "wants_lse"), [*product(CONFIGS, BOUNDS, (True, False))], every=5)
def test_no_spills_and_no_serialised_wgmma_in_any_configuration(
    name: str, bounds: tuple[bool, bool], wants_lse: bool
) -> None:
    traced = kernel_of(CONFIGS[name]).trace(bounds=bounds, wants_lse=wants_lse)
    result = assemble(traced.ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search(r"C75\d\d|warning", result.log)
    assert traced.smem_bytes <= min(CONFIGS[name].smem_bytes, SMEM_LIMIT)


@sampled(("shape", "wants_lse"), [*product(SHAPES, (True, False))], every=3)
def test_agrees_with_float64(shape: tuple[Fp8Config, Problem], wants_lse: bool) -> None:
    config, problem = shape
    given, scales = random_inputs(problem)
    verify(problem, given, scales, run_attention(problem, config, given, scales, wants_lse=wants_lse))


def test_float16_output_and_no_scales() -> None:
    problem = Problem(1, 1, 1, 64, 64, 64, dtype=E4M3)
    given, scales = random_inputs(problem)
    found = run_attention(problem, ONE, given, (0, 0, 0), out=np.dtype(np.float16))
    assert found[0].dtype == np.float16
    verify(problem, given, tuple(np.ones_like(scale) for scale in scales), found)


@pytest.mark.parametrize(("mean", "most"), [(0.0, None), (1.0, 0.004)])
def test_the_tensor_cores_14_bits_do_not_add_up(mean: float, most: float | None) -> None:
    """Over many keys a sum of 14 bits loses what is below its last bit, row sums most of all: all weights are positive.
    With values of one sign both the row sum and O lose it, and most of the error cancels."""
    problem = Problem(1, 1, 1, 64, 4096, 64, dtype=E4M3)
    given, scales = random_inputs(problem)
    given = *given[:2], (given[2].astype(np.float32) + mean).astype(E4M3)
    q, k, v = scaled(given, scales)
    exact, config = reference.attention(problem, q, k, v)[0], Fp8Config(64, (64, 128))
    bar = most or BAR * relative_error(rounded_attention(problem, q, k, v), exact)
    found, never = (
        relative_error(run_attention(problem, each, given, scales, numerics="hardware")[0], exact)
        for each in (config, replace(config, run=64))
    )
    assert found <= bar < never


def test_where_the_log_sum_exp_is_wanted_all_exponentials_are_by_ex2() -> None:
    """Without it those of rows 8 to 15 of each 16 are by the FMA units: other rows have the same bits."""
    problem = Problem(1, 2, 1, 70, 300, 64, dtype=E4M3, causal=True)
    given, scales = random_inputs(problem)
    (o, lse), (alone, untouched) = (
        run_attention(problem, ONE, given, scales, wants_lse=wants_lse) for wants_lse in (True, False)
    )
    by_ex2 = np.arange(70) % 16 < 8
    assert np.array_equal(o[:, :, by_ex2], alone[:, :, by_ex2])
    assert not np.array_equal(o[:, :, ~by_ex2], alone[:, :, ~by_ex2])
    assert (lse != SENTINEL).all()
    assert (untouched == SENTINEL).all()


@kernel("sm_90a", threads=32)
def powers(x: Global[f32], out: Global[u32]) -> None:
    """Write the powers of 64 numbers x by the FMA units, as f16."""
    bits = [power_bits(x[2 * tid.x + half], cvt(1 / OCTAVES, f32), cvt(FIRST, f32)) for half in (0, 1)]
    out[tid.x] = power(*bits).bitcast(u32)


def test_powers_by_the_fma_units_have_the_stated_error() -> None:
    """Between 2^-9 and 2^8, the least and the largest weight; what is lower than all f16 is 0 in e4m3."""
    x = np.concatenate([np.random.default_rng(0).uniform(-9, 8, 58), [-9, 0, 8, -20, -1000, -np.inf]]).astype(
        np.float32
    )
    out = np.full(64, np.nan, np.float16)
    ww.launch(powers, 1, args=[x, out.view(np.uint32)], device="h200")
    error = out[:61] / np.exp2(x[:61].astype(np.float64)) - 1
    assert POWER / 2 < np.abs(error).max() <= POWER
    assert np.sqrt(np.square(error).mean()) < 0.005
    assert (out[61:].astype(E4M3) == 0).all()


@pytest.mark.parametrize("keys", [300, 20])  # ten blocks, one block
@pytest.mark.parametrize("wants_lse", [True, False])
def test_nan_in_a_query_reaches_its_row_and_no_other(wants_lse: bool, keys: int) -> None:
    problem = Problem(1, 2, 1, 70, keys, 64, dtype=E4M3)
    given, scales = random_inputs(problem)
    q = given[0].copy()
    for row in (5, 13):  # one of those by ex2, one by the FMA units
        q[0, 1, row, 3] = np.nan
    o, _ = run_attention(problem, ONE, (q, *given[1:]), scales, wants_lse=wants_lse)
    assert [*np.argwhere(np.isnan(o).all(-1)).tolist()] == [[0, 1, 5], [0, 1, 13]]
    assert np.isnan(o).any(-1).sum() == 2


@pytest.mark.parametrize("wants_lse", [True, False])
def test_nan_in_a_key_reaches_the_rows_that_see_it_and_no_others(wants_lse: bool) -> None:
    problem = Problem(1, 2, 1, 70, 70, 64, dtype=E4M3, causal=True)
    (q, k, v), scales = random_inputs(problem)
    k[0, 0, 40, 3] = np.nan
    o, _ = run_attention(problem, ONE, (q, k, v), scales, wants_lse=wants_lse)
    assert np.array_equal(np.isnan(o).all(-1), np.broadcast_to(np.arange(70) >= 40, (1, 2, 70)))
    assert np.array_equal(np.isnan(o).any(-1), np.isnan(o).all(-1))


def test_pv_in_two_parts_has_the_same_bits() -> None:
    problem = Problem(1, 2, 1, 70, 300, 128, dtype=E4M3, causal=True)
    given, scales = random_inputs(problem)
    whole, parts = (run_attention(problem, each, given, scales) for each in (WIDE, replace(WIDE, splits=True)))
    assert all(np.array_equal(*pair) for pair in zip(whole, parts, strict=True))


def test_rows_whose_max_grows_keep_their_earlier_sums() -> None:
    """The largest scores are in the block that is computed last, so sums in shared memory and in O are rescaled."""
    problem = Problem(1, 1, 1, 64, 320, 64, dtype=E4M3, scale=1.0)
    given, scales = random_inputs(problem)
    k = (given[1].astype(np.float32) * np.linspace(1.0, 0.1, 320)[:, None]).astype(E4M3)
    given = given[0], k, given[2]
    for wants_lse in (True, False):
        verify(problem, given, scales, run_attention(problem, ONE, given, scales, wants_lse=wants_lse))
