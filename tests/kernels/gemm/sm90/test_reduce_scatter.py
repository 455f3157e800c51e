"""GEMM and reduce-scatter on virtual nodes: right against float64, clean, and without a synchronisation found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.sm90.node_helpers import BF16, FP8, Reduce, check_text, random_arrays, weaken
from tests.samples import sampled
from warpwright.kernels.gemm.sm90.configs import CONFIGS
from warpwright.kernels.gemm.sm90.reduce_scatter import ALONE, gemm_reduce_scatter
from warpwright.lang import Global, Peers, bar, bf16, e4m3, f16, f32, kernel, tma, u32, u64
from warpwright.types import Scalar

SMALL = replace(ALONE, tile=(128, 128), stages=2)  # two calls fit in shared memory
BF16_ERROR, F16_ERROR = 2.0**-8, 2.0**-11


CASES = {
    "2 ranks": (2, 3, {}, BF16, np.float32, BF16_ERROR, 0.0),
    "3 ranks, bf16 partials": (3, 2, {"partial": bf16}, BF16, BF16, BF16_ERROR, BF16_ERROR),
    "4 ranks, fp16": (4, 1, {"dtype": f16, "out": f16, "partial": f16}, np.float16, np.float16, F16_ERROR, F16_ERROR),
}


@pytest.mark.parametrize("name", CASES)
def test_every_rank_has_the_sums_of_its_rows_call_after_call(name: str) -> None:
    ranks, ctas, options, dtype, partial, d_error, partial_error = CASES[name]
    problem = Reduce(ranks, 128 + 24, 256 + 40, 64 + 24, dtype=dtype, partial=partial)
    for call in range(2):
        for a, d in zip(problem.a, problem.d, strict=True):
            a[...] = random_arrays(1, a.shape, dtype, seed=call)[0]
            d.fill(np.nan)
        ww.launch(gemm_reduce_scatter.configure(**options), ctas, args=problem.args, device=f"h200x{ranks}")
        assert problem.errors(problem.sums(), d_error, partial_error) <= 1.0


def test_eight_ranks() -> None:
    problem = Reduce(8, 128, 128, 64, SMALL)
    ww.launch(gemm_reduce_scatter.configure(config=SMALL), 1, args=problem.args, device="h200x8")
    assert problem.errors(problem.sums(), BF16_ERROR, 0.0) <= 1.0


def test_fp8_sums_have_the_scales_of_their_rank() -> None:
    config = replace(CONFIGS["fp8 128x256"], share=(1, 1))
    problem = Reduce(2, 128, 256, 256, config, FP8)
    scales = [np.array([factor], np.float32) for factor in (0.5, 3.0)], [np.array([0.25], np.float32)] * 2
    problem.args[-3:] = *map(ww.PerRank, scales), 2.0
    ww.launch(gemm_reduce_scatter.configure(config=config, dtype=e4m3), 1, args=problem.args, device="h200x2")
    sums = problem.sums() * np.array([0.5, 3.0]).reshape(2, 1, 1, 1) * 0.25 * 2.0
    assert problem.errors(sums, BF16_ERROR, 0.0) <= 1.0


def test_sums_are_added_in_the_order_of_ranks_downward() -> None:
    """One product a sum is not zero, so the sums of a rank are exact, and their order decides the result."""
    problem, parts = Reduce(4, 128, 128, 64, SMALL, partial=np.float32), (2.0**24, 1.0, -(2.0**24), 3.0)
    for a, b, part in zip(problem.a, problem.b, parts, strict=True):
        a[...], b[...] = 0, 0
        a[..., 0], b[..., 0] = part, 1
    ww.launch(gemm_reduce_scatter.configure(config=SMALL), 1, args=problem.args, device="h200x4")
    for owner, d in enumerate(problem.d):
        total = np.float32(0)
        for step in range(4):
            total += np.float32(parts[(owner - step) % 4])
        assert (d == np.float32(total).astype(BF16)).all()


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_checks_find_nothing(ranks: int) -> None:
    problem = Reduce(ranks, 256, 128, 128, SMALL)
    verdict = ww.check(gemm_reduce_scatter.configure(config=SMALL), 2, args=problem.args, device=f"h200x{ranks}")
    assert verdict.kind == "clean", str(verdict)


@kernel("sm_90a", threads=384)
def two_calls(
    a: tma.Map[Scalar], b: tma.Map[Scalar], d: tma.Map[Scalar], partials: Peers[Scalar], arrived: Peers[u32],
    begun: Peers[u32], calls: Global[u32], report: Global[u32], limit_ns: u64, tiles_m: u32, tiles_n: u32, tiles_k: u32,
    scale_a: u64, scale_b: u64, alpha: f32,
) -> None:  # fmt: skip
    """Two calls in one launch of one CTA a rank: the second begins on a rank when the first has ended there."""
    for _ in range(2):
        gemm_reduce_scatter.function(
            a, b, d, partials, arrived, begun, calls, report, limit_ns, tiles_m, tiles_n, tiles_k, scale_a, scale_b,
            alpha, config=SMALL,
        )  # fmt: skip
        tma.wait_group(0)  # the end of a launch
        bar.sync()


def test_a_call_after_another_is_clean() -> None:
    verdict = ww.check(two_calls, 1, args=Reduce(3, 128, 128, 64, SMALL).args, device="h200x3")
    assert not verdict.findings, str(verdict)


# How a flag is weakened: what is replaced in the PTX.
FLAGS = ("begun", "arrived")
EDITS = {
    "the scope of the release": (r"st\.release\.sys", "st.release.gpu"),
    "the release": (r"st\.release\.sys", "st.relaxed.sys"),
    "the scope of the acquire": (r"ld\.acquire\.sys", "ld.acquire.gpu"),
    "the acquire": (r"ld\.acquire\.sys", "ld.relaxed.sys"),
    "the wait": (r"(ld\.acquire\.sys.*\n +setp\.eq\.u32 %p\d+), .*;", r"\1, 0, 0;"),
}


@sampled(("name", "flag"), [(name, flag) for name in EDITS for flag in FLAGS], every=3)
def test_a_weaker_flag_is_found(name: str, flag: str) -> None:
    traced = two_calls.trace()
    text = weaken(traced.ptx, EDITS[name], FLAGS.index(flag), len(FLAGS))
    verdict = check_text(traced, text, 1, Reduce(2, 128, 128, 64, SMALL).args, "h200x2")
    assert {"peer-race", "deadlock"} & {finding.rule.id for finding in verdict.findings}, str(verdict)
