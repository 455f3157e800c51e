"""All-gather and GEMM on virtual nodes: right against float64, clean, and without a synchronisation found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.gemm.sm90.node_helpers import Gather, check_text, random_arrays, weaken
from tests.samples import sampled
from warpwright.kernels.gemm.sm90 import CONFIGS
from warpwright.kernels.gemm.sm90.all_gather import SENDING, all_gather_gemm, kernel_of
from warpwright.lang import Global, Peers, bar, kernel, tma, u32, u64
from warpwright.types import Scalar

TILE_M, TILE_K = 128, 64
SMALL = replace(SENDING, tile=(TILE_M, 128), stages=2, share=(1, 1))  # two calls fit in shared memory
HALF_ULP = 2.0**-8  # of the largest value


@pytest.mark.parametrize(("ranks", "ctas"), [(2, 4), (4, 2)])
def test_every_rank_multiplies_the_rows_of_all_call_after_call(ranks: int, ctas: int) -> None:
    problem = Gather(ranks, 2 * TILE_M - 24, 256 - 40, 2 * TILE_K + 24)
    for call in range(2):
        for a, d in zip(problem.a, problem.d, strict=True):
            a[...] = random_arrays(1, a.shape, seed=call)[0]
            d.fill(np.nan)
        ww.launch(all_gather_gemm, ctas, args=problem.args, device=f"h200x{ranks}")
        assert problem.error() <= HALF_ULP


@pytest.mark.parametrize(("name", "major"), [("128x256", "k"), ("128x128", "mn")])
def test_rows_that_copies_have_sent(name: str, major: str) -> None:
    """Three chunks of two rows of tiles: the last has one row, and ends outside the rows of a rank."""
    config = CONFIGS[name]
    problem = Gather(2, 5 * TILE_M - 24, 256, TILE_K, config, chunk=2, group=3)
    args, tiles_k = problem.args, problem.args[11]
    for rank in range(2):
        args[1].values[rank][1 - rank] = problem.a[1 - rank]
        args[2].values[rank].reshape(2, -1)[1 - rank, :3] = tiles_k
    if major == "mn":
        args[7] = ww.PerRank([np.ascontiguousarray(b.T) for b in problem.b])
    ww.launch(kernel_of(config, False).configure(major=major), 4, args=args, device="h200x2")
    assert problem.error() <= HALF_ULP


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_checks_find_nothing(ranks: int) -> None:
    verdict = ww.check(all_gather_gemm, 2, args=Gather(ranks, TILE_M, 512, 2 * TILE_K).args, device=f"h200x{ranks}")
    assert verdict.kind == "clean", str(verdict)


@kernel("sm_90a", threads=384)
def two_calls(
    a: tma.Map[Scalar], gathered: tma.PeerMaps[Scalar], arrived: Peers[u32], begun: Peers[u32], calls: Global[u32],
    report: Global[u32], limit_ns: u64, b: tma.Map[Scalar], d: tma.Map[Scalar], tiles_m: u32, tiles_n: u32,
    tiles_k: u32, chunk: u32, group: u32,
) -> None:  # fmt: skip
    """Two calls in one launch of one CTA a rank: the second begins on a rank when the first has ended there."""
    for _ in range(2):
        counts = tiles_m, tiles_n, tiles_k, chunk, group
        all_gather_gemm.function(a, gathered, arrived, begun, calls, report, limit_ns, b, d, *counts, config=SMALL)
        bar.sync()


def test_a_call_after_another_is_clean() -> None:
    verdict = ww.check(two_calls, 1, args=Gather(3, TILE_M, 128, TILE_K, SMALL).args, device="h200x3")
    assert not verdict.findings, str(verdict)


# What is weakened in the PTX: which match of how many a call, a pattern and its replacement.
WAIT = (r"(ld\.acquire\.sys.*\n +setp\.eq\.u32 %p\d+), .*;", r"\1, 0, 0;")
EDITS: dict[str, tuple[int, int, tuple[str, str]]] = {
    "the scope of the release of a beginning": (0, 1, (r"st\.release\.sys", "st.release.gpu")),
    "the release of a beginning": (0, 1, (r"st\.release\.sys", "st.relaxed.sys")),
    "the scope of the release of an arrival": (0, 1, (r"red\.release\.sys", "red.release.gpu")),
    "the release of an arrival": (0, 1, (r"red\.release\.sys", "red.relaxed.sys")),
    "the scope of the acquire of an arrival": (0, 2, (r"ld\.acquire\.sys", "ld.acquire.gpu")),
    "the acquire of an arrival": (0, 2, (r"ld\.acquire\.sys", "ld.relaxed.sys")),
    "the wait for an arrival": (0, 2, WAIT),
    "the scope of the acquire of a beginning": (1, 2, (r"ld\.acquire\.sys", "ld.acquire.gpu")),
    "the acquire of a beginning": (1, 2, (r"ld\.acquire\.sys", "ld.relaxed.sys")),
    "the wait for a beginning": (1, 2, WAIT),
    "the wait for the stores": (
        0,
        1,
        (r"(cp\.async\.bulk\.wait_group) 0;(.*\n.*\n.*mov.u32 .*, 1;)", r"\1.read 0;\2"),
    ),
}


@sampled("name", list(EDITS), every=3)
def test_a_synchronisation_that_is_missing_is_found(name: str) -> None:
    number, each, edit = EDITS[name]
    traced: Any = two_calls.trace()
    args = Gather(2, TILE_M, 128, TILE_K, SMALL).args
    verdict = check_text(traced, weaken(traced.ptx, edit, number, each), 1, args, "h200x2")
    assert {"peer-race", "deadlock"} & {finding.rule.id for finding in verdict.findings}, str(verdict)
