"""GEMM and all-reduce on virtual nodes: right against float64, clean, and without a synchronisation found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.sm90.node_helpers import AllReduce, check_text, random_arrays, weaken
from tests.samples import sampled
from warpwright.kernels.gemm.sm90.all_reduce import gemm_all_reduce
from warpwright.kernels.gemm.sm90.reduce_scatter import ALONE
from warpwright.lang import Global, Peers, bar, f32, kernel, ld, loop, tid, tma, u32, u64
from warpwright.types import Scalar

SMALL = replace(ALONE, tile=(128, 128), stages=2)  # two calls fit in shared memory
HALF_ULP = 2.0**-8


@pytest.mark.parametrize(("ranks", "ctas"), [(2, 3), (4, 1)])
def test_every_rank_has_the_sums_of_all_rows_call_after_call(ranks: int, ctas: int) -> None:
    problem = AllReduce(ranks, 64 + 24, 256 + 40, 64 + 24, SMALL)
    for call in range(2):
        for a, d in zip(problem.a, problem.d, strict=True):
            a[...] = random_arrays(1, a.shape, seed=call)[0]
            d.fill(np.nan)
        ww.launch(gemm_all_reduce.configure(config=SMALL), ctas, args=problem.args, device=f"h200x{ranks}")
        assert problem.errors(problem.sums(), HALF_ULP, 0.0) <= 1.0


def test_the_checks_find_nothing() -> None:
    problem = AllReduce(3, 128, 256, 128, SMALL)
    verdict = ww.check(gemm_all_reduce.configure(config=SMALL), 2, args=problem.args, device="h200x3")
    assert verdict.kind == "clean", str(verdict)


@kernel("sm_90a", threads=384)
def read_after(
    a: tma.Map[Scalar], b: tma.Map[Scalar], d: tma.PeerMaps[Scalar], partials: Peers[Scalar], arrived: Peers[u32],
    begun: Peers[u32], calls: Global[u32], stored: Peers[u32], report: Global[u32], limit_ns: u64, tiles_m: u32,
    tiles_n: u32, tiles_k: u32, scale_a: u64, scale_b: u64, alpha: f32, rows: Global[Scalar],
) -> None:  # fmt: skip
    """A call, and loads of D after it on the same rank, in one launch of one CTA a rank."""
    gemm_all_reduce.function(
        a, b, d, partials, arrived, begun, calls, stored, report, limit_ns, tiles_m, tiles_n, tiles_k, scale_a, scale_b,
        alpha, config=SMALL,
    )  # fmt: skip
    bar.sync()
    for tile in loop(d.ranks):
        ld(rows.cast(u32) + (tile * (128 * 128 // 2) + tid.x))


def _args(ranks: int) -> list[Any]:
    problem = AllReduce(ranks, 128, 128, 64, SMALL)
    return [*problem.args, ww.PerRank(problem.d)]


def test_loads_after_a_call_are_ordered() -> None:
    verdict = ww.check(read_after, 1, args=_args(3), device="h200x3")
    assert not verdict.findings, str(verdict)


# What is weakened in the PTX: which match of how many, a pattern and its replacement.
EDITS: dict[str, tuple[int, int, tuple[str, str]]] = {
    "the scope of the release": (2, 3, (r"st\.release\.sys", "st.release.gpu")),
    "the release": (2, 3, (r"st\.release\.sys", "st.relaxed.sys")),
    "the scope of the acquire": (2, 3, (r"ld\.acquire\.sys", "ld.acquire.gpu")),
    "the acquire": (2, 3, (r"ld\.acquire\.sys", "ld.relaxed.sys")),
    "the wait for the flag": (2, 3, (r"(ld\.acquire\.sys.*\n +setp\.eq\.u32 %p\d+), .*;", r"\1, 0, 0;")),
    "the wait for the stores": (0, 1, (r"(cp\.async\.bulk\.wait_group) 0;", r"\1.read 0;")),
}


@sampled("name", list(EDITS), every=3)
def test_a_synchronisation_that_is_missing_is_found(name: str) -> None:
    number, each, edit = EDITS[name]
    traced: Any = read_after.trace()
    verdict = check_text(traced, weaken(traced.ptx, edit, number, each), 1, _args(2), "h200x2")
    assert "peer-race" in {finding.rule.id for finding in verdict.findings}, str(verdict)
