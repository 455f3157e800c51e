"""All-gather and GEMM on virtual nodes: right against float64, clean, and without a synchronisation found."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright.kernels.gemm.sm90 import CONFIGS
from warpwright.kernels.gemm.sm90.all_gather import all_gather_gemm, kernel_of

TILE_M, TILE_N, TILE_K = 128, 256, 64
BF16 = np.dtype(ml_dtypes.bfloat16)
HALF_ULP = 2.0**-8  # of the largest value


def _problem(ranks: int, rows: int, columns: int, k: int) -> tuple[list[Any], list[Any]]:
    """Returns the arguments for ``rows`` of each rank, and the results in float64."""
    random = np.random.default_rng(ranks)
    a = [random.standard_normal((rows, k)).astype(BF16) for _ in range(ranks)]
    b = [random.standard_normal((columns, k)).astype(BF16) for _ in range(ranks)]
    gathered = [np.full((ranks, rows, k), np.nan, BF16) for _ in range(ranks)]
    d = [np.full((ranks, rows, columns), np.nan, BF16) for _ in range(ranks)]
    tiles_m, tiles_n, tiles_k = -(-rows // TILE_M), -(-columns // TILE_N), -(-k // TILE_K)
    arrived = [np.zeros(ranks * tiles_m, np.uint32) for _ in range(ranks)]
    args = [*map(ww.PerRank, (a, gathered, arrived, b, d)), tiles_m, tiles_n, tiles_k, 1, 1]
    whole = np.stack(a).astype(np.float64)
    return args, [whole @ each.astype(np.float64).T for each in b]


@pytest.mark.parametrize(("ranks", "ctas"), [(2, 4), (4, 2)])
def test_every_rank_multiplies_the_rows_of_all(ranks: int, ctas: int) -> None:
    args, expected = _problem(ranks, 2 * TILE_M - 24, TILE_N - 40, 2 * TILE_K + 24)
    ww.launch(all_gather_gemm, ctas, args=args, device=f"h200x{ranks}")
    for d, wanted in zip(args[4].values, expected, strict=True):
        assert np.abs(d.astype(np.float64) - wanted).max() <= HALF_ULP * np.abs(wanted).max()


@pytest.mark.parametrize(("config", "major"), [("128x256", "k"), ("128x128", "mn")])
def test_rows_that_copies_have_sent(config: str, major: str) -> None:
    """Three chunks of two rows of tiles: the last has one row, and ends outside the rows of a rank."""
    args, expected = _problem(2, 5 * TILE_M - 24, TILE_N, TILE_K)
    a, gathered, arrived, b, d = (each.values for each in args[:5])
    for rank in range(2):
        gathered[rank][1 - rank] = a[1 - rank]
        arrived[rank].reshape(2, -1)[1 - rank, :3] = args[7]
    if major == "mn":
        args[3] = ww.PerRank([np.ascontiguousarray(each.T) for each in b])
    tiles_n = -(-TILE_N // CONFIGS[config].tile[1])
    args[6:] = tiles_n, args[7], 2, 3
    ww.launch(kernel_of(CONFIGS[config], False).configure(major=major), 4, args=args, device="h200x2")
    for found, wanted in zip(d, expected, strict=True):
        assert np.abs(found.astype(np.float64) - wanted).max() <= HALF_ULP * np.abs(wanted).max()


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_checks_find_nothing(ranks: int) -> None:
    args, _ = _problem(ranks, TILE_M, TILE_N, 2 * TILE_K)
    verdict = ww.check(all_gather_gemm, 2, args=args, device=f"h200x{ranks}")
    assert verdict.kind == "clean", str(verdict)


# What is removed from the PTX, and the rule that finds it.
REMOVALS = {
    "the scope of the release": (r"red\.release\.sys", "red.release.gpu", "peer-race"),
    "the release": (r"red\.release\.sys", "red.relaxed.sys", "peer-race"),
    "the scope of the acquire": (r"ld\.acquire\.sys", "ld.acquire.gpu", "peer-race"),
    "the acquire": (r"ld\.acquire\.sys", "ld.relaxed.sys", "peer-race"),
    "the wait for the stores": (
        r"(cp\.async\.bulk\.wait_group) 0;(.*\n.*\n.*mov.u32 .*, 1;)",
        r"\1.read 0;\2",
        "peer-race",
    ),
}


@pytest.mark.parametrize("name", REMOVALS)
def test_a_synchronisation_that_is_missing_is_found(name: str) -> None:
    pattern, replacement, rule = REMOVALS[name]
    traced = all_gather_gemm.trace()
    text, count = re.subn(pattern, replacement, traced.ptx)
    assert count
    args, _ = _problem(2, TILE_M, TILE_N, TILE_K)
    for number, (parameter, _) in enumerate(traced.params):
        if parameter in traced.maps:
            use = traced.maps[parameter]
            maps = [ww.TensorMap(array, use.box, swizzle=use.swizzle) for array in args[number].values]
            args[number] = ww.PerRank(maps)
    kernel = ww.load_ptx(text)["all_gather_gemm"]
    verdict = ww.check(kernel, 2, smem=traced.smem_bytes, args=args, device="h200x2")
    assert rule in {finding.rule.id for finding in verdict.findings}, str(verdict)
