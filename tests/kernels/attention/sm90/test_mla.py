"""The Hopper decoding of multi-head latent attention: ptxas, numbers on the virtual H200, and verdicts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.mla_helpers import (
    fill_rows,
    latent_problem,
    mla_launches,
    on_few_sms,
    run_mla,
    verify_mla,
)
from tests.kernels.helpers import without
from tests.samples import sampled
from warpwright.kernels.attention.problem import LATENT_VALUES
from warpwright.kernels.attention.sm90.mla import combine_of, kernel_of
from warpwright.kernels.attention.sm90.mla_plan import CONFIG, MlaConfig, plan
from warpwright.lang import f16
from warpwright.ptx.ptxas import assemble
from warpwright.run.launch import load_ptx

KERNELS = {
    "one query": kernel_of(CONFIG),
    "queries in pages": kernel_of(replace(CONFIG, places=4)).configure(causal=True, size=16),
    "queries, float16": kernel_of(replace(CONFIG, places=64)).configure(causal=True, size=256, dtype=f16),
    "whole rows": kernel_of(replace(CONFIG, places=2)).configure(causal=True, size=0),
    "combine": combine_of(replace(CONFIG, places=4)).configure(causal=True, size=16),
    "combine by tile": combine_of(CONFIG).configure(by_tile=True, size=0),
}


@sampled("name", KERNELS, keep=["queries in pages"])
def test_no_spills_and_no_serialised_wgmma(name: str) -> None:
    result = assemble(KERNELS[name].trace("sm_90a").ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search(r"C75\d\d|warning", result.log)


def test_shared_memory() -> None:
    traced = KERNELS["one query"].trace("sm_90a")
    assert traced.smem_bytes == CONFIG.smem_bytes <= 227 * 1024


@sampled(
    ("problem", "size", "lengths", "sms"),
    [
        (latent_problem(3, 16, 1, 300), 64, [300, 0, 77], 5),
        (latent_problem(2, 128, 1, 200), 0, [200, 33], 3),
        (latent_problem(3, 24, 4, 300, causal=True), 16, [289, 33, 3], 4),
        (latent_problem(2, 16, 2, 150, causal=True, dtype=np.float16), 48, [150, 64], 2),
        (latent_problem(1, 20, 3, 700), 256, [700], 7),
        (latent_problem(40, 1, 1, 70), 32, [i * 3 % 70 for i in range(40)], 6),
        (latent_problem(1, 2, 40, 128, causal=True), 0, [128], 2),
    ],
    every=3,
)
def test_agrees_with_float64(problem: Any, size: int, lengths: list[int], sms: int) -> None:
    """Rows without a key are NaN, and unused numbers of pages far outside; so is the result before the call."""
    given = fill_rows(problem, size, lengths)
    verify_mla(problem, given, run_mla(problem, given, size, sms))


def test_great_scores_and_growing_ones() -> None:
    """Row maxima that grow from block to block by far more than a weight can express, and single keys that decide."""
    problem = latent_problem(1, 17, 1, 260)
    given = fill_rows(problem, 0, [260], growth=8)
    steps = np.linspace(3, 0.1, 260)[:, None]  # the first keys, which come last, have the greatest scores
    given.k[0, :, 0] = (given.k[0, :, 0].astype(np.float64) * steps).astype(given.k.dtype)
    verify_mla(problem, given, run_mla(problem, given, 0, 1))


def test_the_same_bits_however_many_ctas_share_a_tile() -> None:
    """Only the parts are combined in another order of sums, so results differ by rounding at most."""
    problem = latent_problem(1, 16, 1, 600)
    given = fill_rows(problem, 64, [600])
    one, many = (run_mla(problem, given, 64, sms)[0].astype(np.float64) for sms in (1, 6))
    assert np.abs(one - many).max() < 0.01
    assert np.array_equal(many, run_mla(problem, given, 64, 6)[0].astype(np.float64))


def test_rows_without_lengths_and_strides_in_place() -> None:
    """Latent rows as a slice of a wider array, each sequence a whole number of rows from the next."""
    problem = latent_problem(2, 16, 1, 96)
    given = fill_rows(problem, 0, [96, 96])
    wide = np.full((2, 112, 640), np.nan, given.k.dtype)
    wide[:, :96, :576] = given.k[:, :, 0]
    out, lse = ww.attention_mla(
        given.q, wide[:, :96, :576], scale=problem.factor, device=on_few_sms(2), return_lse=True
    )
    verify_mla(problem, given, (out, lse))


def test_who_combines() -> None:
    """Tiles if they are fewer than cuts between shares; no second launch if every CTA has whole tiles."""
    long, many = latent_problem(1, 128, 1, 32768), latent_problem(64, 128, 1, 4096)
    assert (plan(long, sms=132).combine_grid, plan(long, sms=132).by_tile) == ((2, 64, 1), True)
    assert (plan(many, sms=132).combine_grid, plan(many, sms=132).by_tile) == ((127, 10, 1), False)
    assert plan(many, sms=132, equal=True).combine_grid is None


CHECKED = latent_problem(3, 24, 4, 290, causal=True)


@sampled(("size", "sms"), [(16, 3), (0, 7)], keep=[(16, 3)])
def test_the_verdict_is_clean(size: int, sms: int) -> None:
    given = fill_rows(CHECKED, size, [289, 33, 4])
    planned, results = mla_launches(CHECKED, given, size, sms)
    assert len(planned) == 2
    for number, (kernel, grid, args, space) in enumerate(planned):
        verdict = ww.check(kernel, grid, args=args, device="h200", depends_on=[space] if number else [])
        assert verdict.kind == "clean", verdict
        ww.launch(kernel, grid, args=args, device="h200")
    verify_mla(CHECKED, given, results)


@pytest.mark.parametrize("change", [without(r"fence\.proxy\.async", 4), without(r"wgmma\.wait_group", 6)])
def test_missing_synchronisation_is_found(change: Any) -> None:
    given = fill_rows(CHECKED, 16, [289, 33, 4])
    (kernel, grid, args, _), _ = mla_launches(CHECKED, given, 16, 3)[0]
    traced = kernel.trace("sm_90a")
    entry = load_ptx(change(traced.ptx))[traced.entry]
    verdict = ww.check(entry, grid, smem=traced.smem_bytes, args=args, device="h200")
    assert verdict.kind == "findings"


def test_other_configurations_compute_the_same() -> None:
    """Blocks of 64 keys, and Q in shared memory alone."""
    given = fill_rows(CHECKED, 16, [289, 33, 4])
    for config in (MlaConfig(keys=64, stages=2, weight_stages=1), MlaConfig(q_steps=0)):
        planned, (out, lse) = mla_launches(CHECKED, given, 16, 3, config)
        for kernel, grid, args, _ in planned:
            ww.launch(kernel, grid, args=args, device="h200")
        verify_mla(CHECKED, given, (out, lse))
        assert out.shape[-1] == LATENT_VALUES
